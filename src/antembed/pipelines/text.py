"""What a run on labelled text is told, and the model it starts from."""

from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch

from antembed.anchors import INITIALIZERS, init_weights, scores
from antembed.data.documents import LENGTH
from antembed.data.vocabulary import PADDING, Vocabulary
from antembed.embedding import EMBEDDINGS, AnchorEmbedding, Embedding, MixtureEmbedding, sparse_codes
from antembed.growth.policy import POLICIES
from antembed.optim import OPTIMIZERS
from antembed.pipelines.knowledge import Knowledge, features_wanted
from antembed.pipelines.settings import SCHEDULES
from antembed.serving import VALUES
from antembed.tasks.classify import MODELS, TextModel
from antembed.training.budget import parse_budget

START = 0.1  # root mean square of the vectors' numbers at the start, whatever the embedding
LONG = 10.0  # length of the anchors then: a step of T moves a vector by as much, and T starts at some hundredths
SMALL = 0.1  # weights of words that are no anchors, beside 1 of those that are
SOME = 4096  # words to measure it by
# What a tiny classifier is told by; the other settings are of the models cnn and bag, and these two of it alone.
OF_TINY = ("data", "test", "text", "label", "length", "model", "size", "ngrams", "seed", "threads")
ONLY_TINY = ("size", "ngrams")


