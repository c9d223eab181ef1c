"""A recommender's folder as older versions wrote it: labels in Parquet and again beside it, pairs as they are."""

import shutil
from pathlib import Path

import numpy as np
import polars as pl

from antembed.files import write_atomically
from antembed.recommend.seen import Seen
from antembed.tables.container import pack_arrays
from antembed.tables.model_folder import POPULARITY, RATINGS, SEEN
from antembed.tables.row_labels import LABELLED, pack_parquet, read_file, read_labels


def write_old_labels(folder: Path, side: str, labels: pl.Series, *, index: bool = True) -> None:
    """SIDE.labels.parquet and, with `index`, its copy."""
    parquet, path = folder / f"{side}.labels.parquet", folder / f"{side}.labels.safetensors"
    write_atomically(parquet, pack_parquet(labels.alias("label").to_frame()))
    path.unlink(missing_ok=True)
    if not index:
        return
    _, digits = read_file(parquet)
    if labels.dtype.is_integer():
        arrays = {"numbers": labels.to_numpy().astype(np.int64)}
    else:
        encoded = [label.encode() for label in labels.to_list()]
        ends = np.cumsum([len(label) for label in encoded], dtype=np.int64)
        arrays = {"text": np.frombuffer(b"".join(encoded), np.uint8), "ends": ends}
    write_atomically(path, pack_arrays({**arrays, "parquet": np.frombuffer(digits.encode(), np.uint8)}))


def as_old(new: Path, old: Path, *, index: bool = True) -> Path:
    """A copy of a folder in the old form; its pairs are not sorted within a user."""
    shutil.copytree(new, old)
    labels = read_labels(new)
    for name in LABELLED:
        write_old_labels(old, name, labels[name], index=index)
    seen = Seen.read(new, len(labels["users"]), len(labels["items"]))
    if seen is not None:
        turned = [seen.items[a:b][::-1] for a, b in zip(seen.starts[:-1], seen.starts[1:], strict=True)]
        arrays = {"items": np.concatenate(turned).astype(np.uint16), "starts": seen.starts}
        write_atomically(old / SEEN, pack_arrays(arrays))
    for name in (RATINGS, POPULARITY):
        (old / name).unlink(missing_ok=True)
    return old
