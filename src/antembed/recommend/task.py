"""Ratings → users' and items' tables: predict what a user would rate an item."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from antembed.files import JSON
from antembed.layer.embedding import Embedding
from antembed.layer.optim.proximal import ProximalOptimizer
from antembed.layer.row_table import redraw_
from antembed.layer.sharded.collectives import Ranks
from antembed.recommend.config import OnlineConfig, RatingsConfig, RatingsStochastic, read_input
from antembed.recommend.coordinate_descent import init_from_dense
from antembed.recommend.dataset import RatingsSplits, all_for_training, cut, facts_of, seen_of
from antembed.recommend.fused import FusedEngine, unsupported_reason
from antembed.recommend.model import MatrixFactorization, baseline_errors, half_squared_error
from antembed.recommend.seen import Seen, copy_popularity
from antembed.tables.row_labels import read_labels
from antembed.train.solver_config import StochasticConfig
from antembed.train.stochastic import Stochastic
from antembed.train.task import Batch, Metric, Metrics, Part, Regularizer, Task

EVALUATION_BATCH = 65_536
SMALLEST_INIT, LARGEST_INIT = 0.03, 0.1  # of a prediction without biases (root mean square), before anything is learned
MOVIELENS_1M = "7646f23a064bdd58c628bf965092d0079c8cb75449ccf262c189d62e2291ae68"  # Ratings.digest of its ratings.dat
BASELINES_TO = 30_000_000  # ratings: beyond that the mean and the biases are not worked out
DENSE_INIT = 0.3  # of T and A where dense epochs come first, for ratings with a standard deviation of 1
SAMPLE = 4096  # pairs to measure it by


def stochastic_solver(
    task: "Ratings", config: RatingsConfig, model: MatrixFactorization, splits: RatingsSplits, ranks: Ranks | None = None
) -> Stochastic:
    """Stochastic steps, from a full solution if the config says so."""
    if isinstance(config.solver, RatingsStochastic) and config.solver.init == "dense":
        init_from_dense(config, model, splits)
    return Stochastic(task, config, model, splits, ranks)


class RatingsBase(Task[RatingsConfig, RatingsSplits, MatrixFactorization]):
    """What ratings and events share: two tables, their labels and what users have rated."""

    def build(self, config: RatingsConfig, splits: RatingsSplits) -> MatrixFactorization:
        torch.manual_seed(config.machine.seed)
        users, items = (_table(config, side, splits) for side in range(2))
        init = config.solver.init if isinstance(config.solver, RatingsStochastic) else "signed"
        if config.tables.embedding == "anchor" and init != "half-normal":
            # Of both signs: with biases in the model, what is left to explain has mean 0, and parallel anchors stay parallel.
            for layer in (users, items):
                layer.pairs[0][1].data.normal_(std=config.tables.embedding_dim**-0.5)
        if isinstance(config.solver, RatingsStochastic) and config.solver.sparsity.sparsify != "prox":
            for layer in (users, items):  # dense epochs come first, with a ridge: it may start larger
                redraw_(layer.tables[0], DENSE_INIT * splits.deviation**0.5)
                layer.pairs[0][1].data.normal_(std=DENSE_INIT)
        elif config.tables.kind.small_init is None:
            rescale_init_(users, items)
        model = MatrixFactorization(users, items, mean=splits.mean, biases=config.tables.biases)
        return model.to(config.solver.train.device) if isinstance(config.solver, StochasticConfig) else model

    def unsupported(self, model: MatrixFactorization, optimizer: ProximalOptimizer) -> str | None:
        return unsupported_reason(model, optimizer)

    def engine(self, model: MatrixFactorization, optimizer: ProximalOptimizer, threads: int) -> FusedEngine:
        return FusedEngine(model, optimizer, threads)

    def facts(self, splits: RatingsSplits, model: MatrixFactorization) -> JSON:
        return facts_of(splits) | ({"online": True} if splits.ratings is None else {})

    def reopen(self, config: RatingsConfig, facts: JSON, folder: Path) -> RatingsSplits:
        return RatingsSplits(labels=read_labels(folder))

    def export_extras(self, folder: Path, config: RatingsConfig, out: Path, seen: bool) -> None:
        """How popular items are, and what users have rated: from the run, or, if it was trained on a stream, from the file."""
        labels = read_labels(folder)
        users, items = labels["users"], labels["items"]
        copy_popularity(folder, out, len(users), len(items))
        if not seen:
            return
        found = Seen.read(folder, len(users), len(items))
        if found is None:
            data = config.input.file
            if not data.is_file():
                raise ValueError(
                    f"{folder} does not hold what users have rated, and {data} is no file; export without --with-seen"
                )
            found = seen_of(read_input(config.input), users, items)
        found.save(out, ratings=False)


class Ratings(RatingsBase):
    """Users' and items' tables from ratings."""

    name: ClassVar[str] = "recommend"
    Config = RatingsConfig
    metric: ClassVar[Metric] = Metric("mse", "MSE")
    examples: ClassVar[str] = "ratings"
    published: ClassVar[Mapping[str, Sequence[tuple[float, float]]]] = {  # MovieLens 1M
        "paper: full": [(155.2e3, 0.771)],
        "paper: ANT": [(59.4e3, 0.772), (29.2e3, 0.786), (10.8e3, 0.836)],
        "paper: nbANT": [(27.7e3, 0.795), (10.6e3, 0.837)],
    }

    def load(self, config: RatingsConfig) -> RatingsSplits:
        if isinstance(config.solver, OnlineConfig):
            return RatingsSplits()  # the solver reads the stream itself
        ratings = config.ratings()
        if ratings.implicit:
            return all_for_training(ratings)  # another task cuts them
        device = config.solver.train.device if isinstance(config.solver, StochasticConfig) else "cpu"
        return cut(ratings, config.input.split, config.machine.seed, device, config.machine.threads)

    def task_for(self, splits: RatingsSplits) -> str:
        return "recommend-events" if splits.ratings is not None and splits.ratings.implicit else self.name

    def regularizers(self, config: RatingsConfig, splits: RatingsSplits, model: MatrixFactorization) -> list[Regularizer]:
        """Ridges on vectors and biases, if there are any."""
        assert isinstance(config.solver, RatingsStochastic)
        first, each, bias = config.solver.ridges(splits.deviation)
        if not (first or each or bias):
            return []
        tables: list[tuple[Embedding, int]] = []
        for side, (table, own) in enumerate(((model.users, model.user_bias), (model.items, model.item_bias))):
            counts = torch.from_numpy(splits.counts[side]).float()
            table.set_ridge(first + each * counts, counts)
            tables.append((table, side))
            if own is not None:
                own.set_ridge(torch.full_like(counts, bias), counts)
                tables.append((own, side))
        return [lambda batch, step: torch.stack([table.ridge(batch[side]) for table, side in tables]).sum()]

    def sparse_biases(self, model: MatrixFactorization) -> list[Embedding]:
        return [bias for bias in (model.user_bias, model.item_bias) if bias is not None]

    def rates(self, config: RatingsConfig, splits: RatingsSplits, model: MatrixFactorization) -> list[tuple[Tensor, float]]:
        """Where T is dense first, a step is the same whatever the ratings' unit is: anchors have length 1, so T is in the root
        of that unit and biases are in the unit itself."""
        assert isinstance(config.solver, RatingsStochastic)
        if config.solver.sparsity.sparsify == "prox":
            return []
        rows = [table.weight for layer in (model.users, model.items) for table in layer.tables]
        biases = [model.bias, *(table.weight for bias in self.sparse_biases(model) for table in bias.tables)]
        unit = splits.deviation
        return [(weight, unit**0.5) for weight in rows] + [(weight, unit) for weight in biases]

    def loss(self, model: MatrixFactorization, batch: Batch) -> Tensor:
        return half_squared_error(model, batch)

    @torch.no_grad()
    def evaluate(self, model: MatrixFactorization, splits: RatingsSplits, part: Part) -> Metrics:
        """Errors over examples, each counted once whatever its weight; `clipped_mse` keeps predictions inside the scale."""
        squared = clipped = absolute = 0.0
        n = 0
        for users, items, ratings, *_ in splits.part(part).batches(EVALUATION_BATCH):
            predicted, wanted = model(users, items).double(), ratings.double()
            squared += float((predicted - wanted).square().sum())
            absolute += float((predicted - wanted).abs().sum())
            clipped += float((predicted.clamp(*splits.scale) - wanted).square().sum())
            n += len(ratings)
        if n == 0:
            raise ValueError(f"nothing to evaluate: the {part} part has 0 examples")
        mse = squared / n
        return {"loss": mse / 2, "mse": mse, "rmse": mse**0.5, "mae": absolute / n, "clipped_mse": clipped / n, "examples": n}

    def baselines(self, splits: RatingsSplits) -> dict[str, float]:
        if not len(splits.test) or len(splits.train) > BASELINES_TO:
            return {}
        parts = (splits.train, splits.validation, splits.test)
        train, validation, test = (tuple(column.cpu().numpy() for column in part[:]) for part in parts)
        return baseline_errors(train, validation, test, splits.num_embeddings)

    def is_published(self, splits: RatingsSplits) -> bool:
        return splits.digest == MOVIELENS_1M


def _table(config: RatingsConfig, side: int, splits: RatingsSplits) -> Embedding:
    tables, kind = config.tables, config.tables.kind
    options: JSON = {} if kind.small_init is None else {"std": kind.small_init}
    if "counts" in kind.requires:
        options["counts"] = torch.from_numpy(splits.counts[side]) if len(splits.train) else None
    if tables.embedding == "mixed":
        options["alpha"] = tables.alpha
    V, K = splits.num_embeddings[side], config.num_anchors(2)[side]
    return kind(V, tables.embedding_dim, num_anchors=K, sparse=True, **options)


@torch.no_grad()
def rescale_init_(users: Embedding, items: Embedding) -> None:
    """Scale both T until e_u·e_i starts neither far from 0 nor at nothing.

    T starts at √(2/V). With few objects that is too much; with millions it is so little that no gradient gets through.
    """
    if not (users.num_embeddings and items.num_embeddings):
        return
    some = [torch.randint(0, layer.num_embeddings, (SAMPLE,), device=layer.tables[0].weight.device) for layer in (users, items)]
    now = float((users(some[0]) * items(some[1])).sum(-1).square().mean().sqrt())
    wanted = min(max(now, SMALLEST_INIT), LARGEST_INIT)
    if wanted != now != 0:
        for layer in (users, items):
            for table, anchors in layer.pairs:
                # The shares of a softmax add up to 1 whatever its weights: there the anchors are scaled.
                (anchors if layer.softmax else table.weight).mul_((wanted / now) ** 0.5)
