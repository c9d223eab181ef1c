"""Labels that are found without polars: importing it would take `antembed recommend` and `similar` a fifth of a second.

Folders of older versions have Parquet, and beside it SIDE.labels.safetensors with a copy of the labels:

    numbers    (n,)  whole numbers, rising; or
    text       all labels as UTF-8, one behind the other, sorted by their bytes
    ends       (n,)  where each ends
    parquet    the checksum of the Parquet file, eight digits
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from antembed.tables.model_folder import RunError, read_checked
from antembed.tables.row_labels import LabelIndex, Numbers, Texts, label_file, read_coded, read_whole


def read_index(folder: Path, side: str) -> LabelIndex | None:
    """None: these labels are in Parquet alone."""
    file, path = label_file(folder, side), folder / f"{side}.labels.safetensors"
    if file is None or file == path:
        return read_coded(path)
    _, digits = read_whole(file)
    if not path.is_file():
        return None
    try:
        arrays = read_checked(path)
    except (RunError, OSError):
        return None
    return index_of(arrays) if arrays.get("parquet", np.empty(0, np.uint8)).tobytes() == digits.encode() else None


def index_of(arrays: dict[str, np.ndarray]) -> LabelIndex | None:
    """Of an older version; None: the arrays are not those of an index."""
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
