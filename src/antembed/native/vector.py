"""Vector instructions for loops over short rows, and primitives for threads: prefetch, atomics, a barrier.

LLVM vectorizes long loops, but unrolls or leaves scalar a loop over one row of K numbers: fused SGD in plain loops compiles
slower and runs 2.4 times slower. So the arithmetic of rows is written once, as formulas over `Lanes` (a register of VECTOR
numbers; NumPy arrays work as well, for the tests), and emitted register by register. Counts are multiples of VECTOR: rows are
padded.
"""

import inspect
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import numpy as np
from llvmlite import ir
from numba import extending, types
from numba.core import cgutils

from antembed.native.compile import compile_kernel, compiled, features

VECTOR = 8  # numbers in a register: single precision fills AVX2
WIDEST = 16 if "avx512f" in features() else VECTOR  # in products of single precision: a layer's step takes 2/3 of the time
LIMITS = 16  # of count_reached
FUSE = ("contract",)
GRAM_ROWS = 4  # of add_gram: in double precision more sums would not fit into AVX2's sixteen registers
PATIENCE, HASTE = 200_000, 500  # most and least looks at the barrier before one sleeps: some 150 µs, and half of one
CANCELLED = 1 << 60  # arrivals that no number of threads reaches
INTP, FLAG = ir.IntType(64), ir.IntType(32)
TUPLE: Any = types.BaseTuple  # Any, since mypy does not know its attributes


def emitted(result: Any = types.void) -> Any:
    """A decorator: emit(builder, *arguments), which writes LLVM's instructions, becomes a function for kernels. Arrays arrive
    as pointers to their numbers, tuples as lists, integers with 64 bits, other numbers in the type of the first array.
    `result`: the type of what is returned, or a function of the arguments' types that says it, or the full signature."""

    def decorate(emit: Callable[..., Any]) -> Any:
        def typed(typing: Any, *kinds: Any) -> Any:
            first = next(kind for kind in [*kinds, types.none] if not isinstance(kind, types.Number))
            first = first.types[0] if isinstance(first, TUPLE) else first

            def lower(context: Any, builder: Any, signature: Any, values: Any) -> Any:
                found = emit(builder, *map(_argument(context, builder), signature.args, values))
                return context.get_dummy_value() if found is None else found

            found = result if isinstance(result, types.Type) else result(*kinds)
            if isinstance(found, types.Type):
                found = found(*(_cast(kind, getattr(first, "dtype", None)) for kind in kinds))
            return found, lower

        typed.__name__, typed.__doc__ = emit.__name__, emit.__doc__
        typed.__signature__ = inspect.signature(emit)  # type: ignore[attr-defined]
        return extending.intrinsic(typed)

    return decorate


def _cast(kind: Any, number: Any) -> Any:
    """The type as which an argument arrives."""
    if isinstance(kind, TUPLE):
        return types.Tuple([_cast(each, number) for each in kind.types])
    if isinstance(kind, types.Integer):
        return types.intp
    return number if isinstance(kind, types.Number) else kind


def _argument(context: Any, builder: Any) -> Callable[[Any, Any], Any]:
    def plain(kind: Any, value: Any) -> Any:
        if isinstance(kind, TUPLE):
            return [plain(*each) for each in zip(kind.types, cgutils.unpack_tuple(builder, value), strict=True)]
        return context.make_array(kind)(context, builder, value=value).data if isinstance(kind, types.Array) else value

    return plain


def number(n: int) -> Any:
    """An integer in the emitted code."""
    return ir.Constant(INTP, n)


def after(builder: Any, pointer: Any, *offsets: Any) -> Any:
    """The pointer so many numbers further."""
    for offset in offsets:
        pointer = builder.gep(pointer, [number(offset) if isinstance(offset, int) else offset])
    return pointer


def register(builder: Any, pointer: Any, lanes: int = VECTOR) -> tuple[Any, int]:
    """The pointer cast to a register, and its alignment, which is that of a number."""
    kind = pointer.type.pointee
    bits = kind.width if isinstance(kind, ir.IntType) else 32 if isinstance(kind, ir.FloatType) else 64
    return builder.bitcast(pointer, ir.VectorType(kind, lanes).as_pointer()), bits // 8


def load(builder: Any, pointer: Any, lanes: int = VECTOR) -> Any:
    place, align = register(builder, pointer, lanes)
    return builder.load(place, align=align)


def store(builder: Any, value: Any, pointer: Any) -> None:
    place, align = register(builder, pointer, value.type.count)
    builder.store(value, place, align=align)


