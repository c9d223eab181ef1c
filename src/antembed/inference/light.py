"""`antembed recommend` and `similar` with NumPy alone: importing polars would take as long as all the rest."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from antembed.inference.label_index import LabelIndex, find_all, read_index
from antembed.inference.pairs import Seen, best_items, check_rows, open_tables, similar_rows
from antembed.labels import SIDES
from antembed.serving import Table


@dataclass
class LightTables:
    """What RatingTables is, asked with text and answered with lists."""

    folder: Path
    users: Table
    items: Table
    user_labels: LabelIndex
    item_labels: LabelIndex
    seen: Seen | None

    @classmethod
    def load(cls, folder: Path) -> "LightTables | None":
        """None: the labels have no index (an older folder); RatingTables reads them."""
        users, items = open_tables(folder)
        found = [read_index(folder, side) for side in SIDES]
        if found[0] is None or found[1] is None:
            return None
        for table, side, labels in ((users, "users", found[0]), (items, "items", found[1])):
            check_rows(folder, side, len(table), len(labels))
        return cls(folder, users, items, found[0], found[1], Seen.read(folder, len(users), len(items)))

    def unknown_users(self, users: list[str]) -> list[str]:
        """Those without any rating."""
        return [user for user in users if self.user_labels.find(user) < 0]

    def recommend_columns(self, users: list[str], k: int, *, filter_seen: bool) -> dict[str, list[object]]:
        """The k best items of each user: user, item, score, best first."""
        if filter_seen and self.seen is None:
            raise ValueError("what users have seen is not known here; say filter_seen=False (--seen)")
        ids = find_all(self.user_labels, users)
        who, items, scores = best_items(self.users, self.items, ids, k, self.seen if filter_seen else None)
        named = {"user": [users[n] for n in who.tolist()], "item": self._named(items)}
        return {**named, "score": scores.tolist()}

    def similar_columns(self, item: str, k: int) -> dict[str, list[object]]:
        """The k most similar items: item, similarity, best first."""
        row = self.item_labels.find(item)
        if row < 0:
            from antembed.inference.ratings import RatingTables

            return RatingTables.load(self.folder).similar_columns(item, k)  # says which labels are written alike
        items, scores = similar_rows(self.items, row, item, k)
        return {"item": self._named(items), "similarity": scores.tolist()}

    def _named(self, items: np.ndarray) -> list[int | str]:
        return [self.item_labels[row] for row in items.tolist()]
