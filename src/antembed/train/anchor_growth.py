"""nbANT: evaluates a model by eq. 5, asks a policy what to do, does it, and can return to where it was.

The objective is that of the model as it would be exported: weights that hardly count are pruned before the non-zeros and the
anchors in use are counted and validation data are evaluated, and put back afterwards. Without that, gradient noise keeps
every weight of T a little above zero, and λ2·‖T‖₀ says V·K whatever has been learned.

While K moves, the learning rate stays: a falling one would make every later attempt look worse than it is. Once K stands, the
rate is annealed over the epochs that were kept for it.
"""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from antembed.files import JSON
from antembed.layer.anchor import AnchoredTable, AnchorEmbedding
from antembed.layer.growth_rule import Add, Check, Keep, Plateau, PlateauState, Remove, Stop, Trend, TrendState, nbant_objective
from antembed.layer.optim.prox import NonNegativeL1
from antembed.layer.resize_anchors import RemovedAnchors, add_anchors, free_pairs, remove_anchors, set_free
from antembed.train.callbacks import Controller, pruned
from antembed.train.checkpoint import capture, restore, with_prefix
from antembed.train.engine import Loop, cosine, ramp, scaled
from antembed.train.run_folder import RunFolder

ANNEALED = 0.2  # share of the epochs that is left for the end, once the number of anchors stands
STATES: dict[type, type] = {Plateau: PlateauState, Trend: TrendState}


