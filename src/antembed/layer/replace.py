"""replace_embeddings: a model's embeddings become anchored layers, tied output layers stay tied."""

import logging
import re
from collections.abc import Mapping
from dataclasses import replace
from pkgutil import resolve_name
from typing import Any

import torch
from torch import Tensor, nn

from antembed.budget import Budget, BudgetError, parse_budget
from antembed.layer.anchor import AnchorEmbedding, AnchorOptions, suited_anchors
from antembed.layer.bag import AnchorEmbeddingBag
from antembed.layer.embedding import Embedding
from antembed.layer.factorize import anchors_for_table
from antembed.layer.row_table import RowTable

# What other libraries' models need afterwards: a class of theirs in the model → "module:function", called with the model.
AFTER_REPLACING = {
    "transformers.modeling_utils": "antembed.hf.transformers_models:attach",
    "sentence_transformers.": "antembed.hf.static_embedding:attach",
}
HEADER = 512  # bytes of an exported file beside its numbers, about
log = logging.getLogger("antembed")
Layer = nn.Embedding | nn.EmbeddingBag
Anchored = AnchorEmbedding | AnchorEmbeddingBag


class TiedHead(nn.Module):
    """The output layer of a tied embedding: hidden (*batch, d) → scores (*batch, V). The embedding is not a part of it: its
    weights are saved once."""

    def __init__(self, layer: Any, bias: nn.Parameter | None):
        super().__init__()
        self.__dict__["tied_to"] = (layer,)  # a module in a tuple is no submodule, and is copied with the model
        self.bias = bias
        self.in_features, self.out_features = layer.embedding_dim, layer.num_embeddings

    @property
    def layer(self) -> Any:
        """The embedding, which has to_dense() and logits(hidden, bias=…)."""
        return self.__dict__["tied_to"][0]

    @property
    def weight(self) -> Tensor:
        """E (V, d), computed anew at each access."""
        weight: Tensor = self.layer.to_dense()
        return weight

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
        raise ValueError(f"{name} is a {type(layer).__name__}, which does more than an nn.Embedding; only that can be replaced")


