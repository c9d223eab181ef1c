"""Labelled text."""
