"""A second reader of `.ant` files, after docs/format.md: NumPy, json, zlib and lzma, nothing of antembed."""

import json
import lzma
import zlib
from itertools import pairwise
from pathlib import Path

import numpy as np

DTYPES = {"F32": "<f4", "F16": "<f2", "I8": "i1", "U8": "u1", "U16": "<u2", "U32": "<u4", "U64": "<u8"}
LZMA = [{"id": lzma.FILTER_LZMA1, "preset": 9, "lc": 0, "lp": 0, "pb": 0, "dict_size": 1 << 16}]
MOVES = [[0, 1], [3, 2], [5, 4], [6, 7], [1, 0], [2, 3], [4, 5], [7, 6]]
THRESHOLDS = [round(1024 * 2 ** ((k + 0.5) / 4)) for k in range(-6, 6)]


def read(path):
    """→ facts, arrays; checksums compared."""
    data = Path(path).read_bytes()
    size = int.from_bytes(data[:8], "little")
    text = data[8 : 8 + size]
    header, arrays = json.loads(text), {}
    metadata = header.pop("__metadata__")
    sums = metadata["crc32"]
    assert f"{zlib.crc32(text[:26] + b'0' * 8 + text[34:]):08x}" == sums[:8]
    for n, name in enumerate(sorted(header), 1):
        entry = header[name]
        start, stop = (8 + size + at for at in entry["data_offsets"])
        assert f"{zlib.crc32(data[start:stop]):08x}" == sums[8 * n : 8 * n + 8]
        arrays[name] = np.frombuffer(data[start:stop], DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return json.loads(metadata["antembed-table"]), arrays


def vectors(about, arrays):
    """All vectors (V, d)."""
    rows = {"coded": coded, "sparse": coded, "product": product}.get(about["encoding"], sparse)(about, arrays)
    if "scales" in arrays:
        rows = rows * arrays["scales"]
    if "anchors" in arrays:
        anchors = arrays["anchors"].astype(np.float32)
        if "anchor_scales" in arrays:
            anchors = np.concatenate([anchors * arrays["anchor_scales"].astype(np.float32)[:, None], arrays["mean"][None]])
        rows = rows @ anchors
    return rows[arrays["places"]] if "places" in arrays else rows


def sparse(about, arrays):
    """Plain, bitmap, csr, packed → T (rows, K)."""
    rows, K = about["rows"], about["columns"]
    if about["encoding"] == "plain":
        return arrays["weights"].astype(np.float32)
    T = np.zeros((rows, K), np.float32)
    values, bits = arrays.get("values"), arrays.get("bits")
    if about["encoding"] == "csr":
        T[np.repeat(np.arange(rows), arrays["counts"]), arrays["columns"]] = values
        return T
    if about["encoding"] == "packed":
        wide = -(-K // 8)
        bits = np.frombuffer(unpacked(arrays["coded_bits"], rows * wide), np.uint8).reshape(wide, rows).T
        if "coded_values" in arrays:
            values = np.frombuffer(unpacked(arrays["coded_values"], int(np.bitwise_count(bits).sum())), np.int8)
    T[np.unpackbits(bits, axis=1, count=K, bitorder="little").astype(bool)] = values
    return T[:, np.argsort(arrays["order"])] if "order" in arrays else T


def unpacked(array, size):
    return lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=LZMA).decompress(array.tobytes(), size)


def biases(about, arrays):
    """(V,), the offset included."""
    found, V = arrays.get("bias", np.zeros(1)), about["objects"]
    here = np.ones(V, bool)  # which objects have one
    if "bias_bits" in arrays:
        here = np.unpackbits(arrays["bias_bits"], count=V, bitorder="little").astype(bool)
    if "coded_bias" in arrays:
        found = np.frombuffer(unpacked(arrays["coded_bias"], int(here.sum())), np.int8)
    whole = np.zeros(V, np.float32)
    whole[here] = found.astype(np.float32) * arrays.get("bias_scale", np.ones(1, np.float32))
    return whole + np.float32(about.get("offset", 0.0))


def product(about, arrays):
    books, codes = arrays["books"], arrays["codes"]
    if books.shape[1] <= 16:
        codes = np.stack([codes & 15, codes >> 4], -1).reshape(len(codes), -1)[:, : len(books)]
    found = books[np.arange(len(books)), codes].reshape(len(codes), -1).astype(np.float32)
    if about["padding"] is not None:
        found[about["padding"]] = 0
    return found


def coded(about, arrays):
    """Entropy-coded rows → (V, K), the last column 1, times the norms."""
    V, n = about["objects"], about["rows_per_block"]
    read_block, octave = (sparse_block, 4) if about["encoding"] == "sparse" else (coded_block, 8)
    rows, norms = zip(
        *[row for first in range(0, V, n) for row in read_block(about, arrays, first // n, range(first, min(first + n, V)))],
        strict=True,
    )
    T = np.array(rows, np.float32).reshape(V, -1)
    T /= (((np.arange(V) + 10) / about["mean_place"]) ** -about["weighting"]).astype(np.float32)[:, None]
    T = np.concatenate([T, np.ones((V, 1), np.float32)], 1)
    return T * (about["norm_base"] * 2.0 ** (np.array(norms, np.float32) / octave))[:, None]


def sparse_block(about, arrays, block, count):
    """Rows of few weights, and their norms."""
    start, stop = arrays["offsets"][block : block + 2].tolist()
    data, K = arrays["payload"][start:stop].tolist(), len(arrays["widths"])
    state, rest, total = int.from_bytes(bytes(data[:4]), "big"), iter(data[4:]), 1 << 16
    ends = np.concatenate([[0], np.cumsum(arrays["widths"].astype(int))])
    reached, left = [], 1 << 30
    for _ in range(ends[-1] + 1):
        reached.append(((1 << 30) - left) >> 14)
        left -= left * about["rate"] >> 30

    def take(shares):
        nonlocal state
        firsts, slot = np.concatenate([[0], np.cumsum(shares)]).tolist(), state % total
        symbol = max(n for n in range(len(shares)) if firsts[n] <= slot)
        state = int(shares[symbol]) * (state >> 16) + slot - firsts[symbol]
        while state < 1 << 23:
            state = state << 8 | next(rest)
        return symbol

    for _ in count:
        norm = take(arrays["norm_frequencies"].astype(int)) if "norm_frequencies" in arrays else 0
        row, after = np.zeros(K, np.float32), 0
        while True:
            reach = np.array([reached[end - ends[after]] for end in ends[after:]])
            firsts = np.arange(K - after + 1) + ((total - (K - after) - 1) * reach >> 16)
            k = after + take(np.diff([*firsts.tolist(), total]))
            if k == K:
                break
            value = 1 + take(arrays["value_frequencies"][arrays["groups"][k]].astype(int))
            row[k], after = np.float32(value) * np.float32(about["step"]), k + 1
        yield row, norm


def coded_block(about, arrays, block, count):
    start, stop = arrays["offsets"][block : block + 2].tolist()
    data, shares = arrays["payload"][start:stop].tolist(), arrays["frequencies"].astype(int)
    firsts, state = np.cumsum(shares, 1) - shares, int.from_bytes(bytes(data[:4]), "big")
    symbols, rest = [np.repeat(np.arange(16), row) for row in shares], iter(data[4:])

    def take(share, first):
        nonlocal state
        state = share * (state >> 14) + state % 16384 - first
        while state < 1 << 23:
            state = state << 8 | next(rest)

    def bits(many):
        found = 0
        for n in range(many):
            bit = state % 16384 // 8192
            take(8192, bit * 8192)
            found |= bit << n
        return found

    for i in count:
        row, seen, promised, s = [], 0, 0, 0
        shift = about.get("first_shift", 0) - int((arrays.get("shift_places", np.empty(0)) <= i).sum())
        for column in np.clip(arrays["classes"].astype(int) + shift, 0, 47).tolist():
            ratio = (seen + 256) * 1024 // (promised + 256)
            c = min(max(column + sum(ratio >= limit for limit in THRESHOLDS) - 6, 0), 47) + s % 2 * 48
            m = int(symbols[c][state % 16384])
            take(int(shares[c, m]), int(firsts[c, m]))
            if m == 15:
                length = bits(5)
                m += (bits(length) | 1 << length) - 1
            value = np.float32(2 * m - s % 2) - np.float32(arrays["centres"][c, min(m, 3)]) / 128
            row.append((1 - 2 * bits(1) if m else 0) * value * np.float32(about["step"]))
            s = MOVES[s][m % 2]
            seen += min(m, 64) * 64
            promised += int(arrays["promise"][column])
        yield row, int(arrays["norms"][i]) if "norms" in arrays else 0


def words(about, arrays):
    """All words, in the order of their rows."""
    V, packed, found = about["objects"], arrays["word_blocks"].tobytes(), []
    for start, stop in pairwise(arrays["word_ends"].tolist()):
        block, word = zlib.decompress(packed[start:stop], -15), b""
        marks = [at for at, byte in enumerate(block) if byte in (0xC0, 0xC1) or byte >= 0xF5]
        for at, end in zip(marks, [*marks[1:], len(block)], strict=True):
            same = block[at] - 0xC0 if block[at] < 0xF5 else block[at] - 0xF5 + 2
            word = word[:same] + block[at + 1 : end]
            found.append(word.decode())
    bits = max((V - 1).bit_length(), 1)
    flat = np.unpackbits(arrays["word_rows"], count=V * bits, bitorder="little").reshape(V, bits).astype(int)
    return [found[place] for place in np.argsort(flat @ (1 << np.arange(bits)))]
