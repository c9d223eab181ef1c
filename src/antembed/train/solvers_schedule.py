"""Learning rates as pure functions of the step, so that a resumed run needs no scheduler state."""

import math
from collections.abc import Callable

Schedule = Callable[[int], float]


def scaled(factor: float, schedule: Schedule) -> Schedule:
    """factor × schedule."""
    return lambda step: factor * schedule(step)


def constant(value: float = 1.0) -> Schedule:
    """The same throughout."""
    return lambda step: value


def halving(every: int) -> Schedule:
    """The paper's: × ½ every so many steps."""
    return lambda step: 0.5 ** (step // every)


def cosine(steps: int) -> Schedule:
    """From 1 to 0 over `steps`, slowly at both ends."""
    return lambda step: 0.5 * (1 + math.cos(math.pi * min(step / max(steps, 1), 1.0)))


def ramp(steps: int) -> Schedule:
    """From 0 to 1 over `steps`, then 1.

    For a penalty: at full strength from the first step it kills most anchors before they have learned anything, and a
    product of two tables in which both sides of an anchor are zero has no gradient to bring it back.
    """
    return lambda step: min(step / steps, 1.0) if steps else 1.0
