"""Coordinate descent as a solver: a sweep is an epoch, and a budget or a tolerance decides the ℓ0 penalty."""

import time
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import torch

from antembed.budget import BudgetController, parse_budget
from antembed.files import JSON
from antembed.layer.anchor import AnchorEmbedding
from antembed.recommend.config import EventsConfig, RatingsConfig
from antembed.recommend.dataset import RatingsSplits, columns_of
from antembed.recommend.descent import Descent
from antembed.recommend.descent_config import CoordinateDescentConfig, PenaltyConfig
from antembed.recommend.factor import ALONE, NO_BIAS, Penalties, RowShare
from antembed.recommend.fold_in import likely_weight
from antembed.recommend.model import MatrixFactorization, biases_error
from antembed.recommend.ranking import popular
from antembed.recommend.tolerance import LISTS_SETTLED, SETTLED, ToleranceDescent
from antembed.tables.number_formats import LEAST_CODES, anchors_as, stored_as
from antembed.train.checkpoint import Checkpoint, FileStorage
from antembed.train.run_folder import RunFolder
from antembed.train.solver import Callback, Progress, Solver, ignore

FIRST_PENALTY = 0.1  # from which a budget's penalty is sought
AIM = 1.04  # of the budget: weights that were once dropped hardly come back, so it is approached from above
POLISHED = 3  # sweeps


class CoordinateDescent(Solver[RatingsConfig, RatingsSplits, MatrixFactorization, CoordinateDescentConfig]):
    """Exact alternating minimisation of ratings' squared error with an ℓ0 penalty (recommend/descent.py)."""

    name: ClassVar[str] = "coordinate_descent"

    def setup(self) -> None:
        config, own = self.config, self.own
        unobserved = own.unobserved_weight
        if isinstance(config, EventsConfig) and not unobserved:
            unobserved = likely_weight(len(self.splits.train), *self.splits.num_embeddings)
        self.share = RowShare(self.ranks)
        if self.ranks is not None:
            self.storage = FileStorage(self.ranks)
        penalties = penalties_of(config, own.penalties, unobserved)
        self.descent = descent_of(config, self.splits, penalties, own.epochs, self.share)
        self.steered = max(own.epochs - POLISHED, 1)  # sweeps that a budget adjusts
        self.budget: BudgetController | None = None
        if own.budget:
            budget = parse_budget(own.budget, self.model.dense_bytes())
            self.budget = BudgetController(budget, self.size, FIRST_PENALTY, self.steered, AIM)
        self.search: ToleranceDescent | None = None
        if own.tolerance:
            goal, axes = (own.tolerance, self._baseline(), LISTS_SETTLED if unobserved else SETTLED), own.basis == "axes"
            self.search = ToleranceDescent(self.descent, self._error, *goal, axes)

    def size(self) -> float:
        assert self.budget is not None
        copy_to_model(self.descent, self.model)
        return self.share.agreed(self.model.stored_size(self.budget.budget.unit, self.config.values, self.config.encoding))

    def _error(self, stored: bool) -> float:
        """On validation data; of the model as it is, or as it would be read back from its files."""
        copy_to_model(self.descent, self.model, self.config.values if stored else "")
        return self.share.agreed(self.task.metric.cost(self.task.evaluate(self.model, self.splits, "validation")))

    def _baseline(self) -> float:
        """The error of a model without vectors: biases alone, or the most popular items for everybody."""
        if self.descent.penalties.unobserved_weight:
            return self.task.metric.cost(popular(self.splits, "validation")) if self.task.metric.shown else float("inf")
        train, validation = columns_of(self.splits.train), columns_of(self.splits.validation)
        return biases_error(train, validation, self.splits.num_embeddings, self.own.penalties.bias_ridge)

    def fit(self, files: RunFolder, callback: Callback = ignore) -> Iterator[JSON]:
        started = time.perf_counter()
        if not self.epoch and self.search is None:
            self.descent.init_weights()
        examples = len(self.splits.train)
        while self.epoch < self.own.epochs if self.search is None else not self.search.done:
            sweep = self.epoch + 1
            record = self._record(sweep, self._sweep(sweep) if self.search is None else self.search.sweep())
            record["seconds"], started = time.perf_counter() - started, time.perf_counter()  # the first with the start
            self.epoch = sweep
            callback(Progress(sweep, examples, record["train_loss"], record["seconds"], record))
            yield record
        copy_to_model(self.descent, self.model)
        if self.budget is not None:
            self.budget.budget.check(self.size())

    def _sweep(self, number: int) -> float:
        """One sweep; → the ℓ0 penalty it was done with."""
        if self.budget is None:
            l0 = self.descent.l0_of(number)
        elif number > self.steered:  # polishing: what is zero stays zero, and the rest is free
            l0, self.descent.frozen = 0.0, True
        else:
            l0 = self.budget.penalty
        self.descent.sweep_at(l0)
        if self.budget is not None and number <= self.steered:
            size = self.size()
            self.budget.adjust(number, size)
            if number == self.steered and size > self.budget.budget.amount:
                self._trim(self.budget)
        return l0

    def _trim(self, budget: BudgetController) -> None:
        """Remove as few weights and biases as meet the budget, those first without which the objective rises least."""
        factors = self.descent.factors
        values = [self.descent.weight_values(factor) for factor in factors]
        before = [(factor.T.copy(), factor.bias.copy()) for factor in factors]
        order = np.sort(np.concatenate([part[part > 0] for pair in values for part in pair]))

        def keep(n: int) -> None:
            limit = order[len(order) - n - 1] if n < len(order) else -1.0
            for factor, (T, bias), (of_weights, of_biases) in zip(factors, before, values, strict=True):
                factor.T, factor.bias = np.where(of_weights > limit, T, 0.0), np.where(of_biases > limit, bias, 0.0)

        budget.trim(len(order), keep)
        for factor in factors:
            factor.E = factor.T @ factor.A

    def _record(self, sweep: int, l0: float) -> JSON:
        copy_to_model(self.descent, self.model)
        total = self.descent.loss()
        record: JSON = {
            "epoch": sweep,
            "train_loss": total / len(self.splits.train),
            "objective": total + self.descent.penalty(),
            "l0_penalty": l0,
            "anchors": {"users": len(self.descent.users.A), "items": len(self.descent.items.A)},
            "nnz": {name: int(table.tables[0].weight.count_nonzero()) for name, table in self.model.embeddings.items()},
        }
        if len(self.splits.validation) and self.config.evaluates_fast:
            record["validation"] = self.task.evaluate(self.model, self.splits, "validation")
        return record

    def state_dict(self) -> Checkpoint:
        tensors = self.descent.state()
        plain: JSON = {"epoch": self.epoch}
        if self.budget is not None:
            plain["budget"] = self.budget.state()
        if self.search is not None:
            kept, plain["search"] = self.search.state_dict()
            tensors |= kept
        return Checkpoint(tensors, plain)

    def load_state_dict(self, checkpoint: Checkpoint) -> None:
        self.descent.load({name: part for name, part in checkpoint.tensors.items() if not name.startswith("kept/")})
        self.epoch = checkpoint.plain["epoch"]
        if self.budget is not None:
            self.budget.load(checkpoint.plain["budget"])
        if self.search is not None:
            self.search.load_state_dict(checkpoint.tensors, checkpoint.plain["search"])

    def result(self) -> JSON:
        if (search := self.search) is None:
            return super().result()
        reached = {"dense_error": search.reference, "limit": search.limit, "error": search.error}
        return super().result() | {"tolerance": reached | {"l0_penalty": search.path.good}}


