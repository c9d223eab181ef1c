"""The small file of vectors: encodings, look-up, neighbours, exports. NumPy alone; never torch."""
