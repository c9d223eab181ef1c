"""Any torch optimizer, followed by the prox in the plain metric."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.optim import Optimizer

from antembed.layer.optim.prox import SubgradientL1
from antembed.layer.optim.proximal_optimizer import State, check_max_norm, clip_groups, load_keeping_objects, plain_groups


class Proximal(Optimizer):
    """Wrap an optimizer: after its own step, every parameter of a group with a `prox` is shrunk by lr·strength.

    The prox goes over all of the table at every step, whichever rows the gradient has; ProximalYogi and ProximalSGD are lazy
    instead. Schedulers, clipping and closures work on the wrapper as on the optimizer inside. `max_grad_norm` clips the
    gradients by their joint norm before each step.

        optimizer = Proximal(torch.optim.AdamW(layer.param_groups(l1_penalty=1e-5), lr=1e-3))
    """

    def __init__(self, optimizer: Optimizer, *, max_grad_norm: float | None = None):
        self.inner, self.max_grad_norm = optimizer, check_max_norm(max_grad_norm)
        self._support: dict[Tensor, Tensor] = {}
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self._share()
        for group in self.param_groups:
            if isinstance(group.get("prox"), SubgradientL1):
                raise ValueError(
                    "SubgradientL1 acts on the gradient, before the step; use ProximalSGD, ProximalAdam or ProximalYogi"
                )
            if group.get("table") is not None:
                group["table"].release()
                group["table"].penalized |= group.get("prox") is not None

    def _share(self) -> None:
        # Groups and state are the inner optimizer's own objects, so that a scheduler on the wrapper acts on it.
        self.param_groups, self.state = self.inner.param_groups, self.inner.state

    def __getstate__(self) -> State:
        return {**super().__getstate__(), "inner": self.inner, "max_grad_norm": self.max_grad_norm, "_support": {}}

    def __setstate__(self, state: State) -> None:
        super().__setstate__(state)
        self._share()

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        if closure is None:
            clip_groups(self.param_groups, self.max_grad_norm)
            loss = self.inner.step()
        else:
            loss = self.inner.step(lambda: self._clipped(closure))
        for group in self.param_groups:
            if group.get("prox") is not None:
                for weight in group["params"]:
                    if weight.grad is not None:
                        weight.copy_(group["prox"](weight, group["lr"]))
        for weight, support in self._support.items():
            weight.mul_(support)
        return loss

    @torch.no_grad()
    def freeze_support(self, weight: Tensor, support: Tensor | None = None, second: Tensor | float | None = None) -> None:
        """From now on only the entries in `support` (default: those that are not zero) can be other than zero. The inner
        optimizer goes on with its own moments; those of entries outside are cleared now. A copy of this optimizer, or one
        loaded from a checkpoint, needs another call. `second` is for optimizers that know what it is: Adam's."""
        known = self._support.get(weight, torch.ones_like(weight, dtype=torch.bool))
        support = weight != 0 if support is None else support
        fresh = support & ~known
        for name, moment in self.state.get(weight, {}).items():
            if isinstance(moment, Tensor) and moment.shape == weight.shape:
                moment.mul_(support & ~fresh)
                if name == "exp_avg_sq" and second is not None:
                    moment.copy_(torch.where(fresh, torch.as_tensor(second, dtype=moment.dtype), moment))
        weight.mul_(support)
        self._support[weight] = support.clone()

    def _clipped(self, closure: Callable[[], float]) -> float:
        """The closure, whose gradients are clipped before the inner optimizer (LBFGS, say) sees them."""
        loss = closure()
        clip_groups(self.param_groups, self.max_grad_norm)
        return loss

    def state_dict(self) -> State:
        packed = self.inner.state_dict()
        return {**packed, "param_groups": plain_groups(packed["param_groups"])}

    def load_state_dict(self, state_dict: State) -> None:
        load_keeping_objects(self.inner, self.inner.load_state_dict, state_dict)
        self._share()
