"""Vector instructions for loops over short rows, and primitives for threads: prefetch, atomics, a barrier.

LLVM vectorizes long loops, but unrolls or leaves scalar a loop over one row of K numbers. So the arithmetic of rows is written
once, as formulas over `Lanes` (a register of VECTOR numbers; NumPy arrays work as well, for the tests), and emitted register by
register. Counts are multiples of VECTOR: rows are padded.
"""

import platform
import sys
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
from llvmlite import ir
from numba import extending, types
from numba.core import cgutils

from antembed.native.compile import compile_kernel
from antembed.native.random_bits import compiled

VECTOR = 8  # numbers in a register: single precision fills AVX2
LIMITS = 16  # of count_reached
FUSE = ("contract",)
GRAM_ROWS = 4  # of add_gram
PATIENCE, HASTE = 200_000, 500  # most and least looks at the barrier before one sleeps: some 150 µs, and half of one
CANCELLED = 1 << 60
INTP = ir.IntType(64)
intrinsic: Any = extending.intrinsic  # Any, since mypy does not know that it removes the first argument


class Lanes:
    """A register of numbers in the emitted code."""

    def __init__(self, builder: Any, value: Any):
        self.builder, self.value = builder, value

    def filled(self, number: "float | Lanes") -> "Lanes":
        """A register like this one, full of one number."""
        if isinstance(number, Lanes):
            return number
        return Lanes(self.builder, ir.Constant(self.value.type, [number] * self.value.type.count))

    def _with(self, operation: str, other: "Lanes") -> "Lanes":
        return Lanes(self.builder, getattr(self.builder, operation)(self.value, other.value, flags=FUSE))

    def __add__(self, other: "Lanes") -> "Lanes":
        return self._with("fadd", other)

    def __sub__(self, other: "Lanes") -> "Lanes":
        return self._with("fsub", other)

    def __mul__(self, other: "Lanes") -> "Lanes":
        return self._with("fmul", other)

    def __truediv__(self, other: "Lanes") -> "Lanes":
        return self._with("fdiv", other)

    def __lt__(self, other: "float | Lanes") -> "Lanes":
        return Lanes(self.builder, self.builder.fcmp_ordered("<", self.value, self.filled(other).value))


def _suffix(number: Any) -> str:
    """The suffix of LLVM's intrinsics for a register of such numbers."""
    return f"v{VECTOR}f{32 if isinstance(number, ir.FloatType) else 64}"


def sqrt(x: Any) -> Any:
    """√x for lanes and for arrays."""
    if not isinstance(x, Lanes):
        return np.sqrt(x)
    vector = x.value.type
    kind = ir.FunctionType(vector, [vector])
    function = cgutils.get_or_insert_function(x.builder.module, kind, f"llvm.sqrt.{_suffix(vector.element)}")
    return Lanes(x.builder, x.builder.call(function, [x.value]))


def where(condition: Any, yes: Any, no: Any) -> Any:
    """yes where the condition holds, else no; for lanes and for arrays."""
    if not isinstance(condition, Lanes):
        return np.where(condition, yes, no)
    some = no if isinstance(no, Lanes) else yes
    return Lanes(condition.builder, condition.builder.select(condition.value, *(some.filled(x).value for x in (yes, no))))


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, at: Any) -> Any:
    data = context.make_array(array_type)(context, builder, value=array).data
    return builder.gep(data, [at])


def _register(builder: Any, pointer: Any, lanes: int = VECTOR) -> tuple[Any, int]:
    """The pointer cast to a register, and its alignment, which is that of a number."""
    number = pointer.type.pointee
    return builder.bitcast(pointer, ir.VectorType(number, lanes).as_pointer()), 4 if isinstance(number, ir.FloatType) else 8


def _load(builder: Any, pointer: Any, lanes: int = VECTOR) -> Any:
    register, align = _register(builder, pointer, lanes)
    return builder.load(register, align=align)


