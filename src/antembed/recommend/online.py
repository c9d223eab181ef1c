"""A stream of ratings as a solver: an epoch is a batch, learned once, in the file's order (recommend/online_descent.py).

Each batch is first predicted, then learned: the mean of those errors is the validation error. A checkpoint a batch: an
interrupted stream continues behind the last batch that was learned.
"""

import io
import time
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import polars as pl
import torch

from antembed.data.download import find_data
from antembed.files import JSON
from antembed.recommend.config import OnlineConfig, RatingsConfig
from antembed.recommend.coordinate_descent import copy_to_model, penalties_of
from antembed.recommend.dataset import RatingsSplits
from antembed.recommend.label_numbers import whole_numbers
from antembed.recommend.model import MatrixFactorization
from antembed.recommend.online_descent import OnlineDescent
from antembed.recommend.read_ratings import read_ratings
from antembed.recommend.read_stream import RatingStream
from antembed.tables.row_labels import SIDES, find
from antembed.train.checkpoint import Checkpoint, CheckpointError
from antembed.train.solver import Callback, Progress, RunFiles, Solver, ignore


class Online(Solver[RatingsConfig, RatingsSplits, MatrixFactorization, OnlineConfig]):
    """The model is built for nobody, and takes the users and items that have come at the end."""

    name: ClassVar[str] = "online"

    def setup(self) -> None:
        config, own = self.config, self.own
        if own.test and not find_data(own.test).is_file():
            raise ValueError(f"{own.test} is no file; --test takes a file of ratings")
        self.online = online_descent(config, own)
        source = config.input.data if config.input.data == "-" else config.input.file
        self.stream = RatingStream(source, config.input.columns, batch_size=own.batch_size)
        self.squared, self.first = 0.0, 0  # Σ squared errors of later batches before they were learned; the first batch's size

    def fit(self, files: RunFiles, callback: Callback = ignore) -> Iterator[JSON]:
        for batch in self.stream:
            started, later = time.perf_counter(), self.online.batches > 0
            error = float(np.square(batch[2] - self.online.predict(*batch[:2]), dtype=np.float64).sum()) if later else 0.0
            self.squared += error
            self.first = self.first or len(batch[2])
            record = self.online.learn(batch)
            record |= {"epoch": self.online.batches, "mse_before": error / len(batch[2]) if later else None}
            record["seconds"] = time.perf_counter() - started
            self.epoch = self.online.batches
            callback(Progress(self.epoch, len(batch[2]), record["train_loss"], record["seconds"], record))
            yield record
        if not self.online.batches:
            raise ValueError(f"{self.config.input.data} has no ratings")
        self._finish()

    def _finish(self) -> None:
        """Rows in the order of their labels, as in every other run."""
        for side, state, labels in zip(
            SIDES, (self.online.users, self.online.items), (self.stream.users.labels, self.stream.items.labels), strict=True
        ):
            sortable = labels.cast(pl.Int64) if whole_numbers(labels) else labels
            order = sortable.arg_sort().to_numpy()
            state.reorder(order)
            self.splits.labels[side] = sortable.gather(order)
        self.splits.item_counts = self.online.items.count
        copy_to_model(self.online, self.model)

    def result(self) -> JSON:
        later = self.online.ratings - self.first
        return {
            "engine": self.name,
            "validation": {"mse": self.squared / later} if later else None,  # each batch before it was learned
            "test": self._test() if self.own.test else None,
            "epochs": 1,
            "batches": self.online.batches,
            "ratings": self.online.ratings,
        }

    def _test(self) -> dict[str, float]:
        """Errors on a file; of a user or item that never came only the mean and the other's bias are known."""
        held = read_ratings(find_data(self.own.test), self.config.input.columns)
        users, items = (
            find(self.splits.labels[side], labels.gather(ids))
            for side, labels, ids in zip(SIDES, (held.user_labels, held.item_labels), (held.users, held.items), strict=True)
        )
        # An id beyond the table is an object that has not come.
        errors = self.online.predict(_beyond(users), _beyond(items)) - held.values
        return {"mse": float(np.square(errors, dtype=np.float64).mean()), "mae": float(np.abs(errors).mean())}

    def state_dict(self) -> Checkpoint:
        labels = {"labels/users": _packed(self.stream.users.labels), "labels/items": _packed(self.stream.items.labels)}
        return Checkpoint(self.online.state() | labels, {"squared": self.squared, "first": self.first})

    def load_state_dict(self, checkpoint: Checkpoint) -> None:
        self.online.load(checkpoint.tensors)
        self.squared, self.first, self.epoch = checkpoint.plain["squared"], checkpoint.plain["first"], self.online.batches
        users, items = (_unpacked(checkpoint.tensors[f"labels/{side}"]) for side in SIDES)
        for labels, state in ((users, self.online.users), (items, self.online.items)):
            if len(labels) != len(state.T):
                raise CheckpointError(f"the checkpoint has {len(labels)} labels for {len(state.T)} rows; start the run anew")
        self.stream.resume(self.online.ratings, users, items)


def online_descent(config: RatingsConfig, own: OnlineConfig) -> OnlineDescent:
    """With nothing learned yet."""
    anchors = config.num_anchors(2)
    return OnlineDescent(
        config.tables.embedding_dim,
        penalties_of(config, own.penalties),
        anchors=(anchors[0], anchors[1]),
        auto=config.auto,
        sweeps=own.epochs,
        seed=config.machine.seed,
        threads=config.machine.threads,
    )


def _beyond(ids: np.ndarray) -> np.ndarray:
    return np.where(ids < 0, np.iinfo(np.int64).max, ids)


def _packed(labels: pl.Series) -> torch.Tensor:
    packed = io.BytesIO()
    labels.to_frame("label").write_parquet(packed)
    return torch.frombuffer(bytearray(packed.getvalue()), dtype=torch.uint8)


def _unpacked(packed: torch.Tensor) -> pl.Series:
    try:
        return pl.read_parquet(io.BytesIO(packed.numpy().tobytes())).to_series()
    except pl.exceptions.PolarsError as error:
        raise CheckpointError(f"labels in the checkpoint are damaged ({error}); start the run anew") from error
