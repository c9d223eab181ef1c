"""Ratings and events: readers, models, solvers, Recommender, answers without torch."""
