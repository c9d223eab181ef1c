"""Which objects become anchors, the initial T and A, and penalties on T that use relations between objects."""
