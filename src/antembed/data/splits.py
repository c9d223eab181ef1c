"""Which examples are for training, for choosing (validation) and for the one look at the end (test)."""

import numpy as np

from antembed.data.batches import permutation

# name → shares of train, validation, test
PROTOCOLS = {
    "honest": (0.8, 0.1, 0.1),
    "paper": (
        0.9,
        0.0,
        0.1,
    ),  # as the published MovieLens numbers were made: no validation, the last epoch counts
}


def split(n: int, protocol: str, seed: int) -> dict[str, np.ndarray]:
    """A seeded shuffle of 0…n−1 cut into `train`, `validation` (maybe empty) and `test`."""
    if protocol not in PROTOCOLS:
        raise ValueError(f"unknown protocol {protocol!r}; there are: {', '.join(PROTOCOLS)}")
    train, validation, _ = PROTOCOLS[protocol]
    order = permutation(n, seed)
    a, b = round(n * train), round(n * (train + validation))
    if a == 0 or b == n or (validation and a == b):
        raise ValueError(f"{n} examples are too few for the protocol {protocol!r}; 10 are enough")
    return {"train": order[:a], "validation": order[a:b], "test": order[b:]}
