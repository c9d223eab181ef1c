"""The small file, and look-up in it with NumPy alone."""

import json
import os
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import safetensors
import safetensors.numpy

from antembed.files import write_atomically
from antembed.serving.encodings import BitmapRows, CsrRows, PlainRows, encode

FORMAT, VERSION = "antembed-table", 1
VALUES: dict[str, type[np.floating[Any]]] = {"fp32": np.float32, "fp16": np.float16}


class TableError(ValueError):
    """A file that is no table, or one that this version cannot read."""


class Layer(Protocol):
    """What `export` needs of a layer: tensors T and A (or None) with E = T·A."""

    def factors(self) -> tuple[Any, Any]: ...


def serialise(
    T: np.ndarray,
    A: np.ndarray | None,
    *,
    bias: np.ndarray | None = None,
    values: str = "fp32",
    encoding: str = "auto",
) -> bytes:
    """E = T·A (A is None for a plain table) as the bytes of the file. Anchors that no object uses are dropped."""
    if values not in VALUES:
        raise ValueError(f"unknown values {values!r}; there are: {', '.join(VALUES)}")
    dimensions = T.shape[1] if A is None else A.shape[1]
    if A is not None:
        in_use = (T != 0).any(axis=0)
        T, A = T[:, in_use], A[in_use]
    stored = VALUES[values]
    parts = {"T": T} | ({} if A is None else {"A": A}) | ({} if bias is None else {"bias": bias})
    for name, array in parts.items():
        largest = float(np.abs(array).max(initial=0.0))
        if not np.isfinite(largest):
            raise ValueError(f"{name} has a value of {largest}; the training has diverged, lower its learning rate")
        if largest > float(np.finfo(stored).max):
            raise ValueError(f"{name} has a value of {largest:g}, beyond {values}; export with values='fp32'")
    encoding, arrays = encode(T.astype(stored), encoding)
    if A is not None:
        arrays["anchors"] = A.astype(stored)
    if bias is not None:
        arrays["bias"] = np.atleast_1d(bias).astype(stored)
    about = {
        "version": VERSION,
        "encoding": encoding,
        "values": values,
        "objects": T.shape[0],
        "columns": T.shape[1],
        "dimensions": dimensions,
    }
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    # One entry: safetensors writes several in a random order, and the same table must give the same bytes.
    return safetensors.numpy.save(contiguous, {FORMAT: json.dumps(about)})


def file_size(T: np.ndarray, A: np.ndarray | None) -> int:
    """Bytes of the file that `export` writes by default."""
    return len(serialise(T, A))


def export(
    layer: Layer,
    path: str | os.PathLike[str],
    *,
    values: str = "fp32",
    encoding: str = "auto",
    bias: np.ndarray | None = None,
) -> "Table":
    """Write a layer's vectors as a small file and open it. `bias` is a number for each object, or one for all."""
    if not hasattr(layer, "factors"):
        raise TypeError(
            f"a {type(layer).__name__} cannot be exported; take an antembed layer, or AnchorEmbedding.from_pretrained"
        )
    path = Path(path)
    if path.is_dir():
        raise TableError(f"{path} is a folder; name a file in it, such as {path / 'table.ant'}")
    path.parent.mkdir(parents=True, exist_ok=True)
    T, A = (None if part is None else part.detach().cpu().numpy() for part in layer.factors())
    assert T is not None
    write_atomically(path, serialise(T, A, bias=bias, values=values, encoding=encoding))
    return open_table(path)


class Table:
    """Vectors by id: table[7] → (d,), table[ids] → (*ids.shape, d), table[2:5], len(table)."""

    def __init__(self, arrays: dict[str, np.ndarray], about: dict[str, Any], size: int):
        self.encoding, self.values, self.size = about["encoding"], about["values"], size
        self.objects, self.columns = about["objects"], about["columns"]
        self.dimensions = about["dimensions"]
        anchors = arrays.get("anchors")
        self.anchors = None if anchors is None else anchors.astype(np.float32)
        self.bias = arrays["bias"].astype(np.float32) if "bias" in arrays else None
        if self.encoding == "plain":
            self.rows: PlainRows | BitmapRows | CsrRows = PlainRows(arrays["weights"])
            self.nnz = int(np.count_nonzero(arrays["weights"]))
        elif self.encoding == "bitmap":
            self.rows = BitmapRows(arrays["bits"], arrays["values"], self.columns)
            self.nnz = len(arrays["values"])
        else:
            self.rows = CsrRows(arrays["counts"], arrays["columns"], arrays["values"], self.columns)
            self.nnz = len(arrays["values"])

    def __len__(self) -> int:
        return self.objects

    @property
    def shape(self) -> tuple[int, int]:
        return self.objects, self.dimensions

    @property
    def parameters(self) -> int:
        """nnz(T) + K·d, and the biases."""
        anchored = 0 if self.anchors is None else self.anchors.size
        return self.nnz + anchored + (0 if self.bias is None else self.bias.size)

    def __getitem__(self, ids: Any) -> np.ndarray:
        if isinstance(ids, slice):
            ids = np.arange(self.objects)[ids]
        ids = np.asarray(ids)
        flat = self._checked(ids)
        rows = self.rows(flat)
        vectors = rows if self.anchors is None else rows @ self.anchors
        return vectors.reshape(*ids.shape, self.dimensions)

    def bias_of(self, ids: Any) -> np.ndarray:
        """The objects' biases, 0 where the file has none: (*ids.shape)."""
        ids = np.asarray(ids)
        flat = self._checked(ids)
        if self.bias is None:
            return np.zeros(ids.shape, np.float32)
        return (np.broadcast_to(self.bias, (len(flat),)) if len(self.bias) == 1 else self.bias[flat]).reshape(ids.shape)

    def _checked(self, ids: np.ndarray) -> np.ndarray:
        if ids.size == 0:
            return np.empty(0, np.int64)
        if ids.dtype.kind not in "iu":
            raise TypeError(f"ids must be integers, got {ids.dtype}")
        flat = ids.reshape(-1).astype(np.int64)
        low, high = int(flat.min()), int(flat.max())
        if low < 0 or high >= self.objects:
            raise IndexError(
                f"id {low if low < 0 else high} is outside a table of {self.objects} rows (0 to {self.objects - 1})"
            )
        return flat

    def __repr__(self) -> str:
        K = "no anchors" if self.anchors is None else f"{len(self.anchors)} anchors"
        return f"Table({self.objects} × {self.dimensions}, {K}, {self.encoding} {self.values}, {self.size} bytes)"


def open_table(path: str | os.PathLike[str]) -> Table:
    """Open a file written by `export`."""
    path = Path(path)
    if path.is_dir():
        raise TableError(f"{path} is a folder; name one of its files, FILE.ant")
    try:
        with safetensors.safe_open(path, framework="np") as file:
            header = file.metadata() or {}
            if FORMAT not in header:
                found = ", ".join(header) or "nothing"
                raise TableError(f"{path} is no antembed table: its header says {found}, expected {FORMAT!r}")
            about = json.loads(header[FORMAT])
            if about["version"] > VERSION:
                raise TableError(
                    f"{path} has table version {about['version']}, this antembed reads up to {VERSION}; upgrade antembed"
                )
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        return Table(arrays, about, path.stat().st_size)
    except safetensors.SafetensorError as error:
        raise TableError(
            f"{path} is no whole safetensors file ({error}); {path.stat().st_size} bytes found: copy or export it anew"
        ) from error
    except KeyError as error:
        raise TableError(f"{path} lacks {error}, which a table has; export it anew") from error
