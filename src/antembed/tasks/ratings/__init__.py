"""Users, items and ratings."""
