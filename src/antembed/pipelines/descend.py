"""A run on ratings by coordinate descent: the way from its settings to its model."""

import time
from collections.abc import Callable
from typing import Any

import torch

from antembed.embedding import AnchorEmbedding
from antembed.pipelines.job import Job, nonzeros
from antembed.pipelines.settings import Settings
from antembed.tasks.recommend import MatrixFactorisation
from antembed.training import RunFolder, Tick, load_tensors, save_tensors
from antembed.training.descent import NO_BIAS, Descent, Prices
from antembed.training.stream import Stream


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
    )
    begin()
    done = 0
    if resume and folder.last.exists():
        state, progress = load_tensors(folder.last)
        descent.load(state)
        done = progress["epochs"]
    folder.forget_after(done)
    started = time.perf_counter()
    if not done:
        descent.start()
    for sweep in range(done + 1, settings.epochs + 1):
        descent.sweep(sweep)
        put(descent, model)
        total = descent.loss()
        mean_loss = total / len(training)
        row: dict[str, Any] = {"epoch": sweep, "train_loss": mean_loss, "objective": total + descent.penalty()}
        row["price"] = descent.price(sweep)
        row["nnz"] = {name: nonzeros(table) for name, table in model.tables.items()}
        if len(job.parts["validation"]):
            row["validation"] = job.validate()
        row["seconds"], started = time.perf_counter() - started, time.perf_counter()  # the first sweep's with the start
        tell(Tick(sweep, len(training), mean_loss, row["seconds"], row))
        folder.log(row)
        save_tensors(folder.last, descent.state(), {"epochs": sweep})
    put(descent, model)
    return "descent"


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
def put(descent: Descent | Stream, model: MatrixFactorisation) -> None:
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
