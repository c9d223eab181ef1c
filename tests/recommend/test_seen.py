"""Pairs, ratings and popularity come back from their files as they were written."""

import numpy as np
import pytest

from antembed.recommend.seen import Seen, popularity_of, read_popularity, write_popularity
from antembed.tables.container import DamagedError, pack_arrays
from antembed.tables.model_folder import RATINGS, SEEN, RunError
from antembed.tables.row_labels import pack_varints, unpack_varints


@pytest.mark.parametrize("numbers", [[], [0], [127, 128, 5, 2**62, 2**63 - 1], list(range(300)) * 3])
def test_varints(numbers):
    assert unpack_varints(pack_varints(np.array(numbers, np.int64))).tolist() == numbers


def test_damaged_varints_are_errors():
    for data, said in ((b"no zlib", "compressed bytes are damaged"), (b"x\x9ck\x00\x00\x00\x81\x00\x81", "has no end")):
        with pytest.raises(DamagedError, match=said):
            unpack_varints(np.frombuffer(data, np.uint8))


def pairs(users, items, n, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, users, n), rng.integers(0, items, n)  # some pairs come twice


@pytest.mark.parametrize("n", [0, 1, 500])
@pytest.mark.parametrize("levels", [5, 400])
def test_pairs_and_ratings_come_back(tmp_path, n, levels):
    users, items = pairs(40, 70_000, n)
    ratings = (np.random.default_rng(1).integers(0, levels, n) / 2).astype(np.float32)
    ratings[::5] = np.nan
    weights = np.arange(n, dtype=np.float32)
    wanted = Seen.of(users, items, 41, 70_000, ratings, weights)
    wanted.save(tmp_path)
    found = Seen.read(tmp_path, 41, 70_000)
    for name in ("items", "starts", "ratings", "weights"):
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name))
    order = np.lexsort((items, users))
    np.testing.assert_array_equal(found.items, items[order])
    np.testing.assert_array_equal(found.ratings, ratings[order])
    asked = np.array([7, -1, 40, 3])
    rows, which = found.by(asked)
    assert sorted(zip(rows.tolist(), which.tolist(), strict=True)) == sorted(
        (row, item) for row, user in enumerate(asked) for item in items[users == user].tolist()
    )


def test_a_pair_takes_less_than_two_bytes(tmp_path):
    rng = np.random.default_rng(0)
    seen = [np.sort(rng.choice(3000, 150, replace=False)) for _ in range(200)]
    Seen.of(np.repeat(np.arange(200), 150), np.concatenate(seen), 200, 3000).save(tmp_path)
    assert (tmp_path / SEEN).stat().st_size < 0.9 * 200 * 150
    assert not (tmp_path / RATINGS).exists()


def test_files_that_do_not_fit_are_errors(tmp_path):
    Seen.of(*pairs(5, 9, 20), 5, 9, np.ones(20)).save(tmp_path)
    with pytest.raises(
        RunError, match=r"seen\.safetensors has 5 users and items up to \d, the tables have 6 users and 9 items"
    ):
        Seen.read(tmp_path, 6, 9)
    (tmp_path / RATINGS).write_bytes(pack_arrays({"ratings": np.ones(19, np.float32)}))
    with pytest.raises(RunError, match=r"ratings\.safetensors has 19 ratings for 20 pairs"):
        Seen.read(tmp_path, 5, 9)
    (tmp_path / SEEN).write_bytes(pack_arrays({"counts": pack_varints(np.full(5, 4)), "gaps": pack_varints(np.ones(19, int))}))
    with pytest.raises(RunError, match=r"seen\.safetensors is damaged: it has 19 items, expected 20"):
        Seen.read(tmp_path, 5, 9)


def test_popularity_is_a_byte_an_item_that_keeps_the_order(tmp_path):
    counts = np.array([0, 1, 2, 3, 10, 11, 500, 3000])
    write_popularity(tmp_path, popularity_of(counts))
    found = read_popularity(tmp_path, None, len(counts))
    assert found[0] == 0
    assert found[-1] == 1
    assert (np.diff(found) > 0).all()
    np.testing.assert_allclose(found, popularity_of(counts), atol=1 / 500)