def penalties_of(config: RatingsConfig, own: PenaltyConfig, unobserved_weight: float = 0.0) -> Penalties:
    """What coordinate descent adds to the squared error."""
    bias_ridge = own.bias_ridge if config.tables.biases else NO_BIAS
    biases = own.penalize_biases and config.tables.embedding == "anchor"
    return Penalties(own.l0_penalty, own.ridge, own.ridge_per_rating, bias_ridge, unobserved_weight, biases)


def descent_of(
    config: RatingsConfig, splits: RatingsSplits, penalties: Penalties, sweeps: int, share: RowShare = ALONE
) -> Descent:
    """Coordinate descent on the training ratings."""
    given, d, auto = (columns_of(splits.train), splits.num_embeddings), config.tables.embedding_dim, config.auto
    anchors = config.num_anchors(2) if config.tables.embedding == "anchor" else None
    seed, threads = config.machine.seed, config.machine.threads
    return Descent(*given, anchors, d, penalties, sweeps=sweeps, seed=seed, threads=threads, auto=auto, share=share)


def init_from_dense(config: RatingsConfig, model: MatrixFactorization, splits: RatingsSplits) -> None:
    """Start a model from a full solution: dense rows by alternating least squares, then anchors and weights that come near them
    (as AnchorEmbedding.from_pretrained), and the biases that go with them."""
    descent = descent_of(config, splits, penalties_of(config, PenaltyConfig()), sweeps=1)
    descent.threads = 1
    descent.init_weights()
    copy_to_model(descent, model)


@torch.no_grad()
def copy_to_model(found: Any, model: MatrixFactorization, values: str = "") -> None:
    """What a Descent or OnlineDescent has found, into the model, whatever its size was; with `values`, as files of these have
    it."""
    biases = (model.user_bias, model.item_bias)
    for table, bias, factor in zip(model.embeddings.values(), biases, (found.users, found.items), strict=True):
        anchored = isinstance(table, AnchorEmbedding)
        rows, anchors, own_bias = factor.T if anchored else factor.E, factor.A, factor.bias[:, None]
        if anchored and not len(anchors):  # before there are any, the vectors are themselves
            rows, anchors = factor.E, np.eye(factor.E.shape[1])
        if values:
            rows, own_bias = stored_as(rows, values), stored_as(own_bias, values, LEAST_CODES)
            anchors = anchors.astype(anchors_as(values))
        table.tables[0].replace(torch.from_numpy(rows).to(table.tables[0].weight))
        if isinstance(table, AnchorEmbedding):
            table.anchors.data = torch.from_numpy(anchors).to(table.anchors)
        if bias is not None:
            bias.rows.replace(torch.from_numpy(own_bias).to(bias.rows.weight))
    model.bias.fill_(found.mean)