class GrowthControl(Controller):
    """`--anchors auto`: moves the number of anchors of a model's tables between epochs."""

    name: ClassVar[str] = "growth"

    def __init__(self, loop: Loop):
        super().__init__(loop)
        own, tables = loop.own, loop.model.embeddings
        plateau, epochs = own.growth.growth == "plateau", own.epochs
        # The paper's rule runs to the last epoch of its usual schedule.
        self.anneal = max(round(ANNEALED * epochs), 1) if plateau else 0
        self.warmup = round(own.sparsity.l1_warmup * self.anneal)
        if self.warmup + self.anneal >= epochs:
            raise ValueError(
                f"{self.warmup} epochs to warm up and {self.anneal} to anneal leave none of {epochs} to grow; raise --epochs"
            )
        self.tables = {name: table for name, table in tables.items() if isinstance(table, AnchorEmbedding)}
        self.policy: Plateau | Trend = Plateau(tables=len(tables)) if plateau else Trend(own.growth.anchor_step)
        self.policy_state: Any = self.policy.initial_state()  # of the policy's own kind
        self.removed: dict[str, RemovedAnchors] = {}
        self.stopped: tuple[int, int] | None = None  # epoch and step at which K stood still
        self.trial: JSON | None = None  # the change under way, and the objective before it
        self.lowest, self.changes = float("inf"), 0
        if plateau:
            fall, steps = cosine(self.anneal * loop.steps_per_epoch), self.warmup * loop.steps_per_epoch
            # The rate stays while K moves, then falls to 0.
            loop.lr = lambda step: own.optimizer.lr * (1.0 if self.stopped is None else fall(step - self.stopped[1]))
            loop.l1 = scaled(own.sparsity.l1_penalty, ramp(steps))

    @property
    def K(self) -> dict[str, int]:
        return {name: table.num_anchors for name, table in self.tables.items()}

    def stops(self, epoch: int) -> bool:
        return self.stopped is not None and epoch > self.stopped[0] + self.anneal

    def end(self, epoch: int, record: JSON, files: RunFolder) -> None:
        self.lowest = min(self.lowest, record["objective"])
        if self.stopped is None and epoch > self.warmup:
            record["growth"] = self.adjust(epoch, self.loop.step, record, files.snapshot)
            if record["growth"] is not None:
                self.changes += 1
                self.loop.engine = None  # it holds the tensors of before

    def summary(self) -> JSON:
        """How the number of anchors came about."""
        own = self.loop.own
        costs = {"anchor_penalty": own.growth.anchor_penalty, "l0_penalty": own.l0_penalty}
        return {"policy": own.growth.growth, **costs, "objective": self.lowest, "changes": self.changes}

    def evaluate(self, validate: Callable[[], dict[str, float]]) -> JSON:
        """Eq. 5 of the model as it would be exported, with its parts."""
        with pruned(self.tables.values(), self.loop.own.sparsity.prune):
            nnz = {name: table.rows.count_nonzeros() for name, table in self.tables.items()}
            used = {name: int(in_use(table).sum()) for name, table in self.tables.items()}
            errors = validate()
        # With nothing in use there is still one anchor to be paid for.
        K = sum(max(n, 1) for n in used.values())
        own = self.loop.own
        objective = nbant_objective(errors["loss"], sum(nnz.values()), K, own.growth.anchor_penalty, own.l0_penalty)
        return {"validation": errors, "nnz": nnz, "anchors": self.K, "anchors_in_use": used, "objective": objective}

    def adjust(self, epoch: int, step: int, record: JSON, snapshot: Path) -> JSON | None:
        """Ask the policy, and do what it says; → what was done, or None if nothing. `record`: what `evaluate` found;
        `snapshot`: the file to return to if a change does not help."""
        K = tuple(max(n, 1) for n in record["anchors_in_use"].values())
        objective = record["objective"]
        began = self.policy_state
        check = Check(objective, record["validation"]["loss"], K, removed=bool(self.removed))
        self.policy_state, decision = self.policy(self.policy_state, check)
        if isinstance(decision, Keep) and epoch >= self.loop.own.epochs - self.anneal:
            decision = self.policy.finish(self.policy_state)
        if isinstance(decision, Keep):
            return None
        done: JSON = {"decision": type(decision).__name__.lower(), **asdict(decision)}
        if isinstance(self.policy, Plateau):
            level = self.policy.level((*began.since, objective))
            if self.trial is not None:
                done["trial"] = self.trial | {"after": level, "kept": not decision.undo}
            stands = self.trial["before"] if self.trial is not None and decision.undo else level
        else:
            stands = objective
        self._apply(decision, epoch, step, snapshot)
        self.trial = None
        if not isinstance(decision, Stop):
            self.trial = {"change": done["decision"], "n": decision.n, "before": stands}
        return done | {"objective": stands, "anchors": self.K}

    def _apply(self, decision: Add | Remove | Stop, epoch: int, step: int, snapshot: Path) -> None:
        if decision.undo:
            self._undo(step, snapshot)
        elif isinstance(self.policy, Plateau):
            self._drop_dead()
            self.loop.storage.save(snapshot, capture(self.loop.model, self.loop.optimizer, {}, self.tensors()))
        if isinstance(decision, Stop):
            self.stopped = (epoch, step)
            return
        for number, (name, table) in enumerate(self.tables.items()):
            if decision.table in (None, number):
                if isinstance(decision, Add):
                    self._add(name, table, decision, epoch * len(self.tables) + number)
                else:
                    self._remove(name, table, min(decision.n, table.num_anchors - 1))

    def _add(self, name: str, table: AnchorEmbedding, decision: Add, draw: int) -> None:
        generator = torch.Generator().manual_seed(1_000_003 * (self.loop.config.machine.seed + 1) + draw)
        aside = self.removed.pop(name, None)
        again = None if decision.fresh else aside
        rest = add_anchors(table, self.loop.optimizer, decision.n, again, generator=generator)
        if rest is not None:
            self.removed[name] = rest

    def _remove(self, name: str, table: AnchorEmbedding, n: int) -> None:
        order = usage(table).argsort().tolist()
        gone = remove_anchors(table, self.loop.optimizer, order[:n])
        self.removed[name] = self.removed[name].append(gone) if name in self.removed else gone

    def _drop_dead(self) -> None:
        """Anchors that no object would use if the model were exported now: nothing is lost with them."""
        with pruned(self.tables.values(), self.loop.own.sparsity.prune):
            dead = {name: (~in_use(table)).nonzero()[:, 0].tolist() for name, table in self.tables.items()}
        for name, columns in dead.items():
            remove_anchors(self.tables[name], self.loop.optimizer, columns[: self.tables[name].num_anchors - 1])

    def _undo(self, step: int, snapshot: Path) -> None:
        saved = self.loop.storage.load(snapshot)
        restore(saved, self.loop.model, self.loop.optimizer)
        self.load_tensors(saved.part("extra/"))
        for state in self.loop.optimizer.state.values():
            state["step"] = step  # steps do not go back, and both engines count them alike

    def state(self) -> JSON:
        own = {"policy": asdict(self.policy_state), "stopped": self.stopped, "trial": self.trial}
        return {"growth": own, "lowest": self.lowest, "changes": self.changes}

    def load(self, state: JSON, tensors: dict[str, Tensor]) -> None:
        self.lowest, self.changes, state = state["lowest"], state["changes"], state["growth"]
        plain = {name: tuple(v) if isinstance(v, list) else v for name, v in state["policy"].items()}
        self.policy_state = STATES[type(self.policy)](**plain)
        self.stopped = None if state["stopped"] is None else (state["stopped"][0], state["stopped"][1])
        self.trial = state["trial"]
        self.load_tensors(tensors)

    def tensors(self) -> dict[str, Tensor]:
        """Removed anchors, and free entries, which move with the anchors."""
        found = {f"removed/{name}/{key}": t for name, gone in self.removed.items() for key, t in gone.tensors().items()}
        return found | {f"free/{name}": free_pairs(self._prox(table)) for name, table in self.tables.items()}

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        self.removed = {}
        for name, table in self.tables.items():
            if found := with_prefix(tensors, f"removed/{name}/"):
                self.removed[name] = RemovedAnchors.from_tensors(found)
            set_free(self._prox(table), tensors[f"free/{name}"], table)

    def _prox(self, table: AnchoredTable) -> NonNegativeL1:
        return next(g["prox"] for g in self.loop.optimizer.param_groups if g["table"] is table.rows)


def usage(table: AnchoredTable) -> Tensor:
    """What each anchor contributes to all objects' vectors, Σ_i t_ik·‖a_k‖: (K,)."""
    return (table.rows.summed(table.rows.current.detach().sum(0)) * table.anchors.norm(dim=1)).detach()


def in_use(table: AnchoredTable) -> Tensor:
    """Whether any object has a weight on each anchor: (K,)."""
    return table.rows.summed((table.rows.current != 0).sum(0)) > 0
