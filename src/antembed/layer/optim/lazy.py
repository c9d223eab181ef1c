"""Exact lazy rows: a step updates the rows of its batch; every other row is brought up to date when it is next read.

A row without a gradient since step L still moves at every step: its momentum fades, and the prox shrinks it. With
increments −(a_j·β^j·m + λ·a_j)/D (D does not change while a row is idle) that is one sum, clamped once at the end:

    x ← max( x − ( m·Σ_j a_{L+j}·β^j  +  Σ_j λ·a_{L+j} ) / D , 0 ),      m ← β^{t−L}·m

With a decoupled weight decay, x ← r_j·x − …, the same holds for x/P with P_t = r_1·…·r_t, so every increment is divided by
the P of its step, and P_t and P_L scale the result.

Clamping once equals clamping at every step because a row first rises and then falls, never the other way round: β^j·|m| fades
and λ stays. This also holds for a changing λ that never falls faster than β; a steeper fall flushes first. A forward pass
computes the rows it needs and does not change the table, so the result of training depends on the gradients only, and DDP's
processes stay identical to the last bit. Reading the whole table (`state_dict`, `eval`, `to_dense`, …) brings all rows up to
date in place: the same values up to rounding, so with DDP do it on every process.
"""

from collections.abc import Callable
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor

from antembed.layer.group_kernel import Groups, group
from antembed.layer.optim import lazy_kernel as kernel
from antembed.layer.optim.lazy_kernel import Rule
from antembed.layer.optim.prox import FreeEntries
from antembed.native.threads import parallel_for, take_turns

# A drift term below this share of the first one is below double precision.
NEGLIGIBLE = 2.0**-60
FLUSH_EVERY = 1 << 20  # steps: bounds the history at 24 MB
SMALLEST_SCALE = 1e-100  # of P: the increments are divided by it, and must not overflow
PIECE = 1024  # rows that a thread takes at a time
CHUNK = 1 << 16  # rows at a time in the flush in plain torch

NO_INTS = np.empty(0, np.int64)


def fading_powers(decay: float) -> np.ndarray:
    """decay^n, …, decay^1, down to NEGLIGIBLE."""
    reach = 1
    while decay > 0 and decay ** (reach + 1) > NEGLIGIBLE:
        reach += 1
    return decay ** np.arange(reach, 0, -1)


