"""What a run on labelled text is told, and the model it starts from."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch

from antembed.data.documents import LENGTH
from antembed.data.vocabulary import PADDING
from antembed.embedding import EMBEDDINGS, AnchorEmbedding, Embedding
from antembed.growth.policy import POLICIES
from antembed.optim import OPTIMISERS
from antembed.pipelines.settings import ENGINES, SCHEDULES
from antembed.serving import VALUES
from antembed.tasks.classify import MODELS, TextModel
from antembed.training.budget import parse_budget

START = 0.1  # root mean square of a vector's numbers at the start, whatever the embedding


@dataclass(frozen=True)
class TextSettings:
    """All that decides the result. Model, batch size and width are the paper's."""

    data: str
    test: str = ""  # without one, a tenth of `data`
    text: tuple[str, ...] | None = None  # columns
    label: str | None = None
    min_count: int = 1
    max_vocab: int = 0  # 0: all words
    length: int = LENGTH
    model: str = "cnn"
    embedding: str = "anchor"
    anchors: int | str = 10  # or "auto": as many as eq. 5 says (nbANT)
    growth: str = "plateau"
    lambda1: float = 1e-3
    first_anchors: int = 10
    anchor_step: int = 1
    dimensions: int = 256
    l1: float = 1e-5
    l1_ramp: float = 0.25
    prune: float = 0.1
    keep: int = 0
    l2: float = 0.0
    budget: str = ""
    polish: float = 0.0
    optimiser: str = "yogi"
    lr: float = 5e-3
    schedule: str = "cosine"
    halve_every: int = 1000
    batch_size: int = 256
    epochs: int = 8
    patience: int = 0
    dropout: float = 0.5
    seed: int = 0
    threads: int = 2
    device: str = "cpu"
    values: str = "auto"

    def __post_init__(self) -> None:
        if self.values == "auto":
            counted = self.budget and parse_budget(self.budget, 1.0).unit == "bytes"
            object.__setattr__(self, "values", "int8" if counted else "fp32")
        known: dict[str, Collection[str]] = {
            "model": MODELS,
            "embedding": EMBEDDINGS,
            "optimiser": OPTIMISERS,
            "schedule": SCHEDULES,
            "values": VALUES,
            "growth": POLICIES,
        }
        for name, choices in known.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} {getattr(self, name)!r} is none of: {', '.join(choices)}")


def build_model(settings: TextSettings, words: int, classes: int) -> TextModel:
    torch.manual_seed(settings.seed)
    K = settings.first_anchors if settings.anchors == "auto" else settings.anchors
    table = EMBEDDINGS[settings.embedding](words, settings.dimensions, PADDING, num_anchors=K, sparse=True)
    start(table)
    return MODELS[settings.model](table, classes, dropout=settings.dropout).to(settings.device)


@torch.no_grad()
def start(table: Embedding) -> None:
    if isinstance(table, AnchorEmbedding):
        table.anchors.normal_(std=table.embedding_dim**-0.5)
    rms = float(table(torch.arange(1, min(table.num_embeddings, 4096))).square().mean().sqrt())
    if table.pairs:
        for rows, anchors in table.pairs:
            rows.weight.mul_((START / rms) ** 0.5)
            anchors.mul_((START / rms) ** 0.5)
    else:
        table.tables[0].weight.mul_(START / rms)
