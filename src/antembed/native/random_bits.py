"""Counter-based random numbers: functions of a seed and a counter, so that each can be computed without those before it."""

from typing import Any

import numpy as np

from antembed.native.compile import compiled


@compiled
def mix_bits(x: Any) -> Any:
    """64 random bits from 64 bits (splitmix64)."""
    x = np.uint64(x) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@compiled
def uniform(bits: Any) -> float:
    """64 random bits → a number in [0, 1)."""
    return (bits >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@compiled
def uniform_below(bits: Any, n: int) -> Any:
    """64 random bits → an integer in 0 … n − 1, n < 2³²."""
    return np.int64(((bits >> np.uint64(32)) * np.uint64(n)) >> np.uint64(32))
