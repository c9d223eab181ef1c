"""Gradient → update → prox. Of this package it imports kernels/ only."""

from antembed.optim.clip import clip_grad_norm_
from antembed.optim.prox import L1, FreeEntries, GroupL2, NonNegativeL1, Prox, SubgradientL1
from antembed.optim.rules import ProximalAdam, ProximalSGD, ProximalYogi
from antembed.optim.wrapper import Proximal

OPTIMIZERS = {"yogi": ProximalYogi, "adam": ProximalAdam, "sgd": ProximalSGD}

__all__ = [
    "L1",
    "OPTIMIZERS",
    "FreeEntries",
    "GroupL2",
    "NonNegativeL1",
    "Prox",
    "Proximal",
    "ProximalAdam",
    "ProximalSGD",
    "ProximalYogi",
    "SubgradientL1",
    "clip_grad_norm_",
]
