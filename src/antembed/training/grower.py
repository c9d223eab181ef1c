"""nbANT at work: judges a model by eq. 5, asks a policy what to do, does it, and can go back to where it was.

The objective is that of the model as it would be exported: weights that hardly count are pruned before the non-zeros and the
anchors in use are counted and the validation data are looked at, and put back afterwards. Without that, gradient noise keeps
every weight of T a little above zero, and λ2·‖T‖₀ says V·K whatever has been learned.

While K moves, the learning rate stays: a falling one would make every later trial look worse than it is. Once K stands, the
rate is annealed over the epochs that were put by for it.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from antembed.embedding import AnchorEmbedding
from antembed.embedding.anchor import AnchoredTable
from antembed.embedding.usage import count_nonzeros
from antembed.growth.objective import nbant_objective
from antembed.growth.policy import Add, Check, Decision, Keep, Plateau, PlateauState, Remove, Stop, Trend, TrendState
from antembed.growth.resize import RemovedAnchors, add_anchors, free_pairs, remove_anchors, set_free
from antembed.optim.base import ProximalOptimizer
from antembed.training.checkpoint import load_checkpoint, load_extra, save_checkpoint
from antembed.training.schedule import Schedule, cosine

MEMORIES: dict[type, type] = {Plateau: PlateauState, Trend: TrendState}


class Grower:
    """Moves the number of anchors of the tables of one model. `snapshot` is the file to go back to."""

    def __init__(
        self,
        model: nn.Module,
        tables: Mapping[str, nn.Module],
        optimizer: ProximalOptimizer,
        policy: Plateau | Trend,
        snapshot: Path,
        *,
        lambda1: float,
        lambda2: float,
        epochs: int,
        warm: int = 0,
        anneal: int = 0,
        prune: float = 0.1,
        seed: int = 0,
    ):
        for name, table in tables.items():
            if not isinstance(table, AnchoredTable):
                raise TypeError(f"{name} is a {type(table).__name__}, whose anchors cannot be chosen; use AnchorEmbedding")
        if not 0 <= lambda2 <= lambda1:
            raise ValueError(f"0 ≤ λ2 ≤ λ1 is needed, got λ1 = {lambda1} and λ2 = {lambda2}: anchors cost λ1 − λ2 each")
        if warm + anneal >= epochs:
            raise ValueError(f"{warm} epochs to warm up and {anneal} to anneal leave none of {epochs} to grow; give it more")
        self.model, self.optimizer, self.policy, self.snapshot = model, optimizer, policy, snapshot
        self.tables: dict[str, Any] = dict(tables)
        self.lambda1, self.lambda2, self.prune, self.seed = lambda1, lambda2, prune, seed
        self.epochs, self.warm, self.anneal = epochs, warm, anneal
        self.memory: Any = policy.initial_state()
        self.aside: dict[str, RemovedAnchors] = {}
        self.stopped: tuple[int, int] | None = None  # epoch and step at which K stood still
        self.trial: dict[str, Any] | None = None  # the change under way, and the objective before it

    @property
    def K(self) -> dict[str, int]:
        return {name: table.num_anchors for name, table in self.tables.items()}

    def done(self, epoch: int) -> bool:
        """Whether training ends after this epoch."""
        return self.stopped is not None and epoch >= self.stopped[0] + self.anneal

    def due(self, epoch: int) -> bool:
        return self.stopped is None and epoch > self.warm

    def judge(self, validate: Callable[[], dict[str, float]]) -> dict[str, Any]:
        """Eq. 5 of the model as it would be exported, with its parts."""
        with pruned(self.tables.values(), self.prune):
            weights = {name: (table.rows.weight, table.padding_idx) for name, table in self.tables.items()}
            nnz = {name: count_nonzeros(*weight) for name, weight in weights.items()}
            used = {name: int((weight != 0).any(0).sum()) for name, (weight, _) in weights.items()}
            errors = validate()
        # With nothing in use there is still one anchor to be paid for.
        K = sum(max(n, 1) for n in used.values())
        objective = nbant_objective(errors["loss"], sum(nnz.values()), K, self.lambda1, self.lambda2)
        return {"validation": errors, "nnz": nnz, "anchors": self.K, "anchors_in_use": used, "objective": objective}

    def adjust(self, epoch: int, step: int, judged: dict[str, Any]) -> dict[str, Any] | None:
        """Ask the policy, and do what it says; → what was done, or None if nothing. `judged`: what `judge` found."""
        K = tuple(max(n, 1) for n in judged["anchors_in_use"].values())
        objective = judged["objective"]
        began = self.memory
        check = Check(objective, judged["validation"]["loss"], K, removed=bool(self.aside))
        self.memory, decision = self.policy(self.memory, check)
        if isinstance(decision, Keep) and epoch >= self.epochs - self.anneal:
            decision = self.policy.finish(self.memory)
        if isinstance(decision, Keep):
            return None
        told: dict[str, Any] = {"decision": type(decision).__name__.lower(), **asdict(decision)}
        if isinstance(self.policy, Plateau):
            level = self.policy.level((*began.since, objective))
            if self.trial is not None:
                told["trial"] = self.trial | {"after": level, "kept": not decision.undo}
            stands = self.trial["before"] if self.trial is not None and decision.undo else level
        else:
            stands = objective
        self._do(decision, epoch, step)
        change = {"change": type(decision).__name__.lower(), "n": getattr(decision, "n", 0), "before": stands}
        self.trial = None if isinstance(decision, Stop) else change
        return told | {"objective": stands, "anchors": self.K}

    def _do(self, decision: Decision, epoch: int, step: int) -> None:
        if isinstance(decision, Add | Remove | Stop) and decision.undo:
            self._go_back(step)
        elif isinstance(self.policy, Plateau):
            self._drop_dead()
            save_checkpoint(self.snapshot, self.model, self.optimizer, {}, self.tensors())
        if isinstance(decision, Stop):
            self.stopped = (epoch, step)
            return
        assert isinstance(decision, Add | Remove)
        for number, (name, table) in enumerate(self.tables.items()):
            if decision.table in (None, number):
                if isinstance(decision, Add):
                    self._add(name, table, decision, epoch * len(self.tables) + number)
                else:
                    self._remove(name, table, min(decision.n, table.num_anchors - 1))

    def _add(self, name: str, table: AnchorEmbedding, decision: Add, draw: int) -> None:
        generator = torch.Generator().manual_seed(1_000_003 * (self.seed + 1) + draw)
        aside = self.aside.pop(name, None)
        rest = add_anchors(table, self.optimizer, decision.n, None if decision.fresh else aside, generator=generator)
        if rest is not None:
            self.aside[name] = rest

    def _remove(self, name: str, table: AnchorEmbedding, n: int) -> None:
        order = usage(table).argsort().tolist()
        gone = remove_anchors(table, self.optimizer, order[:n])
        self.aside[name] = self.aside[name].append(gone) if name in self.aside else gone

    def _drop_dead(self) -> None:
        """Anchors that no object would use if the model were exported now: nothing is lost with them."""
        with pruned(self.tables.values(), self.prune):
            dead = {name: (table.rows.weight == 0).all(0).nonzero()[:, 0].tolist() for name, table in self.tables.items()}
        for name, columns in dead.items():
            remove_anchors(self.tables[name], self.optimizer, columns[: self.tables[name].num_anchors - 1])

    def _go_back(self, step: int) -> None:
        load_checkpoint(self.snapshot, self.model, self.optimizer)
        self.load_tensors(load_extra(self.snapshot))
        for state in self.optimizer.state.values():
            state["step"] = step  # time does not go back, and both engines are to count it alike

    # What a checkpoint keeps.

    def state(self) -> dict[str, Any]:
        return {"memory": asdict(self.memory), "stopped": self.stopped, "trial": self.trial}

    def load(self, state: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        plain = {name: tuple(v) if isinstance(v, list) else v for name, v in state["memory"].items()}
        self.memory = MEMORIES[type(self.policy)](**plain)
        self.stopped = None if state["stopped"] is None else (state["stopped"][0], state["stopped"][1])
        self.trial = state["trial"]
        self.load_tensors(tensors)

    def tensors(self) -> dict[str, Tensor]:
        """Anchors aside, and free entries, which move with the anchors."""
        found = {f"aside/{name}/{key}": t for name, aside in self.aside.items() for key, t in aside.tensors().items()}
        return found | {f"free/{name}": free_pairs(self._prox(table)) for name, table in self.tables.items()}

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        self.aside = {}
        for name, table in self.tables.items():
            prefix = f"aside/{name}/"
            if found := {key.removeprefix(prefix): t for key, t in tensors.items() if key.startswith(prefix)}:
                self.aside[name] = RemovedAnchors.from_tensors(found)
            set_free(self._prox(table), tensors[f"free/{name}"], table)

    def _prox(self, table: Any) -> Any:
        return next(g["prox"] for g in self.optimizer.param_groups if g["table"] is table.rows)

    def annealed(self, base: float, steps_per_epoch: int) -> Schedule:
        """The learning rate: `base` while K moves, then a cosine to 0."""
        fall = cosine(self.anneal * steps_per_epoch)
        return lambda step: base * (1.0 if self.stopped is None else fall(step - self.stopped[1]))


def usage(table: AnchoredTable) -> Tensor:
    """What each anchor contributes to all objects' vectors, Σ_i t_ik·‖a_k‖: (K,)."""
    return (table.transform.sum(0) * table.anchors.norm(dim=1)).detach()


@contextmanager
def pruned(tables: Any, share: float) -> Iterator[None]:
    """With weights that hardly count at zero; afterwards they are back."""
    tables = list(tables)
    kept = [table.rows.current.detach().clone() for table in tables]
    try:
        for table in tables:
            table.prune(share)
        yield
    finally:
        for table, weight in zip(tables, kept, strict=True):
            table.rows.weight.data.copy_(weight)
