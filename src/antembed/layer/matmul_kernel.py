"""Products of small matrices that are in the cache, as one step of a longer pass over rows.

A tile of TILE_ROWS rows and two registers of columns is summed in twelve registers: enough that additions do not wait for each
other, and few enough for the sixteen of AVX2. Registers are as wide as the processor has them, which changes no sum: each
number has its own.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from antembed.native.avx512 import AVX512, WIDE
from antembed.native.vector import FUSE, INTP, VECTOR, _load, _pointer, _register, _splat, intrinsic

TILE_ROWS = 6


def padded(size: int, multiple: int) -> int:
    """The least multiple that is no smaller."""
    return -(-size // multiple) * multiple


def stride_of(width: int) -> int:
    """Numbers from one row to the next: an odd number of cache lines, so that a column of registers is spread over all of a
    cache, not over a few of its sets."""
    lines = -(-width // 16)
    return 16 * (lines + 1 - lines % 2)


@intrinsic
def multiply_tiles(
    typing: Any, rows: Any, inner: Any, columns: Any, X: Any, X_at: Any, down: Any, right: Any,
    Y: Any, Y_stride: Any, out: Any, out_stride: Any, adding: Any,
) -> Any:  # fmt: skip
    """out = X·Y, or out += X·Y if `adding`: (rows, inner)·(inner, columns).

    Element (r, k) of X is at X_at + r·down + k·right, so X may be transposed; rows of Y and of out are Y_stride and out_stride
    apart. Rows are rounded up to a multiple of TILE_ROWS, both in X and in out, columns to one of VECTOR, both in Y and in out.
    """

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        rows, inner, columns, X, X_at, down, right, Y, Y_stride, out, out_stride, adding = values
        kinds, zero = signature.args, ir.Constant(INTP, 0)
        Xp = _pointer(context, builder, kinds[3], X, X_at)
        Yp = _pointer(context, builder, kinds[7], Y, zero)
        Op = _pointer(context, builder, kinds[9], out, zero)
        widest = WIDE if AVX512 and isinstance(Xp.type.pointee, ir.FloatType) else VECTOR
        totals = {
            lanes: [cgutils.alloca_once(builder, ir.VectorType(Xp.type.pointee, lanes)) for _ in range(2 * TILE_ROWS)]
            for lanes in {widest, VECTOR}
        }
        lines = [ir.Constant(INTP, line) for line in range(TILE_ROWS)]
        added = builder.icmp_signed("!=", adding, zero)

        def tile(r: Any, j: Any, registers: int, lanes: int) -> None:
            sums = [totals[lanes][2 * line : 2 * line + registers] for line in range(TILE_ROWS)]
            steps = [ir.Constant(INTP, lanes * register) for register in range(registers)]
            targets = []
            for line in lines:
                start = builder.gep(Op, [builder.add(builder.mul(builder.add(r, line), out_stride), j)])
                targets.append([builder.gep(start, [step]) for step in steps])
            with builder.if_else(added) as (yes, no):
                with yes:
                    for own, places in zip(sums, targets, strict=True):
                        for total, place in zip(own, places, strict=True):
                            builder.store(_load(builder, place, lanes), total)
                with no:
                    for own in sums:
                        for total in own:
                            builder.store(ir.Constant(total.type.pointee, [0.0] * lanes), total)
            starts = [builder.gep(Xp, [builder.mul(builder.add(r, line), down)]) for line in lines]
            with cgutils.for_range(builder, inner) as loop:
                across = builder.mul(loop.index, right)
                row = builder.gep(Yp, [builder.add(builder.mul(loop.index, Y_stride), j)])
                ys = [_load(builder, builder.gep(row, [step]), lanes) for step in steps]
                for start, own in zip(starts, sums, strict=True):
                    x = _splat(builder, builder.load(builder.gep(start, [across])), lanes)
                    for y, total in zip(ys, own, strict=True):
                        product = builder.fmul(x, y, flags=FUSE)
                        builder.store(builder.fadd(builder.load(total), product, flags=FUSE), total)
            for own, places in zip(sums, targets, strict=True):
                for total, place in zip(own, places, strict=True):
                    register, align = _register(builder, place, lanes)
                    builder.store(builder.load(total), register, align=align)

        def across_columns(first: Any, last: Any, registers: int, lanes: int) -> None:
            step = ir.Constant(INTP, registers * lanes)
            with (
                cgutils.for_range_slice(builder, first, last, step, inc=True) as (j, _),
                cgutils.for_range_slice(builder, zero, rows, ir.Constant(INTP, TILE_ROWS), inc=True) as (r, _),
            ):
                tile(r, j, registers, lanes)

        two = ir.Constant(INTP, 2 * widest)
        whole = builder.mul(builder.sdiv(columns, two), two)
        across_columns(zero, whole, 2, widest)
        across_columns(whole, columns, 1, VECTOR)
        return context.get_dummy_value()

    n = types.intp
    return types.void(n, n, n, X, n, n, n, Y, n, out, n, n), emit
