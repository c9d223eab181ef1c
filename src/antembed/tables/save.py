"""The small file: export a layer, load a table."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from antembed.files import JSON, write_atomically
from antembed.tables.container import Contents, TableError, map_file, naming, pack, parts, unpack
from antembed.tables.encodings import Stored, encode
from antembed.tables.number_formats import (
    LARGEST_CODES,
    LARGEST_NUMBER,
    VALUES,
    Nonzeros,
    anchors_as,
    check_fits,
    encode_bias,
    quantize_nonzeros,
    smallest_unsigned,
    vector_bound,
)
from antembed.tables.table import Table

if TYPE_CHECKING:  # Python 3.12 has it in collections.abc
    from typing_extensions import Buffer


Arrays = tuple[np.ndarray | Nonzeros, np.ndarray | None, np.ndarray | None]


class Layer(Protocol):
    """What `export` uses of a layer: T, A (or None) and row_index (or None) with E = T·A, or (T·A)[row_index] where objects
    share rows."""

    def arrays(self) -> Arrays: ...

    def before_export(self) -> None: ...


def serialize(T: np.ndarray | Nonzeros, A: np.ndarray | None, **options: Any) -> bytes:
    """E = T·A as the bytes of the file; `options` of `serialized`."""
    return b"".join(serialized(T, A, **options))


def serialized(
    T: np.ndarray | Nonzeros,
    A: np.ndarray | None,
    *,
    row_index: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    offset: float = 0.0,
    values: str = "fp32",
    encoding: str = "auto",
) -> "Iterator[Buffer]":
    """E = T·A (A is None for a plain table), or (T·A)[row_index], as the bytes of the file in parts: no more of T than a block
    is ever dense. Unused anchors are dropped. `bias` is one number for each object or one for all, and `offset` is added to all
    of them."""
    if values not in VALUES:
        raise ValueError(f"unknown values {values!r}; there are: {', '.join(VALUES)}")
    T = Nonzeros.of(T) if isinstance(T, np.ndarray) else T
    embedding_dim = T.width if A is None else A.shape[1]
    if A is not None:
        in_use = T.by_column() > 0
        T, A = T.narrowed(in_use), A[in_use]
    check_fits("T", T.values, VALUES[values])
    if A is not None:
        check_fits("A", A, anchors_as(values))
        reach = vector_bound(np.full(len(A), np.abs(T.values).max(initial=0)), A)
        if reach > LARGEST_NUMBER:
            reached = f"T and A multiply to {reach:.3g}, fp32 ends at {LARGEST_NUMBER:.3g}"
            raise ValueError(f"{reached}; training has diverged, lower the learning rate")
    num_embeddings = len(T)
    arrays: Stored = {}
    if row_index is not None:
        if row_index.size and not (row_index.min() >= 0 and row_index.max() < len(T)):
            wrong = row_index.min() if row_index.min() < 0 else row_index.max()
            raise ValueError(f"row_index names row {wrong} of a table of {len(T)} rows; valid are 0 to {len(T) - 1}")
        num_embeddings, arrays["places"] = len(row_index), row_index.astype(smallest_unsigned(max(len(T) - 1, 0)))
    if values in LARGEST_CODES:
        T, arrays["scales"] = quantize_nonzeros(T, LARGEST_CODES[values])
    else:
        T = T.with_values(T.values.astype(VALUES[values]))
    encoding, encoded = encode(T, encoding)
    arrays |= encoded
    if A is not None:
        arrays["anchors"] = A.astype(anchors_as(values))
    if bias is not None:
        arrays |= encode_bias(bias, num_embeddings, values, encoding == "packed")
    if not np.isfinite(offset):
        raise ValueError(f"offset is {offset}; training has diverged, lower the learning rate")
    about = {"encoding": encoding, "values": values, "objects": num_embeddings, "rows": len(T), "columns": T.width}
    about |= {"dimensions": embedding_dim, "offset": float(offset)}
    if encoding == "plain":  # the others have as many values
        about["nonzeros"] = len(T.values)
    return parts(arrays, about)


def serialize_coded(arrays: dict[str, np.ndarray], about: JSON, words: dict[str, np.ndarray]) -> bytes:
    """Entropy-coded rows (entropy_rows.py, sparse_entropy_rows.py), and their words, as the bytes of the file."""
    return pack(arrays | words, {"offset": 0.0, **about})


def read_table(contents: bytes) -> Table:
    """The table whose file has these bytes; `save` writes them."""
    return _opened(unpack(contents, True), contents)


def _opened(found: Contents, contents: bytes | None = None) -> Table:
    table = Table(found.arrays, found.about, found.size, contents, scan=found.verified)
    if found.checksums:
        table.checksums = "right" if found.verified else "not all compared"
    return table


def size_of(data: "Iterable[Buffer]") -> int:
    """Bytes of a file that comes in parts, none of which is kept."""
    return sum(memoryview(piece).nbytes for piece in data)


def file_size(T: np.ndarray | Nonzeros, A: np.ndarray | None, row_index: np.ndarray | None = None) -> int:
    """The size of the file that `export` writes by default."""
    return size_of(serialized(T, A, row_index=row_index))


def export(
    layer: Layer,
    path: str | os.PathLike[str],
    *,
    values: str = "fp32",
    encoding: str = "auto",
    bias: np.ndarray | None = None,
    offset: float = 0.0,
) -> Table:
    """Write a layer's vectors as a small file and load it.

    `values` is "fp32", "fp16", "int8", or, for packed files, "int6", "int5" or "int4" (a scale for each column of T; the
    anchors in fp16). `bias` is a number for each object, or one for all; `offset` is added to every bias."""
    if not hasattr(layer, "arrays"):
        remedy = "use an antembed layer, or AnchorEmbedding.from_pretrained"
        raise TypeError(f"a {type(layer).__name__} cannot be exported; {remedy}")
    path = Path(path)
    if path.is_dir():
        raise TableError(f"{path} is a folder; give a file in it, such as {path / 'table.ant'}")
    path.parent.mkdir(parents=True, exist_ok=True)
    if values in LARGEST_CODES and values != "int8" and encoding != "packed":  # the others store them as bytes
        if encoding != "auto":
            reason = f"{values} numbers make only packed files smaller, this is {encoding}"
            raise ValueError(f"{reason}; use encoding='packed' or int8")
        encoding = "packed"
    layer.before_export()
    T, A, row_index = layer.arrays()
    made = serialized(T, A, row_index=row_index, bias=bias, offset=offset, values=values, encoding=encoding)
    write_atomically(path, made)
    return load_table(path)


def load_table(path: str | os.PathLike[str], *, verify: bool | None = None) -> Table:
    """Load a file written by `export` or `compress`. Files of up to 64 MB are verified against their checksums; larger ones are
    mapped into memory, and verified with `verify=True` only (their small arrays always, unless `verify=False`)."""
    with naming(str(path)):
        return _opened(unpack(map_file(Path(path)), verify))