def splat(builder: Any, one: Any, lanes: int = VECTOR) -> Any:
    """A register full of one number."""
    empty = ir.Constant(ir.VectorType(one.type, lanes), ir.Undefined)
    first = builder.insert_element(empty, one, ir.Constant(FLAG, 0))
    return builder.shuffle_vector(first, empty, ir.Constant(ir.VectorType(FLAG, lanes), [0] * lanes))


def sums(builder: Any, count: int, one: Any, lanes: int = VECTOR) -> list[Any]:
    """Registers of zeros, of such numbers, to be added to."""
    zero = ir.Constant(ir.VectorType(one, lanes), [0.0] * lanes)
    return [cgutils.alloca_once_value(builder, zero) for _ in range(count)]


def add_to(builder: Any, total: Any, x: Any, y: Any) -> None:
    """total += x·y."""
    builder.store(builder.fadd(builder.load(total), builder.fmul(x, y, flags=FUSE), flags=FUSE), total)


@contextmanager
def steps(builder: Any, start: Any, stop: Any, step: int = VECTOR) -> Iterator[Any]:
    """A loop over start, start + step, … below stop."""
    start = number(start) if isinstance(start, int) else start
    with cgutils.for_range_slice(builder, start, stop, number(step), inc=True) as (j, _):
        yield j


def call(builder: Any, name: str, result: Any, *values: Any, **options: Any) -> Any:
    """A call of a function of LLVM."""
    kind = ir.FunctionType(result, [value.type for value in values])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), values, **options)


class Lanes:
    """A register of numbers in the emitted code."""

    def __init__(self, builder: Any, value: Any):
        self.builder, self.value = builder, value

    def filled(self, one: "float | Lanes") -> "Lanes":
        """A register like this one, full of one number."""
        if isinstance(one, Lanes):
            return one
        return Lanes(self.builder, ir.Constant(self.value.type, [one] * self.value.type.count))

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


def _suffix(one: Any) -> str:
    """The suffix of LLVM's intrinsics for a register of such numbers."""
    return f"v{VECTOR}f{32 if isinstance(one, ir.FloatType) else 64}"


def sqrt(x: Any) -> Any:
    """√x for lanes and for arrays."""
    if not isinstance(x, Lanes):
        return np.sqrt(x)
    vector = x.value.type
    return Lanes(x.builder, call(x.builder, f"llvm.sqrt.{_suffix(vector.element)}", vector, x.value))


def where(condition: Any, yes: Any, no: Any) -> Any:
    """yes where the condition holds, else no; for lanes and for arrays."""
    if not isinstance(condition, Lanes):
        return np.where(condition, yes, no)
    some = no if isinstance(no, Lanes) else yes
    return Lanes(condition.builder, condition.builder.select(condition.value, *(some.filled(x).value for x in (yes, no))))


def elementwise(formula: Callable[..., tuple[Any, ...]]) -> Any:
    """formula(*sources, *numbers) → targets, as a loop for compiled code:

    op(count, sources, froms, targets, tos, numbers): arrays, and the offset of the row in each.
    """

    @emitted()
    def op(builder: Any, count: Any, sources: Any, froms: Any, targets: Any, tos: Any, numbers: Any) -> None:
        reads, writes = (
            [after(builder, pointer, at) for pointer, at in zip(pointers, ats, strict=True)]
            for pointers, ats in ((sources, froms), (targets, tos))
        )
        scalars = [Lanes(builder, splat(builder, one)) for one in numbers]
        with steps(builder, 0, count) as j:
            results = formula(*(Lanes(builder, load(builder, after(builder, row, j))) for row in reads), *scalars)
            for row, result in zip(writes, results, strict=True):
                store(builder, result.value, after(builder, row, j))

    return op


add_scaled = elementwise(lambda x, y, a: (y + a * x,))
add_scaled.__doc__ = "y + a·x."


@emitted(lambda count, x, *_: x.dtype)
def dot(builder: Any, count: Any, x: Any, x_at: Any, y: Any, y_at: Any) -> Any:
    """Σ x·y over `count` numbers from offsets x_at and y_at of two arrays."""
    kind = x.type.pointee
    (total,) = sums(builder, 1, kind)
    with steps(builder, 0, count) as j:
        add_to(builder, total, load(builder, after(builder, x, x_at, j)), load(builder, after(builder, y, y_at, j)))
    reduce, zero = f"llvm.vector.reduce.fadd.{_suffix(kind)}", ir.Constant(kind, 0.0)
    return call(builder, reduce, kind, zero, builder.load(total), fastmath=("reassoc",))


