"""A few rows that lie side by side, column by column, times a matrix: sums stay in registers."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from antembed.kernels.vector import FUSE, INTP, VECTOR, _pointer, _splat, intrinsic
from antembed.kernels.whole import AVX512, WIDE

REGISTER = WIDE if AVX512 else VECTOR  # numbers
GROUP, ACROSS = (8, 2) if AVX512 else (4, 2)  # rows and registers of a product at a time: half of the processor's registers
COLUMNS = ACROSS * REGISTER
LINE = 64  # bytes of the memory that caches exchange


def packed(matrix: np.ndarray) -> np.ndarray:
    """(K, width) → (panels, K, COLUMNS): COLUMNS at a time, with zeros behind the last ones. Lines of a panel follow each
    other, from the beginning of a cache line on; those of a matrix whose width is a power of two would drive each other out of
    the first cache. The last line comes first, so that a product may leave out some of those behind it."""
    K, width = matrix.shape
    panels = -(-width // COLUMNS)
    memory = np.zeros(panels * K * COLUMNS + LINE // 4, np.float32)
    start = -memory.ctypes.data % LINE // 4
    found = memory[start : start + panels * K * COLUMNS].reshape(panels, K, COLUMNS)
    for panel in range(panels):
        some = matrix[:, panel * COLUMNS : (panel + 1) * COLUMNS]
        found[panel, 1:, : some.shape[1]], found[panel, 0, : some.shape[1]] = some[:-1], some[-1]
    return found


@intrinsic
def multiply_panel(
    typing: Any, inner: Any, X: Any, X_at: Any, right: Any, panels: Any, lines: Any, Y: Any, out: Any, out_at: Any
) -> Any:  # fmt: skip
    """GROUP rows of `inner` numbers, number (r, k) at X[X_at + r + k·right], times the first lines of Y (of `packed`: panels,
    lines, COLUMNS) → out[out_at …] (GROUP, panels·COLUMNS)."""

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        inner, X, X_at, right, panels, lines, Y, out, out_at = values
        Xp = _pointer(context, builder, signature.args[1], X, X_at)
        Yp = _pointer(context, builder, signature.args[6], Y, ir.Constant(INTP, 0))
        Op = _pointer(context, builder, signature.args[7], out, out_at)
        width = builder.mul(panels, ir.Constant(INTP, COLUMNS))
        vector = ir.VectorType(ir.FloatType(), REGISTER)
        totals = [[cgutils.alloca_once(builder, vector) for _ in range(ACROSS)] for _ in range(GROUP)]
        zero = ir.Constant(vector, [0.0] * REGISTER)

        def register(pointer: Any, *offsets: Any) -> Any:
            for offset in offsets:
                pointer = builder.gep(pointer, [offset])
            return builder.bitcast(pointer, vector.as_pointer())

        with cgutils.for_range(builder, panels) as panel:
            panel_at = builder.gep(Yp, [builder.mul(builder.mul(panel.index, lines), ir.Constant(INTP, COLUMNS))])
            j = builder.mul(panel.index, ir.Constant(INTP, COLUMNS))
            for total in (total for row in totals for total in row):
                builder.store(zero, total)
            with cgutils.for_range(builder, inner) as loop:
                line = builder.gep(panel_at, [builder.mul(loop.index, ir.Constant(INTP, COLUMNS))])
                ys = [builder.load(register(line, ir.Constant(INTP, REGISTER * n)), align=4) for n in range(ACROSS)]
                own = builder.gep(Xp, [builder.mul(loop.index, right)])
                for r, row in enumerate(totals):
                    x = _splat(builder, builder.load(builder.gep(own, [ir.Constant(INTP, r)])), REGISTER)
                    for total, y in zip(row, ys, strict=True):
                        term = builder.fmul(x, y, flags=FUSE)
                        builder.store(builder.fadd(builder.load(total), term, flags=FUSE), total)
            for r, row in enumerate(totals):
                line = builder.gep(Op, [builder.add(builder.mul(ir.Constant(INTP, r), width), j)])
                for n, total in enumerate(row):
                    builder.store(builder.load(total), register(line, ir.Constant(INTP, REGISTER * n)), align=4)
        return context.get_dummy_value()

    n = types.intp
    return types.void(n, X, n, n, n, n, Y, out, n), emit
