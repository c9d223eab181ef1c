"""Entropy-coded rows: registers, number by number and the plain twin find the same, also where the bytes are damaged."""

import numpy as np
import pytest

from antembed.tables import entropy_kernel as coded_lanes
from antembed.tables import entropy_rows_kernel as coded_rows
from antembed.tables.container import DamagedError
from antembed.tables.entropy_avx512_kernel import columns_by_register
from antembed.tables.entropy_kernel import (
    AVX512,
    BYTE,
    CLASSES,
    FIELDS,
    GOES,
    LANES,
    LARGEST,
    MOVES,
    SHIFTS,
    STATE,
    THRESHOLDS,
    TOTAL,
    UNIT,
    WEIGHT,
    columns_by_number,
    encode_blocks,
)
from antembed.tables.entropy_rows import CodedRows

K = 23


def contexts(Q, classes, promise, shifts):
    """Of each number, as the format says."""
    C = np.empty(Q.shape, np.uint8)
    for i, row in enumerate(Q.tolist()):
        seen = promised = s = 0
        for j, q in enumerate(row):
            column = min(max(int(classes[j]) + int(shifts[i]), 0), CLASSES - 1)
            ratio = (seen + WEIGHT) * 1024 // (promised + WEIGHT)
            moved = column + int((ratio >= THRESHOLDS).sum()) - SHIFTS
            C[i, j] = min(max(moved, 0), CLASSES - 1) + (s & 1) * CLASSES
            s, seen, promised = MOVES[s, q & 1], seen + min(abs(q), 64) * UNIT, promised + int(promise[column])
    return C


def table(V=300, per_block=7, places=(), first_shift=0, escapes=0.1, longest=20, seed=0):
    """Arrays and facts of random numbers, many of them escaped in several rows of a column at once."""
    rng = np.random.default_rng(seed)
    Q = np.rint(rng.laplace(0, 2, (V, K)) * np.linspace(3, 0.1, K)).astype(np.int32)
    large = (LARGEST + 2.0 ** rng.uniform(0, longest, (V, K))).astype(np.int32) * rng.choice([-1, 1], (V, K))
    Q = np.where(rng.random((V, K)) < escapes, large, Q).astype(np.int32)
    classes, promise = np.sort(rng.integers(0, CLASSES, K))[::-1], np.sort(rng.integers(1, 900, CLASSES))
    shares = rng.integers(1, 60, (2 * CLASSES, LARGEST + 1))
    shares[:, 0] += TOTAL - shares.sum(1)
    shifts = first_shift - np.searchsorted(places, np.arange(V), "right")
    C = contexts(Q, classes, promise, shifts)
    payload, offsets = np.empty(V * K * 12 + 100, np.uint8), np.zeros(-(-V // per_block) + 1, np.int64)
    size = encode_blocks(Q, C, shares, np.cumsum(shares, 1) - shares, per_block, payload, offsets)
    arrays = {"payload": payload[:size].copy(), "offsets": offsets, "classes": classes, "promise": promise}
    arrays |= {"frequencies": shares, "centres": rng.integers(-128, 128, (2 * CLASSES, 4)).astype(np.int8)}
    arrays |= {"shift_places": np.array(places, np.int64)}
    about = {"objects": V, "rows_per_block": per_block, "step": 0.1, "weighting": 0.0, "mean_place": 1.0}
    return arrays, about | {"first_shift": first_shift}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"per_block": 1},
        {"per_block": 300},
        {"V": 5, "per_block": 2},  # fewer than lanes
        {"places": (3, 50, 50, 51, 120, 299), "first_shift": 2},  # lanes of several levels
        {"places": tuple(range(0, 300, 2)), "first_shift": 40},
        {"escapes": 0.9},
        {"escapes": 0.5, "longest": 30.9},  # which do not fit into single precision
        {"escapes": 0.0},
    ],
)
def test_the_compiled_decoder_is_the_plain_one(options, monkeypatch):
    arrays, about = table(**options)
    V = about["objects"]
    with monkeypatch.context() as without:
        without.setattr("antembed.tables.entropy_rows.kernels", lambda name: None)
        plain = CodedRows(arrays, about)(np.arange(V))
    rng = np.random.default_rng(1)
    for ids in (np.arange(V), rng.integers(0, V, 40), rng.permutation(V), np.array([V - 1])):
        rows = CodedRows(arrays, about)  # which does not know yet where rows begin
        for _ in range(2):
            np.testing.assert_array_equal(rows(ids), plain[ids])