def _product(accumulate: bool) -> Any:
    """out = X·Y or out += X·Y, (rows, columns), row-major, as code for kernels:

    op(rows, inner, X, X_at, down, right, columns, stride, Y, Y_at, out, out_at): element (r, k) of X is at X_at + r·down +
    k·right, so that X may be transposed; rows of Y and of out are `stride` apart. Rows are rounded up to a multiple of VECTOR,
    both in X and in out. Each of eight sums or more has its own register, so that additions do not wait for each other: rows of
    two registers, which load less than twice as many rows of one; that is left for the last columns. Registers are as wide as
    the processor has them, which changes no sum.
    """

    @emitted()
    def op(
        builder: Any, rows: Any, inner: Any, X: Any, X_at: Any, down: Any, right: Any,
        columns: Any, stride: Any, Y: Any, Y_at: Any, out: Any, out_at: Any,
    ) -> None:  # fmt: skip
        kind = X.type.pointee
        widest = WIDEST if isinstance(kind, ir.FloatType) else VECTOR
        X, Y, out = after(builder, X, X_at), after(builder, Y, Y_at), after(builder, out, out_at)

        def tile(r: Any, j: Any, height: int, registers: int, lanes: int) -> None:
            """Rows r … r + height, so many registers from column j on."""
            lines = [builder.add(r, number(line)) for line in range(height)]
            starts = [after(builder, X, builder.mul(line, down)) for line in lines]
            positions = [builder.add(j, number(lanes * n)) for n in range(registers)]
            targets = [after(builder, out, builder.mul(line, stride), place) for line in lines for place in positions]
            totals = sums(builder, len(targets), kind, lanes)
            for total, target in zip(totals, targets if accumulate else (), strict=accumulate):
                builder.store(load(builder, target, lanes), total)
            with cgutils.for_range(builder, inner) as loop:
                line, across = after(builder, Y, builder.mul(loop.index, stride)), builder.mul(loop.index, right)
                ys = [load(builder, after(builder, line, place), lanes) for place in positions]
                xs = (splat(builder, builder.load(after(builder, start, across)), lanes) for start in starts)
                for total, (x, y) in zip(totals, product(xs, ys), strict=True):
                    add_to(builder, total, x, y)
            for total, target in zip(totals, targets, strict=True):
                store(builder, builder.load(total), target)

        pairs = builder.and_(columns, number(-2 * widest))
        tall = VECTOR if widest > VECTOR else VECTOR // 2  # half of the processor's registers are sums
        for first, last, height, registers, lanes in ((0, pairs, tall, 2, widest), (pairs, columns, VECTOR, 1, VECTOR)):
            with steps(builder, first, last, registers * lanes) as j, steps(builder, 0, rows, height) as r:
                tile(r, j, height, registers, lanes)

    return op


multiply, add_product = _product(accumulate=False), _product(accumulate=True)


@emitted()
def add_gram(builder: Any, count: Any, columns: Any, X: Any, Y: Any, out: Any) -> None:
    """out += Xᵀ·Y, the lower triangle of (columns, columns) and a little more; X and Y are (count, columns), row-major.

    Four rows of out at a time, each with its own sum in a register."""
    totals = sums(builder, GRAM_ROWS, X.type.pointee)
    with steps(builder, 0, columns, GRAM_ROWS) as r, steps(builder, 0, builder.add(r, number(GRAM_ROWS))) as j:
        targets = [after(builder, out, builder.mul(builder.add(r, number(n)), columns), j) for n in range(GRAM_ROWS)]
        for total, target in zip(totals, targets, strict=True):
            builder.store(load(builder, target), total)
        with cgutils.for_range(builder, count) as loop:
            line = builder.mul(loop.index, columns)
            y = load(builder, after(builder, Y, line, j))
            for n, total in enumerate(totals):
                add_to(builder, total, splat(builder, builder.load(after(builder, X, line, r, n))), y)
        for total, target in zip(totals, targets, strict=True):
            store(builder, builder.load(total), target)


def weighted_sum(registers: int, streamed: bool = False) -> Any:
    """Σ weights[i]·rows[positions[i]] over first ≤ i < first + count, in so many registers of columns, as code for kernels:

    op(first, count, positions, weights, rows, width, column, out, at): columns from `column` on of rows of `width` numbers →
    out[at …]. Sums stay in registers, so that the result is written once, whatever the count is. `streamed`: past the caches;
    out[at] must then be aligned to a register, and a fence must come before others read it.
    """

    @emitted()
    def op(
        builder: Any,
        first: Any,
        count: Any,
        positions: Any,
        weights: Any,
        rows: Any,
        width: Any,
        column: Any,
        out: Any,
        at: Any,
    ) -> None:
        totals = sums(builder, registers, rows.type.pointee)
        with steps(builder, first, builder.add(first, count), 1) as i:
            row = after(builder, rows, builder.mul(builder.load(after(builder, positions, i)), width), column)
            weight = splat(builder, builder.load(after(builder, weights, i)))
            for n, total in enumerate(totals):
                add_to(builder, total, weight, load(builder, after(builder, row, VECTOR * n)))
        for n, total in enumerate(totals):
            place, align = register(builder, after(builder, out, at, VECTOR * n))
            stored = builder.store(builder.load(total), place, align=VECTOR * align if streamed else align)
            if streamed:
                stored.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(FLAG, 1)]))

    return op