class LazyRows:
    """The deferred updates of one table's rows. `rule` says how they move while idle (layer/optim/lazy_kernel.py)."""

    def __init__(
        self,
        weight: Tensor,
        momentum: Tensor | None,
        second: Tensor | None,
        rule: Rule,
        compiled: bool | None = None,
    ):
        if any(buffer is not None and buffer.device != weight.device for buffer in (momentum, second)):
            raise ValueError(
                f"the layer is on {weight.device}, its optimizer is not; move the model, then create the optimizer"
            )
        fits = weight.device.type == "cpu" and weight.is_contiguous()
        if compiled and not fits:
            raise ValueError(
                f"compiled=True needs a contiguous tensor on the CPU, this one is on {weight.device}; leave it at None"
            )
        self.weight, self.momentum, self.second = weight, momentum, second
        self.compiled = fits if compiled is None else compiled
        self.free: FreeEntries | None = None
        self.strength = 0.0
        V = weight.shape[0]
        self.last = torch.zeros(V, dtype=torch.int32, device=weight.device)
        self._slot = np.full(V, -1, np.int32) if self.compiled else None
        self._lock = Lock()  # concurrent calls of forward share the scratch memory
        self._set_rule(rule)
        self._reset()

    def fits(self, weight: Tensor) -> bool:
        """Whether these updates belong to this tensor, which may have grown or moved."""
        return len(self.last) == len(weight) and self.last.device == weight.device and self.weight.dtype == weight.dtype

    def _set_rule(self, rule: Rule) -> None:
        self.rule = rule
        self._fading = self._array(fading_powers(rule.decay))

    def _reset(self) -> None:
        """All rows are current: start a new history."""
        self.now, self._kept = 0, 1.0  # the latter is the last value of _scale, on the CPU
        self._views: tuple[int, kernel.Rows] | None = None
        self._drift, self._clock, self._scale = (self._array(make(1024)) for make in (np.zeros, np.zeros, np.ones))

    def _array(self, values: np.ndarray) -> Any:
        # NumPy on the CPU (a twentieth of the overhead of a torch call), a tensor on other devices.
        on_cpu = self.weight.device.type == "cpu"
        return values if on_cpu else torch.as_tensor(values, device=self.weight.device)

    def step(
        self,
        gradient: Tensor,
        rule: Rule,
        direction: Callable[[Tensor, dict[str, Tensor]], tuple[Tensor, Tensor | None]],
        keep: float,
        step: float,
        strength: float,
        take: float,
        free: FreeEntries | None,
    ) -> None:
        """One step of size `step` from keep·x with a row-sparse gradient (ids may repeat), then a prox of the amount `take`."""
        if free is not None and free.shape != tuple(self.weight.shape):
            raise ValueError(
                f"free entries are for a table of {free.shape}, this one is {tuple(self.weight.shape)}; rebuild them"
            )
        if rule != self.rule or free is not self.free or strength < self.strength * rule.decay:
            self.flush()
            self.free, self._views = free, None
            self._set_rule(rule)
        ids, values = gradient._indices()[0], gradient._values()
        if self.compiled:
            self._step_compiled(ids, values, keep, step, take)
        else:
            self._step_plain(gradient, direction, keep, step, take)
        self.strength = strength
        self._record(keep, step, take)
        if self.now >= FLUSH_EVERY or self._kept < SMALLEST_SCALE:
            self.flush()

    def _record(self, keep: float, step: float, take: float) -> None:
        now = self.now = self.now + 1
        if now == len(self._drift):
            self._views = None
            self._drift, self._clock, self._scale = (
                self._array(np.concatenate([np.asarray(torch.as_tensor(old).cpu()), np.zeros(now)]))
                for old in (self._drift, self._clock, self._scale)
            )
        reach = min(len(self._fading), now)
        scale = self._scale[now] = self._kept = self._kept * keep
        self._drift[now - reach : now] += step / scale * self._fading[-reach:]
        self._clock[now] = self._clock[now - 1] + take / scale

    def group(self, ids: Tensor) -> Groups | None:
        """Equal ids grouped, where the compiled kernel can be used."""
        if self._slot is None:
            return None
        with self._lock:
            return group(ids.numpy(), self._slot)

    def state(self) -> tuple[kernel.Rows, Rule, int]:
        """What compiled code needs to read rows up to date."""
        return self._rows(), self.rule, self.now

    def read(self, ids: Tensor) -> Tensor:
        """The rows `ids` (1-D), up to date: (n, K)."""
        if not self.compiled:
            return self._read_plain(ids)
        numbers = ids.numpy()
        out = torch.empty(len(ids), self.weight.shape[1], dtype=self.weight.dtype)
        out_rows, rows, rule, now = out.numpy(), self._rows(), self.rule, self.now
        parallel_for(
            lambda start, stop: kernel.read_rows(start, stop, numbers, out_rows, rows, rule, now),
            len(out),
            out.shape[1],
            torch.get_num_threads(),
        )
        return out

    @torch.no_grad()
    def flush(self) -> None:
        """Bring every row up to date, in place."""
        if self.now == 0:
            return
        V, K = self.weight.shape
        if self.compiled:
            rows, rule, now = self._rows(), self.rule, self.now
            parallel_for(
                lambda start, stop: kernel.flush_rows(start, stop, rows, rule, now),
                V,
                K,
                torch.get_num_threads(),
            )
        else:
            for start in range(0, V, CHUNK):
                ids = torch.arange(start, min(start + CHUNK, V), device=self.weight.device)
                self.weight.data[ids] = self._read_plain(ids)
                if self.momentum is not None:
                    self.momentum[ids] *= self._faded(ids)
        self.last.zero_()
        self._reset()

    def _rows(self) -> kernel.Rows:
        """The tensors as NumPy arrays; cached, since the conversions would cost more than the arithmetic of a small batch."""
        if self._views is not None and self._views[0] == self.weight.data_ptr():
            return self._views[1]
        self._views = self.weight.data_ptr(), self._make_rows()
        return self._views[1]

    def _make_rows(self) -> kernel.Rows:
        weight = self.weight.detach().numpy()
        none = weight[:0]
        return kernel.Rows(
            weight,
            none if self.momentum is None else self.momentum.numpy(),
            none if self.second is None else self.second.numpy(),
            self.last.numpy(),
            self._drift,
            self._clock,
            self._scale,
            NO_INTS if self.free is None else self.free.starts.numpy(),
            NO_INTS if self.free is None else self.free.columns.numpy(),
        )

    def _step_compiled(self, ids: Tensor, values: Tensor, keep: float, step: float, take: float) -> None:
        groups = self.group(ids)
        assert groups is not None
        unique, _, starts, order = groups
        gradient = values.contiguous().numpy()
        rows, rule, now, U = self._rows(), self.rule, self.now, len(unique)

        def work(piece: int) -> None:
            start, stop = piece * PIECE, min(piece * PIECE + PIECE, U)
            kernel.step_rows(start, stop, unique, starts, order, gradient, rows, rule, now, keep, step, take)

        take_turns(work, -(-U // PIECE), torch.get_num_threads())

    # The same in plain torch, for any device.

    def _since(self, history: Any, ids: Tensor) -> Tensor:
        return torch.as_tensor(history)[self.last[ids].long()].unsqueeze(1)

    def _faded(self, ids: Tensor) -> Tensor:
        return (self.rule.decay ** (self.now - self.last[ids].double())).unsqueeze(1).to(self.weight.dtype)

    def _penalized(self, ids: Tensor) -> Tensor | float:
        return 1.0 if self.free is None else (~self.free.mask(ids)).to(self.weight)

    def _read_plain(self, ids: Tensor) -> Tensor:
        dtype, scale = self.weight.dtype, self._scale[self.now]
        owed = (scale * (self._clock[self.now] - self._since(self._clock, ids))).to(dtype) * self._penalized(ids)
        x = self.weight.detach()[ids]
        kept = x * (scale / self._since(self._scale, ids)).to(dtype)
        if self.momentum is None:
            return (kept - owed).clamp(min=self.rule.floor)
        moved = self.momentum[ids] * (scale * self._since(self._drift, ids)).to(dtype)
        if self.second is None:
            return (kept - (moved + owed)).clamp(min=self.rule.floor)
        metric = self.second[ids].sqrt() + self.rule.eps
        caught_up = kept - (moved / metric + (owed if self.rule.plain else owed / metric))
        # A current row is returned bit by bit, also where a weight without a prox is below the floor.
        return torch.where((self.last[ids] == self.now).unsqueeze(1), x, caught_up.clamp(min=self.rule.floor))

    def _step_plain(
        self,
        gradient: Tensor,
        direction: Callable[[Tensor, dict[str, Tensor]], tuple[Tensor, Tensor | None]],
        keep: float,
        step: float,
        take: float,
    ) -> None:
        gradient = gradient.coalesce()
        ids = gradient.indices()[0]
        x = self._read_plain(ids)
        buffers = {}
        if self.momentum is not None:
            buffers["momentum"] = self.momentum[ids] * self._faded(ids)
        if self.second is not None:
            buffers["second"] = self.second[ids]
        move, metric = direction(gradient.values(), buffers)
        x = keep * x - step * (move if metric is None else move / metric)
        taken = take if metric is None or self.rule.plain else take / metric
        self.weight.data[ids] = (x - taken * self._penalized(ids)).clamp(min=self.rule.floor)
        for name, rows in buffers.items():
            getattr(self, name)[ids] = rows
        self.last[ids] = self.now + 1
