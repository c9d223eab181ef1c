"""When to add and when to remove anchors: pure decisions, from the objectives seen so far to what to do next. No torch in here.

A policy is a function (memory, K, objective, aside) → (memory, decision), called at every check (an epoch's end). Its memory
is plain data, so that a checkpoint can keep it. K has one number for each table; `aside` says whether there are removed anchors
that could come back. K counts the anchors in use.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Keep:
    """Train on as it is."""


@dataclass(frozen=True)
class Add:
    """n anchors more, in one table or (None) in each. `undo`: first go back to what was remembered.

    `fresh`: those aside have been tried, and are to be forgotten.
    """

    n: int
    table: int | None = None
    undo: bool = False
    fresh: bool = False


@dataclass(frozen=True)
class Remove:
    """The n least used anchors away, in one table or (None) in each. `undo` as above."""

    n: int
    table: int | None = None
    undo: bool = False


@dataclass(frozen=True)
class Stop:
    """K stands."""

    undo: bool = False


Decision = Keep | Add | Remove | Stop


# The paper's rule ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrendMemory:
    last: tuple[float, ...] = ()


@dataclass(frozen=True)
class Trend:
    """The paper's: the last three objectives falling → ΔK more, rising → ΔK fewer, else keep; to the last epoch."""

    step: int = 1  # ΔK: 1 for MovieLens 1M, 2 for 25M

    def begin(self) -> TrendMemory:
        return TrendMemory()

    def __call__(
        self, memory: TrendMemory, K: tuple[int, ...], objective: float, aside: bool = False
    ) -> tuple[TrendMemory, Decision]:
        last = (*memory.last, objective)[-3:]
        memory = TrendMemory(last)
        if len(last) < 3:
            return memory, Keep()
        if last[0] > last[1] > last[2]:
            return memory, Add(self.step)
        if last[0] < last[1] < last[2] and min(K) > self.step:
            return memory, Remove(self.step)
        return memory, Keep()

    def finish(self, memory: TrendMemory) -> Stop:
        return Stop()


# The one that works -------------------------------------------------------------------------------------------------------

Direction = tuple[bool, int | None]  # more (or fewer) anchors, and in which table; None: in all


@dataclass(frozen=True)
class PlateauMemory:
    since: tuple[float, ...] = ()  # objectives since the last change
    before: float = float("inf")  # where it stood when the trial under way began
    trying: int = -1  # number of the direction; −1 while settling for the first time
    n: int = 0  # the trial's size
    K: tuple[int, ...] = ()  # before the trial
    aside: bool = False  # whether anchors were aside then
    fresh: bool = False  # the trial leaves those aside
    failed: tuple[int, ...] = ()  # directions that do not help from here


@dataclass(frozen=True)
class Plateau:
    """Train to a plateau, try a change, train to a plateau again: keep what lowers the objective, undo what does not.

    Directions in turn: fewer everywhere, more everywhere, then (for several tables) fewer and more in each one. The first
    trial removes half of K; later ones begin with one anchor. A success doubles the size of the next, a failure halves it, and
    a failure with one anchor ends the direction. When all have failed since the last success, K stands.
    """

    tables: int = 1
    patience: int = 3  # checks without a fall make a plateau
    tolerance: float = 0.003  # a smaller fall (relative) is none
    gain: float = 0.005  # what a change must be worth (relative), or training that goes on would pass for a good change
    longest: int = 15  # checks to wait for a plateau

    @property
    def directions(self) -> list[Direction]:
        where: list[int | None] = [None, *range(self.tables)] if self.tables > 1 else [None]
        return [(more, table) for table in where for more in (False, True)]

    def begin(self) -> PlateauMemory:
        return PlateauMemory()

    def settled(self, since: tuple[float, ...]) -> bool:
        """None of the last few checks was lower than all before by more than the tolerance, or enough is enough."""
        if len(since) <= self.patience:
            return False
        return len(since) >= self.longest or min(since[-self.patience :]) > min(since[: -self.patience]) * (1 - self.tolerance)

    def level(self, since: tuple[float, ...]) -> float:
        """Where it stands: the middle one of the last few checks, since single ones are lucky or not."""
        last = sorted(since[-self.patience :])
        return last[len(last) // 2]

    def __call__(
        self, memory: PlateauMemory, K: tuple[int, ...], objective: float, aside: bool = False
    ) -> tuple[PlateauMemory, Decision]:
        memory = replace(memory, since=(*memory.since, objective))
        if not self.settled(memory.since):
            return memory, Keep()
        level = self.level(memory.since)
        if memory.trying < 0:
            return self._try(replace(memory, before=level, K=K, aside=aside), 0, max(K) // 2)
        more, table = self.directions[memory.trying]
        better = level < memory.before * (1 - self.gain)
        if better and more and sum(K) <= sum(memory.K):  # the new anchors have died: it is the training that went on
            memory = replace(memory, before=level, K=K, aside=aside, failed=(*memory.failed, memory.trying))
            return self._try(memory, memory.trying + 1, 1)
        if better:
            # Undoing a single step that has just helped is known not to help.
            known = (memory.trying ^ 1,) if memory.n == 1 else ()
            memory = replace(memory, before=level, K=K, aside=aside, failed=known)
            return self._try(memory, memory.trying, 2 * memory.n)
        if memory.n > 1:
            return self._try(memory, memory.trying, memory.n // 2, undo=True)
        if more and memory.aside and not memory.fresh:  # those that were removed once do not help; others may
            return replace(memory, since=(), fresh=True), Add(1, table, undo=True, fresh=True)
        memory = replace(memory, failed=(*memory.failed, memory.trying))
        return self._try(memory, memory.trying + 1, 1, undo=True)

    def _try(self, memory: PlateauMemory, first: int, n: int, undo: bool = False) -> tuple[PlateauMemory, Decision]:
        """A change of size n in direction `first`, or of 1 in the next one in which there is something left to try."""
        for turn in range(len(self.directions)):
            number = (first + turn) % len(self.directions)
            more, table = self.directions[number]
            most = max(memory.K) if table is None else memory.K[table]
            if number in memory.failed or (not more and most < 2):
                continue
            size = max(n, 1) if turn == 0 else 1
            size = size if more else min(size, most // 2)
            memory = replace(memory, since=(), trying=number, n=size, fresh=False)
            return memory, Add(size, table, undo) if more else Remove(size, table, undo)
        return replace(memory, since=()), Stop(undo)

    def finish(self, memory: PlateauMemory) -> Stop:
        """Time is up: a trial under way counts if it has lowered the objective so far."""
        ahead = bool(memory.since) and self.level(memory.since) < memory.before * (1 - self.gain)
        return Stop(undo=memory.trying >= 0 and not ahead)


POLICIES = {"plateau": Plateau, "trend": Trend}
