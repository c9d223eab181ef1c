"""Fewer non-zeros in T by ℓ0 instead of ℓ1: train dense, then drop or code anew, a little at a time, between epochs."""

from antembed.sparsify.prune import Prune
from antembed.sparsify.recode import Recode

__all__ = ["Prune", "Recode"]
