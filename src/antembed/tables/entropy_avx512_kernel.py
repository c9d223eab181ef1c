"""One column of 16 entropy-coded rows side by side, in registers of AVX-512: decodes 8.4 million rows a second, where number by
number (tables/entropy_kernel.py, columns_by_number) it is 1.9. tables/entropy_rows.py describes the format.

Nothing is looked up in memory but the rows' bytes. The 26 contexts that a column's numbers can have (13 by what was seen of the
row, in even and odd states) fit into two registers, so limits of slots and centres are found by permuting these. The limits
of 16 bits are compared two by two, those above 4 only if a row has such a number.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Union

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from antembed.native.compile import compiled
from antembed.native.vector import LIMITS, after, call, emitted, load, splat, store
from antembed.tables.entropy_kernel import BYTE as FROM
from antembed.tables.entropy_kernel import (
    CLASSES,
    GOES,
    LANES,
    LARGEST,
    LOW,
    MOST,
    MOVES,
    PRECISION,
    REACH,
    TOTAL,
    WIDE,
    aligned,
)
from antembed.tables.entropy_kernel import STATE as KNOWN

WORD, REAL, LONG = ir.IntType(32), ir.FloatType(), ir.IntType(64)
WORDS, REALS, LONGS, BITS = (ir.VectorType(kind, WIDE) for kind in (WORD, REAL, LONG, ir.IntType(1)))
HALVES = ir.VectorType(ir.IntType(16), 2 * WIDE)
# Of each row: the decoder's state; the next byte, relative to `base`; the trellis, whose state s is 2s + 16·(s mod 2), and
# above them −(s mod 2); what was seen.
FIELDS = "state", "byte", "trellis", "seen"
STATE, BYTE = (FIELDS.index(name) for name in ("state", "byte"))
ROWS, WORK = len(FIELDS), len(FIELDS) * WIDE  # registers and numbers that the rows of a register take
HALF, LEAST = PRECISION - 1, LOW.bit_length() - 1  # bits
PAIRS, FEW = LARGEST // 2 + 1, 2  # limits of slots, two at a time; those that are always compared
CENTRES = PAIRS  # the table behind those of the limits
CONTEXTS = 2 * CLASSES + WIDE  # registers are read from any context on
NEXT = [2 * int(s) + int(s % 2) * (16 - 32) for s in MOVES.reshape(-1)]


def column_tables(firsts: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """firsts (96, 16), the first slot of each number; centres (96, 4) in 128ths → (PAIRS + 1, CONTEXTS) int32: limits of slots,
    two in each number, and the centres of 1, 2 and 3 in a byte each."""
    found = np.zeros((PAIRS + 1, CONTEXTS), np.int64)
    limits = np.pad(firsts[:, 1:], ((0, 0), (0, 1)), constant_values=TOTAL)
    found[:PAIRS, : len(firsts)] = (limits[:, ::2] | limits[:, 1::2] << 16).T
    found[CENTRES, : len(firsts)] = (centres[:, 1:].astype(np.int64) & 255) @ [1 << 16, 1 << 8, 1]
    return found.astype(np.int32)


def _same(kind: Any, one: float) -> Any:
    """A register that has the same number in each place."""
    return ir.Constant(kind, [one] * kind.count)


Other = Union["Words", int]


def _operation(name: str) -> Callable[["Words", Other], "Words"]:
    return lambda self, other: Words(self.builder, getattr(self.builder, name)(self.value, self.of_kind(other)))


def _comparison(name: str) -> Callable[["Words", Other], Any]:
    return lambda self, other: self.builder.icmp_unsigned(name, self.value, self.of_kind(other))


class Words:
    """A register of integers without a sign in the emitted code: 16 of 32 bits, or 32 of 16 (HALVES). Python's operators
    write instructions."""

    def __init__(self, builder: Any, value: Any):
        self.builder, self.value = builder, value

    def of_kind(self, other: Other) -> Any:
        return _same(self.value.type, other) if isinstance(other, int) else other.value

    __add__, __sub__, __mul__ = _operation("add"), _operation("sub"), _operation("mul")
    __and__, __or__, __xor__ = _operation("and_"), _operation("or_"), _operation("xor")
    __lshift__, __rshift__, signed_right = _operation("shl"), _operation("lshr"), _operation("ashr")
    __ge__, __lt__, is_ = _comparison(">="), _comparison("<"), _comparison("==")

    def where(self, condition: Any, other: Other) -> "Words":
        """These where the condition holds, else the others."""
        return Words(self.builder, self.builder.select(condition, self.value, self.of_kind(other)))

    def least(self, other: Other) -> "Words":
        return self.where(self < other, other)

    def most(self, other: Other) -> "Words":
        return self.where(self >= other, other)

    def cast(self, kind: Any) -> "Words":
        return Words(self.builder, self.builder.bitcast(self.value, kind))

    def call(self, name: str, *values: Any) -> "Words":
        return Words(self.builder, call(self.builder, name, WORDS, *values))

    def shifted_in(self, following: "Words", count: "Words") -> "Words":
        """Moved left by `count` < 32 bits, and filled with the first bits of the `following`."""
        return self.call("llvm.fshl.v16i32", self.value, following.value, count.value)

    def leading_zeros(self) -> "Words":
        """How many bits above a number's first are 0; 32 for 0."""
        return self.call("llvm.ctlz.v16i32", self.value, ir.Constant(ir.IntType(1), 0))

    def of(self, table: Any) -> "Words":
        """table[this mod 16], a register."""
        return self.call("llvm.x86.avx512.permvar.si.512", table, self.value)

    def of_two(self, low: Any, high: Any) -> "Words":
        """The number at this mod 32 in two registers."""
        return self.call("llvm.x86.avx512.vpermi2var.d.512", low, self.value, high)

    def four_bytes(self, base: Any) -> "Words":
        """The four bytes that are so many (with a sign) behind the pointer `base`, the first one highest."""
        name, one = "llvm.x86.avx512.mask.gather.dpi.512", ir.Constant(WORD, 1)
        gathered = self.call(name, _same(WORDS, 0), base, self.value, _same(BITS, 1), one)
        return self.call("llvm.bswap.v16i32", gathered.value)

    def as_real(self) -> Any:
        """In single precision; with a sign."""
        return self.builder.sitofp(self.value, REALS)


