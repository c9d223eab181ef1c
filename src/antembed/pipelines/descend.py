"""A run on ratings by coordinate descent: the way from its settings to its model."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from antembed.embedding import AnchorEmbedding
from antembed.pipelines.job import Job, budget_of, size_of
from antembed.pipelines.settings import Settings
from antembed.pipelines.steps import nonzeros
from antembed.tasks.recommend import MatrixFactorization
from antembed.training import RunFolder, Tick, load_tensors, save_tensors
from antembed.training.budget import BudgetError, steered, target
from antembed.training.descent import NO_BIAS, Descent, Prices
from antembed.training.stream import Stream

FIRST_PRICE = 0.1  # from which a budget's price is sought
RAMPED = 0.7  # share of the steered sweeps over which the size falls to the budget
AIM = 1.04  # of the budget: weights that were once let go hardly come back, so it is approached from above
POLISH = 3  # sweeps


def by_descent(job: Job, folder: RunFolder, begin: Callable[[], None], resume: bool, tell: Callable[[Tick], None]) -> str:
    """Coordinate descent, a checkpoint a sweep; the last sweep counts."""
    settings, training, model = job.settings, job.parts["train"], job.model
    columns = tuple(column.numpy() for column in training[:])
    descent = Descent(
        columns,
        (model.users.num_embeddings, model.items.num_embeddings),
        settings.start if settings.embedding == "anchor" else None,
        settings.dimensions,
        prices_of(settings),
        sweeps=settings.epochs,
        seed=settings.seed,
        threads=settings.threads,
        auto=settings.anchors == "auto",
    )
    begin()
    steering = Steering(descent, model, settings) if settings.budget else None
    done = 0
    if resume and folder.last.exists():
        state, progress = load_tensors(folder.last)
        descent.load(state)
        done = progress["epochs"]
        if steering is not None:
            steering.price, steering.first = progress["steering"]
    folder.forget_after(done)
    started = time.perf_counter()
    if not done:
        descent.start()
    for sweep in range(done + 1, settings.epochs + 1):
        if steering is None:
            price = descent.price(sweep)
            descent.sweep_at(price)
        else:
            price = steering.sweep(sweep)
        put(descent, model)
        total = descent.loss()
        mean_loss = total / len(training)
        row: dict[str, Any] = {"epoch": sweep, "train_loss": mean_loss, "objective": total + descent.penalty()}
        row["price"] = price
        row["anchors"] = {"users": len(descent.users.A), "items": len(descent.items.A)}
        row["nnz"] = {name: nonzeros(table) for name, table in model.tables.items()}
        if len(job.parts["validation"]):
            row["validation"] = job.validate()
        row["seconds"], started = time.perf_counter() - started, time.perf_counter()  # the first sweep's with the start
        tell(Tick(sweep, len(training), mean_loss, row["seconds"], row))
        folder.log(row)
        steered = None if steering is None else (steering.price, steering.first)
        save_tensors(folder.last, descent.state(), {"epochs": sweep, "steering": steered})
    put(descent, model)
    if steering is not None:
        steering.budget.check(steering.size())
    return "descent"


class Steering:
    """The price that meets a budget: the size to be at falls in equal factors, the price follows; then what is still too much
    is taken away, the least valuable first, and the rest is polished: what is zero stays zero and costs nothing more.
    """

    def __init__(self, descent: Descent, model: MatrixFactorization, settings: Settings):
        self.descent, self.model, self.values = descent, model, settings.values
        self.budget = budget_of(settings, (model.users.num_embeddings, model.items.num_embeddings))
        self.last = max(settings.epochs - POLISH, 1)  # sweep that is steered
        self.price, self.first = FIRST_PRICE, 0.0

    def size(self) -> float:
        put(self.descent, self.model)
        return size_of(self.model, self.budget.unit, self.values)

    def sweep(self, number: int) -> float:
        """→ the price it was done at."""
        if number > self.last:
            self.descent.frozen = True
            self.descent.sweep_at(0.0)
            return 0.0
        price = self.price
        self.descent.sweep_at(price)
        size = self.size()
        self.first = self.first or size
        share = (number + 1) / (RAMPED * self.last)
        self.price = steered(price, size, target(self.first, AIM * self.budget.amount, share))
        if number == self.last and size > self.budget.amount:
            self._trim()
        return price

    def _trim(self) -> None:
        """Take away as few weights and biases as meet the budget, those first without which the objective rises least."""
        values, sides = self.descent.values(), (self.descent.users, self.descent.items)
        kept = [(side.T.copy(), side.bias.copy()) for side in sides]
        order = np.sort(np.concatenate([part[part > 0] for pair in values for part in pair]))

        def cut(n: int) -> float:
            limit = order[n - 1] if n else -1.0
            for side, (T, bias), (of_weights, of_biases) in zip(sides, kept, values, strict=True):
                side.T, side.bias = np.where(of_weights > limit, T, 0.0), np.where(of_biases > limit, bias, 0.0)
            return self.size()

        low, high = 0, len(order)
        if cut(high) > self.budget.amount:
            raise BudgetError(f"a budget of {self.budget} cannot be met: {self.size():,.0f} are left of empty tables")
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if cut(middle) <= self.budget.amount else (middle, high)
        cut(high)
        for side in sides:
            side.E = side.T @ side.A


def start_from_dense(job: Job) -> None:
    """The model's start from a full solution: dense rows by alternating least squares, then anchors and weights that come
    near them (as AnchorEmbedding.from_pretrained), and the biases that go with them."""
    columns = tuple(column.cpu().numpy() for column in job.parts["train"][:])
    objects = job.model.users.num_embeddings, job.model.items.num_embeddings
    settings = job.settings
    start = Descent(columns, objects, settings.start, settings.dimensions, prices_of(settings), sweeps=1, seed=settings.seed)
    start.start()
    put(start, job.model)


def prices_of(settings: Settings) -> Prices:
    """What coordinate descent charges."""
    return Prices(
        settings.price,
        settings.ridge,
        settings.ridge_each,
        settings.bias_ridge if settings.biases else NO_BIAS,
        settings.unseen,
        settings.price_biases and settings.embedding == "anchor",
    )


@torch.no_grad()
def put(descent: Descent | Stream, model: MatrixFactorization) -> None:
    """What coordinate descent has found, into the model."""
    biases = (model.user_bias, model.item_bias)
    for table, bias, side in zip(model.tables.values(), biases, (descent.users, descent.items), strict=True):
        found = side.T if isinstance(table, AnchorEmbedding) else side.E  # type: ignore[union-attr]
        table.tables[0].replace(torch.from_numpy(found).to(table.tables[0].weight))
        if isinstance(table, AnchorEmbedding):
            table.anchors.data = torch.from_numpy(side.A).to(table.anchors)
        if bias is not None:
            bias.rows.weight.copy_(torch.from_numpy(side.bias).unsqueeze(1))
    model.bias.fill_(descent.mean)
