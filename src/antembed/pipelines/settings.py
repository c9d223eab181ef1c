"""What a run on ratings is told, and the model it starts from."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from antembed.data import SPLITS
from antembed.data.ratings import ON_ERROR
from antembed.embedding import EMBEDDINGS, Embedding
from antembed.growth.policy import POLICIES
from antembed.optim import OPTIMIZERS
from antembed.serving import VALUES
from antembed.tasks.recommend import MatrixFactorization
from antembed.training.budget import parse_budget

LARGE = 5_000_000  # ratings: from here on the paper's settings for MovieLens 25M, below those for 1M
SCHEDULES = ("halving", "cosine", "constant")
ENGINES = ("auto", "fused", "torch")
SOLVERS = ("prox", "cd")
INITS = ("signed", "half-normal", "dense")
SMALLEST_START, LARGEST_START = 0.03, 0.1  # of a prediction without biases (root mean square), before anything is learned
PLENTY = 48  # anchors from which coordinate descent takes those away that do not pay
SAMPLE = 4096  # pairs to measure it by
# Codes need features, scores documents, variational tables a divergence in the loss: ratings have none of it.
TEXT_ONLY = [name for name, table in EMBEDDINGS.items() if table.variational or table.requires & {"tf-idf", "features"}]


@dataclass(frozen=True)
class Settings:
    """All that decides the result. The defaults are the paper's for MovieLens 1M, with biases, a ramp of l1 and pruning."""

    data: str
    columns: tuple[str, ...] | None = None  # user, item, rating, maybe weight
    on_error: str = "stop"  # or "skip": rows that are no ratings
    split: str = "80/10/10"
    embedding: str = "anchor"
    anchors: tuple[int, int] | str = (15, 15)  # users, items; or "auto": as many as eq. 5 says (nbANT)
    growth: str = "plateau"  # auto: the policy, or "trend", the paper's
    lambda1: float = 0.01  # auto: the price of an anchor
    first_anchors: int = 10  # auto: how many to begin with
    anchor_step: int = 1  # trend: how many at a time
    init: str = "signed"  # anchors of both signs; "half-normal", the paper's; "dense": from a full solution (prox)
    dimensions: int = 16
    l1: float = 1e-4
    l1_ramp: float = 0.25  # share of the steps over which l1 rises from 0
    prune: float = 0.1  # weights below this share of the mean contribution are dropped at the end
    keep: int = 0  # at the end, this many non-zeros over both tables, the largest contributions; 0: prune
    alpha: float = 0.3  # mixed: widths fall as popularity to this power
    l2: float = 0.0  # decoupled weight decay of full tables, anchors and biases
    biases: bool = True
    solver: str = "prox"  # or "cd": coordinate descent on the ℓ0 objective; epochs are then sweeps
    budget: str = ""  # "40x", "400k" or "2MB": the price (cd) or l1 (prox) is steered to meet it, and the rest is polished
    polish: float = 0.0  # prox: share of the epochs, the last, with the support of T frozen and no price; with a budget .2
    price: float = 2.0  # cd: a weight stays only if it lowers the summed ½·squared error by more
    price_biases: bool = True  # cd: biases pay it too
    ridge: float = 7.0  # cd: ½·ridge·‖e‖² on every vector e = t·A,
    ridge_each: float = 0.02  # and as much again for each rating of the object
    bias_ridge: float = 6.0
    unseen: float = 0.0  # cd: the weight of every pair there is, as if rated 0: a model of what is chosen
    optimizer: str = "yogi"
    lr: float = 0.01
    schedule: str = "halving"
    halve_every: int = 100_000
    batch_size: int = 32
    epochs: int = 25
    seed: int = 0
    threads: int = 1  # more than two in the fused engine add up in another order
    device: str = "cpu"
    engine: str = "auto"
    values: str = "auto"  # of the files: fp32, with a budget of bytes int8

    def __post_init__(self) -> None:
        if self.values == "auto":
            counted = self.budget and parse_budget(self.budget, 1.0).unit == "bytes"
            object.__setattr__(self, "values", "int8" if counted else "fp32")
        known: dict[str, Collection[str]] = {
            "split": SPLITS,
            "embedding": [name for name in EMBEDDINGS if name not in TEXT_ONLY],
            "optimizer": OPTIMIZERS,
            "schedule": SCHEDULES,
            "engine": ENGINES,
            "values": VALUES,
            "on_error": ON_ERROR,
            "solver": SOLVERS,
            "growth": POLICIES,
            "init": INITS,
        }
        for name, choices in known.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} {getattr(self, name)!r} is none of: {', '.join(choices)}")
        least = {
            "dimensions": 1,
            "batch_size": 1,
            "epochs": 1,
            "halve_every": 1,
            "l1": 0,
            "l2": 0,
            "lr": 0,
            "prune": 0,
            "keep": 0,
            "alpha": 0,
            "l1_ramp": 0,
            "seed": 0,
            "threads": 1,
            "price": 0,
            "ridge": 0,
            "ridge_each": 0,
            "bias_ridge": 0,
            "unseen": 0,
            "first_anchors": 1,
            "anchor_step": 1,
        }
        for name, bound in least.items():
            if not getattr(self, name) >= bound:
                raise ValueError(f"{name} must be ≥ {bound}, got {getattr(self, name)}")
        if self.solver == "cd" and self.embedding not in ("anchor", "full"):
            raise ValueError(f"coordinate descent solves anchor and full tables, not {self.embedding}; use --solver prox")
        if self.keep and self.solver == "cd":
            raise ValueError(f"keep={self.keep} is for --solver prox; coordinate descent keeps what is worth its --price")
        if self.budget:
            self._check_budget()
        if isinstance(self.anchors, str):
            self._check_growth()
        elif min(self.anchors) < 1:
            raise ValueError(f"anchors must be ≥ 1, got {self.anchors}")
        if not 0 <= self.polish < 1:
            raise ValueError(f"polish is a share of the epochs, from 0 to less than 1, got {self.polish}")
        if self.polish and (self.embedding != "anchor" or self.anchors == "auto" or self.solver == "cd"):
            raise ValueError("polishing is for anchored tables with a number of anchors, by --solver prox; leave --polish at 0")
        if self.init == "dense" and self.embedding != "anchor":
            raise ValueError(f"a start from a dense solution is for --embedding anchor, not {self.embedding}")
        if self.l1_ramp > 1:
            raise ValueError(f"l1_ramp is a share of the training, from 0 to 1, got {self.l1_ramp}")
        try:
            torch.zeros(1, device=self.device).item()
        except (RuntimeError, AssertionError) as error:
            raise ValueError(f"device {self.device!r} cannot be used here; leave it at cpu") from error

    def _check_budget(self) -> None:
        if self.embedding != "anchor":
            raise ValueError(f"a budget is for --embedding anchor, not {self.embedding}")
        if self.keep:
            raise ValueError(f"a budget and keep={self.keep} both say how many weights are left; give one of them")
        if self.solver == "prox" and not self.l1 > 0:
            raise ValueError(f"a budget is sought from l1 on, which must be > 0, got {self.l1}")

    def _check_growth(self) -> None:
        if self.anchors != "auto":
            raise ValueError(f"anchors are a number for users and one for items, or auto, not {self.anchors!r}")
        if self.embedding != "anchor":
            raise ValueError(f"anchors auto is for --embedding anchor, not {self.embedding}")
        if self.solver == "cd":
            return
        if self.budget:
            raise ValueError("a budget and anchors auto go together with --solver cd only; say how many anchors")
        if not SPLITS[self.split][1]:
            raise ValueError(f"anchors auto needs validation data, split {self.split} has none; use --split 80/10/10")
        if self.lambda1 < self.l1:
            raise ValueError(f"an anchor costs λ1 − λ2 ≥ 0, but λ1 is {self.lambda1} and λ2 {self.l1}; raise --lambda1")

    @property
    def start(self) -> tuple[int, int]:
        """How many anchors the model is built with."""
        if not isinstance(self.anchors, str):
            return self.anchors
        return (PLENTY, PLENTY) if self.solver == "cd" else (self.first_anchors, self.first_anchors)


