"""Labels of a table's rows: sorted, found by binary search, kept as Parquet. No torch in here; polars where it is needed."""

import io
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from antembed.files import write_atomically

if TYPE_CHECKING:  # `antembed similar` must not wait for it
    import polars as pl

SIDES = ("users", "items")
CHECKSUM, ZEROS = "antembed-crc32", "0" * 8
Labels: TypeAlias = "Sequence[object] | np.ndarray | pl.Series"


class LabelsError(ValueError):
    """A file of labels that cannot be used."""


def find(labels: "pl.Series", wanted: Labels) -> np.ndarray:
    """Indices of `wanted` in the sorted labels; −1 for those that are missing."""
    import polars as pl

    if isinstance(wanted, str | bytes | int | float):
        raise TypeError(f"give a list of labels, [{wanted!r}], not a single one")
    asked = pl.Series("asked", wanted)
    if asked.dtype != labels.dtype:
        asked = asked.cast(labels.dtype, strict=False)
    if not len(labels):
        return np.full(len(asked), -1, np.int64)
    found = np.minimum(labels.search_sorted(asked).to_numpy().astype(np.int64), len(labels) - 1)
    same = labels.gather(found).eq_missing(asked).to_numpy()
    return np.where(same & ~asked.is_null().to_numpy(), found, -1)


def write_labels(folder: Path, labels: Mapping[str, "pl.Series"]) -> None:
    """users.labels.parquet and items.labels.parquet, one column in the order of the rows."""
    for side, own in labels.items():
        write_atomically(folder / f"{side}.labels.parquet", pack_parquet(own.alias("label").to_frame()))


def read_labels(folder: Path) -> dict[str, "pl.Series"]:
    """What write_labels wrote."""
    return {side: unpack_parquet(folder / f"{side}.labels.parquet")[0].to_series() for side in SIDES}


def pack_parquet(frame: "pl.DataFrame", metadata: Mapping[str, str] | None = None) -> bytes:
    """A Parquet file with a checksum of all of its bytes (computed with zeros in its place) in its metadata."""
    packed = io.BytesIO()
    frame.write_parquet(packed, metadata={**(metadata or {}), CHECKSUM: ZEROS})
    blank = packed.getvalue()
    at = _place(blank)
    if at is None or blank[at : at + len(ZEROS)] != ZEROS.encode():
        raise LabelsError("polars wrote the metadata of a Parquet file in another way than was expected; report it")
    return blank[:at] + f"{zlib.crc32(blank):08x}".encode() + blank[at + len(ZEROS) :]


def read_whole(path: Path) -> tuple[bytes, str]:
    """A file of pack_parquet as it is, and its checksum, which was compared."""
    data = path.read_bytes()
    at = _place(data)
    if at is None:
        raise LabelsError(f"{path} has no checksum; it is damaged or of an older version: copy it again, or train anew")
    digits = f"{zlib.crc32(data[at + len(ZEROS) :], zlib.crc32(ZEROS.encode(), zlib.crc32(data[:at]))):08x}"
    if data[at : at + len(ZEROS)] != digits.encode():
        raise LabelsError(f"{path} is damaged: its checksum is not that of its contents; copy it again, or export it anew")
    return data, digits


def unpack_parquet(path: Path, *known: str) -> "tuple[pl.DataFrame, dict[str, str]]":
    """What pack_parquet wrote: the table, and its metadata, which may have the keys `known`. The checksum is compared before
    anything is parsed: damage that reaches polars' reader can end the process."""
    import polars as pl

    data, _ = read_whole(path)
    try:
        about = pl.read_parquet_metadata(io.BytesIO(data))
        if unknown := about.keys() - {"ARROW:schema", CHECKSUM, *known}:
            raise LabelsError(f"{path} is damaged: its metadata has {min(unknown)!r}; copy it again, or export it anew")
        return pl.read_parquet(io.BytesIO(data)), about
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, UnicodeDecodeError) as error:
        raise LabelsError(f"{path} is no Parquet file of antembed ({error}); copy it again, or export it anew") from error


def _place(data: bytes) -> int | None:
    """Where the digits are: behind their key, an element's mark and a length of one byte each."""
    at = data.rfind(CHECKSUM.encode())
    return None if at < 0 else at + len(CHECKSUM) + 2
