"""The tasks: ratings, to predict what a user would rate an item; and events, to rank the items that a user will choose next."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from antembed.data.text_file import DataError
from antembed.files import JSON
from antembed.layer.embedding import Embedding
from antembed.layer.optim.proximal_optimizer import ProximalOptimizer
from antembed.layer.row_table import redraw_
from antembed.layer.sharded.collectives import Ranks
from antembed.recommend.config import EventsConfig, RatingsConfig, RatingsStochastic, read_input
from antembed.recommend.dataset import RatingsSplits, all_for_training, columns_of, cut, make_splits, seen_of
from antembed.recommend.descent_config import OnlineConfig
from antembed.recommend.descent_solver import init_from_dense
from antembed.recommend.fused import FusedEngine, unsupported_reason
from antembed.recommend.in_memory import as_events
from antembed.recommend.model import MatrixFactorization, baseline_errors, half_squared_error
from antembed.recommend.ranking import TOP, held_items, list_metrics, popular
from antembed.recommend.ratings_table import Ratings as RatingsData
from antembed.recommend.seen import Seen, read_popularity, write_popularity
from antembed.tables.row_labels import read_labels
from antembed.train.config import StochasticConfig
from antembed.train.stochastic import Stochastic
from antembed.train.task import Batch, Metric, Metrics, Part, Regularizer, Task, Terms

EVALUATION_BATCH = 65_536  # examples
SMALLEST_INIT, LARGEST_INIT = 0.03, 0.1  # of a prediction without biases (root mean square), before anything is learned
MOVIELENS_1M = "7646f23a064bdd58c628bf965092d0079c8cb75449ccf262c189d62e2291ae68"  # Ratings.digest of its ratings.dat
BASELINES_TO = 30_000_000  # ratings: beyond that the mean and the biases are not worked out
DENSE_INIT = 0.3  # of T and A where dense epochs come first, for ratings with a standard deviation of 1
SAMPLE = 4096  # pairs to measure it by
FEWEST = 3  # events of a user from whom two are held out


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
        users, items = (self._table(config, n, splits) for n in range(2))
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

    def _table(self, config: RatingsConfig, n: int, splits: RatingsSplits) -> Embedding:
        """Of users (n = 0) or items (1)."""
        tables, kind = config.tables, config.tables.kind
        options: JSON = {} if kind.small_init is None else {"std": kind.small_init}
        if "counts" in kind.requires:
            options["counts"] = torch.from_numpy(splits.counts[n]) if len(splits.train) else None
        if tables.embedding == "mixed":
            options["alpha"] = tables.alpha
        V, K = splits.num_embeddings[n], config.num_anchors(2)[n]
        return kind(V, tables.embedding_dim, num_anchors=K, sparse=True, **options)

    def unsupported(self, model: MatrixFactorization, optimizer: ProximalOptimizer) -> str | None:
        return unsupported_reason(model, optimizer)

    def engine(self, model: MatrixFactorization, optimizer: ProximalOptimizer, threads: int) -> FusedEngine:
        return FusedEngine(model, optimizer, threads)

    def loss(self, model: MatrixFactorization, batch: Batch) -> Tensor:
        """Over observed pairs."""
        return half_squared_error(model, batch)

    def facts(self, splits: RatingsSplits, model: MatrixFactorization) -> JSON:
        users, items = splits.num_embeddings
        found = {"num_embeddings": {"users": users, "items": items}, "examples": splits.count, "sha256": splits.digest}
        return found | ({"online": True} if splits.ratings is None else {})

    def reopen(self, config: RatingsConfig, facts: JSON, folder: Path) -> RatingsSplits:
        return RatingsSplits(labels=read_labels(folder))

    def export_extras(self, folder: Path, config: RatingsConfig, out: Path, seen: bool) -> None:
        """How popular items are, and what users have rated: from the run, or, if it was trained on a stream, from the file."""
        users, items = read_labels(folder).values()
        found = Seen.read(folder, len(users), len(items))
        if (popularity := read_popularity(folder, found, len(items))) is not None:
            write_popularity(out, popularity)
        if not seen:
            return
        if found is None:
            data = config.input.file
            if not data.is_file():
                why = f"{folder} does not hold what users have rated, and {data} is no file"
                raise ValueError(f"{why}; export without --with-seen")
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
        if (ratings := config.ratings()).implicit:
            return all_for_training(ratings)  # another task cuts them
        device = config.solver.train.device if isinstance(config.solver, StochasticConfig) else "cpu"
        return cut(ratings, config.input.split, config.machine.seed, device, config.machine.threads)

    def terms(self, config: RatingsConfig, splits: RatingsSplits, model: MatrixFactorization) -> Terms:
        ridges, rates = self.regularizers(config, splits, model), self.rates(config, splits, model)
        return Terms(ridges, biases=self.sparse_biases(model), rates=rates)

    def regularizers(self, config: RatingsConfig, splits: RatingsSplits, model: MatrixFactorization) -> list[Regularizer]:
        """Ridges on vectors and biases, if there are any."""
        assert isinstance(config.solver, RatingsStochastic)
        first, each, bias = config.solver.ridges(splits.deviation)
        if not (first or each or bias):
            return []
        tables: list[tuple[Embedding, int]] = []  # and the column of a batch that has their ids
        for column, (table, own) in enumerate(((model.users, model.user_bias), (model.items, model.item_bias))):
            counts = torch.from_numpy(splits.counts[column]).float()
            table.set_ridge(first + each * counts, counts)
            tables.append((table, column))
            if own is not None:
                own.set_ridge(torch.full_like(counts, bias), counts)
                tables.append((own, column))
        return [lambda batch, step: torch.stack([table.ridge(batch[column]) for table, column in tables]).sum()]

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

    @torch.no_grad()
    def evaluate(self, model: MatrixFactorization, splits: RatingsSplits, part: Part) -> Metrics:
        """Errors over examples, each counted once whatever its weight; `clipped_mse` keeps predictions inside the scale."""
        squared = clipped = absolute = 0.0
        if not (n := len(splits.part(part))):
            raise ValueError(f"nothing to evaluate: the {part} part has 0 examples")
        predict = model.predictor(n)
        for users, items, ratings, *_ in splits.part(part).batches(EVALUATION_BATCH):
            predicted, wanted = predict(users, items).double(), ratings.double()
            squared += float((predicted - wanted).square().sum())
            absolute += float((predicted - wanted).abs().sum())
            clipped += float((predicted.clamp(*splits.scale) - wanted).square().sum())
        mse = squared / n
        return {"loss": mse / 2, "mse": mse, "rmse": mse**0.5, "mae": absolute / n, "clipped_mse": clipped / n, "examples": n}

    def baselines(self, splits: RatingsSplits) -> dict[str, float]:
        if not len(splits.test) or len(splits.train) > BASELINES_TO:
            return {}
        train, validation, test = (columns_of(part) for part in (splits.train, splits.validation, splits.test))
        return baseline_errors(train, validation, test, splits.num_embeddings)

    def is_published(self, splits: RatingsSplits) -> bool:
        return splits.digest == MOVIELENS_1M


class Events(RatingsBase):
    """Users' and items' tables from events."""

    name: ClassVar[str] = "recommend-events"
    Config = EventsConfig
    metric: ClassVar[Metric] = Metric("miss", f"1 − NDCG@{TOP}", f"ndcg@{TOP}")
    examples: ClassVar[str] = "events"

    def load(self, config: RatingsConfig) -> RatingsSplits:
        return self.split(config, read_input(config.input))

    def split(self, config: RatingsConfig, ratings: RatingsData, *, test: bool = True) -> RatingsSplits:
        """The parts of events in memory. Without `test`, nothing is held out but for validation."""
        events = self.weighted(ratings)
        rows = split_events(events, config.input.split)
        if not test:
            train = np.union1d(rows["train"], rows["validation"])
            rows = {"train": train, "validation": rows["test"], "test": rows["test"][:0]}
        return make_splits(events, rows, "cpu", config.machine.threads)

    @staticmethod
    def weighted(ratings: RatingsData) -> RatingsData:
        """Events whose weights grow slowly with their counts: the hundredth says less than the first."""
        events = as_events(ratings)
        assert events.weights is not None
        return replace(events, weights=(1 + np.log(np.maximum(events.weights, 1))).astype(np.float32))

    @torch.no_grad()
    def evaluate(self, model: MatrixFactorization, splits: RatingsSplits, part: Part) -> Metrics:
        """Lists of the best items that a user has not chosen before, against those that were held out."""
        _, items = splits.num_embeddings
        rows, held = torch.arange(items), held_items(splits, part)
        vectors = model.items(rows).numpy()
        bias = np.zeros(items, np.float32) if model.item_bias is None else model.item_bias(rows)[:, 0].numpy()
        found = list_metrics(lambda users: model.users(torch.from_numpy(users)).numpy(), vectors, bias, held)
        return {"loss": 1 - found[f"ndcg@{TOP}"], "miss": 1 - found[f"ndcg@{TOP}"], **found, "examples": len(held.users)}

    def baselines(self, splits: RatingsSplits) -> dict[str, float]:
        return {"the most popular items": popular(splits, "test")[f"ndcg@{TOP}"]} if len(splits.test) else {}

    def facts(self, splits: RatingsSplits, model: MatrixFactorization) -> JSON:
        return super().facts(splits, model) | {"events": True}


def split_events(events: RatingsData, kind: str) -> dict[str, np.ndarray]:
    """Rows of each part: the last event of each user for the test and the last but one for validation, or the last by time."""
    n = len(events)
    times = np.arange(n, dtype=np.float64) if events.times is None else events.times
    if kind == "time":
        order = np.argsort(times, kind="stable")
        a, b = round(0.8 * n), round(0.9 * n)
        parts = {"train": order[:a], "validation": order[a:b], "test": order[b:]}
    else:
        order = np.lexsort((times, events.users))
        users = events.users[order]
        behind = np.searchsorted(users, users, side="right") - np.arange(n)  # 1: the last event of its user
        enough = np.bincount(users)[users] >= FEWEST
        held = np.where(enough, np.minimum(behind, 3), 3)
        parts = {"train": order[held == 3], "validation": order[held == 2], "test": order[held == 1]}
    if not all(len(rows) for rows in parts.values()):
        raise DataError(
            f"{n} events of {len(events.user_labels)} users are too few to hold some out: users need {FEWEST} or more; "
            "give more, or use --split time"
        )
    return {name: np.sort(rows).astype(np.int32) for name, rows in parts.items()}


@torch.no_grad()
def rescale_init_(users: Embedding, items: Embedding) -> None:
    """Scale both T until e_u·e_i starts neither far from 0 nor at nothing. T starts at √(2/V): with few objects that is too
    much, with millions so little that no gradient gets through."""
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