def _splat(builder: Any, number: Any, lanes: int = VECTOR) -> Any:
    vector = ir.VectorType(number.type, lanes)
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), number, ir.Constant(ir.IntType(32), 0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), lanes), [0] * lanes)
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), zeros)


def _unpack(builder: Any, kind: Any, value: Any) -> list[tuple[Any, Any]]:
    return list(zip(kind.types, cgutils.unpack_tuple(builder, value, len(kind.types)), strict=True))


def elementwise(formula: Callable[..., tuple[Any, ...]]) -> Any:
    """formula(*sources, *numbers) → targets, as a loop for compiled code:

    op(count, sources, froms, targets, tos, numbers): arrays, and the offset of the row in each.
    """

    @intrinsic
    def op(typing: Any, count: Any, sources: Any, froms: Any, targets: Any, tos: Any, numbers: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            kinds = signature.args
            n = context.cast(builder, values[0], kinds[0], types.intp)
            offsets = [
                [context.cast(builder, v, t, types.intp) for t, v in _unpack(builder, kinds[p], values[p])] for p in (2, 4)
            ]
            reads, writes = (
                [
                    _pointer(context, builder, t, v, at)
                    for (t, v), at in zip(_unpack(builder, kinds[p], values[p]), ats, strict=True)
                ]
                for p, ats in zip((1, 3), offsets, strict=True)
            )
            number = kinds[1].types[0].dtype
            scalars = [
                Lanes(builder, _splat(builder, context.cast(builder, v, t, number)))
                for t, v in _unpack(builder, kinds[5], values[5])
            ]
            step = ir.Constant(n.type, VECTOR)
            with cgutils.for_range_slice(builder, ir.Constant(n.type, 0), n, step, inc=True) as (j, _):
                sources = [Lanes(builder, _load(builder, builder.gep(p, [j]))) for p in reads]
                results = formula(*sources, *scalars)
                for target, result in zip(writes, results, strict=True):
                    register, align = _register(builder, builder.gep(target, [j]))
                    builder.store(result.value, register, align=align)
            return context.get_dummy_value()

        return types.void(count, sources, froms, targets, tos, numbers), emit

    return op


add_scaled = elementwise(lambda x, y, a: (y + a * x,))
add_scaled.__doc__ = "y + a·x."


@intrinsic
def dot(typing: Any, count: Any, x: Any, x_at: Any, y: Any, y_at: Any) -> Any:
    """Σ x·y over `count` numbers from offsets x_at and y_at of two arrays."""

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        n, xp, yp = values[0], *(_pointer(context, builder, signature.args[i], values[i], values[i + 1]) for i in (1, 3))
        number = xp.type.pointee
        vector = ir.VectorType(number, VECTOR)
        total = cgutils.alloca_once_value(builder, ir.Constant(vector, [0.0] * VECTOR))
        with cgutils.for_range_slice(builder, ir.Constant(n.type, 0), n, ir.Constant(n.type, VECTOR), inc=True) as (j, _):
            term = builder.fmul(_load(builder, builder.gep(xp, [j])), _load(builder, builder.gep(yp, [j])), flags=FUSE)
            builder.store(builder.fadd(builder.load(total), term, flags=FUSE), total)
        kind = ir.FunctionType(number, [number, vector])
        reduce = cgutils.get_or_insert_function(builder.module, kind, f"llvm.vector.reduce.fadd.{_suffix(number)}")
        return builder.call(reduce, [ir.Constant(number, 0.0), builder.load(total)], fastmath=("reassoc",))

    return x.dtype(types.intp, x, types.intp, y, types.intp), emit


def _product(accumulate: bool) -> Any:
    """out = X·Y or out += X·Y, (rows, columns), row-major, as code for kernels:

    op(rows, inner, X, X_at, down, right, columns, Y, Y_at, out, out_at): element (r, k) of X is at X_at + r·down + k·right, so
    that X may be transposed. Each of eight sums has its own register, so that additions do not wait for each other: four rows
    of two registers, which load less than eight rows of one; that is left for a last odd register. Rows are rounded up to a
    multiple of VECTOR, both in X and in out.
    """

    @intrinsic
    def op(
        typing: Any, rows: Any, inner: Any, X: Any, X_at: Any, down: Any, right: Any,
        columns: Any, Y: Any, Y_at: Any, out: Any, out_at: Any,
    ) -> Any:  # fmt: skip
        def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            rows, inner, X, X_at, down, right, columns, Y, Y_at, out, out_at = values
            kinds, zero = signature.args, ir.Constant(INTP, 0)
            Xp = _pointer(context, builder, kinds[2], X, X_at)
            Yp = _pointer(context, builder, kinds[7], Y, Y_at)
            Op = _pointer(context, builder, kinds[9], out, out_at)
            vector = ir.VectorType(Xp.type.pointee, VECTOR)
            totals = [cgutils.alloca_once(builder, vector) for _ in range(VECTOR)]

            def tile(r: Any, height: int, j: Any) -> None:
                """Rows r … r + height, as many registers from column j on as there are sums for each row."""
                lines = [builder.add(r, ir.Constant(INTP, lane)) for lane in range(height)]
                starts = [builder.gep(Xp, [builder.mul(line, down)]) for line in lines]
                places = [builder.add(j, ir.Constant(INTP, at)) for at in range(0, VECTOR * VECTOR // height, VECTOR)]
                targets = [
                    _register(builder, builder.gep(Op, [builder.add(builder.mul(line, columns), place)]))
                    for line in lines
                    for place in places
                ]
                for total, (target, align) in zip(totals, targets, strict=True):
                    begin = builder.load(target, align=align) if accumulate else ir.Constant(vector, [0.0] * VECTOR)
                    builder.store(begin, total)
                with cgutils.for_range(builder, inner) as loop:
                    below, across = builder.mul(loop.index, columns), builder.mul(loop.index, right)
                    ys = [_load(builder, builder.gep(Yp, [builder.add(below, place)])) for place in places]
                    xs = (_splat(builder, builder.load(builder.gep(start, [across]))) for start in starts)
                    for total, (x, y) in zip(totals, product(xs, ys), strict=True):
                        added = builder.fadd(builder.load(total), builder.fmul(x, y, flags=FUSE), flags=FUSE)
                        builder.store(added, total)
                for total, (target, align) in zip(totals, targets, strict=True):
                    builder.store(builder.load(total), target, align=align)

            pairs = builder.and_(columns, ir.Constant(INTP, -2 * VECTOR))
            for first, last, height in ((zero, pairs, VECTOR // 2), (pairs, columns, VECTOR)):
                step = ir.Constant(INTP, VECTOR * VECTOR // height)
                with (
                    cgutils.for_range_slice(builder, first, last, step, inc=True) as (j, _),
                    cgutils.for_range_slice(builder, zero, rows, ir.Constant(INTP, height), inc=True) as (r, _),
                ):
                    tile(r, height, j)
            return context.get_dummy_value()

        n = types.intp
        return types.void(n, n, X, n, n, n, n, Y, n, out, n), emit

    return op


multiply, add_product = _product(accumulate=False), _product(accumulate=True)


@intrinsic
def add_gram(typing: Any, count: Any, columns: Any, X: Any, Y: Any, out: Any) -> Any:
    """out += Xᵀ·Y, the lower triangle of (columns, columns) and a little more; X and Y are (count, columns), row-major.

    Four rows of out at a time, each with its own sum in a register: in double precision more would not fit into AVX2's sixteen.
    """

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        count, columns = values[:2]
        zero, four, eight = (ir.Constant(INTP, number) for number in (0, GRAM_ROWS, VECTOR))
        Xp, Yp, Op = (_pointer(context, builder, signature.args[p], values[p], zero) for p in (2, 3, 4))
        totals = [cgutils.alloca_once(builder, ir.VectorType(Xp.type.pointee, VECTOR)) for _ in range(GRAM_ROWS)]
        lanes = [ir.Constant(INTP, lane) for lane in range(GRAM_ROWS)]
        with (
            cgutils.for_range_slice(builder, zero, columns, four, inc=True) as (r, _),
            cgutils.for_range_slice(builder, zero, builder.add(r, four), eight, inc=True) as (j, _),
        ):
            places = [builder.add(builder.mul(builder.add(r, lane), columns), j) for lane in lanes]
            for total, place in zip(totals, places, strict=True):
                builder.store(_load(builder, builder.gep(Op, [place])), total)
            with cgutils.for_range(builder, count) as loop:
                line = builder.mul(loop.index, columns)
                y = _load(builder, builder.gep(Yp, [builder.add(line, j)]))
                at = builder.add(line, r)
                for total, lane in zip(totals, lanes, strict=True):
                    x = builder.load(builder.gep(Xp, [builder.add(at, lane)]))
                    term = builder.fmul(_splat(builder, x), y, flags=FUSE)
                    builder.store(builder.fadd(builder.load(total), term, flags=FUSE), total)
            for total, place in zip(totals, places, strict=True):
                register, align = _register(builder, builder.gep(Op, [place]))
                builder.store(builder.load(total), register, align=align)
        return context.get_dummy_value()

    n = types.intp
    return types.void(n, n, X, Y, out), emit


def weighted_sum(registers: int, streamed: bool = False) -> Any:
    """Σ weights[i]·rows[places[i]] over first ≤ i < first + count, in so many registers of columns, as code for kernels:

    op(first, count, places, weights, rows, width, column, out, at): columns from `column` on of rows of `width` numbers →
    out[at …]. Sums stay in registers, so that the result is written once, whatever the count is. `streamed`: past the caches;
    out[at] must then be aligned to a register, and a fence must come before others read it.
    """

    @intrinsic
    def op(
        typing: Any, first: Any, count: Any, places: Any, weights: Any, rows: Any, width: Any, column: Any, out: Any, at: Any
    ) -> Any:  # fmt: skip
        def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            begins = ((2, 0), (3, 0), (4, 6), (7, 8))  # arrays, and where in these
            pointers = [_pointer(context, builder, signature.args[p], values[p], values[at]) for p, at in begins]
            source, target = pointers[2:]
            vector = ir.VectorType(source.type.pointee, VECTOR)
            lanes = [ir.Constant(INTP, VECTOR * lane) for lane in range(registers)]
            totals = [cgutils.alloca_once(builder, vector) for _ in lanes]
            for total in totals:
                builder.store(ir.Constant(vector, [0.0] * VECTOR), total)
            with cgutils.for_range(builder, values[1]) as loop:
                place, weight = (builder.load(builder.gep(pointer, [loop.index])) for pointer in pointers[:2])
                row = builder.gep(source, [builder.mul(place, values[5])])
                factor = _splat(builder, weight)
                for total, lane in zip(totals, lanes, strict=True):
                    term = builder.fmul(factor, _load(builder, builder.gep(row, [lane])), flags=FUSE)
                    builder.store(builder.fadd(builder.load(total), term, flags=FUSE), total)
            for total, lane in zip(totals, lanes, strict=True):
                register, align = _register(builder, builder.gep(target, [lane]))
                stored = builder.store(builder.load(total), register, align=VECTOR * align if streamed else align)
                if streamed:
                    one = builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)])
                    stored.set_metadata("nontemporal", one)
            return context.get_dummy_value()

        n = types.intp
        return types.void(n, n, places, weights, rows, n, n, out, n), emit

    return op


@intrinsic
def read(typing: Any, array: Any, at: Any) -> Any:
    """Number `at` ≥ 0 of an array's memory: a place that is itself read from memory costs no look whether it is negative."""

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.load(_pointer(context, builder, signature.args[0], *values))

    return array.dtype(array, types.intp), emit


@intrinsic
def write(typing: Any, array: Any, at: Any, number: Any) -> Any:
    """Set number `at` ≥ 0 of an array's memory."""

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        cast = context.cast(builder, values[2], signature.args[2], signature.args[0].dtype)
        builder.store(cast, _pointer(context, builder, signature.args[0], *values[:2]))
        return context.get_dummy_value()

    return types.void(array, types.intp, number), emit


@intrinsic
def count_reached(typing: Any, limits: Any, at: Any, number: Any) -> Any:
    """How many of the LIMITS whole numbers limits[at …] are ≤ number, without a branch."""

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        pointer = _pointer(context, builder, signature.args[0], values[0], values[1])
        whole = pointer.type.pointee
        held = builder.load(builder.bitcast(pointer, ir.VectorType(whole, LIMITS).as_pointer()), align=whole.width // 8)
        reached = builder.icmp_signed("<=", held, _splat(builder, builder.trunc(values[2], whole), LIMITS))
        return builder.zext(builder.ctpop(builder.bitcast(reached, ir.IntType(LIMITS))), INTP)

    return types.intp(limits, types.intp, types.intp), emit


@intrinsic
def four_bytes(typing: Any, data: Any, at: Any) -> Any:
    """The number that data[at … at + 4] are, most significant first."""

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        word = ir.IntType(32)
        pointer = builder.bitcast(_pointer(context, builder, signature.args[0], *values), word.as_pointer())
        found = builder.load(pointer, align=1)
        return builder.zext(builder.bswap(found) if sys.byteorder == "little" else found, INTP)

    return types.intp(data, types.intp), emit


@intrinsic
def bit_length(typing: Any, number: Any) -> Any:
    """number.bit_length(), number > 0."""

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.sub(ir.Constant(INTP, 64), builder.ctlz(values[0], ir.Constant(ir.IntType(1), 1)))

    return types.intp(types.intp), emit


def _prefetching(near: int) -> Any:
    """Prefetch the cache line at an offset of an array, as code for kernels; `near` as of LLVM: 3 is the nearest cache."""

    @intrinsic
    def op(typing: Any, array: Any, at: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            byte, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
            pointer = builder.bitcast(_pointer(context, builder, signature.args[0], *values), byte)
            kind = ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
            function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
            writing, data = ir.Constant(flag, 0), ir.Constant(flag, 1)
            builder.call(function, [pointer, writing, ir.Constant(flag, near), data])
            return context.get_dummy_value()

        return types.void(array, types.intp), emit

    return op


prefetch = _prefetching(2)  # into the second cache: for what is used later
prefetch_near = _prefetching(3)  # into the first: for what is used next


@intrinsic
def fence(typing: Any) -> Any:
    """What was written before, streamed or not, is seen by others before what is written after."""

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), emit


@intrinsic
def _add(typing: Any, counter: Any, place: Any, number: Any) -> Any:
    """Add to counter[place] as one indivisible act, after all that was written before. → what it was."""

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        pointer = _pointer(context, builder, signature.args[0], values[0], values[1])
        return builder.atomic_rmw("add", pointer, values[2], "seq_cst")

    return types.int64(counter, types.intp, types.int64), emit


@intrinsic
def _read_counter(typing: Any, counter: Any, place: Any) -> Any:
    """counter[place] as it is now, before all that is read after."""

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        pointer = _pointer(context, builder, signature.args[0], values[0], values[1])
        return builder.load_atomic(pointer, "seq_cst", 8)

    return types.int64(counter, types.intp), emit


@intrinsic
def address(typing: Any, array: Any, place: Any) -> Any:
    """Where array[place] is in memory."""

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.ptrtoint(_pointer(context, builder, signature.args[0], values[0], values[1]), INTP)

    return types.intp(array, types.intp), emit


# Linux can put a thread to sleep until a number changes (a futex: its four bytes are the lower ones of counter[ARRIVED]).
# Elsewhere a waiting thread sleeps for a moment at a time.
FUTEX = {"x86_64": 202, "aarch64": 98, "riscv64": 98}.get(platform.machine(), 0) if sys.platform == "linux" else 0
ARRIVED, ASLEEP, LOOKS, SECONDS, NANOSECONDS = range(5)
WAIT, WAKE = 128, 129  # within this process
NAP = 10_000_000  # ns: a cancelled barrier is noticed within this time
if FUTEX:
    _long = types.intp
    _futex: Any = types.ExternalFunction("syscall", _long(_long, _long, _long, _long, _long, _long, _long))

    @compile_kernel(nogil=True)
    def _sleep(counter: Any, seen: int) -> None:
        _add(counter, ASLEEP, 1)
        _futex(FUTEX, address(counter, ARRIVED), WAIT, seen & 0xFFFFFFFF, address(counter, SECONDS), 0, 0)
        _add(counter, ASLEEP, -1)

    @compile_kernel(nogil=True)
    def _wake(counter: Any) -> None:
        if _read_counter(counter, ASLEEP) > 0:
            _futex(FUTEX, address(counter, ARRIVED), WAKE, 0x7FFFFFFF, 0, 0, 0)

else:
    _on_windows = sys.platform == "win32"
    MOMENT = 0 if _on_windows else 100  # ms there, where 0 lets others run; µs elsewhere
    _nap: Any = types.ExternalFunction("Sleep" if _on_windows else "usleep", types.int32(types.uint32))

    @compile_kernel(nogil=True)
    def _sleep(counter: Any, seen: int) -> None:
        _nap(MOMENT)

    @compile_kernel(nogil=True)
    def _wake(counter: Any) -> None:
        pass


def barrier_counter() -> np.ndarray:
    """The counter of a barrier."""
    return np.array([0, 0, PATIENCE, 0, NAP])


@compile_kernel(nogil=True)
def barrier(counter: Any, arrivals: int) -> bool:
    """A barrier: returns when `arrivals` calls have been made in all, this one included. counter: of `barrier_counter`.

    A waiting thread polls for a while, then sleeps: on a busy machine the others need its core to arrive. After a sleep it
    polls for less time, but for every 64th barrier: with a core for each thread, nobody has to be woken and no time is lost.
    → False if the barrier was cancelled: counter[0] is set to CANCELLED when a thread will not come.
    """
    seen = _add(counter, ARRIVED, 1) + 1
    if seen >= arrivals:
        _wake(counter)
    patience = PATIENCE if arrivals % 128 == 0 else counter[LOOKS]
    looks = 0
    while seen < arrivals:
        if looks < patience:
            looks += 1
        else:
            _sleep(counter, seen)
            looks = PATIENCE + 1
        seen = _read_counter(counter, ARRIVED)
    if looks > PATIENCE:
        counter[LOOKS] = max(patience // 2, HASTE)
    elif looks > 0:
        counter[LOOKS] = PATIENCE
    return seen < CANCELLED


def padded(n: int) -> int:
    """The least multiple of VECTOR that is not below n."""
    return -(-n // VECTOR) * VECTOR


def padded_columns(rows: np.ndarray) -> np.ndarray:
    """(n, d) → (n, P) with zeros; the rows themselves if they fit."""
    n, d = rows.shape
    if d == padded(d) and rows.flags.c_contiguous:
        return rows
    wide = np.zeros((n, padded(d)))
    wide[:, :d] = rows
    return wide


@compiled
def hard_threshold(best: float, curvature: float, l0_penalty: float) -> float:
    """The minimum `best` of a parabola, or 0 if it lowers the parabola by no more than the penalty."""
    return best if 0.5 * curvature * best * best > l0_penalty else 0.0
