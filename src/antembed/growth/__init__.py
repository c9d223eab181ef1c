"""More or fewer anchors: the objective that decides it and its prior, the policies, and the resizing itself."""
