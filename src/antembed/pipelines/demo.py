"""The demo: the same ratings, once with full tables, once with anchored ones."""

import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from antembed.data.synthetic import planted, ratings
from antembed.pipelines.recommend import train
from antembed.pipelines.settings import Settings
from antembed.training import RunFolder, Tick

RATINGS, NOISE = 300_000, 0.3
Bar = Callable[[str, int, int], AbstractContextManager[Callable[[Tick], None]]]


def compare(out: Path | None, seed: int, bar: Bar) -> dict[str, dict[str, Any]]:
    """4 000 users and 2 000 items, each a mix of 2 of the same 6 tastes; 300 000 noisy ratings. → results by embedding."""
    users = planted(4000, anchors=6, exponent=0.5, seed=seed)
    items = planted(2000, exponent=0.8, seed=seed + 1, like=users)
    data = ratings(users, items, RATINGS, noise=NOISE, seed=seed + 2)
    common: dict[str, Any] = {"data": "synthetic", "batch_size": 512, "schedule": "cosine", "biases": False, "seed": seed}
    plans = {
        "full": Settings(embedding="full", epochs=12, lr=0.07, **common),
        "anchor": Settings(embedding="anchor", anchors=(12, 12), l1=2e-5, epochs=20, lr=0.05, **common),
    }
    results = {}
    with tempfile.TemporaryDirectory() as temporary:
        for name, settings in plans.items():
            with bar(name, settings.epochs, round(0.8 * len(data))) as tell:
                folder = (out or Path(temporary)) / name
                RunFolder(folder).remove()
                results[name] = train(settings, folder, ratings=data, tell=tell) | {"noise": NOISE**2}
    return results
