"""One column of 16 entropy-coded rows side by side, in registers of AVX-512; tables/entropy_rows_kernel.py has the same, number by
number. tables/entropy_rows.py describes the format.

Nothing is looked up in memory but the rows' bytes. The 26 contexts that a column's numbers can have (13 by what was seen of the
row, in even and odd states) fit into two registers, so limits of slots and centres are found by permuting these. The limits of
16 bits are compared two by two; those above 4 only if a row has such a number, as are the bits of escapes.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from antembed.native.avx512 import AVX512, REALS, WIDE, WORD, WORDS, Held, Whole, any_of, same, while_any
from antembed.native.compile import compile_kernel
from antembed.native.vector import FUSE, INTP, LIMITS, VECTOR, _pointer, _splat, intrinsic
from antembed.tables.entropy_kernel import BYTE as FROM
from antembed.tables.entropy_kernel import CLASSES, GOES, LANES, LARGEST, LOW, MOST, MOVES, PRECISION, REACH, TOTAL, aligned
from antembed.tables.entropy_kernel import STATE as KNOWN

# MERGED A few rows that lie side by side, column by column, times a matrix: sums stay in registers.

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


# Of each row: the decoder's state; the next byte, relative to `base`; the trellis, whose state s is 2s + 16·(s mod 2), and
# above them −(s mod 2); what was seen.
FIELDS = "state", "byte", "trellis", "seen"
STATE, BYTE = (FIELDS.index(name) for name in ("state", "byte"))
ROWS, WORK = len(FIELDS), len(FIELDS) * WIDE  # registers and numbers that the rows of a register take
SHORT = 11  # bits of an escape that are taken at once
HALF, LEAST = PRECISION - 1, LOW.bit_length() - 1  # bits
PAIRS, FEW = LARGEST // 2 + 1, 2  # limits of slots, two at a time; those that are always compared
CENTRES = PAIRS  # the table behind them
CONTEXTS = 2 * CLASSES + WIDE  # registers are read from any context on
NEXT = [2 * int(s) + int(s % 2) * (16 - 32) for s in MOVES.reshape(-1)]


def column_tables(firsts: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """firsts (96, 16), the first slot of each number; centres (96, 4) in 128ths → (PAIRS + 1, CONTEXTS) int32: limits of slots,
    two in each number, and the centres of 1, 2 and 3 in a byte each."""
    found = np.zeros((PAIRS + 1, CONTEXTS), np.int64)
    limits = np.full((len(firsts), 2 * PAIRS), TOTAL, np.int64)
    limits[:, :LARGEST] = firsts[:, 1:]
    found[:PAIRS, : len(firsts)] = (limits[:, ::2] | limits[:, 1::2] << 16).T
    found[CENTRES, : len(firsts)] = (centres[:, 1:].astype(np.int64) & 255) @ [1 << 16, 1 << 8, 1]
    return found.astype(np.int32)


class _Column:
    """Writes the code. Methods follow each other as the decoder's steps do."""

    def __init__(self, builder: Any, work: Any, base: Any, last: Any, tables: Any):
        self.builder, self.work, self.base, self.tables = builder, work, base, tables
        self.last = Whole(builder, _splat(builder, last, WIDE))
        self.row = Held(builder, **{name: self._load(work, WIDE * at) for at, name in enumerate(FIELDS)})

    def _load(self, pointer: Any, at: int = 0) -> Whole:
        place = self.builder.bitcast(self.builder.gep(pointer, [ir.Constant(ir.IntType(64), at)]), WORDS.as_pointer())
        return Whole(self.builder, self.builder.load(place, align=4))

    def keep(self) -> None:
        """Write the rows' fields back."""
        for at, name in enumerate(FIELDS):
            place = self.builder.gep(self.work, [ir.Constant(ir.IntType(64), WIDE * at)])
            self.builder.store(getattr(self.row, name).value, self.builder.bitcast(place, WORDS.as_pointer()), align=4)

    def next_bytes(self, skipped: int = 0) -> Whole:
        """Four bytes of each row, the first one highest; behind the data they are 0."""
        builder, place = self.builder, self.row.byte + skipped
        found = Held(builder, bytes=place.least(self.last).four_bytes(self.base).swapped())
        with builder.if_then(any_of(builder, place >= self.last), likely=False):
            missing = (place - place.least(self.last)).least(4) << 2
            found.bytes = found.bytes << missing << missing
        return found.bytes

    def find_context(self, limits: Any) -> Whole:
        """How many of the column's limits, which rise, were reached; by halving. Plus 16 in odd states."""
        seen, all_limits = self.row.seen, self._load(limits).value
        middle = Whole(self.builder, _splat(self.builder, self.builder.load(self._at(limits, 7)), WIDE))
        place = self._same(11).where(seen >= middle, 3)
        for half in (2, 1):
            place = (place + half).where(seen >= place.of(all_limits), place - half)
        reached = (place + 1).where(seen >= place.of(all_limits), place)
        return reached | (self.row.trellis & 16)

    def _at(self, pointer: Any, at: int) -> Any:
        return self.builder.gep(pointer, [ir.Constant(ir.IntType(64), at)])

    def _same(self, number: int) -> Whole:
        return Whole(self.builder, same(WORDS, number))

    def from_table(self, number: int, context: Whole) -> Whole:
        even, odd = (self._load(self.tables, CONTEXTS * number + offset).value for offset in (0, CLASSES))
        return context.of_two(even, odd)

    def find_number(self, context: Whole) -> Whole:
        """The number (LARGEST: an escape) whose slots hold the state's; it is taken from the state.

        slot − limit in 16 bits is small if the limit was reached, else large: the least of them is the place among the number's
        slots, the largest says how many follow."""
        builder, row = self.builder, self.row
        state = row.state
        slot = state & (TOTAL - 1)
        both = (slot | slot << 16).halves()
        found = Held(builder, missed=self._same(0).halves(), least=both, most=both - TOTAL)

        def compare(pair: int) -> None:
            past = both - self.from_table(pair, context).halves()
            found.missed, found.least, found.most = found.missed + (past >> 15), found.least.least(past), found.most.most(past)

        for pair in range(FEW):
            compare(pair)
        with builder.if_then(any_of(builder, found.missed.whole().is_(0)), likely=False):
            for pair in range(FEW, PAIRS):
                compare(pair)
            found.missed = found.missed - (PAIRS - FEW)
        least, most = found.least.whole(), found.most.whole()
        least, most = least.halves().least((least >> 16).halves()).whole(), most.halves().most((most >> 16).halves()).whole()
        row.state = ((least - most) & 0xFFFF) * (state >> PRECISION) + (least & 0xFFFF)
        return self._same(2 * FEW) - found.missed.added_halves()

    def take_number(self, bytes: Whole) -> Whole:
        """Fill the state up after a number was taken. → how many bits of the bytes it took: 0, 8 or 16."""
        need = (self.row.state.leading_zeros() - (32 - LEAST - 8)) & 24
        self.row.state = self.row.state.shifted_in(bytes, need)
        return need

    def take_sign(self, number: Whole, bytes: Whole, before: Whole) -> Whole:
        """A bit, if the number is not 0, in the highest place; else anything. `before`: bits of the bytes that were taken."""
        row = self.row
        sign, low = (row.state << 31 - HALF) & 1 << 31, (1 << HALF) - 1
        state = ((row.state >> 1) & (0xFFFFFFFF ^ low) | row.state & low).where(number >= 1, row.state)
        need = self._same(8).where(state < LOW, 0)
        row.state = state.shifted_in(bytes << before, need)
        row.byte = row.byte + ((before + need) >> 3)
        return sign

    def escape(self, number: Whole, bytes: Whole, taken: Whole) -> tuple[Whole, Whole, Any]:
        """The numbers with those that are escaped; signs; how far they are from 0, without centres.

        The bits that are coming, in their order: those of the state above HALF, as many as it can spare before it needs a byte;
        then those below and those of the bytes, eight by eight."""
        builder, row, escaped = self.builder, self.row, number.is_(LARGEST)
        bytes = bytes.shifted_in(self.next_bytes(4), taken)  # without waiting for what was taken
        row.byte = row.byte + (taken >> 3)
        spare = (self._same(32 - LEAST) - row.state.leading_zeros()).least(8)
        behind = row.state << 32 - HALF | bytes >> HALF
        bits = (row.state >> HALF) & ((self._same(1) << spare) - 1) | behind.swapped() << spare
        length = (bits & 31).where(escaped, 0)
        top = self._same(1) << length
        above = Held(builder, by=(bits >> 5) & (top - 1) | top)  # by how much, LARGEST − 1
        sign = Held(builder, at=((bits >> 5) >> length).where(escaped, bits) << 31)
        far = cgutils.alloca_once(builder, REALS)
        with builder.if_else(any_of(builder, length >= SHORT + 1), likely=False) as (some, none):
            with some:
                above.by, sign.at, wide = self.long_escape(number, escaped)
                builder.store(wide, far)
            with none:
                self.take_coming((length + 6).where(escaped, self.signs(number)), spare, behind, bytes << 32 - HALF)
                whole = (above.by + (LARGEST - 1)).where(escaped, number)
                builder.store(self.far(whole), far)
        # At most MOST counts. If a number has more than 32 bits, its parity is still right.
        row.seen = row.seen + (above.by.least(MOST - LARGEST + 1) + (LARGEST - 1)).where(escaped, number)
        return (above.by + (LARGEST - 1)).where(escaped, number), sign.at, builder.load(far)

    def take_coming(self, count: Whole, spare: Whole, behind: Whole, more: Whole) -> None:
        """Take so many of the coming bits, of which `behind` and `more` are those after the first `spare`."""
        row = self.row
        due = count + 8 - spare
        need = due & 24  # bits of the bytes that are due
        window = behind.shifted_in(more, (need - 8) & 31) >> 32 - HALF - 8
        filled = (row.state >> HALF) >> spare << HALF + 8 | window
        state, left = filled.where(need >= 8, row.state), (due & 7).where(need >= 8, count)
        row.state = (state >> HALF) >> left << HALF | state & (1 << HALF) - 1
        row.byte = row.byte + (need >> 3)

    def signs(self, number: Whole) -> Whole:
        """How many bits the signs take."""
        return self._same(1).where(number >= 1, 0)

    def far(self, number: Whole) -> Any:
        """How far the numbers are from 0, without centres: 2m, or in odd states 2m − 1."""
        return ((number << 1) + self.row.trellis.signed_right(5)).as_real()

    def take_bits(self, counts: Whole) -> Whole:
        """So many bits of each row, up to 32, least significant first; as many at once as can be taken before the next byte."""
        builder, row = self.builder, self.row
        nothing = self._same(0)
        bits = Held(builder, left=counts, taken=nothing, found=nothing)
        with while_any(builder, lambda: bits.left >= 1):
            state, left, taken = row.state, bits.left, bits.taken
            spare = self._same(32 - LEAST) - state.leading_zeros()
            some = spare.where(spare < 32 - LEAST, 1).most(1).least(left)
            own = (state >> HALF) & ((self._same(1) << some) - 1)
            bits.found = bits.found | own << (taken & 31)
            state = (state >> HALF) >> some << HALF | state & (1 << HALF) - 1
            need = self._same(8).where(state < LOW, 0)
            row.state = state.shifted_in(self.next_bytes(), need)
            row.byte = row.byte + (need >> 3)
            bits.left, bits.taken = left - some, taken + some
        return bits.found

    def long_escape(self, number: Whole, escaped: Any) -> tuple[Whole, Whole, Any]:
        """Of any length: how much more than LARGEST − 1 they are; signs; how far from 0, for which 32 bits may be too few."""
        builder, long = self.builder, ir.VectorType(ir.IntType(64), WIDE)
        first = self.take_bits(self._same(5).where(escaped, self.signs(number)))
        length = first.where(escaped, 0)
        more = self.take_bits((length + 1).where(escaped, 0))
        above = more & ((self._same(1) << length) - 1) | self._same(1) << length
        wide = builder.add(builder.zext(above.value, long), same(long, LARGEST - 1))
        wide = builder.select(escaped, wide, builder.zext(number.value, long))
        odd = builder.sext(self.row.trellis.signed_right(5).value, long)
        wide = builder.add(builder.shl(wide, same(long, 1)), odd)
        return above, (more >> length).where(escaped, first) << 31, builder.sitofp(wide, REALS)

    def value(self, context: Whole, number: Whole, sign: Whole, far: Any, step: Any) -> Any:
        """What the numbers stand for."""
        builder = self.builder
        centre = (self.from_table(CENTRES, context) << (number.least(3) << 3)).signed_right(24).as_real()
        centre = builder.fmul(centre, same(REALS, 1 / 128))
        found = builder.fmul(builder.fsub(far, centre), _splat(builder, step, WIDE))
        whole = (Whole(builder, builder.bitcast(found, WORDS)) ^ sign).where(number >= 1, 0)
        return builder.bitcast(whole.value, REALS)

    def decode(self, limits: Any, step: Any) -> Any:
        """All of it. → the values."""
        builder, row = self.builder, self.row
        bytes = self.next_bytes()
        context = self.find_context(limits)
        number = self.find_number(context)
        taken = self.take_number(bytes)
        found = Held(builder, number=number, sign=number)
        far = cgutils.alloca_once(builder, REALS)
        with builder.if_else(any_of(builder, number.is_(LARGEST)), likely=False) as (some, none):
            with some:
                found.number, found.sign, real = self.escape(number, bytes, taken)
                builder.store(real, far)
            with none:
                found.sign = self.take_sign(number, bytes, taken)
                row.seen = row.seen + number
                builder.store(self.far(number), far)
        number = found.number
        row.trellis = (row.trellis | number & 1).of(ir.Constant(WORDS, NEXT))
        return self.value(context, number, found.sign, builder.load(far), step)


