"""The proximal step: a rule gives a direction m and a metric D, the base class moves by a_t·m/D and then applies the prox.

Groups are those of torch with four more optional keys: `prox` (layer/optim/prox.py), `table` (the module that reads the
parameter by rows, so that rows can be lazy), `weight_decay` (decoupled, as in AdamW: the step starts from (1 − lr·decay)·x) and
`metric` ("diagonal": the prox uses the step a_t/D of the update, so that zero is stationary exactly where −∂L/∂T ≤ λ; "plain":
the prox shrinks by lr·λ everywhere, as in the paper's eq. 3).

`max_grad_norm` clips the gradients of all parameters by their joint 2-norm before each step, also row-sparse ones, of which
torch.nn.utils.clip_grad_norm_ cannot compute the norm.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypedDict, cast

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from antembed.layer.optim.lazy import LazyRows
from antembed.layer.optim.lazy_kernel import Rule, Step
from antembed.layer.optim.prox import GroupL2, NonNegativeL1, Prox, shrinks_linearly

Group = dict[str, Any]  # a group of torch.optim, with `prox` and `table` besides
State = dict[str, Any]  # a state_dict
Params = Iterable[Tensor] | Iterable[Group]
OBJECTS = ("prox", "table")  # of a group; a checkpoint holds plain data instead
MOMENTS = ("momentum", "second")
WORTH_GATHERING = 0.25  # share of entries that can move, up to which it is faster to gather them

# Parameters of which each process holds other rows, and the sum over those processes (layer/sharded/sharded_table.py).
SHARED: WeakIdKeyDictionary = WeakIdKeyDictionary()


@torch.no_grad()
def clip_grad_norm_(parameters: Tensor | Iterable[Tensor], max_norm: float) -> Tensor:
    """Scale all gradients so that their joint 2-norm is at most `max_norm`; → the norm before. As in torch.nn.utils, which
    fails on row-sparse gradients. `max_grad_norm` of a proximal optimizer does it at every step. Where processes share a table
    it is the norm over all its rows, and all processes call it."""
    values: list[Tensor] = []
    shared: list[Tensor] = []
    summed = None
    for weight in [parameters] if isinstance(parameters, Tensor) else parameters:
        summed = SHARED.get(weight, summed)
        if weight.grad is None:
            continue
        if weight.grad.is_sparse:  # the norm is that of the sums over equal rows
            weight.grad = weight.grad.coalesce()
        value = weight.grad._values() if weight.grad.is_sparse else weight.grad
        (shared if weight in SHARED else values).append(value)
    norm = torch.nn.utils.get_total_norm(values)
    if summed is not None:
        norm = (norm.square() + summed(torch.nn.utils.get_total_norm(shared).square())).sqrt()
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for value in [*values, *shared]:
        value.mul_(factor.to(value.device))
    return norm


def clip_groups(groups: list[Group], max_norm: float | None) -> None:
    """The same for all parameters of an optimizer; None: no clipping."""
    if max_norm is not None:
        clip_grad_norm_((weight for group in groups for weight in group["params"]), max_norm)


def check_max_norm(max_grad_norm: float | None) -> float | None:
    """Raise if gradients cannot be clipped to this norm."""
    if max_grad_norm is not None and not max_grad_norm > 0:
        raise ValueError(f"max_grad_norm must be > 0, got {max_grad_norm}; None switches clipping off")
    return max_grad_norm


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


class StepOptions(TypedDict, total=False):
    """Keyword arguments of every proximal optimizer."""

    metric: str  # of the prox: "diagonal" or "plain"
    compiled: bool | None  # False: lazy rows in plain torch, as on other devices
    max_grad_norm: float | None


class ProximalOptimizer(Optimizer):
    """Update, then prox. A subclass is a rule: its buffers, its scalar step a_t, and its direction and metric."""

    lazy = True  # the metric of an idle row does not change, so that idle steps have a closed form
    max_grad_norm: float | None = None

    def __init__(
        self,
        params: Params,
        defaults: Group,
        metric: str = "diagonal",
        compiled: bool | None = None,
        max_grad_norm: float | None = None,
    ):
        self.max_grad_norm = check_max_norm(max_grad_norm)
        self._pending: dict[Tensor, LazyRows] = {}
        self._supports: dict[Tensor, tuple[Tensor, Tensor | None]] = {}
        own = {"prox": None, "table": None, "weight_decay": 0.0, "metric": metric, "compiled": compiled}
        super().__init__(params, defaults | own)

    @classmethod
    def create(cls, params: Params, lr: float, eps: float | None = None, beta2: float | None = None) -> "ProximalOptimizer":
        """With this learning rate, and eps and β2 where the rule has them; None: the rule's own defaults."""
        own: dict[str, Any] = {"lr": lr}
        return cls(params, **own)

    @abstractmethod
    def _buffers(self, weight: Tensor, group: Group) -> dict[str, Tensor]:
        """The rule's state for `weight` (or for some of its rows) before the first step: `momentum`, `second`."""

    @abstractmethod
    def _scale(self, step: int, group: Group) -> float:
        """a_t."""

    @abstractmethod
    def _direction(self, gradient: Tensor, buffers: dict[str, Tensor], group: Group) -> tuple[Tensor, Tensor | None]:
        """Update the buffers by the gradient, in place; → m and D (None for 1)."""

    @abstractmethod
    def _idle_rule(self, group: Group) -> Rule:
        """How a row moves without a gradient."""

    def add_param_group(self, param_group: Group) -> None:
        merged = self.defaults | param_group
        if not merged["lr"] >= 0:
            raise ValueError(f"lr must be ≥ 0, got {merged['lr']}")
        if not 0 <= merged["lr"] * merged["weight_decay"] < 1:
            raise ValueError(f"lr·weight_decay must be in [0, 1), got {merged['lr']}·{merged['weight_decay']}")
        if merged["metric"] not in ("diagonal", "plain"):
            raise ValueError(f"metric is 'diagonal' or 'plain', not {merged['metric']!r}")
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        if group["table"] is not None:
            group["table"].release()  # an earlier optimizer applies its own deferred updates
            group["table"].penalized |= group["prox"] is not None
            group["table"].used_by(self)
            if len(group["params"]) != 1 or group["params"][0] is not group["table"].weight:
                raise ValueError("a group with a `table` holds only that table's weight; take layer.param_groups(…)")
        for weight in group["params"]:
            if group["prox"] is not None and weight.dtype not in (torch.float32, torch.float64):
                raise ValueError(
                    f"a prox on {weight.dtype} has steps below its resolution (0.5 − 1e-8 == 0.5 already in float32); "
                    "keep this parameter in float32 and use torch.autocast for the rest of the model"
                )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        shared = [group["table"] for group in self.param_groups if group["table"] is not None and group["table"].shared]
        if shared:
            shared[0].check_agreement(self._rates())
        clip_groups(self.param_groups, self.max_grad_norm)
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                prox = group["prox"]
                seldom = isinstance(prox, GroupL2) and prox.every > 1
                self._step(weight, weight.grad, group, None if seldom else prox)
                if seldom and self.state[weight]["step"] % prox.every == 0:
                    if group["table"] is not None:
                        group["table"].flush()
                    weight.copy_(prox(weight, prox.every * group["lr"]))
                    momentum = self.state[weight].get("momentum")
                    if momentum is not None:  # otherwise it would move zero rows to 1e-20 until the next prox
                        momentum[(weight == 0).all(dim=-1)] = 0
        return loss

    def _rates(self) -> dict[str, float]:
        """All that moves a row without a gradient: where processes share a table, they must be the same in all of them."""
        found = {}
        for number, group in enumerate(self.param_groups):
            prox = group["prox"]
            found[f"lr of group {number}"] = float(group["lr"])
            found[f"weight_decay of group {number}"] = float(group["weight_decay"])
            found[f"l1_penalty of group {number}"] = 0.0 if prox is None else float(prox.strength)
            found[f"step of group {number}"] = max((float(self.state[w].get("step", 0)) for w in group["params"]), default=0.0)
            if group["table"] is not None:
                found[f"gradients of table {number}"] = float(any(w.grad is not None for w in group["params"]))
        return found

    def _step(self, weight: Tensor, gradient: Tensor, group: Group, prox: Prox | None) -> None:
        state = self.state_of(weight, group)
        state["step"] += 1
        if "support" in state:
            gradient = masked(gradient, state["support"])
        strength = prox.strength if prox is not None else 0.0
        size = self._scale(state["step"], group)
        shrink = strength * (group["lr"] if group["metric"] == "plain" else size)
        step = Step(1 - group["lr"] * group["weight_decay"], size, shrink)
        if gradient.is_sparse and gradient.sparse_dim() == 1 and self._can_be_lazy(prox, group):
            free = prox.free if isinstance(prox, NonNegativeL1) else None
            direction = partial(self._direction, group=group)
            self._rows(weight, group).step(gradient, self._idle_rule(group), direction, step, strength, free)
            return
        if group["table"] is not None:
            group["table"].flush()
        dense = gradient.to_dense() if gradient.is_sparse else gradient
        kept = self._kept_entries(weight, prox)
        if kept is None:
            self._move(weight, dense, state, group, prox, step)
            return
        part, own = weight.view(-1)[kept], {name: state[name].view(-1)[kept] for name in MOMENTS if name in state}
        self._move(part, dense.reshape(-1)[kept], own, group, prox, step)
        weight.view(-1)[kept] = part
        for name, moment in own.items():
            state[name].view(-1)[kept] = moment

    def _move(self, weight: Tensor, gradient: Tensor, state: State, group: Group, prox: Prox | None, step: Step) -> None:
        """Update, then prox, of all entries that are given."""
        extra = None if prox is None else prox.subgradient(weight)
        move, metric = self._direction(gradient if extra is None else gradient + extra, state, group)
        if step.keep != 1:
            weight.mul_(step.keep)
        if metric is None:
            weight.add_(move, alpha=-step.size)
        else:
            weight.addcdiv_(move, metric, value=-step.size)
        if prox is not None:
            weight.copy_(prox(weight, group["lr"] if metric is None or group["metric"] == "plain" else step.size / metric))

    def _kept_entries(self, weight: Tensor, prox: Prox | None) -> Tensor | None:
        """Where most entries are frozen at zero: the others, by their position in the flat tensor. None: take them all."""
        state = self.state[weight]
        marked = state.get("support", state.get("second"))  # a new tensor whenever the support changes
        entrywise = shrinks_linearly(prox) and getattr(prox, "free", None) is None
        if marked is None or not entrywise or not weight.is_contiguous():
            return None
        known = self._supports.get(weight)
        if known is None or known[0] is not marked:
            support = self.support_of(weight)
            if support is not None and float(support.float().mean()) > WORTH_GATHERING:
                support = None
            known = self._supports[weight] = (marked, None if support is None else support.view(-1).nonzero()[:, 0])
        return known[1]

    def state_of(self, weight: Tensor, group: Group) -> dict[str, Any]:
        """The parameter's step count and moments; created, or extended for new rows, if needed."""
        state = self.state[weight]
        if not state:
            state.update(self._buffers(weight, group), step=0)
        elif "momentum" not in state and group.get("momentum"):  # SGD whose momentum was switched on later
            state.update(self._buffers(weight, group))
            self._pending.pop(weight, None)
        for name, old in state.items():
            if name == "step" or old.shape == weight.shape:
                continue
            if old.shape[1:] != weight.shape[1:] or old.shape[0] > weight.shape[0]:
                raise ValueError(
                    f"the optimizer's {name} is for a parameter of {tuple(old.shape)}, which is now "
                    f"{tuple(weight.shape)}; build a new optimizer"
                )
            # Objects were added: initialize the moments of the new rows.
            state[name] = torch.cat([old, self._fresh(name, weight[old.shape[0] :], group)])
        return state

    def _fresh(self, name: str, rows: Tensor, group: Group) -> Tensor:
        """The state of new rows; all of their entries can move."""
        return torch.ones_like(rows, dtype=torch.bool) if name == "support" else self._buffers(rows, group)[name]

    def move_rows(self, weight: Tensor, move: Callable[[Tensor, Tensor], Tensor], new: Tensor) -> None:
        """A table that processes share is about to grow by the rows `new` (those drawn here), and others will be held here:
        let the state follow. move(old rows, new rows) → the rows held here afterwards."""
        self.let_go(weight)
        state, group = self.state.get(weight, {}), self.group_of(weight)
        for name in sorted(state.keys() - {"step"}):  # all processes in the same order
            state[name] = move(state[name], self._fresh(name, new, group))

    def group_of(self, weight: Tensor) -> Group:
        for group in self.param_groups:
            if any(weight is own for own in group["params"]):
                return group
        raise ValueError("the optimizer does not hold this layer; build it from layer.param_groups(…)")

    def _can_be_lazy(self, prox: Prox | None, group: Group) -> bool:
        if not self.lazy or not shrinks_linearly(prox):
            return False
        if group["table"] is None:
            raise ValueError(
                "this parameter has a row-sparse gradient, but its group has no `table` that reads its rows up to date; "
                "take the groups from layer.param_groups(…) or antembed.param_groups(model, …)"
            )
        return True

    def _rows(self, weight: Tensor, group: Group) -> LazyRows:
        table, rows = group["table"], self._pending.get(weight)
        if rows is None or not rows.fits(weight):
            momentum, second = (self.state[weight].get(name) for name in MOMENTS)
            rows = self._pending[weight] = LazyRows(weight, momentum, second, self._idle_rule(group), group["compiled"])
        if table.pending is not rows:
            table.release()  # another optimizer applies its own deferred updates
            table.pending = rows
        return rows

    @torch.no_grad()
    def freeze_support(self, weight: Tensor, support: Tensor | None = None, second: Tensor | float | None = None) -> None:
        """From now on only the entries in `support` (a mask; default: those that are not zero) can move; the others are zero
        and stay zero, in every engine, lazy or not. Call it again to change the support; a mask of ones lifts it.

        Entries that come in begin with momentum 0 and the second moment `second` (default: the rule's initial one)."""
        group = self.group_of(weight)
        if group["table"] is not None:
            group["table"].release()
        support = weight != 0 if support is None else support
        if support.shape != weight.shape:
            raise ValueError(f"a support of {tuple(support.shape)} does not fit a parameter of {tuple(weight.shape)}")
        state = self.state_of(weight, group)
        weight.mul_(support)
        self._freeze(weight, state, support, second, group)
        if group["table"] is not None:
            group["table"].support = support

    @abstractmethod
    def _freeze(self, weight: Tensor, state: State, support: Tensor, second: Tensor | float | None, group: Group) -> None:
        """Make the state such that entries outside the support, which are zero, stay so."""

    def let_go(self, weight: Tensor) -> None:
        """Bring a table's rows up to date and drop their history, before its tensors are replaced."""
        rows = self._pending.pop(weight, None)
        if rows is not None:
            rows.flush()

    def _floor(self, group: Group) -> float:
        return 0.0 if isinstance(group["prox"], NonNegativeL1) else -float("inf")

    def flush(self) -> None:
        """Bring every row of every table up to date. Layers call it wherever all of their rows are read."""
        for rows in self._pending.values():
            rows.flush()

    def __getstate__(self) -> State:
        self.flush()
        return {**super().__getstate__(), "max_grad_norm": self.max_grad_norm}

    def __setstate__(self, state: State) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            group.setdefault("weight_decay", 0.0)  # an old checkpoint
            if group.get("table") is not None:
                group["table"].used_by(self)  # a copy
        self._pending, self._supports = {}, {}

    def state_dict(self) -> State:
        """Plain data: tensors, numbers, strings; a prox is reduced to its strength."""
        self.flush()
        packed = super().state_dict()
        return {**packed, "param_groups": plain_groups(packed["param_groups"])}

    def load_state_dict(self, state_dict: State) -> None:
        """Load numbers from the checkpoint; keep this optimizer's own tables and penalties."""
        self.flush()  # torch's loading calls __setstate__, which drops deferred updates
        load_keeping_objects(self, super().load_state_dict, state_dict)
        for group in self.param_groups:
            for weight in group["params"] if group["table"] is not None else ():
                group["table"].support = self.support_of(weight)

    def support_of(self, weight: Tensor) -> Tensor | None:
        """What `freeze_support` left free; None: everything."""
        state = self.state.get(weight, {})
        if "support" in state:
            return cast(Tensor, state["support"])
        second = state.get("second")
        return ~second.isinf() if second is not None and bool(second.isinf().any()) else None


def masked(gradient: Tensor, support: Tensor) -> Tensor:
    """The gradient with zeros outside the support; a row-sparse one stays row-sparse."""
    if not gradient.is_sparse:
        return gradient * support
    rows = gradient._indices()
    return torch.sparse_coo_tensor(rows, gradient._values() * support[rows[0]], gradient.shape, check_invariants=False)
