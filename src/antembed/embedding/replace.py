"""replace_embeddings: anchored layers in the place of a model's own, with tied output layers kept tied."""

import re
from typing import cast

from torch import Tensor, nn

from antembed.embedding.anchor import DEFAULT_ANCHORS, AnchorEmbedding
from antembed.embedding.bag import AnchorEmbeddingBag
from antembed.embedding.factorize import nonnegative_factorize
from antembed.embedding.table import RowTable
from antembed.files import JSON


class TiedHead(nn.Module):
    """The output layer of a tied embedding: hidden (*batch, d) → scores (*batch, V). The embedding is not a part of it: its
    weights are saved once."""

    def __init__(self, layer: AnchorEmbedding, bias: nn.Parameter | None):
        super().__init__()
        self.__dict__["tied_to"] = (layer,)  # a module in a tuple is no submodule, and is copied with the model
        self.bias = bias
        self.in_features, self.out_features = layer.embedding_dim, layer.num_embeddings

    @property
    def weight(self) -> Tensor:
        """E (V, d), computed anew at each access."""
        (layer,) = self.__dict__["tied_to"]
        return cast(Tensor, layer.to_dense())

    def forward(self, hidden: Tensor) -> Tensor:
        (layer,) = self.__dict__["tied_to"]
        return cast(Tensor, layer.logits(hidden, bias=self.bias))

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, tied"


def replace_embeddings(
    model: nn.Module, *, num_anchors: int = DEFAULT_ANCHORS, pattern: str = "", fresh: bool = False, seed: int = 0
) -> dict[str, AnchorEmbedding | AnchorEmbeddingBag]:
    """Put an AnchorEmbedding (or AnchorEmbeddingBag) in the place of every nn.Embedding and nn.EmbeddingBag of a model whose
    name contains `pattern` (a regular expression); → the new layers by name. Train on with their penalty (`param_groups`), or
    with `Recode(model, optimizer, budget="20x")`, which makes them small.

    They start from the trained weights, factorized; with `fresh` at random. nn.Linear layers that share an embedding's weight
    become `TiedHead`s. Layers with max_norm are refused: their vectors are rescaled at every look-up, which T·A cannot follow.
    """
    found = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and not isinstance(module, RowTable) and re.search(pattern, name)
    ]
    if not found:
        names = [
            name
            for name, module in model.named_modules()
            if isinstance(module, nn.Embedding) and not isinstance(module, RowTable)
        ]
        raise ValueError(f"0 embeddings match {pattern!r}; the model has: {', '.join(names[:8]) or 'none'}")
    for name, module in found:
        if module.max_norm is not None:
            raise ValueError(
                f"{name} has max_norm={module.max_norm}, which T·A cannot follow; set it to None, or leave it out by pattern"
            )
        if module.scale_grad_by_freq:
            raise ValueError(
                f"{name} has scale_grad_by_freq, which anchored layers lack; set it to False, or leave it out by pattern"
            )
    shared: dict[tuple[int, type], AnchorEmbedding | AnchorEmbeddingBag] = {}  # layers that share a weight stay one
    made: dict[str, AnchorEmbedding | AnchorEmbeddingBag] = {}
    for name, module in found:
        key = (id(module.weight), type(module))
        if key not in shared:
            shared[key] = _anchored(module, num_anchors, fresh, seed)
        made[name] = shared[key]
    for (_, old), new in zip(found, made.values(), strict=True):
        _put(model, old, new)
    return made


def _anchored(module: nn.Embedding | nn.EmbeddingBag, K: int, fresh: bool, seed: int) -> AnchorEmbedding | AnchorEmbeddingBag:
    V, d = module.weight.shape
    same: JSON = {
        "num_anchors": min(K, V),
        "sparse": module.sparse,
        "device": module.weight.device,
        "dtype": module.weight.dtype,
    }
    new: AnchorEmbedding | AnchorEmbeddingBag
    if isinstance(module, nn.EmbeddingBag):
        last = module.include_last_offset
        new = AnchorEmbeddingBag(V, d, module.padding_idx, mode=module.mode, include_last_offset=last, **same)
    else:
        new = AnchorEmbedding(V, d, module.padding_idx, **same)
    if not fresh:
        T, A, new.reconstruction_error = nonnegative_factorize(module.weight.detach(), min(K, V), seed=seed)
        new.rows.reset_to(T)
        new.anchors.data.copy_(A)
    return new.train(module.training)


def _put(model: nn.Module, old: nn.Embedding | nn.EmbeddingBag, new: AnchorEmbedding | AnchorEmbeddingBag) -> None:
    """Wherever the old layer is, and wherever a linear layer has its weight."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if child is old:
                setattr(parent, name, new)
            elif isinstance(child, nn.Linear) and child.weight is old.weight and isinstance(new, AnchorEmbedding):
                setattr(parent, name, TiedHead(new, child.bias))
