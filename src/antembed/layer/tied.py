"""TiedHead: the output layer of a tied embedding; and putting a layer wherever another one is."""

from typing import Protocol, cast

import torch
from torch import Tensor, nn

from antembed.layer.embedding import Embedding


class TiedLayer(Protocol):
    """What a head needs of the embedding that it is tied to."""

    @property
    def num_embeddings(self) -> int: ...

    @property
    def embedding_dim(self) -> int: ...

    def to_dense(self) -> Tensor: ...

    def logits(self, hidden: Tensor, *, bias: Tensor | None = None) -> Tensor: ...


class TiedHead(nn.Module):
    """The output layer of a tied embedding: hidden (*batch, d) → scores (*batch, V). The embedding is not a part of it: its
    weights are saved once."""

    def __init__(self, layer: TiedLayer, bias: nn.Parameter | None):
        super().__init__()
        self.__dict__["tied_to"] = (layer,)  # a module in a tuple is no submodule, and is copied with the model
        self.bias = bias
        self.in_features, self.out_features = layer.embedding_dim, layer.num_embeddings

    @property
    def layer(self) -> TiedLayer:
        """The embedding."""
        (layer,) = self.__dict__["tied_to"]
        return cast(TiedLayer, layer)

    @property
    def weight(self) -> Tensor:
        """E (V, d), computed anew at each access."""
        return self.layer.to_dense()

    def forward(self, hidden: Tensor) -> Tensor:
        layer, kind = self.layer, hidden.dtype
        if isinstance(layer, Embedding) and not torch.is_autocast_enabled(hidden.device.type):
            wide = layer.tables[0].weight.dtype  # T is kept in fp32 where a model is loaded in half precision
            bias = None if self.bias is None else self.bias.to(wide)
            return layer.logits(hidden.to(wide), bias=bias).to(kind)
        return layer.logits(hidden, bias=self.bias)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, tied"


def check_plain(name: str, layer: nn.Module) -> None:
    """Raise if a layer does more than look vectors up (BART's and Gemma's, which scale them)."""
    if type(layer) not in (nn.Embedding, nn.EmbeddingBag):
        raise ValueError(
            f"{name} is a {type(layer).__name__}, which does more than an nn.Embedding; only plain layers can be replaced"
        )


def put_layer(model: nn.Module, old: nn.Module, new: nn.Module, weight: Tensor | None) -> None:
    """`new` wherever `old` is, and a TiedHead wherever a linear layer has this weight (None: nowhere)."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if child is old:
                setattr(parent, name, new)
            elif isinstance(child, nn.Linear) and weight is not None and child.weight is weight:
                setattr(parent, name, TiedHead(cast(TiedLayer, new), child.bias))
