"""Compiled inner loops. Tests compare each with a plain implementation; this package imports no other of antembed."""
