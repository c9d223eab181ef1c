"""Proximal operators as pure functions, and the penalties (with their free entries) that parameter groups carry.

Each operator solves argmin_x ½‖x − t‖²_D + penalty(x), where D is the diagonal metric of the gradient step and `amount`
is how much the penalty shrinks a coordinate, strength·step/D: a number in the plain metric, a tensor in the diagonal one.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

Amount = float | Tensor


def soft_threshold(t: Tensor, amount: Amount) -> Tensor:
    """argmin_x ½(x − t)² + amount·|x|, coordinate by coordinate."""
    return t.sign() * (t.abs() - amount).clamp(min=0)


def nonnegative_soft_threshold(t: Tensor, amount: Amount) -> Tensor:
    """argmin_{x ≥ 0} ½(x − t)² + amount·x, coordinate by coordinate."""
    return (t - amount).clamp(min=0)


def group_soft_threshold(t: Tensor, amount: Amount, newton_steps: int = 20) -> Tensor:
    """argmin_x Σ_k (x_k − t_k)²/(2·amount_k) + ‖x‖₂ for every row: t (V, K) → (V, K).

    With one amount for a row this is t·max(1 − amount/‖t‖, 0). With an amount for each coordinate (the diagonal metric)
    x_k = t_k·r/(r + amount_k), where r = ‖x‖ solves Σ_k (t_k/(r + amount_k))² = 1. The left side falls and is convex in r,
    so Newton's steps from below rise to the root and never pass it."""
    norm = t.norm(dim=-1, keepdim=True)
    if not isinstance(amount, Tensor) or amount.dim() == 0:
        return t * (1 - amount / norm.clamp(min=torch.finfo(t.dtype).tiny)).clamp(min=0)
    amount = amount.expand_as(t)
    tiny = torch.finfo(t.dtype).tiny
    r = torch.maximum(norm - amount.amax(-1, keepdim=True), (t.abs() - amount).amax(-1, keepdim=True)).clamp(min=0)
    for _ in range(newton_steps):
        shrunk = t / (r + amount).clamp(min=tiny)
        excess = shrunk.square().sum(-1, keepdim=True) - 1
        slope = 2 * (shrunk.square() / (r + amount).clamp(min=tiny)).sum(-1, keepdim=True)
        r = (r + excess / slope.clamp(min=tiny)).clamp(min=0)
    alive = (t / amount.clamp(min=tiny)).square().sum(-1, keepdim=True) > 1
    return torch.where(alive, t * r / (r + amount).clamp(min=tiny), torch.zeros_like(t))


