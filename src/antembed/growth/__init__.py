"""More or fewer anchors: the objective and its prior, the policies that decide, and the resizing."""
