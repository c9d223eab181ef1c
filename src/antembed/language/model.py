"""Networks of language models: LSTM, AWD-LSTM, Transformer; input and output layer share one table."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from antembed.layer.embedding import Embedding
from antembed.tables.table import Table
from antembed.train.model import EmbeddingModel, TableBias

State = tuple[Tensor, ...]
CONTEXT = 512  # words that a Transformer looks back, at most


class Network(nn.Module, ABC):
    """x (L, B, d) and a state → y (L, B, d) and the next state."""

    @abstractmethod
    def forward(self, x: Tensor, state: State | None) -> tuple[Tensor, State]: ...

    def penalty(self) -> Tensor | None:
        """A term of the loss, of the last forward pass."""
        return None


class LSTM(Network):
    """Layers of LSTM, the last as wide as the vectors, dropout between and after them."""

    def __init__(self, d: int, hidden: int, layers: int, dropout: float):
        super().__init__()
        widths = [d, *[hidden or d] * (layers - 1), d]
        self.layers = nn.ModuleList(nn.LSTM(a, b) for a, b in pairwise(widths))
        self.dropout = dropout

    def forward(self, x: Tensor, state: State | None) -> tuple[Tensor, State]:
        y, found = self.last(x, state)
        return self.drop(y), found

    def last(self, x: Tensor, state: State | None) -> tuple[Tensor, State]:
        """What the last layer says, and the state."""
        found: list[Tensor] = []
        for n, layer in enumerate(self.layers):
            before = None if state is None else (state[2 * n], state[2 * n + 1])
            x, after = self.run(layer, self.drop(x), before)
            found += after
        return x, tuple(found)

    def run(self, layer: nn.Module, x: Tensor, state: State | None) -> tuple[Tensor, State]:
        y, after = layer(x, state)
        return y, after

    def drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)


class AwdLSTM(LSTM):
    """With one dropout mask for all words of a sequence, dropped recurrent weights, and penalties on states (AR, TAR)."""

    def __init__(
        self, d: int, hidden: int, layers: int, dropout: float, weight_dropout: float, activation: float, slowness: float
    ):
        super().__init__(d, hidden, layers, dropout)
        self.weight_dropout, self.activation, self.slowness = weight_dropout, activation, slowness
        self._penalty: Tensor | None = None

    def forward(self, x: Tensor, state: State | None) -> tuple[Tensor, State]:
        y, found = self.last(x, state)
        dropped = self.drop(y)
        self._penalty = None
        if self.training:
            slow = self.slowness * (y[1:] - y[:-1]).square().mean() if len(y) > 1 else y.sum() * 0
            self._penalty = self.activation * dropped.square().mean() + slow
        return dropped, found

    def run(self, layer: nn.Module, x: Tensor, state: State | None) -> tuple[Tensor, State]:
        assert isinstance(layer, nn.LSTM)
        if not (self.training and self.weight_dropout):
            return super().run(layer, x, state)
        dropped = {"weight_hh_l0": F.dropout(layer.get_parameter("weight_hh_l0"), self.weight_dropout, True)}
        y, after = torch.func.functional_call(layer, dropped, (x, state) if state is not None else (x,))
        return y, after

    def drop(self, x: Tensor) -> Tensor:
        """The same mask at every place of a sequence."""
        if not self.training or not self.dropout:
            return x
        return x * F.dropout(x.new_ones(1, *x.shape[1:]), self.dropout, True)

    def penalty(self) -> Tensor | None:
        return self._penalty


class Transformer(Network):
    """Pre-norm blocks with rotary positions. The state is the words before, as keys and values, up to CONTEXT of them."""

    def __init__(self, d: int, hidden: int, layers: int, dropout: float, heads: int):
        super().__init__()
        self.blocks = nn.ModuleList(Block(d, hidden or 4 * d, heads, dropout) for _ in range(layers))
        self.norm, self.layers = nn.LayerNorm(d), layers

    def forward(self, x: Tensor, state: State | None) -> tuple[Tensor, State]:
        found: list[Tensor] = []
        for n, block in enumerate(self.blocks):
            x, after = block(x, None if state is None else state[n])
            found.append(after)
        return self.norm(x), tuple(found)


class Block(nn.Module):
    """Attention, then a feed-forward layer."""

    def __init__(self, d: int, hidden: int, heads: int, dropout: float):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.before_attention, self.before_mlp = nn.LayerNorm(d), nn.LayerNorm(d)
        self.query, self.key_value, self.out = nn.Linear(d, d), nn.Linear(d, 2 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, hidden), nn.GELU(), nn.Linear(hidden, d))

    def forward(self, x: Tensor, past: Tensor | None) -> tuple[Tensor, Tensor]:
        """`past` (P, B, d): normalized states of the words before."""
        normal = self.before_attention(x)
        seen = normal if past is None else torch.cat([past, normal])
        L, B, d = x.shape
        P = len(seen) - L
        q = self._heads(self.query(normal), P)
        key, value = self.key_value(seen).chunk(2, -1)
        mask = torch.ones(L, P + L, dtype=torch.bool, device=x.device).tril(P)
        mixed = F.scaled_dot_product_attention(
            q, self._heads(key, 0), self._heads(value, None), mask, self.dropout if self.training else 0.0
        )
        x = x + F.dropout(self.out(mixed.permute(2, 0, 1, 3).reshape(L, B, d)), self.dropout, self.training)
        x = x + F.dropout(self.mlp(self.before_mlp(x)), self.dropout, self.training)
        return x, seen[-CONTEXT:].detach()

    def _heads(self, x: Tensor, first: int | None) -> Tensor:
        """(L, B, d) → (B, heads, L, d/heads), turned by its position (first, first + 1, …)."""
        L, B, d = x.shape
        parts = x.view(L, B, self.heads, d // self.heads).permute(1, 2, 0, 3)
        return parts if first is None else rotated(parts, first)


def rotated(x: Tensor, first: int) -> Tensor:
    """Rotary positions (Su et al. 2021): x (…, L, w), w even."""
    L, w = x.shape[-2:]
    rates = 10_000 ** (-torch.arange(0, w, 2, device=x.device, dtype=torch.float32) / w)
    angles = torch.arange(first, first + L, device=x.device, dtype=torch.float32)[:, None] * rates
    a, b = x[..., 0::2], x[..., 1::2]
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


class LanguageModel(EmbeddingModel):
    """words (L, B) → states (L, B, d), from which `words.logits` makes scores. The state between batches is kept here."""

    stored_with_tables = ("bias",)

    def __init__(self, words: Embedding, network: Network, *, word_dropout: float = 0.0, adaptive: nn.Module | None = None):
        super().__init__()
        self.words, self.network, self.word_dropout = words, network, word_dropout
        self.bias = nn.Parameter(torch.zeros(words.num_embeddings))
        self.adaptive = adaptive
        self.state: State | None = None
        self.anchor_ids: np.ndarray | None = None  # words that are anchors
        self.output: Callable[[LanguageModel, Tensor, Tensor], Tensor] | None = None  # states, targets → the loss

    @property
    def embeddings(self) -> dict[str, Embedding]:
        return {"words": self.words}

    def forward(self, words: Tensor, begin: bool = False) -> Tensor:
        if begin or (self.state is not None and self.state[0].shape[1] != words.shape[1]):
            self.state = None
        x = self.words(words)
        if self.training and self.word_dropout:
            kept = torch.rand(self.words.num_embeddings, device=words.device) >= self.word_dropout
            x = x * (kept[words] / (1 - self.word_dropout)).unsqueeze(-1)
        y, state = self.network(x, self.state)
        self.state = tuple(part.detach() for part in state)
        return y

    @torch.no_grad()
    def table_biases(self) -> dict[str, TableBias]:
        return {"words": TableBias(self.bias.detach().cpu().numpy())}

    def bias_parameters(self) -> int:
        return int(self.bias.count_nonzero())

    def use_file(self, name: str, table: Table) -> None:
        super().use_file(name, table)
        self.bias = nn.Parameter(torch.from_numpy(table.bias_of(np.arange(table.num_embeddings))).float())