@emitted(lambda array, at: array.dtype)
def read(builder: Any, array: Any, at: Any) -> Any:
    """Number `at` ≥ 0 of an array's memory: a place that is itself read from memory costs no look whether it is negative."""
    return builder.load(after(builder, array, at))


@emitted(lambda array, at, one: types.void(array, types.intp, array.dtype))
def write(builder: Any, array: Any, at: Any, one: Any) -> None:
    """Set number `at` ≥ 0 of an array's memory."""
    builder.store(one, after(builder, array, at))


@emitted(types.intp)
def count_reached(builder: Any, limits: Any, at: Any, one: Any) -> Any:
    """How many of the LIMITS integers limits[at …] are ≤ one, without a branch."""
    kind = limits.type.pointee
    held = load(builder, after(builder, limits, at), LIMITS)
    reached = builder.icmp_signed("<=", held, splat(builder, builder.trunc(one, kind), LIMITS))
    return builder.zext(builder.ctpop(builder.bitcast(reached, ir.IntType(LIMITS))), INTP)


@emitted(types.intp)
def four_bytes(builder: Any, data: Any, at: Any) -> Any:
    """The number that data[at … at + 4] are, most significant first."""
    found = builder.load(builder.bitcast(after(builder, data, at), FLAG.as_pointer()), align=1)
    return builder.zext(builder.bswap(found) if sys.byteorder == "little" else found, INTP)


@emitted(types.intp)
def bit_length(builder: Any, one: Any) -> Any:
    """one.bit_length(), one > 0."""
    return builder.sub(number(64), builder.ctlz(one, ir.Constant(ir.IntType(1), 1)))


def _prefetching(near: int) -> Any:
    """Prefetch the cache line at an offset of an array, as code for kernels; `near` as of LLVM: 3 is the nearest cache."""

    @emitted()
    def op(builder: Any, array: Any, at: Any) -> None:
        pointer = builder.bitcast(after(builder, array, at), ir.IntType(8).as_pointer())
        reading_near_data = (ir.Constant(FLAG, option) for option in (0, near, 1))
        call(builder, "llvm.prefetch.p0i8", ir.VoidType(), pointer, *reading_near_data)

    return op


prefetch = _prefetching(2)  # into the second cache: for what is used later
prefetch_near = _prefetching(3)  # into the first: for what is used next


@emitted()
def fence(builder: Any) -> None:
    """What was written before, streamed or not, is seen by others before what is written after."""
    builder.fence("seq_cst")


@emitted(types.int64)
def _add(builder: Any, counter: Any, place: Any, one: Any) -> Any:
    """Add to counter[place] as one indivisible act, after all that was written before. → what it was."""
    return builder.atomic_rmw("add", after(builder, counter, place), one, "seq_cst")


@emitted(types.int64)
def _read_counter(builder: Any, counter: Any, place: Any) -> Any:
    """counter[place] as it is now, before all that is read after."""
    return builder.load_atomic(after(builder, counter, place), "seq_cst", 8)


@emitted(types.intp)
def address(builder: Any, array: Any, place: Any) -> Any:
    """Where array[place] is in memory."""
    return builder.ptrtoint(after(builder, array, place), INTP)


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
    polls for less time, but for every 64th barrier: with a core for each thread, no thread has to be woken and no time is lost.
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


def stride_of(width: int) -> int:
    """Numbers from one row to the next: an odd number of cache lines, so that a column of registers is spread over all of a
    cache, not over a few of its sets."""
    return 16 * (-(-width // 16) | 1)


def spaced(matrix: np.ndarray) -> np.ndarray:
    """The matrix with zeros behind its rows, which begin at cache lines, `stride_of` apart."""
    rows, width = matrix.shape
    memory = np.zeros(rows * stride_of(width) + 16, matrix.dtype)
    start = -memory.ctypes.data % 64 // matrix.itemsize
    found = memory[start : start + rows * stride_of(width)].reshape(rows, -1 if rows else stride_of(width))
    found[:, :width] = matrix
    return found


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
