"""Labels of a table's rows: sorted, found by binary search. No torch in here; polars where it is needed.

TABLE.labels.safetensors has them:

    first      (1,)  integers: the smallest, in the labels' own type,
    gaps       and how much larger each other one is than the one before, minus 1 (varints); or
    text       all labels as UTF-8, one behind the other, sorted by their bytes (zlib),
    lengths    bytes of each (varints)

Labels of other types, and more than MOST, are in TABLE.labels.parquet. Folders of older versions have Parquet for all.
"""

import io
import re
import zlib
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import safetensors

from antembed.files import write_atomically
from antembed.tables.container import DamagedError, pack_arrays, read_arrays

if TYPE_CHECKING:  # `antembed similar` must not wait for it
    import polars as pl

LABELLED = ("users", "items")
MOST = 1 << 21  # labels: of more, Parquet is written and read faster
INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
CHECKSUM, ZEROS = "antembed-crc32", "0" * 8
Labels: TypeAlias = "Sequence[object] | np.ndarray | pl.Series"


class LabelsError(ValueError):
    """A file of labels that cannot be used."""


def series_of(labels: Labels) -> "pl.Series":
    """Labels as polars has them."""
    import polars as pl

    try:
        return pl.Series("label", labels)
    except UnicodeEncodeError as error:
        raise LabelsError(about_surrogate(labels)) from error


def find(labels: "pl.Series", wanted: Labels) -> np.ndarray:
    """Indices of `wanted` in the sorted labels; −1 for those that are missing."""
    if isinstance(wanted, str | bytes | int | float):
        raise TypeError(f"give a list of labels, [{wanted!r}], not a single one")
    asked = series_of(wanted)
    if asked.dtype != labels.dtype:
        asked = asked.cast(labels.dtype, strict=False)
    if not len(labels):
        return np.full(len(asked), -1, np.int64)
    found = np.minimum(labels.search_sorted(asked).to_numpy().astype(np.int64), len(labels) - 1)
    same = labels.gather(found).eq_missing(asked).to_numpy()
    return np.where(same & ~asked.is_null().to_numpy(), found, -1)


# Many small numbers in few bytes: seven bits a byte (LEB128), then zlib. For gaps between sorted numbers.

LONGEST = 9  # bytes of a number below 2^63


def pack_varints(numbers: np.ndarray, strategy: int = zlib.Z_DEFAULT_STRATEGY) -> np.ndarray:
    """Numbers ≥ 0 (n,) → bytes. Where few of them come in repeated runs, zlib.Z_HUFFMAN_ONLY is smaller and faster."""
    rest = np.asarray(numbers, np.int64)
    sizes = np.ones(len(rest), np.int64)
    for n in range(1, LONGEST):
        sizes += rest >> (7 * n) > 0
    starts = np.cumsum(sizes) - sizes
    found = np.empty(int(sizes.sum()), np.uint8)
    for n in range(int(sizes.max(initial=0))):
        those = np.flatnonzero(sizes > n)
        more = sizes[those] > n + 1
        found[starts[those] + n] = (rest[those] >> (7 * n)) & 127 | np.where(more, 128, 0)
    packer = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS, 9, strategy)
    return np.frombuffer(packer.compress(found.tobytes()) + packer.flush(), np.uint8)


def unpack_varints(packed: np.ndarray) -> np.ndarray:
    """What pack_varints was given, int64."""
    data = np.frombuffer(inflate(packed), np.uint8)
    ends = np.flatnonzero(data < 128) + 1
    if len(data) and data[-1] >= 128:
        raise DamagedError("the last number has no end")
    starts = np.concatenate([[0], ends[:-1]]) if len(ends) else ends
    sizes = ends - starts
    if sizes.max(initial=0) > LONGEST:
        raise DamagedError(f"a number has {sizes.max()} bytes, at most {LONGEST} are possible")
    found = np.zeros(len(ends), np.int64)
    for n in range(int(sizes.max(initial=0))):
        those = np.flatnonzero(sizes > n)
        found[those] |= (data[starts[those] + n] & 127).astype(np.int64) << (7 * n)
    return found


def inflate(packed: np.ndarray) -> bytes:
    """zlib's bytes."""
    try:
        return zlib.decompress(packed.tobytes())
    except zlib.error as error:
        raise DamagedError(f"compressed bytes are damaged ({error})") from error


class Numbers:
    """Labels that are integers."""

    def __init__(self, numbers: np.ndarray):
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, row: int) -> int:
        return int(self.numbers[row])

    def find(self, label: str) -> int:
        """Its row; −1: there is none."""
        if not INTEGER.fullmatch(label):
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


