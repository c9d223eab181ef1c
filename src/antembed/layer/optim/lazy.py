"""Exact lazy rows: a step updates the rows of its batch; every other row is brought up to date when it is next read.

A row without a gradient since step L still moves at every step: its momentum m fades by the factor β, and the prox with
penalty λ shrinks it. Let a_t be the size of step t, and D the metric: √v + eps, or 1 without a second moment; D does not
change while a row is idle. Step L + j then adds −(a_{L+j}·β^j·m + λ·a_{L+j})/D. All of them are one sum, clamped at the end:

    x ← max( x − ( m·Σ_j a_{L+j}·β^j  +  Σ_j λ·a_{L+j} ) / D , 0 ),      m ← β^{t−L}·m

With a decoupled weight decay, x ← r_j·x − …, the same holds for x/P with P_t = r_1·…·r_t, so every increment is divided by
the P of its step, and P_t and P_L scale the result.

Clamping once equals clamping at every step because a row first rises and then falls, never the other way round: β^j·|m| fades
and λ stays. This also holds where λ falls, but no faster than β^j; if λ falls faster, `step` flushes before it. A forward pass
computes the rows it needs and does not change the table, so the result of training depends on the gradients only, and DDP's
processes stay identical to the last bit. Reading all rows (`state_dict`, `eval`, `to_dense`, …) brings all rows up to
date in place: the same values up to rounding, so with DDP do it on every process.
"""

from collections.abc import Callable
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor

from antembed.layer.optim import lazy_kernel as kernel
from antembed.layer.optim.lazy_kernel import Groups, Rule, Step, group
from antembed.layer.optim.prox import FreeEntries
from antembed.native.large_arrays import ask_for_huge_pages
from antembed.native.threads import parallel_for, take_turns

Direction = Callable[[Tensor, dict[str, Tensor]], tuple[Tensor, Tensor | None]]

NEGLIGIBLE = 2.0**-60  # a drift term below this share of the first one is below double precision
FLUSH_EVERY = 1 << 20  # steps: bounds the history at 24 MB
SMALLEST_SCALE = 1e-100  # of P: the increments are divided by it, and must not overflow
CHUNK = 1024  # rows that a thread takes at a time
PLAIN_CHUNK = 1 << 16  # rows at a time in the flush in plain torch


def fading_powers(decay: float) -> np.ndarray:
    """decay^n, …, decay^1, down to NEGLIGIBLE."""
    reach = 1
    while decay > 0 and decay ** (reach + 1) > NEGLIGIBLE:
        reach += 1
    return decay ** np.arange(reach, 0, -1)


def in_huge_pages(table: Tensor) -> Tensor:
    """The same tensor, in huge pages where there are some. The table must not be written to yet."""
    if table.device.type == "cpu":
        ask_for_huge_pages(table.data_ptr(), table.numel() * table.element_size())
    return table


