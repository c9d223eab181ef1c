"""The demo: the same ratings, once with full tables, once with anchored ones."""

import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from antembed.files import JSON
from antembed.recommend.config import RatingsConfig
from antembed.recommend.dataset import cut
from antembed.recommend.synthetic import planted, ratings
from antembed.train.options import from_options
from antembed.train.run import train
from antembed.train.run_folder import RunFolder
from antembed.train.solver import Callback

RATINGS, NOISE = 300_000, 0.3
WARM_UP = 2000  # ratings
COMMON: JSON = {"data": "synthetic", "batch_size": 512, "schedule": "cosine", "biases": False}
RUNS: dict[str, JSON] = {
    "full": {"embedding": "full", "epochs": 12, "lr": 0.07},
    "anchor": {"anchors": 12, "l1_penalty": 2e-5, "epochs": 20, "lr": 0.05},
}
Bar = Callable[[str, int, int, str], AbstractContextManager[Callback]]


def compare(out: Path | None, seed: int, bar: Bar) -> dict[str, JSON]:
    """4 000 users and 2 000 items, each a mix of 2 of the same 6 tastes; 300 000 noisy ratings. → results by embedding."""
    users = planted(4000, anchors=6, exponent=0.5, seed=seed)
    items = planted(2000, exponent=0.8, seed=seed + 1, like=users)
    data = ratings(users, items, RATINGS, noise=NOISE, seed=seed + 2)
    results = {}
    with tempfile.TemporaryDirectory() as temporary:
        warm_up(Path(temporary), seed)
        for name, options in RUNS.items():
            config = from_options(RatingsConfig, COMMON | options | {"seed": seed})
            splits = cut(data, config.input.split, seed)
            folder = RunFolder((out or Path(temporary)) / name)
            with bar(name, config.solver.epochs, len(splits.train), "MSE") as callback:
                results[name] = train(config, folder.path, splits=splits, overwrite=True, callback=callback) | {
                    "noise": NOISE**2
                }
            # ℓ1 leaves weights that hardly count; what the log counts is there before they are pruned.
            results[name]["nnz_before_pruning"] = sum(folder.rows()[-1]["nnz"].values())
    return results


def warm_up(scratch: Path, seed: int) -> None:
    """Train every contestant on a few ratings: compilation is nobody's training time."""
    users, items = planted(40, anchors=6, seed=seed), planted(20, anchors=6, seed=seed + 1)
    data = ratings(users, items, WARM_UP, noise=NOISE, seed=seed)
    for name, options in RUNS.items():
        config = from_options(RatingsConfig, COMMON | options | {"seed": seed, "epochs": 1})
        train(config, scratch / f"warm-up-{name}", splits=cut(data, config.input.split, seed))
