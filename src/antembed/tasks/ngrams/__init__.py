"""Labelled text, by hashed n-grams."""