class Held:
    """Registers that the emitted code assigns to, also where it branches; their names are attributes."""

    _builder: Any
    _slots: dict[str, Any]

    def __init__(self, builder: Any, **begin: Any):
        object.__setattr__(self, "_builder", builder)
        object.__setattr__(self, "_slots", {})
        for name, one in begin.items():
            self._slots[name] = cgutils.alloca_once(builder, one.value.type)
            setattr(self, name, one)

    def __getattr__(self, name: str) -> Words:
        return Words(self._builder, self._builder.load(self._slots[name]))

    def __setattr__(self, name: str, one: Words) -> None:
        self._builder.store(one.value, self._slots[name])


def _any(builder: Any, condition: Any) -> Any:
    """Whether it holds anywhere."""
    bits = builder.bitcast(condition, ir.IntType(WIDE))
    return builder.icmp_unsigned("!=", bits, ir.Constant(bits.type, 0))


@contextmanager
def _while_any(builder: Any, condition: Callable[[], Any]) -> Iterator[None]:
    """A loop that runs as long as condition() holds anywhere."""
    ahead, body, behind = (builder.append_basic_block(name) for name in ("ahead", "body", "behind"))
    builder.branch(ahead)
    builder.position_at_end(ahead)
    builder.cbranch(_any(builder, condition()), body, behind)
    builder.position_at_end(body)
    yield
    builder.branch(ahead)
    builder.position_at_end(behind)