def paper_settings(ratings: int) -> dict[str, Any]:
    """What the paper uses for data of this size."""
    large = {"l1": 2e-6, "batch_size": 1024, "halve_every": 200_000, "first_anchors": 20, "anchor_step": 2}
    return large if ratings >= LARGE else {}


def build_model(
    settings: Settings,
    objects: tuple[int, int],
    mean: float = 0.0,
    counts: tuple[np.ndarray, np.ndarray] | None = None,
) -> MatrixFactorization:
    """Seeded tables for so many users and items. `counts`: how often each occurs; who loads a checkpoint needs none."""
    torch.manual_seed(settings.seed)
    table = EMBEDDINGS[settings.embedding]
    more: list[dict[str, Any]] = [{} if table.small_init is None else {"std": table.small_init} for _ in objects]
    for side, options in enumerate(more):
        if "counts" in table.requires:
            options["counts"] = None if counts is None else torch.from_numpy(counts[side])
        if settings.embedding == "mixed":
            options["alpha"] = settings.alpha
    users, items = (
        table(V, settings.dimensions, num_anchors=K, sparse=True, **options)
        for V, K, options in zip(objects, settings.start, more, strict=True)
    )
    if settings.embedding == "anchor" and settings.init != "half-normal":
        # Of both signs: with biases in the model, what is left to explain has mean 0, and anchors that start parallel stay so.
        for layer in (users, items):
            layer.pairs[0][1].data.normal_(std=settings.dimensions**-0.5)
    if table.small_init is None:
        calm(users, items)
    return MatrixFactorization(users, items, mean=mean, biases=settings.biases).to(settings.device)


@torch.no_grad()
def calm(users: Embedding, items: Embedding) -> None:
    """Scale both T until the part of a rating that is taste starts neither far from the mean rating nor at nothing.

    T starts at √(2/V). With few objects that is far off; with millions it is so little that no gradient gets through.
    """
    some = [torch.randint(0, layer.num_embeddings, (SAMPLE,), device=layer.tables[0].weight.device) for layer in (users, items)]
    start = float((users(some[0]) * items(some[1])).sum(-1).square().mean().sqrt())
    wanted = min(max(start, SMALLEST_START), LARGEST_START)
    if wanted != start != 0:
        for layer in (users, items):
            # The shares of a softmax add up to 1 whatever its weights: there the anchors are scaled.
            for table, anchors in layer.pairs:
                (anchors if layer.softmax else table.weight).mul_((wanted / start) ** 0.5)
