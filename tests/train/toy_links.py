"""A third task, as somebody would add it: which pairs of nodes are linked, from an edge list, with a logistic loss."""

from typing import ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from antembed.data.download import find_data
from antembed.layer.embedding import Embedding
from antembed.train.config import AnchorConfig, EmbeddingConfig, EmbeddingTaskConfig, StochasticConfig
from antembed.train.examples import Examples
from antembed.train.model import EmbeddingModel
from antembed.train.options import Config, option
from antembed.train.splits import split
from antembed.train.task import Metric, Metrics, Part, Splits, Task


class LinksInput(Config):
    heading: ClassVar[str] = "Data"
    data: str = option("", "An edge list: two node numbers a line.")
    negatives: int = option(1, "Pairs without a link for each that has one.", ge=1)


class LinksConfig(EmbeddingTaskConfig):
    """Learn which nodes are linked."""

    task: Literal["links"] = "links"
    input: LinksInput = LinksInput()
    tables: EmbeddingConfig = EmbeddingConfig()
    anchors: AnchorConfig = AnchorConfig()
    solver: StochasticConfig = StochasticConfig()
    usage: ClassVar[tuple[str, ...]] = ("edges.txt --anchors 8",)


class LinkModel(EmbeddingModel):
    """u (B), v (B) → how likely they are linked, as a logit (B)."""

    def __init__(self, nodes: Embedding):
        super().__init__()
        self.nodes = nodes
        self.bias = torch.nn.Parameter(torch.zeros(()))

    @property
    def embeddings(self) -> dict[str, Embedding]:
        return {"nodes": self.nodes}

    def forward(self, u: Tensor, v: Tensor) -> Tensor:
        return (self.nodes(u) * self.nodes(v)).sum(-1) + self.bias


class Links(Task[LinksConfig, Splits, LinkModel]):
    """Links between nodes."""

    name: ClassVar[str] = "links"
    Config = LinksConfig
    metric: ClassVar[Metric] = Metric("error", "error rate", "accuracy")
    examples: ClassVar[str] = "pairs"

    def load(self, config: LinksConfig) -> Splits:
        edges = np.loadtxt(find_data(config.input.data), dtype=np.int64, ndmin=2)
        nodes, rng = int(edges.max()) + 1, np.random.default_rng(config.machine.seed)
        none = rng.integers(0, nodes, (config.input.negatives * len(edges), 2))
        u, v = np.concatenate([edges, none]).T.copy()
        columns = (u, v, np.repeat([1.0, 0.0], [len(edges), len(none)]).astype(np.float32))
        rows = split(len(u), "80/10/10", config.machine.seed)
        return Splits(*(Examples(columns, rows[part]) for part in ("train", "validation", "test")), facts={"nodes": nodes})

    def build(self, config: LinksConfig, splits: Splits) -> LinkModel:
        torch.manual_seed(config.machine.seed)
        tables, (K,) = config.tables, config.num_anchors(1)
        model = LinkModel(tables.kind(splits.facts["nodes"], tables.embedding_dim, num_anchors=K, sparse=True))
        with torch.no_grad():
            for rows, anchors in model.nodes.pairs:  # vectors of about length 1
                anchors.normal_(std=tables.embedding_dim**-0.5)
                rows.weight.mul_((splits.facts["nodes"] / 2) ** 0.5)
        return model

    def loss(self, model: LinkModel, batch: tuple[Tensor, ...]) -> Tensor:
        u, v, linked = batch
        return F.binary_cross_entropy_with_logits(model(u, v), linked)

    @torch.no_grad()
    def evaluate(self, model: LinkModel, splits: Splits, part: Part) -> Metrics:
        total, right, n = 0.0, 0, 0
        for u, v, linked in splits.part(part).batches(4096):
            outputs = model(u, v)
            total += float(F.binary_cross_entropy_with_logits(outputs, linked, reduction="sum"))
            right += int(((outputs > 0) == (linked > 0)).sum())
            n += len(linked)
        return {"loss": total / n, "accuracy": right / n, "error": 1 - right / n, "examples": n}