class _Column:
    """Writes the code. Methods follow each other as the decoder's steps do."""

    def __init__(self, builder: Any, work: Any, base: Any, last: Any, tables: Any):
        self.builder, self.base, self.tables = builder, base, tables
        self.last = Words(builder, splat(builder, builder.trunc(last, WORD), WIDE))
        self.row = Held(builder, **{name: self.load(work, WIDE * at) for at, name in enumerate(FIELDS)})

    def load(self, pointer: Any, at: int = 0) -> Words:
        return Words(self.builder, load(self.builder, after(self.builder, pointer, at), WIDE))

    def same(self, one: int) -> Words:
        return Words(self.builder, _same(WORDS, one))

    def next_bytes(self) -> Words:
        """Four bytes of each row, the first one highest; behind the data they are 0."""
        builder, place = self.builder, self.row.byte
        found = Held(builder, bytes=place.least(self.last).four_bytes(self.base))
        with builder.if_then(_any(builder, place >= self.last), likely=False):
            missing = (place - place.least(self.last)).least(4) << 2
            found.bytes = found.bytes << missing << missing
        return found.bytes

    def find_context(self, limits: Any) -> Words:
        """How many of the column's limits, which rise, were reached; by halving. Plus 16 in odd states."""
        seen, all_limits = self.row.seen, self.load(limits).value
        middle = Words(self.builder, splat(self.builder, self.builder.load(after(self.builder, limits, 7)), WIDE))
        place = self.same(11).where(seen >= middle, 3)
        for half in (2, 1):
            place = (place + half).where(seen >= place.of(all_limits), place - half)
        reached = (place + 1).where(seen >= place.of(all_limits), place)
        return reached | (self.row.trellis & 16)

    def from_table(self, which: int, context: Words) -> Words:
        even, odd = (self.load(self.tables, CONTEXTS * which + offset).value for offset in (0, CLASSES))
        return context.of_two(even, odd)

    def find_number(self, context: Words) -> Words:
        """The number (LARGEST: an escape) whose slots hold the state's; it is taken from the state.

        slot − limit in 16 bits is small if the limit was reached, else large: the least of them is the place among the number's
        slots, the largest says how many follow."""
        builder, row = self.builder, self.row
        state = row.state
        slot = state & (TOTAL - 1)
        both = (slot | slot << 16).cast(HALVES)
        found = Held(builder, missed=self.same(0).cast(HALVES), least=both, most=both - TOTAL)

        def compare(pairs: range) -> None:
            for pair in pairs:
                past = both - self.from_table(pair, context).cast(HALVES)
                found.missed = found.missed + (past >> 15)
                found.least, found.most = found.least.least(past), found.most.most(past)

        compare(range(FEW))
        with builder.if_then(_any(builder, found.missed.cast(WORDS).is_(0)), likely=False):
            compare(range(FEW, PAIRS))
            found.missed = found.missed - (PAIRS - FEW)
        missed, least, most = (part.cast(WORDS) for part in (found.missed, found.least, found.most))
        least, most = least.cast(HALVES).least((least >> 16).cast(HALVES)), most.cast(HALVES).most((most >> 16).cast(HALVES))
        least, most = least.cast(WORDS), most.cast(WORDS)
        row.state = ((least - most) & 0xFFFF) * (state >> PRECISION) + (least & 0xFFFF)
        return self.same(2 * FEW) - missed.call("llvm.x86.avx512.pmaddw.d.512", found.missed.value, _same(HALVES, 1))

    def take_number(self, bytes: Words) -> Words:
        """Fill the state up after a number was taken. → how many bits of the bytes it took: 0, 8 or 16."""
        need = (self.row.state.leading_zeros() - (32 - LEAST - 8)) & 24
        self.row.state = self.row.state.shifted_in(bytes, need)
        return need

    def take_sign(self, number: Words, bytes: Words, before: Words) -> Words:
        """A bit, if the number is not 0, in the highest place; else anything. `before`: bits of the bytes that were taken."""
        row = self.row
        sign, low = (row.state << 31 - HALF) & 1 << 31, (1 << HALF) - 1
        state = ((row.state >> 1) & (0xFFFFFFFF ^ low) | row.state & low).where(number >= 1, row.state)
        need = self.same(8).where(state < LOW, 0)
        row.state = state.shifted_in(bytes << before, need)
        row.byte = row.byte + ((before + need) >> 3)
        return sign

    def far(self, number: Words) -> Any:
        """How far the numbers are from 0, without centres: 2m, or in odd states 2m − 1."""
        return ((number << 1) + self.row.trellis.signed_right(5)).as_real()

    def take_bits(self, counts: Words) -> Words:
        """So many bits of each row, up to 32, least significant first; as many at once as can be taken before the next byte."""
        builder, row, nothing = self.builder, self.row, self.same(0)
        bits = Held(builder, left=counts, taken=nothing, found=nothing)
        with _while_any(builder, lambda: bits.left >= 1):
            state, left, taken = row.state, bits.left, bits.taken
            spare = self.same(32 - LEAST) - state.leading_zeros()
            some = spare.where(spare < 32 - LEAST, 1).most(1).least(left)
            own = (state >> HALF) & ((self.same(1) << some) - 1)
            bits.found = bits.found | own << (taken & 31)
            state = (state >> HALF) >> some << HALF | state & (1 << HALF) - 1
            need = self.same(8).where(state < LOW, 0)
            row.state = state.shifted_in(self.next_bytes(), need)
            row.byte = row.byte + (need >> 3)
            bits.left, bits.taken = left - some, taken + some
        return bits.found

    def escape(self, number: Words, taken: Words) -> tuple[Words, Words, Any]:
        """The numbers with those that are escaped; signs; how far they are from 0, for which 32 bits may be too few."""
        builder, row, escaped = self.builder, self.row, number.is_(LARGEST)
        row.byte = row.byte + (taken >> 3)
        first = self.take_bits(self.same(5).where(escaped, self.same(1).where(number >= 1, 0)))  # a length, or a sign
        length = first.where(escaped, 0)
        more = self.take_bits((length + 1).where(escaped, 0))
        above = more & ((self.same(1) << length) - 1) | self.same(1) << length  # by how much, LARGEST − 1
        wide = builder.add(builder.zext(above.value, LONGS), _same(LONGS, LARGEST - 1))
        wide = builder.select(escaped, wide, builder.zext(number.value, LONGS))
        wide = builder.add(builder.shl(wide, _same(LONGS, 1)), builder.sext(row.trellis.signed_right(5).value, LONGS))
        # At most MOST counts. If a number has more than 32 bits, its parity is still right.
        row.seen = row.seen + (above.least(MOST - LARGEST + 1) + (LARGEST - 1)).where(escaped, number)
        sign = (more >> length).where(escaped, first) << 31
        return (above + (LARGEST - 1)).where(escaped, number), sign, builder.sitofp(wide, REALS)

    def value(self, context: Words, number: Words, sign: Words, far: Any, step: Any) -> Any:
        """What the numbers stand for."""
        builder = self.builder
        centre = (self.from_table(CENTRES, context) << (number.least(3) << 3)).signed_right(24).as_real()
        centre = builder.fmul(centre, _same(REALS, 1 / 128))
        found = builder.fmul(builder.fsub(far, centre), splat(builder, step, WIDE))
        full = (Words(builder, builder.bitcast(found, WORDS)) ^ sign).where(number >= 1, 0)
        return builder.bitcast(full.value, REALS)

    def decode(self, limits: Any, step: Any) -> Any:
        """All of it. → the values."""
        builder, row = self.builder, self.row
        bytes = self.next_bytes()
        context = self.find_context(limits)
        number = self.find_number(context)
        taken = self.take_number(bytes)
        found = Held(builder, number=number, sign=number)
        far = cgutils.alloca_once(builder, REALS)
        with builder.if_else(_any(builder, number.is_(LARGEST)), likely=False) as (some, none):
            with some:
                found.number, found.sign, real = self.escape(number, taken)
                builder.store(real, far)
            with none:
                found.sign = self.take_sign(number, bytes, taken)
                row.seen = row.seen + number
                builder.store(self.far(number), far)
        number = found.number
        row.trellis = (row.trellis | number & 1).of(ir.Constant(WORDS, NEXT))
        return self.value(context, number, found.sign, builder.load(far), step)


