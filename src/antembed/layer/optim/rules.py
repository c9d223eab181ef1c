"""The gradient rules: SGD with momentum, Adam, Yogi; layer/optim/proximal_optimizer.py does the rest."""

import math
from typing import Any, Unpack

import torch
from torch import Tensor

from antembed.layer.optim.lazy import in_huge_pages
from antembed.layer.optim.lazy_kernel import Rule
from antembed.layer.optim.proximal_optimizer import Group, Params, ProximalOptimizer, State, StepOptions


def filled_like(table: Tensor, value: float) -> Tensor:
    """torch.full_like, in huge pages."""
    return in_huge_pages(torch.empty_like(table)).fill_(value)


class ProximalSGD(ProximalOptimizer):
    """m ← momentum·m + g;  T ← prox(T − lr·m). Exactly lazy for row-sparse gradients."""

    def __init__(self, params: Params, lr: float = 0.01, momentum: float = 0.0, **options: Unpack[StepOptions]):
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), got {momentum}")
        super().__init__(params, {"lr": lr, "momentum": momentum}, **options)

    def _buffers(self, weight: Tensor, group: Group) -> dict[str, Tensor]:
        return {"momentum": filled_like(weight, 0.0)} if group["momentum"] else {}

    def _scale(self, step: int, group: Group) -> float:
        return group["lr"]

    def _direction(self, gradient: Tensor, buffers: dict[str, Tensor], group: Group) -> tuple[Tensor, Tensor | None]:
        if not group["momentum"]:
            return gradient, None
        return buffers["momentum"].mul_(group["momentum"]).add_(gradient), None

    def _freeze(self, weight: Tensor, state: State, support: Tensor, second: Tensor | float | None, group: Group) -> None:
        """Their gradients are left out (layer/optim/proximal_optimizer.py), so their momentum stays 0."""
        state["support"] = support.clone()
        if "momentum" in state:
            state["momentum"].mul_(support)

    def _idle_rule(self, group: Group) -> Rule:
        return Rule(group["momentum"], 1.0, 0.0, 0.0, group["metric"] == "plain", self._floor(group))


class _Adaptive(ProximalOptimizer):
    """Base of Adam and Yogi: two moments, and a_t = lr·√(1−β2ᵗ)/(1−β1ᵗ)."""

    def __init__(
        self, params: Params, lr: float, betas: tuple[float, float], eps: float, second: float, **options: Unpack[StepOptions]
    ):
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas must be in [0, 1), got {betas}")
        if not eps > 0:
            raise ValueError(f"eps must be > 0, got {eps}: rows without a gradient would be divided by zero; take 1e-8 or more")
        super().__init__(params, {"lr": lr, "betas": tuple(betas), "eps": eps, "initial_second": second}, **options)

    @classmethod
    def create(cls, params: Params, lr: float, eps: float | None = None, beta2: float | None = None) -> ProximalOptimizer:
        given: dict[str, Any] = {"lr": lr, "eps": eps, "betas": None if beta2 is None else (0.9, beta2)}
        return cls(params, **{name: value for name, value in given.items() if value is not None})

    def _buffers(self, weight: Tensor, group: Group) -> dict[str, Tensor]:
        return {"momentum": filled_like(weight, 0.0), "second": filled_like(weight, group["initial_second"])}

    def _scale(self, step: int, group: Group) -> float:
        beta1, beta2 = group["betas"]
        return group["lr"] * math.sqrt(1 - beta2**step) / (1 - beta1**step)

    def _freeze(self, weight: Tensor, state: State, support: Tensor, second: Tensor | float | None, group: Group) -> None:
        """An infinite second moment: every step is divided by it, and no gradient makes it finite again."""
        fresh = support & state["second"].isinf()
        state["momentum"].mul_(support & ~fresh)
        known = group["initial_second"] if second is None else second
        state["second"] = torch.where(fresh, torch.as_tensor(known, dtype=weight.dtype, device=weight.device), state["second"])
        state["second"].masked_fill_(~support, torch.inf)
        self._pending.pop(weight, None)  # it has the old tensor

    def _idle_rule(self, group: Group) -> Rule:
        beta1, beta2 = group["betas"]
        return Rule(beta1, 1 - beta1, beta2, group["eps"], group["metric"] == "plain", self._floor(group))


class ProximalYogi(_Adaptive):
    """Yogi (Zaheer et al. 2018): v ← v − (1−β2)·sign(v − g²)·g², D = √v + eps. Exactly lazy for row-sparse gradients.

    The defaults are those of the paper's results: eps is 1e-3, and v starts at its square."""

    def __init__(
        self,
        params: Params,
        lr: float = 0.01,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-3,
        *,
        initial_second: float | None = None,
        **options: Unpack[StepOptions],
    ):
        super().__init__(params, lr, betas, eps, eps**2 if initial_second is None else initial_second, **options)

    def _direction(self, gradient: Tensor, buffers: dict[str, Tensor], group: Group) -> tuple[Tensor, Tensor | None]:
        beta1, beta2 = group["betas"]
        second, square = buffers["second"], gradient.square()
        second.addcmul_((second - square).sign_(), square, value=beta2 - 1)
        return buffers["momentum"].lerp_(gradient, 1 - beta1), second.sqrt().add_(group["eps"])


class ProximalAdam(_Adaptive):
    """Adam: v ← β2·v + (1−β2)·g², D = √v + eps, bias-corrected through a_t (eps is outside the correction).

    Exact but not lazy: v fades while a row is idle, so a row-sparse gradient is made dense, at the cost of all rows.
    Use ProximalYogi for large tables."""

    lazy = False

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        **options: Unpack[StepOptions],
    ):
        super().__init__(params, lr, betas, eps, 0.0, **options)

    def _direction(self, gradient: Tensor, buffers: dict[str, Tensor], group: Group) -> tuple[Tensor, Tensor | None]:
        beta1, beta2 = group["betas"]
        second = buffers["second"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        return buffers["momentum"].lerp_(gradient, 1 - beta1), second.sqrt().add_(group["eps"])