class FreeEntries:
    """The (object, anchor) entries without a penalty: 1 − S of the paper's Algorithm 1, stored sparse by rows."""

    def __init__(self, objects: Tensor, anchors: Tensor, shape: tuple[int, int]):
        V, K = shape
        objects, anchors = torch.as_tensor(objects).long().cpu(), torch.as_tensor(anchors).long().cpu()
        if objects.shape != anchors.shape or objects.dim() != 1:
            raise ValueError(
                f"free entries are pairs: got {tuple(objects.shape)} objects and {tuple(anchors.shape)} anchors; "
                "pass two 1-D tensors of one length"
            )
        for name, ids, bound in (("object", objects, V), ("anchor", anchors, K)):
            if ids.numel() and not (int(ids.min()) >= 0 and int(ids.max()) < bound):
                wrong = int(ids.min()) if int(ids.min()) < 0 else int(ids.max())
                raise ValueError(f"a free entry names {name} {wrong}, but there are {bound} of them")
        flat = torch.unique(objects * K + anchors)  # sorted by row, then column; duplicates dropped
        self.shape = (V, K)
        self.columns = flat % K
        self.starts = torch.zeros(V + 1, dtype=torch.long)
        self.starts[1:] = torch.bincount(flat // K, minlength=V).cumsum(0)

    def __len__(self) -> int:
        return len(self.columns)

    def check(self, weight: Tensor) -> None:
        """Raise if they are for a table of another size."""
        if self.shape != tuple(weight.shape):
            raise ValueError(f"free entries are for a table of {self.shape}, this one is {tuple(weight.shape)}; rebuild them")

    @property
    def objects(self) -> Tensor:
        """The object of each entry, as `columns` has its anchor."""
        return torch.arange(self.shape[0]).repeat_interleave(self.starts.diff())

    def mask(self, rows: Tensor | None = None) -> Tensor:
        """True at free entries: (len(rows), K) for the rows named, (V, K) for all."""
        V, K = self.shape
        rows = torch.arange(V) if rows is None else rows.cpu()
        counts = self.starts[rows + 1] - self.starts[rows]
        row_of = torch.arange(len(rows)).repeat_interleave(counts)
        within = torch.arange(len(row_of)) - (counts.cumsum(0) - counts)[row_of]
        mask = torch.zeros(len(rows), K, dtype=torch.bool)
        mask[row_of, self.columns[self.starts[rows][row_of] + within]] = True
        return mask


@dataclass
class Prox(ABC):
    """A penalty strength·g(t). `strength` (λ) is stored here and nowhere else: set it here, log it from here."""

    strength: float
    scheduled: ClassVar[bool] = True  # whether schedules of λ change its strength

    def __post_init__(self) -> None:
        if not self.strength >= 0:
            raise ValueError(f"a penalty's strength must be ≥ 0, got {self.strength}; 0 switches it off")

    @abstractmethod
    def __call__(self, t: Tensor, step: Amount) -> Tensor:
        """The minimiser above for amount = strength·step."""

    @abstractmethod
    def penalty(self, t: Tensor) -> Tensor:
        """strength·g(t), the term of the objective."""

    def subgradient(self, t: Tensor) -> Tensor | None:
        """A term to add to the gradient; None for a penalty that acts after the update."""
        return None


@dataclass
class L1(Prox):
    """strength·‖T‖₁, both signs. Free entries are not shrunk."""

    free: FreeEntries | None = field(default=None, repr=False)

    def __call__(self, t: Tensor, step: Amount) -> Tensor:
        return soft_threshold(t, self.amount(t, step))

    def penalty(self, t: Tensor) -> Tensor:
        penalized = t if self.free is None else t * ~self.free.mask().to(t.device)
        return self.strength * penalized.abs().sum()

    def amount(self, t: Tensor, step: Amount) -> Amount:
        """strength·step, and 0 at free entries."""
        if self.free is None:
            return self.strength * step
        self.free.check(t)
        return torch.as_tensor(self.strength * step, dtype=t.dtype, device=t.device) * ~self.free.mask().to(t.device)


@dataclass
class NonNegativeL1(L1):
    """strength·‖T‖₁ over T ≥ 0. Free entries are not shrunk but clamped at 0, and so is every entry at strength 0."""

    def __call__(self, t: Tensor, step: Amount) -> Tensor:
        return nonnegative_soft_threshold(t, self.amount(t, step))


def shrinks_linearly(prox: Prox | None) -> bool:
    """Whether the closed forms of idle rows (layer/optim/lazy.py, the fused engine) hold: no prox, or that of NonNegativeL1 as
    it is. A subclass with an operator of its own is exact as well, but takes the dense path."""
    return prox is None or (isinstance(prox, NonNegativeL1) and type(prox).__call__ is NonNegativeL1.__call__)


@dataclass
class NonNegative(NonNegativeL1):
    """The constraint T ≥ 0 without a penalty, whatever λ is elsewhere."""

    scheduled: ClassVar[bool] = False


@dataclass
class SubgradientL1(Prox):
    """strength·‖T‖₁ by its subgradient, strength·sign(t). Small weights oscillate about zero and never become zero: a
    baseline for the prox."""

    def __call__(self, t: Tensor, step: Amount) -> Tensor:
        return t

    def penalty(self, t: Tensor) -> Tensor:
        return self.strength * t.abs().sum()

    def subgradient(self, t: Tensor) -> Tensor | None:
        return self.strength * t.sign()


@dataclass
class GroupL2(Prox):
    """strength·Σ_rows ‖row‖₂ (group lasso): entire rows become zero, so there are no single free entries.

    With every > 1 an optimizer applies it at every `every`-th step only, with the amount lr·strength of all skipped steps:
    without a gradient, shrinking a row n times by a equals shrinking it once by n·a. In between, rows may be lazy."""

    every: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.every < 1:
            raise ValueError(f"a prox acts every 1, 2, … steps, not every {self.every}")

    def __call__(self, t: Tensor, step: Amount) -> Tensor:
        return group_soft_threshold(t, self.strength * step) if self.strength else t

    def penalty(self, t: Tensor) -> Tensor:
        return self.strength * t.norm(dim=-1).sum()
