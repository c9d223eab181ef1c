"""The demo: the same ratings, once with full tables, once with anchored ones."""

import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from antembed.data.synthetic import planted, ratings
from antembed.pipelines.recommend import Settings, train
from antembed.training import Tick

RATINGS, NOISE = 300_000, 0.3
Bar = Callable[[str, int, int], AbstractContextManager[Callable[[Tick], None]]]


def compare(out: Path | None, seed: int, bar: Bar) -> dict[str, dict[str, Any]]:
    """4 000 users and 2 000 items, each a mix of 2 of 6 planted anchors; 300 000 noisy ratings. → results by embedding."""
    users = planted(4000, 16, anchors=6, exponent=0.5, seed=seed)
    items = planted(2000, 16, anchors=6, exponent=0.8, seed=seed + 1)
    data = ratings(users, items, RATINGS, noise=NOISE, seed=seed + 2)
    common: dict[str, Any] = {"data": "synthetic", "batch_size": 512, "schedule": "cosine", "seed": seed}
    plans = {
        "full": Settings(embedding="full", epochs=8, lr=0.02, **common),
        "anchor": Settings(embedding="anchor", anchors=(12, 12), epochs=16, lr=0.02, l1=3e-5, **common),
    }
    results = {}
    with tempfile.TemporaryDirectory() as temporary:
        for name, settings in plans.items():
            with bar(name, settings.epochs, round(0.8 * len(data))) as tell:
                folder = (out or Path(temporary)) / name
                results[name] = train(settings, folder, ratings=data, tell=tell) | {"noise": NOISE**2}
    return results