@emitted(lambda *kinds: types.void(*kinds))
def decode_column(
    builder: Any, work: Any, at: Any, data: Any, base: Any, last: Any, limits: Any, limits_at: Any, tables: Any, context: Any,
    step: Any, factors: Any, factors_at: Any, out: Any, out_at: Any,
) -> None:  # fmt: skip
    """The next number of 16 rows, times factors[factors_at …] → out[out_at …]. work[at …]: the rows' FIELDS. Bytes are relative
    to data[base], `last` is where the last four are. limits[limits_at …]: 16 of the column; `context`: its first."""
    work, data, limits, tables = (
        after(builder, work, at),
        after(builder, data, base),
        after(builder, limits, limits_at),
        after(builder, tables, context),
    )
    column = _Column(builder, work, data, last, tables)
    found = column.decode(limits, step)
    store(builder, builder.fmul(found, load(builder, after(builder, factors, factors_at), WIDE)), after(builder, out, out_at))
    for number, name in enumerate(FIELDS):
        store(builder, getattr(column.row, name).value, after(builder, work, WIDE * number))


@compiled
def columns_by_register(active: int, level: int, lanes: Any, data: Any, tables: Any, factors: Any, found: Any) -> None:
    """As columns_by_number, 16 lanes at a time. Those that do not take part do what another does."""
    limits, bases, _, _, _, _, step, registers = tables
    K, used = limits.shape[1], (active + WIDE - 1) // WIDE
    work = aligned(used * ROWS, WIDE, np.int32)
    work[:] = 0
    one, base = 0, len(data)
    for lane in range(active):
        if lanes[GOES, lane]:
            one, base = lane, min(base, lanes[FROM, lane])
    base = min(base, len(data) - 4)
    last = min(len(data) - 4 - base, 2 * REACH - 16)
    for lane in range(used * WIDE):
        own, first, at = lane if lane < active and lanes[GOES, lane] else one, lane // WIDE * ROWS, lane % WIDE
        work[first + STATE, at], work[first + BYTE, at] = np.int32(lanes[KNOWN, own]), lanes[FROM, own] - base
    for j in range(K):
        context, own_limits = bases[np.uint64(level * K + j)], (level * K + j) * LIMITS
        for n in range(used):
            place = n * WORK, data, base, last, limits, own_limits, registers, context, step, factors, n * WIDE, found
            decode_column(work, *place, j * LANES + n * WIDE)
    for lane in range(active):
        if lanes[GOES, lane]:
            first, at = lane // WIDE * ROWS, lane % WIDE
            lanes[KNOWN, lane] = np.int64(np.uint32(work[first + STATE, at]))
            lanes[FROM, lane] = base + work[first + BYTE, at]
