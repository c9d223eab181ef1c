"""Optimiser groups of a whole model: every antembed layer's own, and one for all other parameters."""

from typing import Any

from torch import nn

from antembed.embedding.anchor import AnchoredTable
from antembed.embedding.full import FullEmbedding
from antembed.embedding.mixture import MixtureEmbedding


def param_groups(model: nn.Module, l1: float) -> list[dict[str, Any]]:
    """Groups for ProximalYogi and its kin: each T of the model with the penalty l1·‖T‖₁, everything else without one.

    optimiser = ProximalYogi(param_groups(model, l1=2e-6), lr=0.01)
    """
    groups: list[dict[str, Any]] = []
    for layer in model.modules():
        if isinstance(layer, AnchoredTable | MixtureEmbedding):
            groups += layer.param_groups(l1)
        elif isinstance(layer, FullEmbedding):
            groups += layer.param_groups()
    seen = {id(weight) for group in groups for weight in group["params"]}
    rest = [weight for weight in model.parameters() if id(weight) not in seen]
    return [*groups, {"params": rest}] if rest else groups
