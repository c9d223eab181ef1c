"""Warnings where T is trained without its penalty: by an optimizer that has none, or by one that was not given it.

All layers are known here (weakly), and one hook of torch looks at each optimizer before its first step. What an optimizer
should do with a parameter is what the layer's own `param_groups` say, so that a new embedding needs nothing more.
"""

import warnings
from typing import Protocol
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch.optim import LBFGS, SGD, Adagrad, Optimizer, SparseAdam
from torch.optim.optimizer import register_optimizer_step_pre_hook

from antembed.layer.optim.prox import NonNegativeL1
from antembed.layer.optim.proximal import Group, ProximalOptimizer
from antembed.layer.optim.wrapper import Proximal, is_wrapped
from antembed.layer.row_table import RowTable
from antembed.tables.nonzeros import BLOCK

TAKE_SPARSE = (SGD, Adagrad, SparseAdam, LBFGS)  # all of torch.optim that accept row-sparse gradients
REMEDY = "use antembed.ProximalYogi(antembed.param_groups(model, l1_penalty=…))"


class Layer(Protocol):
    """What is used of a layer here."""

    warned: frozenset[str]

    def param_groups(self, l1_penalty: float) -> list[Group]: ...


_layers: WeakSet[Layer] = WeakSet()
_checked: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()  # the number of groups it had then
_warned: WeakSet[Optimizer] = WeakSet()
_hooked: list[object] = []


def watch(layer: Layer) -> None:
    """From now on optimizers are checked for this layer's parameters."""
    _layers.add(layer)
    if not _hooked:  # with the first layer, not on import: programs without one keep torch as it is
        _hooked.append(register_optimizer_step_pre_hook(_before_step))


def _before_step(optimizer: Optimizer, args: object, kwargs: object) -> None:
    if torch.compiler.is_compiling():
        return
    if _checked.get(optimizer) != len(optimizer.param_groups):
        _check(optimizer)


def _check(optimizer: Optimizer) -> None:
    """Warn (once) or raise if the optimizer holds a layer's parameter and cannot do with it what the layer needs."""
    held = {id(weight): group for group in optimizer.param_groups for weight in group["params"]}
    name, complete, unpenalized = type(optimizer).__name__, True, ""
    for layer in list(_layers):
        for wanted in _groups(layer):
            for weight in wanted["params"]:
                if id(weight) not in held or not weight.requires_grad:
                    continue
                if weight.grad is None:  # not yet: look again at the next step
                    complete = False
                    continue
                if weight.grad.is_sparse and _refuses_sparse(optimizer):
                    raise RuntimeError(
                        f"{name} takes no row-sparse gradients, but {type(layer).__name__}(sparse=True) has them; {REMEDY}, "
                        "which takes them and applies the penalty, or build the layer with sparse=False"
                    )
                prox = wanted.get("prox")
                if prox is not None and prox.scheduled and not _applies_prox(optimizer, held[id(weight)]):
                    wanted["table"].unpenalized_by, unpenalized = name, type(layer).__name__
    if complete:
        _checked[optimizer] = len(optimizer.param_groups)
    if unpenalized and optimizer not in _warned:
        _warned.add(optimizer)
        warnings.warn(_unpenalized(optimizer, unpenalized), stacklevel=4)


def _groups(layer: Layer) -> list[Group]:
    try:
        return layer.param_groups(0.0)
    except AttributeError:  # its construction failed half-way, and an exception still refers to it
        return []


def _refuses_sparse(optimizer: Optimizer) -> bool:
    return type(optimizer).__module__.startswith("torch.optim") and not isinstance(optimizer, TAKE_SPARSE)


def _applies_prox(optimizer: Optimizer, group: Group) -> bool:
    if group.get("prox") is None:
        return False
    if isinstance(optimizer, ProximalOptimizer | Proximal) or is_wrapped(optimizer):
        return True
    # A wrapper of some other library may show the groups of a proximal optimizer inside it.
    return not type(optimizer).__module__.startswith("torch.optim")


def _unpenalized(optimizer: Optimizer, layer: str) -> str:
    name = type(optimizer).__name__
    what = f"{name} updates T of {layer} without its penalty: no weight becomes zero, nothing is compressed; "
    if isinstance(optimizer, ProximalOptimizer):
        return what + f"give it the layer's groups, antembed.{name}(antembed.param_groups(model, l1_penalty=…))"
    return what + f"{REMEDY}, or antembed.optim.Proximal(torch.optim.{name}(antembed.param_groups(model, l1_penalty=…)))"


def warn_if_dense(layer: Layer, *, exporting: bool) -> None:
    """Warn, once a layer, of negative weights of T, and if no weight is zero though one should be.

    A new layer has no zero either, and l1_penalty=0 leaves none. So `usage()` warns only after steps without the penalty, and
    `export` unless an optimizer with a prox (or a solver) has had this T.
    """
    for group in _groups(layer):
        prox, table = group.get("prox"), group.get("table")
        if not isinstance(prox, NonNegativeL1) or not prox.scheduled or not isinstance(table, RowTable):
            continue
        T = table.current.detach()
        if not T.numel() or T.is_meta:
            continue
        if negative := sum(int((piece < 0).count_nonzero()) for piece in T.split(BLOCK)):  # a sum takes 8 bytes a weight
            text = f"T has {negative:,} negative weights (smallest {float(T.min()):.2g}), but weights of T are ≥ 0; {REMEDY}"
            _warn_once(layer, "negative", text)
        weights = (table.num_embeddings - (table.padding_idx is not None)) * T.shape[1]
        suspicious = table.unpenalized_by or (exporting and not table.penalized)
        if suspicious and weights and table.count_nonzeros() == weights:
            text = f"no weight of T is zero ({weights:,} of {weights:,} are not); was a proximal optimizer used? {REMEDY}"
            _warn_once(layer, "dense", text)


def _warn_once(layer: Layer, kind: str, text: str) -> None:
    if kind not in layer.warned:
        layer.warned |= {kind}
        warnings.warn(text, stacklevel=4)
