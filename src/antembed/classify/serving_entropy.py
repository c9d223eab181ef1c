"""Entropy coding of symbols by an asymmetric numeral system (rANS, byte by byte), and sorted sets coded by it.

A symbol of frequency f of `TOTAL` takes log2(TOTAL/f) bits, fractions included; a Huffman code rounds to whole bits.
"""

import numpy as np

from antembed.tables.container import DamagedError

PRECISION = 14
TOTAL = 1 << PRECISION
LOW = 1 << 23  # the state stays within [LOW, 256·LOW)
LONGEST = 31  # a longer gap takes several symbols


def weights_of(symbols: np.ndarray, alphabet: int) -> np.ndarray:
    """Relative frequencies of the symbols, a byte each, as stored in files: (alphabet,) uint8, 0 only for unused symbols."""
    counts = np.bincount(symbols, minlength=alphabet)
    return (-(-counts * 255 // max(counts.max(initial=0), 1))).astype(
        np.uint8
    )  # in integers, since 255.0…01 would become 256, that is 0


def frequencies(weights: np.ndarray) -> np.ndarray:
    """Integers proportional to the weights that sum to TOTAL, at least 1 for each symbol with a weight."""
    weights = weights.astype(np.int64)
    if not weights.any():
        raise DamagedError("no symbol has a weight")
    shares = np.maximum(weights * TOTAL // weights.sum(), weights > 0)
    shares[shares.argmax()] += TOTAL - shares.sum()
    return shares


def encode_symbols(symbols: np.ndarray, weights: np.ndarray) -> bytes:
    """The symbols as bytes, for `decode_symbols` with the same weights."""
    shares = frequencies(weights)
    f, first = shares.tolist(), (np.cumsum(shares) - shares).tolist()
    state, out = LOW, bytearray()
    for symbol in symbols[::-1].tolist():
        share = f[symbol]
        while state >= ((LOW >> PRECISION) << 8) * share:
            out.append(state & 255)
            state >>= 8
        state = (state // share << PRECISION) + state % share + first[symbol]
    return state.to_bytes(4, "little") + bytes(out[::-1])


def decode_symbols(data: bytes, count: int, weights: np.ndarray) -> np.ndarray:
    """The `count` symbols encoded in `data`: (count,) int64."""
    shares = frequencies(weights)
    f, first = shares.tolist(), (np.cumsum(shares) - shares).tolist()
    symbol_at = np.repeat(np.arange(len(shares)), shares).tolist()
    state, position, out = int.from_bytes(data[:4], "little"), 4, []
    try:
        for _ in range(count):
            slot = state & (TOTAL - 1)
            symbol = symbol_at[slot]
            out.append(symbol)
            state = f[symbol] * (state >> PRECISION) + slot - first[symbol]
            while state < LOW:
                state = state << 8 | data[position]
                position += 1
    except IndexError:
        raise DamagedError(f"{len(data)} bytes end after {len(out)} of {count} symbols") from None
    if state != LOW or position != len(data):
        raise DamagedError(f"{count} symbols took {position} of {len(data)} bytes")
    return np.array(out, np.int64)


def split_gaps(members: np.ndarray, size: int) -> tuple[int, np.ndarray, np.ndarray]:
    """A sorted set of numbers < size as gaps: the number of low bits stored as they are, these bits, and symbols for the rest.

    The low bits of a random set's gaps are uniform, and the rest is geometrically distributed, which entropy coding exploits.
    Of a rest ≥ LONGEST, each LONGEST is a symbol of its own.
    """
    gaps = np.diff(members, prepend=-1) - 1
    bits = max(int(np.log2(size / max(len(members), 1))) - 2, 0)
    high = gaps >> bits
    many = high // LONGEST
    symbols = np.full(len(members) + int(many.sum()), LONGEST)
    symbols[np.cumsum(many + 1) - 1] = high % LONGEST
    return bits, gaps & ((1 << bits) - 1), symbols


def join_gaps(bits: int, low: np.ndarray, symbols: np.ndarray) -> np.ndarray:
    """The inverse of `split_gaps`."""
    ends = np.flatnonzero(symbols != LONGEST)
    if len(ends) != len(low):
        raise DamagedError(f"it has {len(ends)} gaps, but the low bits of {len(low)}")
    high = symbols[ends] + LONGEST * np.diff(ends, prepend=-1) - LONGEST
    return np.cumsum((high << bits) + low + 1) - 1


def pack_bits(numbers: np.ndarray, bits: int) -> bytes:
    """Numbers < 2^bits, `bits` bits each."""
    return np.packbits((numbers[:, None] >> np.arange(bits)) & 1).tobytes()


def unpack_bits(data: bytes, count: int, bits: int) -> np.ndarray:
    """The inverse of `pack_bits`: (count,) int64."""
    if len(data) != -(-count * bits // 8):
        raise DamagedError(f"{count} numbers of {bits} bits are {-(-count * bits // 8)} bytes, {len(data)} were found")
    flat = np.unpackbits(np.frombuffer(data, np.uint8), count=count * bits)
    return (flat.reshape(count, bits).astype(np.int64) << np.arange(bits)).sum(1)
