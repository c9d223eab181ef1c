"""Vectors → loss and metric, one file a task."""
