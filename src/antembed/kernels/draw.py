"""Ratings with planted structure for tables of any size: all about an object follows from its number, nothing is stored."""

from typing import Any

import numpy as np

from antembed.kernels.chance import compiled, mixed, share


@compiled
def _popular(draw: float, V: int, exponent: float) -> int:
    """One of V objects, popularity falling like (rank + 1)^−exponent: the inverse of the continuous distribution."""
    power = 1.0 - exponent
    return min(int((1.0 + draw * ((V + 1.0) ** power - 1.0)) ** (1.0 / power) - 1.0), V - 1)


@compiled
def _scattered(rank: int, V: int) -> int:
    """Popular objects are anywhere in memory: multiply by a number that has no factor in common with V."""
    return (rank * 2654435761) % V


@compiled
def _tastes(object_: int, side: int, anchors: int) -> Any:
    """The two anchors of an object and its weights on them, 0.5 to 1.5."""
    bits = mixed(np.uint64(object_) * np.uint64(2) + np.uint64(side))
    one = np.int64(bits % np.uint64(anchors))
    two = (one + 1 + np.int64((bits >> np.uint64(8)) % np.uint64(anchors - 1))) % anchors
    return one, two, 0.5 + share(mixed(bits)), 0.5 + share(mixed(mixed(bits)))


@compiled
def draw_ratings(
    first: int, seed: int, V_users: int, V_items: int, exponents: Any, anchors: int, mean: float, noise: float,
    users: Any, items: Any, values: Any,
) -> None:  # fmt: skip
    """Ratings first, first + 1, … of the stream with this seed: mean + t_u·t_i + noise, each object a mix of two tastes."""
    for p in range(users.shape[0]):
        bits = mixed(np.uint64(first + p) ^ mixed(np.uint64(seed)))
        u = _scattered(_popular(share(bits), V_users, exponents[0]), V_users)
        bits = mixed(bits)
        i = _scattered(_popular(share(bits), V_items, exponents[1]), V_items)
        u1, u2, x1, x2 = _tastes(u, 0, anchors)
        i1, i2, y1, y2 = _tastes(i, 1, anchors)
        value = mean
        if u1 == i1:
            value += x1 * y1
        if u1 == i2:
            value += x1 * y2
        if u2 == i1:
            value += x2 * y1
        if u2 == i2:
            value += x2 * y2
        bits = mixed(bits)
        radius = np.sqrt(-2.0 * np.log(1.0 - share(bits)))
        value += noise * radius * np.cos(6.283185307179586 * share(mixed(bits)))
        users[p], items[p], values[p] = u, i, value
