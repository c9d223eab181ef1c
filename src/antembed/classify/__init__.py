"""Labelled text: networks, hashed n-grams, TextClassifier, answers without torch."""
