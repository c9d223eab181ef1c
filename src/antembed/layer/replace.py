"""replace_embeddings: anchored layers in the place of a model's own, with tied output layers kept tied."""

import logging
import re
from dataclasses import replace
from pkgutil import resolve_name

from torch import nn

from antembed.budget import Budget, BudgetError, parse_budget
from antembed.files import JSON
from antembed.layer.anchor import DEFAULT_ANCHORS, AnchorEmbedding
from antembed.layer.bag import AnchorEmbeddingBag
from antembed.layer.factorize import anchors_for_table, factorize_within, nonnegative_factorize
from antembed.layer.row_table import RowTable
from antembed.layer.tied import check_plain, put_layer

# What other libraries' models need afterwards: a class of theirs in the model → "module:function", called with the model.
AFTER_REPLACING = {
    "transformers.modeling_utils": "antembed.hf.quantizer:attach",
    "sentence_transformers.": "antembed.hf.static_embedding:attach",
}
HEADER = 512  # bytes of an exported file beside its numbers, about
log = logging.getLogger("antembed")


def replace_embeddings(
    model: nn.Module,
    *,
    num_anchors: int | None = None,
    budget: str | None = None,
    pattern: str = "",
    fresh: bool = False,
    seed: int = 0,
) -> dict[str, AnchorEmbedding | AnchorEmbeddingBag]:
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
        check_plain(name, module)
        if not module.weight.numel():
            raise ValueError(f"{name} has {module.weight.shape[0]} rows, nothing to replace; leave it out by pattern")
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
    if budget is not None:
        found = _worth_it(found, budget)
    dense = _numbers(found)
    for name, module in found:
        key = (id(module.weight), type(module))
        if key not in shared:
            allowed = None if budget is None else _part(budget, module.weight.numel(), dense)
            try:
                shared[key] = _anchored(module, num_anchors, allowed, fresh, seed)
            except BudgetError as error:
                V, d = module.weight.shape
                raise BudgetError(f"{name} ({V} × {d}): {error}, or leave this table out by pattern") from error
        made[name] = shared[key]
    for (_, old), new in zip(found, made.values(), strict=True):
        put_layer(model, old, new, old.weight if isinstance(new, AnchorEmbedding) else None)
    modules = {base.__module__ for part in model.modules() for base in type(part).__mro__}
    for needed, hook in AFTER_REPLACING.items():
        if any(module.startswith(needed) for module in modules):
            resolve_name(hook)(model)
    return made


Found = list[tuple[str, nn.Embedding | nn.EmbeddingBag]]


def _numbers(found: Found) -> int:
    """Of all tables; a shared one counts once."""
    return sum(weight.numel() for weight in {id(module.weight): module.weight for _, module in found}.values())


def _worth_it(found: Found, budget: str) -> Found:
    """Those whose part of the budget is enough for two anchors: with one, all vectors would be multiples of it."""
    small, dense = {}, _numbers(found)
    for name, module in found:
        V, d = module.weight.shape
        part = _part(budget, V * d, dense)
        numbers = replace(part, amount=part.amount - HEADER) if part.unit == "bytes" else part
        if anchors_for_table(numbers, V, d) < 2:
            small[name] = f"{name} ({V} × {d}: {part})"
    if len(small) == len(found):
        raise BudgetError(f"a budget of {budget} is less than two anchors take, for {', '.join(small.values())}; allow more")
    if small:
        log.info("left as they are, since %s is less than two anchors take: %s", budget, ", ".join(small.values()))
    return [(name, module) for name, module in found if name not in small]


def _part(budget: str, own: int, dense: int) -> Budget:
    """What a table of `own` numbers may have of a budget for tables of `dense` numbers."""
    allowed = parse_budget(budget, 4.0 * dense)
    return replace(allowed, amount=allowed.amount * own / dense)


def _anchored(
    module: nn.Embedding | nn.EmbeddingBag, num_anchors: int | None, allowed: Budget | None, fresh: bool, seed: int
) -> AnchorEmbedding | AnchorEmbeddingBag:
    V, d = module.weight.shape
    suited = DEFAULT_ANCHORS if allowed is None else anchors_for_table(allowed, V, d)
    K = suited if num_anchors is None else num_anchors
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
        E = module.weight.detach()
        if allowed is None:
            T, A, new.reconstruction_error = nonnegative_factorize(E, min(K, V), seed=seed)
        else:
            T, A, new.reconstruction_error = factorize_within(E, allowed, min(K, V), seed=seed)
        new.rows.reset_to(T)
        new.anchors.data.copy_(A)
    return new.train(module.training)
