"""Emitted registers against NumPy: the same formulas, the same numbers."""

import threading

import numpy as np
import pytest
from numba import njit

from antembed.native.vector import (
    LIMITS,
    add_product,
    add_scaled,
    barrier,
    barrier_counter,
    bit_length,
    count_reached,
    dot,
    four_bytes,
    multiply,
    padded,
    weighted_sum,
)
from antembed.recommend.fused_kernel import catch_up, caught_up, stepped, take_step

K = 24
EPS = {np.float32: 2e-6, np.float64: 1e-14}  # of the terms of a sum: some sixteen times their rounding


@njit
def call_catch_up(x, m, v, inside, out, numbers):
    catch_up(K, (x, m, v, inside), (K, 0, 0, 0), (out,), (0,), numbers)


@njit
def call_take_step(x, m, v, g, out, numbers):
    take_step(K, (x, m, v, g), (K, 0, 0, 0), (out, out, out), (0, K, 2 * K), numbers)


@njit
def call_products(x, y, out):
    multiply(8, 5, x, 3, 5, 1, 24, 24, y, 0, out, 0)
    return dot(24, y, 24, y, 0)


@njit
def call_transposed(x, y, out):
    multiply(8, 4, x, 0, 1, 8, 16, 16, y, 0, out, 0)
    add_product(8, 2, x, 32, 1, 8, 16, 16, y, 64, out, 0)


@njit
def call_product(rows, inner, columns, X, down, right, Y, out, adding):
    if adding:
        add_product(rows, inner, X, 3, down, right, columns, Y.shape[1], Y, 0, out, 0)
    else:
        multiply(rows, inner, X, 3, down, right, columns, Y.shape[1], Y, 0, out, 0)


@njit
def call_add_scaled(x, y):
    add_scaled(16, (x, y), (0, 8), (y,), (8,), (0.5,))


sum_three = weighted_sum(3)


@njit
def call_weighted_sum(first, n, places, weights, rows, out):
    sum_three(first, n, places, weights, rows, rows.shape[1], 2, out, 1)


@njit
def call_count_reached(limits, at, number):
    return count_reached(limits, at, number)


@njit
def call_four_bytes(data, at):
    return four_bytes(data, at)


@njit
def call_bit_length(number):
    return bit_length(number)


@pytest.mark.parametrize("dtype", [np.int16, np.int32])
def test_limits_that_are_reached(dtype):
    limits = np.sort(np.random.default_rng(0).integers(-90, 90, 3 * LIMITS)).astype(dtype)
    for at in (0, 5, 2 * LIMITS):
        for number in (-100, -1, 0, int(limits[at + 3]), 100):
            assert call_count_reached(limits, at, number) == (limits[at : at + LIMITS] <= number).sum()


def test_bytes_and_bits():
    data = np.frombuffer(bytes(range(250, 256)), np.uint8)
    assert [call_four_bytes(data, at) for at in range(3)] == [
        int.from_bytes(data[at : at + 4].tobytes(), "big") for at in range(3)
    ]
    for number in (1, 2, 3, 255, 256, (1 << 31) - 1, 1 << 40):
        assert call_bit_length(number) == number.bit_length()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