@pytest.mark.parametrize("width", [1, 32, 35, 256])
def test_vectors_are_rows_times_anchors(width):
    arrays, about = table(V=200, places=(90,), escapes=0.01, longest=3)
    rows, rng = CodedRows(arrays, about), np.random.default_rng(0)
    anchors = rng.normal(size=(K + 1, width)).astype(np.float32)
    for ids in (rng.integers(0, 200, 333), np.arange(200), np.array([7])):
        exact = rows(ids).astype(float) @ anchors
        terms = np.abs(rows(ids)) @ np.abs(anchors)
        assert (np.abs(rows.vectors(ids, anchors) - exact) <= 1e-6 * np.maximum(terms, 1)).all()
    assert rows.vectors(np.arange(0), anchors).shape == (0, width)


def lanes_of(rows, count):
    """Lanes at the beginning of the first blocks; every fifth waits."""
    lanes = np.zeros((FIELDS, LANES), np.int64)
    for lane in range(count):
        begin = rows.offsets[lane]
        lanes[BYTE, lane], lanes[GOES, lane] = begin + 4, lane % 5 != 3
        lanes[STATE, lane] = int.from_bytes(rows.payload[begin : begin + 4].tobytes(), "big")
    return lanes


@pytest.mark.skipif(not AVX512, reason="registers of AVX-512")
@pytest.mark.parametrize("count", [1, 9, LANES])
@pytest.mark.parametrize("longest", [5, 30.9])
def test_registers_find_what_is_found_number_by_number(count, longest):
    rows = CodedRows(*table(escapes=0.2, longest=longest))
    factors = np.random.default_rng(0).normal(size=LANES).astype(np.float32)
    lanes = [lanes_of(rows, count) for _ in range(2)]
    found = [np.zeros((K, LANES), np.float32) for _ in range(2)]
    for decode, own, values in zip((columns_by_number, columns_by_register), lanes, found, strict=True):
        decode(count, 0, own, rows.payload, rows.tables, factors, values)
    going = np.flatnonzero(lanes[0][GOES])
    np.testing.assert_array_equal(found[0][:, going], found[1][:, going])
    np.testing.assert_array_equal(lanes[0][[STATE, BYTE]][:, :count], lanes[1][[STATE, BYTE]][:, :count])


def test_lanes_that_are_far_away_wait():
    """Places of bytes have 31 bits in registers."""
    lanes = np.zeros((FIELDS, LANES), np.int64)
    lanes[BYTE, :4] = 700 + coded_lanes.REACH, 500, 700, 499 + coded_lanes.REACH
    assert coded_rows._choose(4, lanes) == 0
    np.testing.assert_array_equal(lanes[GOES, :4], [0, 1, 1, 1])


@pytest.mark.parametrize("cut", [1, 2, 3])
@pytest.mark.parametrize("per_block", [1, 7])
def test_a_block_that_ends_too_soon_is_damage(cut, per_block):
    arrays, about = table(V=100, per_block=per_block)
    last = arrays["offsets"].copy()
    last[-1] -= cut
    inner = arrays["offsets"].copy()
    inner[1] -= cut
    for changed in ({"payload": arrays["payload"][:-cut].copy(), "offsets": last}, {"offsets": inner}):
        rows = CodedRows(arrays | changed, about)
        with pytest.raises(DamagedError, match="ends too soon"):
            rows(np.arange(100))
        with pytest.raises(DamagedError, match="ends too soon"):
            CodedRows(arrays | changed, about).vectors(np.arange(100), np.ones((K + 1, 40), np.float32))


def test_damaged_bytes_never_crash():
    arrays, about = table(V=100, escapes=0.3, longest=12)
    rng = np.random.default_rng(0)
    anchors, raised = np.ones((K + 1, 8), np.float32), 0
    for turn in range(60):
        payload = arrays["payload"].copy()
        places = rng.integers(0, len(payload), rng.integers(1, 60))
        payload[places] = rng.choice([0, 255, 128]) if turn % 2 else rng.integers(0, 256, len(places))
        if turn > 50:
            payload[-rng.integers(1, len(payload)) :] = rng.choice([0, 255])
        try:
            CodedRows(arrays | {"payload": payload}, about).vectors(np.arange(100), anchors)
        except DamagedError:
            raised += 1
    assert raised > 0
