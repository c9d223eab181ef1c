"""Labels that are found without polars: SIDE.labels.safetensors, beside the Parquet file that they are a copy of.

    numbers    (n,)  whole numbers, rising; or
    text       all labels as UTF-8, one behind the other, sorted by their bytes
    ends       (n,)  where each ends
    parquet    the checksum of the Parquet file, eight digits

Parquet holds the labels; this saves `antembed recommend` and `similar` a fifth of a second. Where it is missing, damaged or of
other labels, the Parquet file is read. Labels of other kinds, and more than MOST, have none.
"""

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from antembed.files import write_atomically
from antembed.inference.folder import RunError, read_checked
from antembed.labels import SIDES, read_whole, write_labels
from antembed.serving.checksums import pack_arrays

if TYPE_CHECKING:
    import polars as pl

MOST = 1 << 21  # labels: reading more takes longer than importing polars
WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
INDEX_FILES = tuple(f"{side}.labels.safetensors" for side in SIDES)


class Numbers:
    """Labels that are whole numbers."""

    def __init__(self, numbers: np.ndarray):
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, row: int) -> int:
        return int(self.numbers[row])

    def find(self, label: str) -> int:
        """Its row; −1: there is none."""
        if not WHOLE.fullmatch(label):
            return -1
        row = int(np.searchsorted(self.numbers, int(label)))
        return row if row < len(self) and self[row] == int(label) else -1


class Texts:
    """Labels that are text."""

    def __init__(self, text: bytes, ends: np.ndarray):
        self.text, self.ends = text, ends

    def __len__(self) -> int:
        return len(self.ends)

    def encoded(self, row: int) -> bytes:
        return self.text[self.ends[row - 1] if row else 0 : self.ends[row]]

    def __getitem__(self, row: int) -> str:
        return self.encoded(row).decode()

    def find(self, label: str) -> int:
        """Its row; −1: there is none."""
        wanted = label.encode(errors="surrogatepass")
        row = bisect_left(range(len(self)), wanted, key=self.encoded)
        return row if row < len(self) and self.encoded(row) == wanted else -1


LabelIndex = Numbers | Texts


def write_indexed_labels(folder: Path, labels: "Mapping[str, pl.Series]") -> None:
    """Parquet files of labels, and what finds them without polars."""
    write_labels(folder, labels)
    for side, own in labels.items():
        path = folder / f"{side}.labels.safetensors"
        arrays = index_arrays(own)
        if arrays is None:
            path.unlink(missing_ok=True)  # of other labels
            continue
        _, digits = read_whole(folder / f"{side}.labels.parquet")
        write_atomically(path, pack_arrays({**arrays, "parquet": np.frombuffer(digits.encode(), np.uint8)}))


def index_arrays(labels: "pl.Series") -> dict[str, np.ndarray] | None:
    """The arrays of an index; None: these labels have none."""
    if len(labels) > MOST or labels.has_nulls():
        return None
    if labels.dtype.is_integer():
        numbers = labels.to_numpy()
        return {"numbers": numbers.astype(np.int64)} if not len(numbers) or int(numbers.max()) < 1 << 62 else None
    if str(labels.dtype) != "String":
        return None
    encoded = [label.encode() for label in labels.to_list()]
    ends = np.cumsum([len(label) for label in encoded], dtype=np.int64)
    return {"text": np.frombuffer(b"".join(encoded), np.uint8), "ends": ends}


def read_index(folder: Path, side: str) -> LabelIndex | None:
    """None: there is none that belongs to the Parquet file, whose own checksum is compared in any case."""
    _, digits = read_whole(folder / f"{side}.labels.parquet")
    path = folder / f"{side}.labels.safetensors"
    if not path.is_file():
        return None
    try:
        arrays = read_checked(path)
    except (RunError, OSError):
        return None
    return index_of(arrays) if arrays.get("parquet", np.empty(0, np.uint8)).tobytes() == digits.encode() else None


def index_of(arrays: dict[str, np.ndarray]) -> LabelIndex | None:
    """None: the arrays are not those of an index."""
    if arrays.keys() == {"numbers", "parquet"}:
        numbers = arrays["numbers"]
        return Numbers(numbers) if _are(np.int64, numbers) and (np.diff(numbers) > 0).all() else None
    if arrays.keys() != {"text", "ends", "parquet"} or not _are(np.int64, arrays["ends"]) or not _are(np.uint8, arrays["text"]):
        return None
    text, ends = arrays["text"].tobytes(), arrays["ends"]
    rising = (np.diff(ends, prepend=0) >= 0).all() and (int(ends[-1]) if len(ends) else 0) == len(text)
    return Texts(text, ends) if rising else None


def _are(kind: type, array: np.ndarray) -> bool:
    return array.ndim == 1 and array.dtype == kind


def find_all(labels: LabelIndex, wanted: Sequence[str]) -> np.ndarray:
    """Rows of labels; −1 for those that are missing."""
    return np.array([labels.find(label) for label in wanted], np.int64)