class TestAgainstNumpy:
    @pytest.fixture(autouse=True)
    def _same_draws(self):
        self.rng = np.random.default_rng(0)

    def draw(self, dtype, *shape):
        return self.rng.standard_normal(shape).astype(dtype)

    def test_catch_up(self, dtype):
        x, m, v = self.draw(dtype, 2, K), self.draw(dtype, K), self.draw(dtype, K) ** 2
        inside = (np.arange(K) < K - 2).astype(dtype)
        x[1, -2:] = np.nan  # whatever is in the padding
        m[-2:] = v[-2:] = 0.0
        numbers, out = (0.9, 0.3, 0.2, 1e-3, 0.0), np.empty(K, dtype)
        call_catch_up(x, m, v, inside, out, numbers)
        scale = np.abs(x[1, :-2]).max() + ((np.abs(m) * 0.3 + 0.2) / (np.sqrt(v) + 1e-3)).max()
        np.testing.assert_allclose(out, caught_up(x[1], m, v, inside, *numbers)[0], rtol=0, atol=EPS[dtype] * scale)
        assert (out[-2:] == 0).all()
        assert 0 < (out[:-2] == 0).sum() < K - 2

    def test_take_step(self, dtype):
        x, m, v, g = self.draw(dtype, 2, K), self.draw(dtype, K), self.draw(dtype, K) ** 2, self.draw(dtype, K)
        v[0] = g[0] = 0.0
        v[1] = g[1] * g[1]
        numbers, out = (0.7, 0.99, 0.1, 0.05, 0.1, 0.001, 1e-3, 0.0), np.empty((3, K), dtype)
        call_take_step(x, m, v, g, out, numbers)
        wanted = stepped(x[1], m, v, g, *numbers)
        scale = np.abs(x[1]).max() + ((0.1 * np.abs(wanted[1]) + 0.05) / (np.sqrt(wanted[2]) + 1e-3)).max()
        np.testing.assert_allclose(out, wanted, rtol=0, atol=EPS[dtype] * scale)
        assert out[2, 0] == 0
        assert out[2, 1] == v[1]

    def test_a_gradient_that_is_no_number_stays_visible(self, dtype):
        x, m, v, g = self.draw(dtype, 2, K), self.draw(dtype, K), self.draw(dtype, K) ** 2, self.draw(dtype, K)
        g[3] = np.nan
        out = np.empty((3, K), dtype)
        call_take_step(x, m, v, g, out, (1.0, 1.0, 0.1, 0.05, 0.1, 0.001, 1e-3, 0.0))
        assert np.isnan(out[:, 3]).all()
        assert np.isfinite(np.delete(out, 3, axis=1)).all()

    def test_products(self, dtype):
        x, y, out = self.draw(dtype, 43), self.draw(dtype, 5, 24), np.empty((8, 24), dtype)
        X, terms = x[3:].reshape(8, 5), float(np.abs(y[1] * y[0]).sum())
        assert call_products(x, y, out) == pytest.approx(float(y[1] @ y[0]), rel=0, abs=EPS[dtype] * terms)
        np.testing.assert_allclose(out, X @ y, rtol=0, atol=EPS[dtype] * (np.abs(X) @ np.abs(y)).max())

    def test_transposed(self, dtype):
        x, y, out = self.draw(dtype, 6, 8), self.draw(dtype, 6, 16), np.empty((8, 16), dtype)
        call_transposed(x, y, out)
        np.testing.assert_allclose(out, x.T @ y, rtol=0, atol=EPS[dtype] * (np.abs(x).T @ np.abs(y)).max())

    @pytest.mark.parametrize(
        ("rows", "inner", "columns"), [(6, 5, 16), (13, 40, 24), (1, 1, 8), (18, 0, 40), (7, 9, 32), (12, 20, 120)]
    )
    @pytest.mark.parametrize("transposed", [False, True])
    def test_products_of_any_shape(self, dtype, rows, inner, columns, transposed):
        high, stride = padded(rows), columns + 16
        X = self.draw(dtype, inner, high) if transposed else self.draw(dtype, high, inner)
        Y, out = self.draw(dtype, inner, stride), self.draw(dtype, high, stride)
        before, source = out.copy(), np.concatenate([np.zeros(3, dtype), X.ravel()])
        expected = (X.T if transposed else X)[:rows].astype(float) @ Y[:, :columns]
        for adding in (True, False):
            call_product(rows, inner, columns, source, *((1, high) if transposed else (inner, 1)), Y, out, adding)
            np.testing.assert_allclose(out[:rows, :columns], expected + adding * before[:rows, :columns], rtol=0, atol=1e-4)
        assert np.array_equal(out[:, columns:], before[:, columns:])

    @pytest.mark.parametrize(("first", "n"), [(0, 0), (0, 1), (0, 5), (2, 3)])
    def test_weighted_sum(self, dtype, first, n):
        rows, weights, out = self.draw(dtype, 7, 27), self.draw(dtype, 6), np.full(26, 9, dtype)
        places = np.array([6, 0, 3, 3, 1, 2])
        call_weighted_sum(first, n, places, weights, rows, out)
        summed = slice(first, first + n)
        wanted, terms = weights[summed] @ rows[places[summed], 2:26], np.abs(weights) @ np.abs(rows[places, 2:26])
        np.testing.assert_allclose(out[1:25], wanted, rtol=0, atol=EPS[dtype] * terms.max())
        assert out[0] == out[25] == 9  # nothing beside it is written

    def test_add_scaled(self, dtype):
        x, y = self.draw(dtype, 16), self.draw(dtype, 30)
        wanted = y.copy()
        wanted[8:24] += x / 2
        call_add_scaled(x, y)
        np.testing.assert_allclose(y, wanted, rtol=0, atol=EPS[dtype] * np.abs(wanted).max())


@njit(nogil=True)
def relay(me, others, counter, board, rounds):
    """Each round: write, barrier, add up what all have written."""
    total = 0
    for r in range(rounds):
        board[r % 2, me] = r + me
        barrier(counter, others * (r + 1))
        for other in range(others):
            total += board[r % 2, other]
    return total


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_all_see_what_was_written_before_the_meeting(workers):
    counter, board, rounds = barrier_counter(), np.zeros((2, workers), np.int64), 3000
    totals = [0] * workers

    def work(me):
        totals[me] = relay(me, workers, counter, board, rounds)

    threads = [threading.Thread(target=work, args=(me,)) for me in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(totals) == {sum(r + me for r in range(rounds) for me in range(workers))}
