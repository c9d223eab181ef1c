"""Parameter groups carry objects (a penalty, a table); a checkpoint carries plain data. This is the way between the two."""

from typing import Any

Group = dict[str, Any]
OBJECTS = ("prox", "table")


def plain_groups(groups: list[Group]) -> list[Group]:
    """What a checkpoint keeps of the groups: of a penalty, its strength."""
    return [
        {name: value for name, value in group.items() if name not in OBJECTS}
        | {"strength": None if group.get("prox") is None else group["prox"].strength}
        for group in groups
    ]


def own_groups(mine: list[Group], saved: list[Group]) -> list[Group]:
    """The saved numbers with this optimiser's own objects; the saved strengths go into its penalties."""
    groups = [dict(group) for group in saved]
    for own, group in zip(mine, groups, strict=False):  # torch itself reports a wrong number of groups
        strength = group.pop("strength", None)
        group.update({name: own[name] for name in OBJECTS if name in own})
        if own.get("prox") is not None and strength is not None:
            own["prox"].strength = strength
        if own.get("table") is not None:
            own["table"].release()
    return groups
