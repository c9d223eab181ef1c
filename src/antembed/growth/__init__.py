"""More or fewer anchors: so far the objective that will decide it, and the prior it comes from."""
