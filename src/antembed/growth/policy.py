"""When to add and when to remove anchors: pure decisions, from the objectives seen so far to what to do next. No torch in here.

A policy is a function (memory, check) → (memory, decision), called at every check, an epoch's end. Its memory is plain
data, for checkpoints.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Check:
    """What a policy is told: eq. 5 and the loss alone, on validation data, and how things stand."""

    objective: float
    loss: float
    K: tuple[int, ...]  # anchors in use, one number for each table
    aside: bool = False  # there are removed anchors that could come back


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

    def __call__(self, memory: TrendMemory, check: Check) -> tuple[TrendMemory, Decision]:
        last = (*memory.last, check.objective)[-3:]
        memory = TrendMemory(last)
        if len(last) < 3:
            return memory, Keep()
        if last[0] > last[1] > last[2]:
            return memory, Add(self.step)
        if last[0] < last[1] < last[2] and min(check.K) > self.step:
            return memory, Remove(self.step)
        return memory, Keep()

    def finish(self, memory: TrendMemory) -> Stop:
        return Stop()


# The one that works -------------------------------------------------------------------------------------------------------

SWELLING = -1
Direction = tuple[bool, int | None]  # more (or fewer) anchors, and in which table; None: in all


@dataclass(frozen=True)
class PlateauMemory:
    since: tuple[float, ...] = ()  # objectives since the last change,
    losses: tuple[float, ...] = ()  # and losses
    before: float = float("inf")  # where the objective stood when the trial under way began,
    before_loss: float = float("inf")  # and the loss
    trying: int = SWELLING  # number of the direction
    n: int = 0  # the trial's size
    K: tuple[int, ...] = ()  # before the trial
    aside: bool = False  # whether anchors were aside then
    fresh: bool = False  # the trial leaves those aside
    failed: tuple[int, ...] = ()  # directions that do not help from here


@dataclass(frozen=True)
class Plateau:
    """Train to a plateau, try a change, train to a plateau again: keep what lowers the objective, undo what does not.

    It begins by doubling K for as long as the loss falls by it, whatever the anchors cost: one fresh anchor alone may find no
    way into what the others share out among them, and a model grown one by one stays worse than one that had too many and
    lost them. Then directions in turn: fewer everywhere, more everywhere, and (for several tables) fewer and more in each one.
    The first trial removes half of K, later ones begin with one anchor; a success doubles the size of the next, a failure
    halves it, and a failure with one anchor ends the direction. When all have failed since the last success, K stands.
    """

    tables: int = 1
    patience: int = 3  # checks without a fall make a plateau
    tolerance: float = 0.003  # a smaller fall (relative) is none
    gain: float = 0.005  # what a change must be worth (relative), or training that goes on would pass for a good change
    longest: int = 15  # checks to wait for a plateau
    enough: int = 16  # with fewer anchors there is nothing to settle yet: they would only dig themselves in

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

    def __call__(self, memory: PlateauMemory, check: Check) -> tuple[PlateauMemory, Decision]:
        memory = replace(memory, since=(*memory.since, check.objective), losses=(*memory.losses, check.loss))
        too_few = not memory.K and max(check.K) < self.enough
        if not too_few and not self.settled(memory.since):
            return memory, Keep()
        level, loss = self.level(memory.since), self.level(memory.losses)
        here = replace(memory, before=level, before_loss=loss, K=check.K, aside=check.aside, since=(), losses=())
        if memory.trying == SWELLING:
            # The fall is held against the objective: where losses are small beside the prices, none is worth an anchor.
            if not memory.K or loss < memory.before_loss - self.gain * level:
                return here, Add(max(*check.K, self.enough))
            return self._try(here, 0, max(check.K) // 2)  # from the larger one: what it has found may be better
        more, table = self.directions[memory.trying]
        better = level < memory.before * (1 - self.gain)
        if memory.n > 1 and not more and loss > memory.before_loss + self.gain * level:
            better = False  # some of them were needed: half as many may be better still, and there is no easy way back
        if better and more and sum(check.K) <= sum(memory.K):  # the new anchors have died: it is the training that went on
            return self._try(replace(here, failed=(*memory.failed, memory.trying)), memory.trying + 1)
        if better:
            # Undoing a single step that has just helped is known not to help.
            known = (memory.trying ^ 1,) if memory.n == 1 else ()
            return self._try(replace(here, failed=known), memory.trying, 2 * memory.n)
        if memory.n > 1:
            return self._try(memory, memory.trying, memory.n // 2, undo=True)
        if more and memory.aside and not memory.fresh:  # those that were removed once do not help; others may
            return replace(memory, since=(), losses=(), fresh=True), Add(1, table, undo=True, fresh=True)
        memory = replace(memory, failed=(*memory.failed, memory.trying))
        return self._try(memory, memory.trying + 1, undo=True)

    def _try(self, memory: PlateauMemory, first: int, n: int = 1, undo: bool = False) -> tuple[PlateauMemory, Decision]:
        """A change of size n in direction `first`, or of one anchor in the next that has not failed."""
        for turn in range(len(self.directions)):
            number = (first + turn) % len(self.directions)
            more, table = self.directions[number]
            most = max(memory.K) if table is None else memory.K[table]
            if number in memory.failed or (not more and most < 2):
                continue
            size = max(n, 1) if turn == 0 else 1
            size = size if more else min(size, most // 2)
            memory = replace(memory, since=(), losses=(), trying=number, n=size, fresh=False)
            return memory, Add(size, table, undo) if more else Remove(size, table, undo)
        return memory, Stop(undo)

    def finish(self, memory: PlateauMemory) -> Stop:
        """Time is up: a trial under way counts if it has lowered the objective so far."""
        ahead = bool(memory.since) and self.level(memory.since) < memory.before * (1 - self.gain)
        return Stop(undo=bool(memory.K) and not ahead)


POLICIES = {"plateau": Plateau, "trend": Trend}