def put_layer(model: nn.Module, old: nn.Module, new: nn.Module, weight: Tensor | None) -> None:
    """`new` wherever `old` is, and a TiedHead wherever a linear layer has this weight (None: nowhere)."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if child is old:
                setattr(parent, name, new)
            elif isinstance(child, nn.Linear) and weight is not None and child.weight is weight:
                setattr(parent, name, TiedHead(new, child.bias))


def replace_embeddings(
    model: nn.Module,
    *,
    num_anchors: int | None = None,
    budget: str | None = None,
    pattern: str = "",
    fresh: bool = False,
    seed: int = 0,
) -> dict[str, Anchored]:
    """Put an AnchorEmbedding (or AnchorEmbeddingBag) in the place of every nn.Embedding and nn.EmbeddingBag of a model whose
    name contains `pattern` (a regular expression); → the new layers by name. Train on with their penalty (`param_groups`), or
    with `Recode(model, optimizer, budget="20x")`, which makes them small.

    They start from the trained weights, factorized; with `fresh` at random. With a `budget` they are small at once: "20x" (each
    that much smaller than in fp32), "400k" parameters or "2MB" (bytes of the exported files, of all together); a table whose
    part of it is less than two anchors take, such as BERT's token types, is left as it is. To train on at that size, call
    `optimizer.freeze_support(layer.rows.weight)` for each. nn.Linear layers that share an embedding's weight
    become `TiedHead`s. Layers with max_norm are refused: their vectors are rescaled at every look-up, which T·A cannot follow.
    """
    if budget is not None and fresh:
        raise ValueError(
            f"a budget of {budget} is met by fitting trained weights, and fresh layers have none; leave out one of the two, or "
            f"train with Recode(model, optimizer, budget={budget!r})"
        )
    known = {name: part for name, part in model.named_modules() if isinstance(part, Layer) and not isinstance(part, RowTable)}
    found = {name: layer for name, layer in known.items() if re.search(pattern, name)}
    if not found:
        raise ValueError(f"0 embeddings match {pattern!r}; the model has: {', '.join([*known][:8]) or 'none'}")
    for name, layer in found.items():
        _check(name, layer)
    parts = dict.fromkeys(found) if budget is None else _parts(_worth_it(found, budget), budget)
    shared: dict[tuple[int, type], Anchored] = {}  # layers that share a weight stay one
    made: dict[str, Anchored] = {}
    for name, allowed in parts.items():
        key = id(found[name].weight), type(found[name])
        if key not in shared:
            try:
                shared[key] = _anchored(found[name], num_anchors, allowed, fresh, seed)
            except BudgetError as error:
                V, d = found[name].weight.shape
                raise BudgetError(f"{name} ({V} × {d}): {error}, or leave this table out by pattern") from error
        made[name] = shared[key]
    for name, new in made.items():
        put_layer(model, found[name], new, found[name].weight if isinstance(new, AnchorEmbedding) else None)
    modules = {base.__module__ for part in model.modules() for base in type(part).__mro__}
    for needed, hook in AFTER_REPLACING.items():
        if any(module.startswith(needed) for module in modules):
            resolve_name(hook)(model)
    return made


def _check(name: str, layer: Layer) -> None:
    check_plain(name, layer)
    if not layer.weight.numel():
        raise ValueError(f"{name} has {layer.weight.shape[0]} rows, nothing to replace; leave it out by pattern")
    if layer.max_norm is not None:
        raise ValueError(f"{name} has max_norm={layer.max_norm}, which T·A cannot follow; set None, or leave it out by pattern")
    if layer.scale_grad_by_freq:
        raise ValueError(f"{name} has scale_grad_by_freq, which anchored layers lack; set False, or leave it out by pattern")


def _parts(found: Mapping[str, Layer], budget: str) -> dict[str, Budget]:
    """What each table may have of the budget: its share of all numbers, where a shared table counts once."""
    dense = sum({id(layer.weight): layer.weight.numel() for layer in found.values()}.values())
    allowed = parse_budget(budget, 4.0 * dense)
    return {name: replace(allowed, amount=allowed.amount * layer.weight.numel() / dense) for name, layer in found.items()}


def _worth_it(found: Mapping[str, Layer], budget: str) -> dict[str, Layer]:
    """Those whose part of the budget is enough for two anchors: with one, all vectors would be multiples of it."""
    small = {}
    for name, part in _parts(found, budget).items():
        V, d = found[name].weight.shape
        numbers = replace(part, amount=part.amount - HEADER) if part.unit == "bytes" else part
        if anchors_for_table(numbers, V, d) < 2:
            small[name] = f"{name} ({V} × {d}: {part})"
    if len(small) == len(found):
        raise BudgetError(f"a budget of {budget} is less than two anchors take, for {', '.join(small.values())}; allow more")
    if small:
        log.info("left as they are, since %s is less than two anchors take: %s", budget, ", ".join(small.values()))
    return {name: layer for name, layer in found.items() if name not in small}


def _anchored(layer: Layer, num_anchors: int | None, allowed: Budget | None, fresh: bool, seed: int) -> Anchored:
    weight, (V, d) = layer.weight.detach(), layer.weight.shape
    K = min(suited_anchors(num_anchors, allowed, V, d), V)
    same: AnchorOptions = {"num_anchors": K, "sparse": layer.sparse, "device": weight.device, "dtype": weight.dtype}
    new: Anchored
    if isinstance(layer, nn.EmbeddingBag):
        last = layer.include_last_offset
        new = AnchorEmbeddingBag(V, d, layer.padding_idx, mode=layer.mode, include_last_offset=last, **same)
    else:
        new = AnchorEmbedding(V, d, layer.padding_idx, **same)
    if not fresh:
        new.fit_to(weight, allowed, seed=seed)
    return new.train(layer.training)
