"""Many small numbers in few bytes: seven bits a byte (LEB128), then zlib. For gaps between sorted numbers."""

import zlib

import numpy as np

from antembed.tables.checksums import DamagedError

LONGEST = 9  # bytes of a number below 2^63


def pack_varints(numbers: np.ndarray, strategy: int = zlib.Z_DEFAULT_STRATEGY) -> np.ndarray:
    """Numbers ≥ 0 (n,) → bytes. Where few of them come in repeated runs, zlib.Z_HUFFMAN_ONLY is smaller and faster."""
    rest = np.asarray(numbers, np.int64)
    sizes = np.ones(len(rest), np.int64)
    for n in range(1, LONGEST):
        sizes += rest >> (7 * n) > 0
    starts = np.cumsum(sizes) - sizes
    found = np.empty(int(sizes.sum()), np.uint8)
    for n in range(int(sizes.max(initial=0))):
        those = np.flatnonzero(sizes > n)
        more = sizes[those] > n + 1
        found[starts[those] + n] = (rest[those] >> (7 * n)) & 127 | np.where(more, 128, 0)
    packer = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS, 9, strategy)
    return np.frombuffer(packer.compress(found.tobytes()) + packer.flush(), np.uint8)


def unpack_varints(packed: np.ndarray) -> np.ndarray:
    """What pack_varints was given, int64."""
    data = np.frombuffer(inflate(packed), np.uint8)
    ends = np.flatnonzero(data < 128) + 1
    if len(data) and data[-1] >= 128:
        raise DamagedError("the last number has no end")
    starts = np.concatenate([[0], ends[:-1]]) if len(ends) else ends
    sizes = ends - starts
    if sizes.max(initial=0) > LONGEST:
        raise DamagedError(f"a number has {sizes.max()} bytes, at most {LONGEST} are possible")
    found = np.zeros(len(ends), np.int64)
    for n in range(int(sizes.max(initial=0))):
        those = np.flatnonzero(sizes > n)
        found[those] |= (data[starts[those] + n] & 127).astype(np.int64) << (7 * n)
    return found


def inflate(packed: np.ndarray) -> bytes:
    """zlib's bytes."""
    try:
        return zlib.decompress(packed.tobytes())
    except zlib.error as error:
        raise DamagedError(f"compressed bytes are damaged ({error})") from error
