"""How good lists of items are: recall and NDCG of held-out events, with what was chosen before left out of the lists."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from antembed.recommend.dataset import RatingsSplits
from antembed.recommend.seen import Seen
from antembed.tables.neighbours import best_items
from antembed.train.task import Part

TOP = 10  # items of a list that is evaluated
USERS_AT_ONCE = 1024  # whose scores are in memory
MOST_USERS = 20_000  # that a validation looks at: enough to compare models
Metrics = dict[str, float]


@dataclass(frozen=True)
class Held:
    """Users, the items that were held out of each, and what else they have chosen."""

    users: np.ndarray  # (n,), each once
    wanted: Seen
    known: Seen


def held_items(splits: RatingsSplits, part: Part) -> Held:
    """Of a part: what was chosen before is the training part, and for the test also the validation part."""
    own = {"train": splits.train, "validation": splits.validation, "test": splits.test}[part]
    before = [splits.train] if part == "validation" else [splits.train, splits.validation]
    known = [np.concatenate([each.columns[n][each.rows] for each in before]) for n in range(2)]
    wanted = [own.columns[n][own.rows] for n in range(2)]
    users = np.unique(wanted[0])
    if part == "validation" and len(users) > MOST_USERS:
        users = np.sort(np.random.default_rng(0).choice(users, MOST_USERS, replace=False))
    sizes = splits.num_embeddings
    return Held(users, Seen.of(wanted[0], wanted[1], *sizes), Seen.of(known[0], known[1], *sizes))


def list_metrics(
    vectors_of: Callable[[np.ndarray], np.ndarray], items: np.ndarray, bias: np.ndarray, held: Held, k: int = TOP
) -> Metrics:
    """Means over users. Recall: the share of held-out items in the list, of those that fit into it; NDCG: by their ranks."""
    discount = 1 / np.log2(np.arange(2, k + 2))
    ideal = np.cumsum(discount)
    recall = gain = 0.0
    for start in range(0, len(held.users), USERS_AT_ONCE):
        users = held.users[start : start + USERS_AT_ONCE]
        lists, _ = best_items(vectors_of(users), items, bias, k, held.known.by(users))
        rows, wanted = held.wanted.by(users)
        count = np.bincount(rows, minlength=len(users))
        hits = np.zeros(lists.shape, bool)
        at, rank = np.nonzero(lists[rows] == wanted[:, None])
        hits[rows[at], rank] = True
        possible = np.minimum(count, lists.shape[1])
        recall += float((hits.sum(1) / possible).sum())
        gain += float(((hits * discount[: lists.shape[1]]).sum(1) / ideal[possible - 1]).sum())
    return {f"recall@{k}": recall / len(held.users), f"ndcg@{k}": gain / len(held.users)}


def popular(splits: RatingsSplits, part: Part) -> Metrics:
    """The same of the items that most users have chosen, for everybody."""
    counts = splits.counts[1].astype(np.float32)
    nothing = np.zeros((len(counts), 1), np.float32)
    return list_metrics(lambda users: np.zeros((len(users), 1), np.float32), nothing, counts, held_items(splits, part))