@intrinsic
def decode_column(
    typing: Any, work: Any, at: Any, data: Any, base: Any, last: Any, limits: Any, limits_at: Any, tables: Any, context: Any,
    step: Any, factors: Any, factors_at: Any, out: Any, out_at: Any,
) -> Any:  # fmt: skip
    """The next number of 16 rows, times factors[factors_at …] → out[out_at …]. work[at …]: the rows' FIELDS. Bytes are relative
    to data[base], `last` is where the last four are. limits[limits_at …]: 16 of the column; `context`: its first."""

    def emit(builder_context: Any, builder: Any, signature: Any, values: Any) -> Any:
        places = ((0, 1), (2, 3), (5, 6), (7, 8), (10, 11), (12, 13))  # arrays, and where in these
        pointers = [_pointer(builder_context, builder, signature.args[p], values[p], values[at]) for p, at in places]
        work, data, limits, tables, factors, out = pointers
        column = _Column(builder, work, data, builder.trunc(values[4], WORD), tables)
        found = column.decode(limits, values[9])
        own = builder.load(builder.bitcast(factors, REALS.as_pointer()), align=4)
        builder.store(builder.fmul(found, own), builder.bitcast(out, REALS.as_pointer()), align=4)
        column.keep()
        return builder_context.get_dummy_value()

    n = types.intp
    return types.void(work, n, data, n, n, limits, n, tables, n, types.float32, factors, n, out, n), emit


@compile_kernel(nogil=True, error_model="numpy")
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
