"""Parameter groups hold objects (a penalty, a table), a checkpoint holds plain data: conversion between the two."""

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

Group = dict[str, Any]  # a group of torch.optim, with `prox` and `table` besides (layer/optim/proximal.py)
State = dict[str, Any]  # a state_dict
OBJECTS = ("prox", "table")


def plain_groups(groups: list[Group]) -> list[Group]:
    """The groups as plain data for a checkpoint; a penalty is reduced to its strength."""
    return [
        {name: value for name, value in group.items() if name not in OBJECTS}
        | {"strength": None if group.get("prox") is None else group["prox"].strength}
        for group in groups
    ]


def load_keeping_objects(optimizer: Optimizer, load: Callable[[State], None], saved: State) -> None:
    """Load the saved numbers; keep the optimizer's own penalties (with the saved strengths) and tables."""
    objects = [{name: group[name] for name in OBJECTS if name in group} for group in optimizer.param_groups]
    groups = [dict(group) for group in saved["param_groups"]]
    strengths = [group.pop("strength", None) for group in groups]
    for own in objects:
        if own.get("table") is not None:
            own["table"].release()
    load({**saved, "param_groups": groups})  # torch deep-copies the groups, so they must not hold objects
    for group, own, strength in zip(optimizer.param_groups, objects, strengths, strict=True):
        group.update(own)
        if own.get("prox") is not None and strength is not None:
            own["prox"].strength = strength
