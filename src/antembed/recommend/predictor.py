"""`antembed recommend` and `similar` with NumPy alone: importing polars would take as long as all the rest."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from antembed.recommend.inference_pairs import PairTables, check_rows, open_tables, similar_rows
from antembed.recommend.label_index import find_all, read_index
from antembed.recommend.seen import Seen, read_popularity
from antembed.tables.model_folder import read_description
from antembed.tables.row_labels import SIDES, LabelIndex


@dataclass(kw_only=True)
class LightTables(PairTables):
    """What RatingTables is, asked with text and answered with lists."""

    folder: Path
    user_labels: LabelIndex
    item_labels: LabelIndex

    @classmethod
    def load(cls, folder: Path) -> "LightTables | None":
        """None: the labels are in Parquet alone; RatingTables reads them."""
        users, items = open_tables(folder)
        found = [read_index(folder, side) for side in SIDES]
        if found[0] is None or found[1] is None:
            return None
        for table, side, labels in ((users, "users", found[0]), (items, "items", found[1])):
            check_rows(folder, side, len(table), len(labels))
        seen = Seen.read(folder, len(users), len(items))
        return cls(
            users=users,
            items=items,
            seen=seen,
            popularity=read_popularity(folder, seen, len(items)),
            config=read_description(folder)["config"],
            folder=folder,
            user_labels=found[0],
            item_labels=found[1],
        )

    def recommend_columns(self, users: list[str], k: int, *, filter_seen: bool) -> tuple[dict[str, list[object]], list[str]]:
        """The k best items of each user: user, item, score, best first; and what is to be said of them."""
        ids = find_all(self.user_labels, users)
        who, items, scores, personal = self.best_items(ids, k, filter_seen=filter_seen)
        columns = {"user": [users[n] for n in who.tolist()], "item": self._named(items), "score": scores.tolist()}
        return columns, self.remarks(ids, users, personal, filter_seen=filter_seen)

    def similar_columns(self, item: str, k: int) -> dict[str, list[object]]:
        """The k most similar items: item, similarity, best first."""
        row = self.item_labels.find(item)
        if row < 0:
            from antembed.recommend.inference_ratings import RatingTables

            return RatingTables.load(self.folder).similar_columns(item, k)  # says which labels are written alike
        items, scores = similar_rows(self.items, row, item, k)
        return {"item": self._named(items), "similarity": scores.tolist()}

    def _named(self, items: np.ndarray) -> list[int | str]:
        return [self.item_labels[row] for row in items.tolist()]