def label_file(folder: Path, table: str) -> Path | None:
    """Where the labels of a table are; None: there are none."""
    # Parquet first: what lies beside it is a copy, of an older version.
    named = (folder / f"{table}.labels.{kind}" for kind in ("parquet", "safetensors"))
    return next((path for path in named if path.is_file()), None)


def about_surrogate(labels: Iterable[object]) -> str:
    """The error for labels that polars cannot encode: which is the first that has a lone surrogate, half a character."""
    for row, label in enumerate(labels, 1):
        if isinstance(label, str) and any("\ud800" <= letter <= "\udfff" for letter in label):
            remedy = 'replace it: label.encode("utf-8", "replace").decode()'
            return f"row {row} has the label {label!a}, which is no valid Unicode (a lone surrogate); {remedy}"
    return "a label is no valid Unicode"


def write_labels(folder: Path, labels: Mapping[str, "pl.Series"]) -> None:
    """One file a table, in the order of its rows."""
    for table, own in labels.items():
        coded, parquet = (folder / f"{table}.labels.{kind}" for kind in ("safetensors", "parquet"))
        arrays = encode_labels(own)
        if arrays is None:
            coded.unlink(missing_ok=True)
            write_atomically(parquet, pack_parquet(own.alias("label").to_frame()))
        else:
            write_atomically(coded, pack_arrays(arrays))
            parquet.unlink(missing_ok=True)


def read_labels(folder: Path) -> dict[str, "pl.Series"]:
    """Those of users and items."""
    return {name: read_series(folder, name) for name in LABELLED}


def read_series(folder: Path, table: str) -> "pl.Series":
    """The labels of one table."""
    import polars as pl

    path = label_file(folder, table) or folder / f"{table}.labels.safetensors"
    if path.suffix == ".parquet":
        return unpack_parquet(path)[0].to_series()
    found = read_coded(path)
    if isinstance(found, Numbers):
        return pl.Series("label", found.numbers)
    return pl.Series("label", [found[row] for row in range(len(found))], pl.String)


def encode_labels(labels: "pl.Series") -> dict[str, np.ndarray] | None:
    """The arrays of TABLE.labels.safetensors; None: Parquet holds labels of this type."""
    if len(labels) > MOST or labels.has_nulls():
        return None
    if labels.dtype.is_integer() and len(labels):
        numbers = labels.to_numpy()
        low, high = int(numbers[0]), int(numbers[-1])
        if not -(1 << 62) < low <= high < 1 << 62:
            return None
        return {"first": numbers[:1], "gaps": pack_varints(np.diff(numbers.astype(np.int64)) - 1)}
    if str(labels.dtype) != "String":
        return None
    text = zlib.compress("".join(labels.to_list()).encode(), 9)
    return {"text": np.frombuffer(text, np.uint8), "lengths": pack_varints(labels.str.len_bytes().to_numpy())}


def read_coded(path: Path) -> LabelIndex:
    """What encode_labels made."""
    try:
        arrays = read_arrays(str(path))
        if arrays.keys() == {"first", "gaps"} and arrays["first"].shape == (1,) and arrays["first"].dtype.kind in "iu":
            first = arrays["first"]
            numbers = int(first[0]) + np.concatenate([[0], np.cumsum(unpack_varints(arrays["gaps"]) + 1)])
            return Numbers(numbers.astype(first.dtype))
        if arrays.keys() == {"text", "lengths"}:
            text, ends = inflate(arrays["text"]), np.cumsum(unpack_varints(arrays["lengths"]))
            if (int(ends[-1]) if len(ends) else 0) == len(text):
                return Texts(text, ends)
        raise DamagedError(f"its arrays are {', '.join(sorted(arrays)) or 'none'}, not those of labels")
    except (safetensors.SafetensorError, DamagedError, TypeError, KeyError) as error:
        raise LabelsError(f"{path} is damaged ({error}); copy it again, or export it anew") from error


def pack_parquet(frame: "pl.DataFrame", metadata: Mapping[str, str] | None = None) -> bytes:
    """A Parquet file with a checksum of all of its bytes (computed with zeros in its place) in its metadata."""
    packed = io.BytesIO()
    frame.write_parquet(packed, metadata={**(metadata or {}), CHECKSUM: ZEROS})
    blank = packed.getvalue()
    at = _place(blank)
    if at is None or blank[at : at + len(ZEROS)] != ZEROS.encode():
        raise LabelsError("polars wrote the metadata of a Parquet file in another way than was expected; report it")
    return blank[:at] + f"{zlib.crc32(blank):08x}".encode() + blank[at + len(ZEROS) :]


def read_file(path: Path) -> tuple[bytes, str]:
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

    data, _ = read_file(path)
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
