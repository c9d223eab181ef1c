"""SparsityController: a size instead of a penalty, for one's own training loop."""

from collections.abc import Iterable

import torch
from torch import nn
from torch.optim import Optimizer

from antembed.budget import EXPONENT, Budget, BudgetController, parse_budget
from antembed.files import JSON
from antembed.layer.embedding import Embedding, keep_largest
from antembed.layer.optim.prox import L1
from antembed.layer.optim.proximal_optimizer import Group

ADJUSTMENTS = 100  # in a training: each one reads all of T
DAMPED, REGAINED = 0.5, 1.1  # the exponent of the adjustment, after one that went too far and after one that did not
RISING = 0.3  # the least exponent below the wanted size
AIM = 1.1  # of the target: what is a little too much is removed by `finish`


class SparsityController:
    """Adjusts the penalty on T while you train, until T has `target_nnz` non-zeros or the layers meet a `budget`.

    The same l1_penalty means other sizes under other optimizers (docs/layer.md); a target means the same under all of them.
    `budget` is "20x" (times smaller than dense tables in fp32), "400k" (parameters: non-zeros and anchors) or "2MB" (bytes
    of the exported files). `steps` is the number of optimizer steps of the training. The size falls over the first 70 %;
    the penalty of the groups is where the search begins, and any number > 0 will do.

        optimizer = ProximalYogi(param_groups(model, l1_penalty=1e-6), lr=0.01)
        controller = SparsityController(model, optimizer, steps=10_000, target_nnz=100_000)
        for batch in batches:
            …
            optimizer.step()
            controller.step()
        controller.finish()  # sets the smallest contributions to zero, if there are still too many
    """

    def __init__(
        self,
        layers: nn.Module | Iterable[Embedding],
        optimizer: Optimizer,
        *,
        steps: int,
        target_nnz: int | None = None,
        budget: str | None = None,
        every: int | None = None,
    ):
        if (target_nnz is None) == (budget is None):
            raise ValueError(f"give target_nnz or budget, one of the two; got {target_nnz} and {budget!r}")
        if steps < 1 or (every is not None and every < 1):
            raise ValueError(f"steps and every must be ≥ 1, got {steps} and {every}")
        found = layers.modules() if isinstance(layers, nn.Module) else layers
        self.layers = [each for each in found if isinstance(each, Embedding) and any(map(_penalized, each.param_groups(0.0)))]
        self.groups = _groups_of(self.layers, optimizer)
        self.base = [group["prox"].strength for group in self.groups]
        self.every = max(steps // ADJUSTMENTS, 1) if every is None else every
        self.steps, self.calls = steps, 0
        if budget is not None:
            dense = 4.0 * sum(layer.num_embeddings * layer.embedding_dim for layer in self.layers)
            wanted = parse_budget(budget, dense)
        else:
            if not target_nnz or target_nnz < 1:
                raise ValueError(f"target_nnz must be ≥ 1, got {target_nnz}")
            wanted = Budget(float(target_nnz), "non-zeros")
        # Its penalty is a factor here: of the strength that each group has now.
        self.controller = BudgetController(wanted, self.size, 1.0, max(steps // self.every, 1), AIM)
        self.controller.first_size, self.above = self.size(), True

    @torch.no_grad()
    def size(self) -> float:
        """What the target counts, now."""
        unit = self.controller.budget.unit
        if unit == "non-zeros":
            return sum(table.count_nonzeros() for layer in self.layers for table in layer.tables)
        return sum(getattr(layer.usage(), unit) for layer in self.layers)

    def step(self) -> None:
        """Call it after each `optimizer.step()`. At every `every`-th call the penalty is adjusted."""
        self.calls += 1
        if self.calls % self.every:
            return
        now, size = self.calls // self.every - 1, self.size()
        above = size > self.controller.wanted(now)
        # Where a penalty acts at once (AdamW's steps are all of one length), full corrections would swing for ever.
        exponent = min(self.controller.exponent * (REGAINED if above == self.above else DAMPED), EXPONENT)
        # Too few: `finish` can remove weights, but not bring them back.
        self.controller.exponent, self.above = exponent if above else max(exponent, RISING), above
        self.controller.adjust(now, size)
        self._use_penalty()

    def _use_penalty(self) -> None:
        for group, base in zip(self.groups, self.base, strict=True):
            group["prox"].strength = base * self.controller.penalty

    @property
    def l1_penalty(self) -> list[float]:
        return [group["prox"].strength for group in self.groups]

    @torch.no_grad()
    def finish(self) -> int:
        """Set the smallest contributions t_k·‖a_k‖ to zero until the target is met; → how many. Train no further after it:
        the optimizer would bring some of them back."""
        tables = [table for layer in self.layers for table in layer.tables]
        weights = [table.current.detach().clone() for table in tables]
        count = sum(table.count_nonzeros() for table in tables)

        def keep(n: int) -> None:
            for table, weight in zip(tables, weights, strict=True):
                table.weight.copy_(weight)
            keep_largest(self.layers, n)

        self.controller.trim(count, keep)
        return count - sum(table.count_nonzeros() for table in tables)

    def state_dict(self) -> JSON:
        """Plain numbers; save it with the optimizer's."""
        own = {"calls": self.calls, "base": self.base, "above": self.above, "exponent": self.controller.exponent}
        return {**own, **self.controller.state()}

    def load_state_dict(self, state: JSON) -> None:
        """Continue where `state` was taken."""
        if len(state["base"]) != len(self.groups):
            raise ValueError(
                f"the state is of {len(state['base'])} groups with a penalty, this controller has {len(self.groups)}; build it "
                "with the same layers"
            )
        self.calls, self.base = state["calls"], list(state["base"])
        self.above, self.controller.exponent = state["above"], state["exponent"]
        self.controller.load(state)
        self._use_penalty()


def _penalized(group: Group) -> bool:
    return isinstance(prox := group.get("prox"), L1) and prox.scheduled


def _groups_of(layers: list[Embedding], optimizer: Optimizer) -> list[Group]:
    """The optimizer's groups that hold the layers' tables, each with a penalty > 0."""
    if not layers:
        raise ValueError("0 layers have an ℓ1 penalty, at least 1 is needed; give an AnchorEmbedding, or a model that has one")
    wanted = {id(table.weight) for layer in layers for table in layer.tables}
    groups = [group for group in optimizer.param_groups if _penalized(group)]
    groups = [group for group in groups if any(id(weight) in wanted for weight in group["params"])]
    held = len(wanted & {id(weight) for group in groups for weight in group["params"]})
    if held < len(wanted):
        raise ValueError(
            f"the optimizer has a penalty for {held} of {len(wanted)} tables; give it "
            "antembed.param_groups(model, l1_penalty=…)"
        )
    for group in groups:
        if not group["prox"].strength > 0:
            raise ValueError(
                f"the penalty to begin with is {group['prox'].strength}, and a factor of it stays so; take l1_penalty=1e-6, say"
            )
    return groups
