"""Fewer non-zeros in T by ℓ0: train dense, then prune or recode a little at a time, between epochs."""