@dataclass(frozen=True)
class TextSettings:
    """All that decides the result. The network, its width and the size of a batch are the paper's."""

    data: str
    test: str = ""  # none: a tenth of `data`
    text: tuple[str, ...] | None = None  # columns; None: as their names say
    label: str | None = None
    min_count: int = 1
    max_vocab: int = 0  # 0: all words
    length: int = LENGTH  # words of a document that count
    model: str = "cnn"  # or "bag", the mean of the words' vectors; or "tiny", a file of `size` and all in it
    size: str = "50KB"  # tiny: of the file
    ngrams: int = 2  # tiny: runs of up to so many words
    embedding: str = "anchor"
    anchors: int | str = 10  # or "auto": as many as eq. 5 says (nbANT); frequency, tf-idf and hashed: rows
    choice: str = "none"  # which words are the anchors; "none": they are vectors of nobody
    relations: tuple[str, ...] = ()  # wordnet, cooccurrence, or a file of pairs: entries of T that cost nothing
    wordnet: str = ""  # its folder
    vectors: str = ""  # pretrained ones, for the choice of anchors and the start
    negative: float = 0.0  # weight of Σ|t_u|·|t_v| over unrelated pairs,
    orthogonal: float = 0.0  # and of Σ|cos(a_i, a_j)|
    growth: str = "plateau"
    lambda1: float = 1e-3  # auto: the prices of an anchor,
    lambda2: float = 1e-6  # and of a non-zero, by which numbers of anchors are compared
    first_anchors: int = 10
    anchor_step: int = 1
    dimensions: int = 256
    l1: float = 1e-4
    l1_ramp: float = 0.25
    prune: float = 0.1
    keep: int = 0
    l2: float = 0.0
    budget: str = ""
    polish: float = 0.0
    optimizer: str = "yogi"
    lr: float = 2e-3
    eps: float = 1e-5  # of the optimizer: the paper's 1e-3 is for the larger gradients of ratings
    schedule: str = "cosine"
    halve_every: int = 1000
    batch_size: int = 256
    epochs: int = 8
    patience: int = 3
    dropout: float = 0.5
    word_dropout: float = 0.3
    seed: int = 0
    threads: int = 1
    device: str = "cpu"
    values: str = "auto"  # of the file: fp32, with a budget of bytes int8

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, np.generic):  # of a search over np.arange, say
                object.__setattr__(self, name, value.item())
        if isinstance(self.size, int):
            object.__setattr__(self, "size", f"{self.size}B")
        for name in ("text", "relations"):
            if isinstance(getattr(self, name), str):  # in Python one easily writes "wordnet" for ("wordnet",)
                object.__setattr__(self, name, tuple(part.strip() for part in getattr(self, name).split(",") if part.strip()))
        known: dict[str, Collection[str]] = {
            "model": [*MODELS, "tiny"],
            "embedding": EMBEDDINGS,
            "optimizer": OPTIMIZERS,
            "schedule": SCHEDULES,
            "values": ["auto", *VALUES],
            "growth": POLICIES,
            "choice": ["none", *INITIALIZERS],
        }
        for name, choices in known.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} {getattr(self, name)!r} is none of: {', '.join(choices)}")
        ones = ("dimensions", "batch_size", "epochs", "length", "threads", "min_count", "ngrams")
        least = dict.fromkeys((*ones, "first_anchors", "anchor_step", "halve_every"), 1)
        least |= dict.fromkeys(("l1", "l2", "lr", "prune", "keep", "seed", "patience", "negative", "orthogonal"), 0)
        for name, bound in least.items():
            if not getattr(self, name) >= bound:
                raise ValueError(f"{name} must be ≥ {bound}, got {getattr(self, name)}")
        for name in ("dropout", "word_dropout", "polish", "l1_ramp"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be in [0, 1), got {getattr(self, name)}")
        if not self.eps > 0:
            raise ValueError(f"eps must be > 0, got {self.eps}")
        if isinstance(self.anchors, str) and self.anchors != "auto":
            raise ValueError(f"anchors are a number, or auto, not {self.anchors!r}")
        if not isinstance(self.anchors, str) and self.anchors < 1:
            raise ValueError(f"anchors must be ≥ 1, got {self.anchors}; start with 10")
        changed = [field.name for field in fields(self) if getattr(self, field.name) != field.default]
        if self.model == "tiny":
            if parse_budget(self.size, 0).unit != "bytes":
                raise ValueError(f"size is that of a file: 50KB or 1MB, not {self.size!r}")
            if wrong := [name for name in changed if name not in OF_TINY]:
                raise ValueError(f"{wrong[0]} is for the models cnn and bag; tiny takes size, ngrams, length and seed")
        elif wrong := [name for name in changed if name in ONLY_TINY]:
            raise ValueError(f"{wrong[0]} is for --model tiny; {self.model} takes a budget")
        if self.vectors and self.choice == "none" and "features" not in EMBEDDINGS[self.embedding].requires:
            raise ValueError("vectors are for anchors that are words (--choice frequency, kmeans, …) and for sparse-code")
        if self.wordnet and "wordnet" not in self.relations:
            raise ValueError("a folder of WordNet goes with --relations wordnet")
        if self.orthogonal and not EMBEDDINGS[self.embedding].anchored:
            raise ValueError(f"orthogonal is for tables with anchors, not {self.embedding}")
        if self.keep and self.budget:
            raise ValueError(f"a budget and keep={self.keep} both say how many weights are left; give one of them")
        try:
            torch.zeros(1, device=self.device).item()
        except (RuntimeError, AssertionError) as error:
            raise ValueError(f"device {self.device!r} cannot be used here; leave it at cpu") from error
        if self.embedding != "anchor":
            for name in ("choice", "relations", "budget", "negative"):
                if getattr(self, name) not in ("none", (), "", 0.0):
                    raise ValueError(f"{name} is for --embedding anchor, not {self.embedding}")
            if self.anchors == "auto":
                raise ValueError(f"anchors auto is for --embedding anchor, not {self.embedding}")
        if self.relations and self.choice == "none":
            raise ValueError("relations are between words, so anchors must be words: choose them with --choice frequency")
        if self.anchors == "auto" and (self.budget or self.choice != "none"):
            raise ValueError("anchors auto goes with --choice none and no budget; say how many anchors")
        if self.anchors == "auto" and self.lambda1 < self.lambda2:
            raise ValueError(f"an anchor costs λ1 − λ2 ≥ 0, but λ1 is {self.lambda1} and λ2 {self.lambda2}; raise --lambda1")
        if self.budget:
            parse_budget(self.budget, 1.0)
        if self.budget and not self.l1 > 0:
            raise ValueError(f"a budget is sought from l1 on, which must be > 0, got {self.l1}")

    def without_knowledge(self, **others: Any) -> "TextSettings":
        """The same without what is known of the words, which is for the start and the training alone."""
        known: dict[str, Any] = {"choice": "none", "relations": (), "wordnet": "", "vectors": "", "negative": 0.0}
        return replace(self, **known | others)

    @property
    def first(self) -> int:
        """How many anchors the model is built with."""
        return self.first_anchors if isinstance(self.anchors, str) else self.anchors

    @property
    def stored(self) -> str:
        """Numbers in the file."""
        return {"packed": "int8", "auto": "fp32"}[self.encoding] if self.values == "auto" else self.values

    @property
    def encoding(self) -> str:
        """Of the file: packed where bytes count, since most words have no weights, and a byte for each is too much."""
        return "packed" if self.budget and parse_budget(self.budget, 1.0).unit == "bytes" else "auto"

    @property
    def wants_features(self) -> bool:
        return features_wanted(self.choice, self.embedding)


def build_model(
    settings: TextSettings, words: int, classes: int, vocabulary: Vocabulary | None = None, known: Knowledge | None = None
) -> TextModel:
    """A seeded model. Who loads a checkpoint need not know anything of the words but how often they were."""
    torch.manual_seed(settings.seed)
    K = min(settings.first, words)
    options: dict[str, Any] = {}
    kind = EMBEDDINGS[settings.embedding]
    if kind.requires & {"counts", "tf-idf"} and vocabulary is not None:
        options["counts"] = torch.from_numpy(scores(vocabulary, "tf-idf" if "tf-idf" in kind.requires else "frequency"))
    if "features" in kind.requires and known is not None and known.features is not None:
        common = torch.arange(2, K + 2)  # words are in the order of their counts, behind padding and unknown
        options["codes"] = sparse_codes(torch.from_numpy(known.features), common)
    table = kind(words, settings.dimensions, PADDING, num_anchors=K, sparse=True, **options)
    begin(table, settings, known)
    return MODELS[settings.model](table, classes, dropout=settings.dropout).to(settings.device)


@torch.no_grad()
def begin(table: Embedding, settings: TextSettings, known: Knowledge | None) -> None:
    """Start the vectors at one size, whatever the embedding; anchors that are words at those words."""
    if isinstance(table, AnchorEmbedding):
        if known is not None and known.anchors is not None:
            V, K = table.rows.weight.shape
            T, A = init_weights(
                V,
                K,
                table.embedding_dim,
                anchors=known.anchors,
                features=known.features,
                related=known.free,
                small=SMALL,
                padding=PADDING,
                seed=settings.seed,
            )
            table.rows.weight.copy_(T)
            table.anchors.copy_(A)
        else:
            table.anchors.normal_(std=table.embedding_dim**-0.5)  # of both signs: parallel anchors stay so
    mixture = isinstance(table, MixtureEmbedding)
    for rows, anchors in (free := [pair for pair in table.pairs if pair[0].weight.requires_grad]):
        if mixture and len(anchors) > 1:  # what anchors have in common is in every vector, whatever T is
            anchors.sub_(anchors.mean(0))
        # A share of K moves by a K-th of its weight.
        longer = LONG * (len(anchors) ** 0.5 if table.softmax else 1.0) / float(anchors.norm(dim=1).mean())
        anchors.mul_(longer)
        rows.weight.div_(longer)
    vectors = table(torch.arange(1, min(table.num_embeddings, SOME)))
    scale = START / max(float(vectors.square().mean().sqrt()), 1e-12)
    for rows, anchors in table.pairs:
        (rows.weight if free else anchors).mul_(scale)
    if not table.pairs:
        table.tables[0].weight.mul_(scale)
