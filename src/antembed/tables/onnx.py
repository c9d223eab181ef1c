"""ONNX: ids (batch, length) of any size → vectors (batch, length, d), and biases (batch, length) where the table has some.

Of three forms, the smallest is written:

    sparse     columns[ids] and weights[ids], padded to the most non-zeros m of a row; Σ weights·A[columns]
    anchored   T[ids]·A
    dense      E[ids]; entropy-coded and product-quantized files are decoded

int8 numbers have a scale for each column, which is multiplied into A where there is one. The numbers of the table are held in
memory as they are stored, not as fp32.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from antembed.extras import explained
from antembed.files import write_atomically
from antembed.tables.neighbours import chunks
from antembed.tables.number_formats import VALUES, check_fits, quantize, smallest_unsigned
from antembed.tables.rows import Decode, Rows, ScaledRows, SharedRows
from antembed.tables.table import Table

if TYPE_CHECKING:
    import onnx

OPSET, IR_VERSION = 17, 8  # of 2022: old runtimes, and those of browsers, read it
LARGEST = 2_000_000_000  # bytes; protobuf has no larger files
INT8 = 127  # the largest code
FLOAT, INT64 = 1, 7  # onnx.TensorProto's numbers

Part = tuple[dict[str, np.ndarray], "list[onnx.NodeProto]"]  # constants and steps of a graph


@dataclass(frozen=True)
class Weights:
    """Rows of T or E, (total, width), and how their numbers are stored: as `dtype`, of int8 with a scale for each column."""

    rows: Decode
    total: int
    values: str
    most: int  # non-zeros of a row
    scales: np.ndarray | None

    @classmethod
    def measured(cls, rows: Decode, total: int, values: str) -> "Weights":
        most, largest = 0, np.zeros(0, np.float32)
        for ids in chunks(total):
            found = rows(ids)
            most = max(most, int(np.count_nonzero(found, axis=1).max()))
            peaks = np.abs(found).max(axis=0)
            largest = np.maximum(largest, peaks) if len(largest) else peaks
        check_fits("a row", largest, VALUES[values])
        if values != "int8":
            return cls(rows, total, values, most, None)
        scales = rows.scales if isinstance(rows, ScaledRows) else quantize(largest[None])[1]  # of int8 files, their own
        return cls(rows, total, values, most, scales)

    def stored(self) -> Iterator[np.ndarray]:
        """Numbers as they are in the file, (n, width) at a time."""
        for ids in chunks(self.total):
            found = self.rows(ids)
            if self.scales is not None:
                found = np.clip(np.rint(found / self.scales), -INT8, INT8)
            yield found.astype(VALUES[self.values])


def write_onnx(table: Table, out: Path, values: str | None = None) -> list[Path]:
    """Write the model."""
    try:
        import onnx
    except ImportError as error:
        raise explained(error, "ONNX") from error
    if not values:  # the table's own, where that adds no error; fp16 where they are entropy-coded
        rows = table.rows.inner if isinstance(table.rows, SharedRows) else table.rows
        coded = "int8" if isinstance(rows, ScaledRows) else "fp16"
        values = table.values if table.values in ("fp32", "fp16") else coded
    if values not in ("fp32", "fp16", "int8"):
        raise ValueError(f"ONNX has fp32, fp16 or int8 numbers, not {values}")
    arrays, nodes = _graph(table, values)
    size = sum(array.nbytes for array in arrays.values())
    if size > LARGEST:
        raise ValueError(f"{size:,} bytes are more than an ONNX file can hold ({LARGEST:,}); use --values int8, or npy")
    outputs = {"vectors": ["batch", "length", table.embedding_dim]} | ({"bias": ["batch", "length"]} if table.has_bias else {})
    graph = onnx.helper.make_graph(
        nodes,
        "antembed",
        [onnx.helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, ["batch", "length"])],
        [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in outputs.items()],
        [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", OPSET)], producer_name="antembed")
    model.ir_version = IR_VERSION
    onnx.checker.check_model(model)
    write_atomically(out, model.SerializeToString())
    return [out]


def _graph(table: Table, values: str) -> Part:
    """The constants and steps of the smallest form, and of the biases."""
    from onnx.helper import make_node

    rows, total, nodes = table.rows, len(table), []
    arrays: dict[str, np.ndarray] = {}
    if isinstance(rows, SharedRows):
        arrays["row_index"] = rows.row_index
        nodes += [make_node("Gather", ["row_index", "ids"], ["shared"]), make_node("Cast", ["shared"], ["rows"], to=INT64)]
        total = int(rows.row_index.max(initial=0)) + 1
        rows = rows.inner
    constants, steps = _smallest(rows, total, table.anchors, table.embedding_dim, values, "rows" if nodes else "ids")
    if table.has_bias:
        constants["biases"] = table.bias_of(np.arange(len(table))).astype(np.float32)
        steps.append(make_node("Gather", ["biases", "ids"], ["bias"]))
    return {name: np.ascontiguousarray(array) for name, array in (arrays | constants).items()}, nodes + steps


def _smallest(rows: Rows, total: int, anchors: np.ndarray | None, d: int, values: str, ids: str) -> Part:
    if anchors is None:
        return _dense(Weights.measured(rows, total, values), None, ids)
    weights, K, width = Weights.measured(rows, total, values), len(anchors), np.dtype(VALUES[values]).itemsize
    sizes = {
        "sparse": total * max(weights.most, 1) * (width + smallest_unsigned(K).itemsize) + 4 * K * d,
        "anchored": total * K * width + 4 * K * d,
        "dense": total * d * width,
    }
    form = min(sizes, key=lambda name: sizes[name])
    if form == "dense":
        return _dense(Weights.measured(lambda ids: rows(ids) @ anchors, total, values), None, ids)
    scaled = anchors if weights.scales is None else anchors * weights.scales[:, None]
    return _sparse(weights, scaled, ids) if form == "sparse" else _dense(weights, scaled, ids)


def _sparse(weights: Weights, anchors: np.ndarray, ids: str) -> Part:
    """Gather, multiply, sum; scales are in the anchors. A row with fewer non-zeros ends with zeros on anchor 0."""
    from onnx.helper import make_node

    m = max(weights.most, 1)
    columns = np.zeros((weights.total, m), smallest_unsigned(max(len(anchors) - 1, 0)))
    values = np.zeros((weights.total, m), VALUES[weights.values])
    start = 0
    for some in weights.stored():
        row, column = np.nonzero(some)
        place = np.arange(len(row)) - np.searchsorted(row, row)
        columns[start + row, place], values[start + row, place] = column, some[row, column]
        start += len(some)
    nodes = [
        make_node("Gather", ["columns", ids], ["stored_columns"]),
        make_node("Cast", ["stored_columns"], ["own_columns"], to=INT64),
        make_node("Gather", ["anchors", "own_columns"], ["own_anchors"]),
        make_node("Gather", ["weights", ids], ["stored"]),
        make_node("Cast", ["stored"], ["own_weights"], to=FLOAT),
        make_node("Unsqueeze", ["own_weights", "last"], ["factors"]),
        make_node("Mul", ["factors", "own_anchors"], ["terms"]),
        make_node("ReduceSum", ["terms", "before_last"], ["vectors"], keepdims=0),
    ]
    axes = {"last": np.array([-1], np.int64), "before_last": np.array([-2], np.int64)}
    return {"columns": columns, "weights": values, "anchors": anchors.astype(np.float32), **axes}, nodes


def _dense(weights: Weights, anchors: np.ndarray | None, ids: str) -> Part:
    """Gather; then times the anchors, with the scales in them, or times the scales."""
    from onnx.helper import make_node

    arrays = {"weights": np.concatenate(list(weights.stored()))}
    nodes = [make_node("Gather", ["weights", ids], ["stored"])]
    if anchors is None and weights.scales is None:
        return arrays, [*nodes, make_node("Cast", ["stored"], ["vectors"], to=FLOAT)]
    factor, operation = (weights.scales, "Mul") if anchors is None else (anchors, "MatMul")
    assert factor is not None
    nodes += [make_node("Cast", ["stored"], ["own"], to=FLOAT), make_node(operation, ["own", "factor"], ["vectors"])]
    return arrays | {"factor": factor.astype(np.float32)}, nodes
