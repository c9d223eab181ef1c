"""Ratings with planted structure for tables of any size: each object's vector is computed from its id, nothing is stored."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from antembed.native.compile import compiled
from antembed.native.random_bits import mix_bits, uniform


@compiled
def _popular(draw: float, V: int, exponent: float) -> int:
    """The rank of one of V objects, with popularity ∝ (rank + 1)^−exponent: the inverse of the continuous distribution."""
    power = 1.0 - exponent
    return min(int((1.0 + draw * ((V + 1.0) ** power - 1.0)) ** (1.0 / power) - 1.0), V - 1)


@compiled
def _scattered(rank: int, V: int) -> int:
    """Scatter popular objects over memory: multiply by a number that has no factor in common with V."""
    return (rank * 2654435761) % V


@compiled
def _anchors_of(object_: int, side: int, anchors: int) -> Any:
    """The two anchors of an object and its weights on them, 0.5 to 1.5."""
    bits = mix_bits(np.uint64(object_) * np.uint64(2) + np.uint64(side))
    one = np.int64(bits % np.uint64(anchors))
    two = (one + 1 + np.int64((bits >> np.uint64(8)) % np.uint64(anchors - 1))) % anchors
    return one, two, 0.5 + uniform(mix_bits(bits)), 0.5 + uniform(mix_bits(mix_bits(bits)))


@compiled
def draw_ratings(
    first: int, seed: int, V_users: int, V_items: int, exponents: Any, anchors: int, mean: float, noise: float,
    users: Any, items: Any, values: Any,
) -> None:  # fmt: skip
    """Ratings first, first + 1, … of the stream with this seed: mean + t_u·t_i + noise, each object a mix of two anchors."""
    for p in range(users.shape[0]):
        bits = mix_bits(np.uint64(first + p) ^ mix_bits(np.uint64(seed)))
        u = _scattered(_popular(uniform(bits), V_users, exponents[0]), V_users)
        bits = mix_bits(bits)
        i = _scattered(_popular(uniform(bits), V_items, exponents[1]), V_items)
        u1, u2, x1, x2 = _anchors_of(u, 0, anchors)
        i1, i2, y1, y2 = _anchors_of(i, 1, anchors)
        value = mean
        if u1 == i1:
            value += x1 * y1
        if u1 == i2:
            value += x1 * y2
        if u2 == i1:
            value += x2 * y1
        if u2 == i2:
            value += x2 * y2
        bits = mix_bits(bits)
        radius = np.sqrt(-2.0 * np.log(1.0 - uniform(bits)))
        value += noise * radius * np.cos(6.283185307179586 * uniform(mix_bits(bits)))
        users[p], items[p], values[p] = u, i, value


def stream(
    objects: tuple[int, int],
    n: int,
    *,
    anchors: int = 6,
    exponents: tuple[float, float] = (0.6, 0.9),
    mean: float = 3.5,
    noise: float = 0.5,
    seed: int = 0,
    piece: int = 1 << 22,
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """n ratings of `objects` users and items, piece by piece: planted like `ratings`, at any size, without a table."""
    if anchors < 2 or not all(0 <= exponent < 1 for exponent in exponents):
        raise ValueError(f"anchors must be ≥ 2 and exponents in [0, 1), got {anchors} and {exponents}")
    for first in range(0, n, piece):
        size = min(piece, n - first)
        columns = np.empty(size, np.int32), np.empty(size, np.int32), np.empty(size, np.float32)
        draw_ratings(first, seed, *objects, exponents, anchors, mean, noise, *columns)
        yield columns
