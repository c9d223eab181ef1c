"""Optimizers for sparse tables: gradient → update → prox. They know nothing of layers but the table of a group."""

from antembed.layer.optim.prox import L1, FreeEntries, GroupL2, NonNegativeL1, Prox, SubgradientL1
from antembed.layer.optim.proximal_optimizer import ProximalOptimizer, clip_grad_norm_
from antembed.layer.optim.rules import ProximalAdam, ProximalSGD, ProximalYogi
from antembed.layer.optim.wrapper import Proximal

OPTIMIZERS: dict[str, type[ProximalOptimizer]] = {"yogi": ProximalYogi, "adam": ProximalAdam, "sgd": ProximalSGD}

__all__ = ["L1", "OPTIMIZERS", "FreeEntries", "GroupL2", "NonNegativeL1", "Prox", "Proximal", "ProximalAdam",
           "ProximalOptimizer", "ProximalSGD", "ProximalYogi", "SubgradientL1", "clip_grad_norm_"]  # fmt: skip
