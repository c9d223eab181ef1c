"""Compiled inner loops. Each has a plain twin in torch that the tests compare it with; nothing of ours is imported here."""
