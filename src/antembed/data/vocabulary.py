"""The words of a corpus and their counts: row i of an embedding table belongs to words[i]."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl

from antembed.data.text_file import DataError
from antembed.files import write_atomically
from antembed.tables.row_labels import LabelsError, pack_parquet, unpack_parquet

PADDING, UNKNOWN = 0, 1  # rows of every table of words
SPECIAL = ("<pad>", "<unk>")  # they cannot occur in a text: angle brackets are no part of a word (classify/tokenizer.py)


@dataclass(frozen=True)
class Vocabulary:
    """Id 0 is padding, 1 is any unknown word; then words sorted by falling count, ties alphabetically."""

    words: list[str]  # (V,)
    counts: np.ndarray  # (V,) int64: occurrences in the training documents; of "<unk>", those of all omitted words
    document_counts: np.ndarray  # (V,) int64: documents that contain the word
    documents: int

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words)}

    def ids(self, words: Iterable[str]) -> np.ndarray:
        """The id of each word (n,) int32; 1 for unknown ones. Words are not normalized."""
        ids = self._ids
        return np.array([ids.get(word, UNKNOWN) for word in words], np.int32)

    def write(self, path: str | Path) -> None:
        """Write as Parquet, a row per word."""
        columns = {"word": self.words, "count": self.counts, "documents": self.document_counts}
        write_atomically(path, pack_parquet(pl.DataFrame(columns), {"documents": str(self.documents)}))

    @classmethod
    def read(cls, path: str | Path) -> "Vocabulary":
        try:
            frame, about = unpack_parquet(Path(path), "documents")
            words, counts, document_counts = (frame[name] for name in ("word", "count", "documents"))
            if tuple(words.head(2)) != SPECIAL:
                raise KeyError(f"{SPECIAL[0]} and {SPECIAL[1]} in its first rows")
            return cls(words.to_list(), counts.to_numpy(), document_counts.to_numpy(), int(about["documents"]))
        except (pl.exceptions.PolarsError, KeyError, LabelsError) as error:
            raise DataError(f"{path} is no vocabulary written by antembed: {error}") from error


RESERVED = len(SPECIAL)
