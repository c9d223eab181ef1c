"""The words of a collection and how often they are seen: row i of a table of words belongs to words[i]."""

import io
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl

from antembed.data.text import DataError
from antembed.files import write_atomically

PADDING, UNKNOWN = 0, 1
SPECIAL = ("<pad>", "<unk>")  # no text has them: angle brackets are no part of a word (data/words.py)


@dataclass(frozen=True)
class Vocabulary:
    """Id 0 is padding, 1 stands for every unknown word; then come words by falling count, ties by the alphabet."""

    words: list[str]  # (V,)
    counts: np.ndarray  # (V,) int64: how often in the training documents; of "<unk>", all that were left out together
    document_counts: np.ndarray  # (V,) int64: in how many of the documents
    documents: int

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def _places(self) -> dict[str, int]:
        return {word: place for place, word in enumerate(self.words)}

    def ids(self, words: Iterable[str]) -> np.ndarray:
        """The id of each word as it stands (n,) int32; of unknown ones 1."""
        places = self._places
        return np.array([places.get(word, UNKNOWN) for word in words], np.int32)

    def write(self, path: str | Path) -> None:
        """As Parquet: a row a word."""
        columns = {"word": self.words, "count": self.counts, "documents": self.document_counts}
        kept = io.BytesIO()
        pl.DataFrame(columns).write_parquet(kept, metadata={"documents": str(self.documents)})
        write_atomically(path, kept.getvalue())

    @classmethod
    def read(cls, path: str | Path) -> "Vocabulary":
        try:
            frame, about = pl.read_parquet(path), pl.read_parquet_metadata(path)
            words, counts, document_counts = (frame[name] for name in ("word", "count", "documents"))
            if tuple(words.head(2)) != SPECIAL:
                raise KeyError(f"{SPECIAL[0]} and {SPECIAL[1]} at its head")
            return cls(words.to_list(), counts.to_numpy(), document_counts.to_numpy(), int(about["documents"]))
        except (pl.exceptions.PolarsError, KeyError) as error:
            raise DataError(f"{path} is no vocabulary that antembed wrote: {error}") from error