class LazyRows:
    """The deferred updates of one table's rows. `rule` says how they move while idle (layer/optim/lazy_kernel.py)."""

    def __init__(
        self, weight: Tensor, momentum: Tensor | None, second: Tensor | None, rule: Rule, compiled: bool | None = None
    ):
        if any(buffer is not None and buffer.device != weight.device for buffer in (momentum, second)):
            raise ValueError(f"the layer is on {weight.device}, its optimizer is not; move the model, then make the optimizer")
        self.weight, self.momentum, self.second = weight, momentum, second
        self.compiled = weight.device.type == "cpu" and weight.is_contiguous() and compiled is not False
        self.free: FreeEntries | None = None
        self.l1_strength = 0.0
        self.last = torch.zeros(len(weight), dtype=torch.int32, device=weight.device)
        self._slot = np.full(len(weight) if self.compiled else 0, -1, np.int32)
        self._lock = Lock()  # concurrent calls of forward share the scratch memory
        self._set_rule(rule)
        self._reset()

    def fits(self, weight: Tensor) -> bool:
        """Whether these updates belong to this tensor, which may have grown or moved."""
        return len(self.last) == len(weight) and self.last.device == weight.device and self.weight.dtype == weight.dtype

    def _set_rule(self, rule: Rule) -> None:
        self.rule, self._fading = rule, self._array(fading_powers(rule.decay))

    def _reset(self) -> None:
        """All rows are current: start a new history."""
        self.now, self._kept = 0, 1.0  # the latter is the last value of _scale, on the CPU
        self._views: tuple[int, kernel.Rows] | None = None
        # By step L, with P as above: _drift[L] = Σ_j a_{L+j}·β^j/P_{L+j}, j from 1 to now − L; _clock[L] = Σ_{t≤L} λ·a_t/P_t;
        # _scale[L] = P_L.
        self._drift, self._clock, self._scale = (self._array(make(1024)) for make in (np.zeros, np.zeros, np.ones))

    def _array(self, values: np.ndarray) -> Any:
        # NumPy on the CPU (a twentieth of the overhead of a torch call), a tensor on other devices.
        return values if self.weight.device.type == "cpu" else torch.as_tensor(values, device=self.weight.device)

    def step(
        self, gradient: Tensor, rule: Rule, direction: Direction, step: Step, l1_strength: float, free: FreeEntries | None
    ) -> None:
        """One step with a row-sparse gradient (ids may repeat), then the prox."""
        if free is not None:
            free.check(self.weight)
        if rule != self.rule or free is not self.free or l1_strength < self.l1_strength * rule.decay:
            self.flush()
            self.free, self._views = free, None
            self._set_rule(rule)
        if self.compiled:
            self._step_compiled(gradient, step)
        else:
            self._step_plain(gradient.coalesce(), direction, step)
        self.l1_strength = l1_strength
        self._record(step)
        if self.now >= FLUSH_EVERY or self._kept < SMALLEST_SCALE:
            self.flush()

    def _record(self, step: Step) -> None:
        now = self.now = self.now + 1
        if now == len(self._drift):
            self._views = None
            self._drift, self._clock, self._scale = (
                self._array(np.concatenate([np.asarray(torch.as_tensor(old).cpu()), np.zeros(now)]))
                for old in (self._drift, self._clock, self._scale)
            )
        reach = min(len(self._fading), now)
        scale = self._scale[now] = self._kept = self._kept * step.keep
        self._drift[now - reach : now] += step.size / scale * self._fading[-reach:]
        self._clock[now] = self._clock[now - 1] + step.shrink / scale

    def group(self, ids: Tensor) -> Groups | None:
        """Equal ids grouped, where the compiled kernel can be used."""
        if not self.compiled:
            return None
        with self._lock:
            return group(ids.numpy(), self._slot)

    def kernel_arguments(self) -> tuple[kernel.Rows, Rule, int]:
        """What compiled code needs to read rows up to date."""
        return self._rows(), self.rule, self.now

    def read(self, ids: Tensor) -> Tensor:
        """The rows `ids` (1-D), up to date: (n, K)."""
        if not self.compiled:
            return self._read_plain(ids)
        out = self.weight.new_empty(len(ids), self.weight.shape[1])
        given = ids.numpy(), out.numpy(), *self.kernel_arguments()
        parallel_for(lambda start, stop: kernel.read_rows(start, stop, *given), len(out), out.shape[1], torch.get_num_threads())
        return out

    @torch.no_grad()
    def flush(self) -> None:
        """Bring every row up to date, in place."""
        if self.now == 0:
            return
        V, K = self.weight.shape
        if self.compiled:
            given = self.kernel_arguments()
            parallel_for(lambda start, stop: kernel.flush_rows(start, stop, *given), V, K, torch.get_num_threads())
        else:
            for ids in torch.arange(V, device=self.weight.device).split(PLAIN_CHUNK):
                self.weight.data[ids] = self._read_plain(ids)
                if self.momentum is not None:
                    self.momentum[ids] *= self._faded(ids)
        self.last.zero_()
        self._reset()

    def _rows(self) -> kernel.Rows:
        """The tensors as NumPy arrays; cached, since the conversions would cost more than the arithmetic of a small batch."""
        if self._views is None or self._views[0] != self.weight.data_ptr():
            weight, no_ids = self.weight.detach().numpy(), np.empty(0, np.int64)
            momentum, second = (weight[:0] if part is None else part.numpy() for part in (self.momentum, self.second))
            free = (no_ids, no_ids) if self.free is None else (self.free.starts.numpy(), self.free.columns.numpy())
            history = self._drift, self._clock, self._scale
            self._views = self.weight.data_ptr(), kernel.Rows(weight, momentum, second, self.last.numpy(), *history, *free)
        return self._views[1]

    def _step_compiled(self, gradient: Tensor, step: Step) -> None:
        groups = self.group(gradient._indices()[0])
        assert groups is not None
        U = len(groups.unique)
        values = gradient._values().contiguous().numpy()
        given = groups.unique, groups.starts, groups.order, values, *self.kernel_arguments(), step

        def work(chunk: int) -> None:
            kernel.step_rows(chunk * CHUNK, min(chunk * CHUNK + CHUNK, U), *given)

        take_turns(work, -(-U // CHUNK), torch.get_num_threads())

    # The same in plain torch, for any device.

    def _since(self, history: Any, ids: Tensor) -> Tensor:
        return torch.as_tensor(history)[self.last[ids].long()].unsqueeze(1)

    def _faded(self, ids: Tensor) -> Tensor:
        return (self.rule.decay ** (self.now - self.last[ids].double())).unsqueeze(1).to(self.weight.dtype)

    def _penalized(self, ids: Tensor) -> Tensor | float:
        return 1.0 if self.free is None else (~self.free.mask(ids)).to(self.weight)

    def _read_plain(self, ids: Tensor) -> Tensor:
        dtype, scale, x = self.weight.dtype, self._scale[self.now], self.weight.detach()[ids]
        owed = (scale * (self._clock[self.now] - self._since(self._clock, ids))).to(dtype) * self._penalized(ids)
        metric = 1.0 if self.second is None else self.second[ids].sqrt() + self.rule.eps
        fall = owed if self.rule.unscaled else owed / metric
        if self.momentum is not None:
            fall = self.momentum[ids] * (scale * self._since(self._drift, ids)).to(dtype) / metric + fall
        caught_up = x * (scale / self._since(self._scale, ids)).to(dtype) - fall
        # A current row is returned bit by bit, also where a weight without a prox is below the floor.
        return torch.where((self.last[ids] == self.now).unsqueeze(1), x, caught_up.clamp(min=self.rule.floor))

    def _step_plain(self, gradient: Tensor, direction: Direction, step: Step) -> None:
        ids = gradient.indices()[0]
        x, buffers = self._read_plain(ids), {}
        if self.momentum is not None:
            buffers["momentum"] = self.momentum[ids] * self._faded(ids)
        if self.second is not None:
            buffers["second"] = self.second[ids]
        move, metric = direction(gradient.values(), buffers)
        x = step.keep * x - step.size * (move if metric is None else move / metric)
        shrink = step.shrink if metric is None or self.rule.unscaled else step.shrink / metric
        self.weight.data[ids] = (x - shrink * self._penalized(ids)).clamp(min=self.rule.floor)
        for name, rows in buffers.items():
            getattr(self, name)[ids] = rows
        self.last[ids] = self.now + 1
