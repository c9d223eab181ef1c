"""Formulas over registers of 16 whole numbers, for code that AVX-512 runs: look-up in a register takes it a cycle or three.

Python's operators write LLVM's instructions. Numbers are 32 bits wide without a sign; `>=` and `<` compare them as such.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from antembed.native.compile import features

AVX512 = {"avx512f", "avx512bw", "avx512cd", "avx512dq"} <= features()
WIDE = 16  # numbers in a register
WORD, REAL = ir.IntType(32), ir.FloatType()
WORDS, REALS, BITS = ir.VectorType(WORD, WIDE), ir.VectorType(REAL, WIDE), ir.VectorType(ir.IntType(1), WIDE)
HALVES = ir.VectorType(ir.IntType(16), 2 * WIDE)


def same(kind: Any, number: float) -> Any:
    """A register that has the same number in each place."""
    return ir.Constant(kind, [number] * kind.count)


class Whole:
    """A register of whole numbers in the emitted code; of 16 of 32 bits, or `halves`, of 32 of 16 bits."""

    def __init__(self, builder: Any, value: Any):
        self.builder, self.value = builder, value

    def _with(self, operation: str, other: "Whole | int") -> "Whole":
        return Whole(self.builder, getattr(self.builder, operation)(self.value, self._value(other)))

    def _value(self, other: "Whole | int") -> Any:
        return same(self.value.type, other) if isinstance(other, int) else other.value

    def __add__(self, other: "Whole | int") -> "Whole":
        return self._with("add", other)

    def __sub__(self, other: "Whole | int") -> "Whole":
        return self._with("sub", other)

    def __mul__(self, other: "Whole | int") -> "Whole":
        return self._with("mul", other)

    def __and__(self, other: "Whole | int") -> "Whole":
        return self._with("and_", other)

    def __or__(self, other: "Whole | int") -> "Whole":
        return self._with("or_", other)

    def __xor__(self, other: "Whole | int") -> "Whole":
        return self._with("xor", other)

    def __lshift__(self, other: "Whole | int") -> "Whole":
        return self._with("shl", other)

    def __rshift__(self, other: "Whole | int") -> "Whole":
        return self._with("lshr", other)

    def __ge__(self, other: "Whole | int") -> Any:
        return self.builder.icmp_unsigned(">=", self.value, self._value(other))

    def __lt__(self, other: "Whole | int") -> Any:
        return self.builder.icmp_unsigned("<", self.value, self._value(other))

    def is_(self, other: "Whole | int") -> Any:
        return self.builder.icmp_unsigned("==", self.value, self._value(other))

    def where(self, condition: Any, other: "Whole | int") -> "Whole":
        """These where the condition holds, else the others."""
        return Whole(self.builder, self.builder.select(condition, self.value, self._value(other)))

    def least(self, other: "Whole | int") -> "Whole":
        return self.where(self < other, other)

    def most(self, other: "Whole | int") -> "Whole":
        return self.where(self >= other, other)

    def signed_right(self, count: int) -> "Whole":
        return self._with("ashr", count)

    def halves(self) -> "Whole":
        return Whole(self.builder, self.builder.bitcast(self.value, HALVES))

    def whole(self) -> "Whole":
        return Whole(self.builder, self.builder.bitcast(self.value, WORDS))

    def _call(self, name: str, result: Any, *values: Any) -> Any:
        kind = ir.FunctionType(result, [value.type for value in values])
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, kind, name), values)

    def shifted_in(self, following: "Whole", count: "Whole") -> "Whole":
        """Moved left by `count` < 32 bits, and filled with the first bits of the `following`."""
        return Whole(self.builder, self._call("llvm.fshl.v16i32", WORDS, self.value, following.value, count.value))

    def swapped(self) -> "Whole":
        """With the bytes of each number in opposite order."""
        return Whole(self.builder, self._call("llvm.bswap.v16i32", WORDS, self.value))

    def added_halves(self) -> "Whole":
        """The sums of two halves (with signs) each."""
        name = "llvm.x86.avx512.pmaddw.d.512"
        return Whole(self.builder, self._call(name, WORDS, self.value, same(HALVES, 1)))

    def leading_zeros(self) -> "Whole":
        """How many bits above a number's first are 0; 32 for 0."""
        return Whole(self.builder, self._call("llvm.ctlz.v16i32", WORDS, self.value, ir.Constant(ir.IntType(1), 0)))

    def of(self, table: Any) -> "Whole":
        """table[this mod 16], a register."""
        return Whole(self.builder, self._call("llvm.x86.avx512.permvar.si.512", WORDS, table, self.value))

    def of_two(self, low: Any, high: Any) -> "Whole":
        """The number at this mod 32 in two registers."""
        return Whole(self.builder, self._call("llvm.x86.avx512.vpermi2var.d.512", WORDS, low, self.value, high))

    def four_bytes(self, base: Any) -> "Whole":
        """The four bytes that are so many (with a sign) behind the pointer `base`."""
        nothing, all_of_them, scale = same(WORDS, 0), same(BITS, 1), ir.Constant(WORD, 1)
        name = "llvm.x86.avx512.mask.gather.dpi.512"
        return Whole(self.builder, self._call(name, WORDS, nothing, base, self.value, all_of_them, scale))

    def as_real(self) -> Any:
        """In single precision; with a sign."""
        return self.builder.sitofp(self.value, REALS)


class Held:
    """Registers that the emitted code assigns to, also where it branches; their names are attributes."""

    _builder: Any
    _places: dict[str, Any]

    def __init__(self, builder: Any, **begin: Any):
        object.__setattr__(self, "_builder", builder)
        object.__setattr__(self, "_places", {})
        for name, number in begin.items():
            self._places[name] = cgutils.alloca_once(builder, number.value.type)
            setattr(self, name, number)

    def __getattr__(self, name: str) -> Whole:
        return Whole(self._builder, self._builder.load(self._places[name]))

    def __setattr__(self, name: str, number: Whole) -> None:
        self._builder.store(number.value, self._places[name])


def any_of(builder: Any, condition: Any) -> Any:
    """Whether it holds anywhere."""
    bits = builder.bitcast(condition, ir.IntType(condition.type.count))
    return builder.icmp_unsigned("!=", bits, ir.Constant(bits.type, 0))


@contextmanager
def while_any(builder: Any, condition: Any) -> Iterator[None]:
    """A loop that runs as long as condition() holds anywhere."""
    ahead, body, behind = (builder.append_basic_block(name) for name in ("ahead", "body", "behind"))
    builder.branch(ahead)
    builder.position_at_end(ahead)
    builder.cbranch(any_of(builder, condition()), body, behind)
    builder.position_at_end(body)
    yield
    builder.branch(ahead)
    builder.position_at_end(behind)
