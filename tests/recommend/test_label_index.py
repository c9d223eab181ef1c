"""Labels are stored once, small, and found without polars as polars finds them."""

from contextlib import suppress

import numpy as np
import polars as pl
import pytest
from tests.recommend.old_folder import write_old_labels

from antembed.tables.row_labels import LabelsError, find, label_file, read_coded, read_series, write_labels

TEXT = ["", "10", "9", "Alien (1979)", "a", "a b", "aa", "zoë", "中文", "👩‍🚀"]
NUMBERS = [-7, 0, 3, 42, 10**12]
ASKED = ["42", "-7", "+3", "3.0", " 3", "4_2", "x", "", "1" * 30, "zoë", "zo", "中文", "a", "\ud800"]


def index(labels, folder):
    write_labels(folder, {"items": labels})
    return read_coded(label_file(folder, "items"))


def find_all(labels, wanted):
    return np.array([labels.find(label) for label in wanted])


@pytest.mark.parametrize(
    "labels",
    [pl.Series(TEXT).sort(), pl.Series(NUMBERS), pl.Series([1, 42], dtype=pl.UInt8), pl.Series([], dtype=pl.String)],
    ids=["text", "numbers", "small numbers", "none"],
)
def test_the_index_finds_what_polars_finds(labels, tmp_path):
    own = index(labels, tmp_path)
    assert [own[row] for row in range(len(own))] == labels.to_list()
    asked = [*map(str, labels.to_list()), *ASKED]
    polars_takes = [text for text in asked if text.isprintable() or not text]
    polars_takes = [text for text in polars_takes if "\ud800" not in text]
    assert find_all(own, polars_takes).tolist() == find(labels, polars_takes).tolist()
    assert find_all(own, ["\ud800"]).tolist() == [-1]
    assert read_series(tmp_path, "items").to_list() == labels.to_list()
    assert read_series(tmp_path, "items").dtype == labels.dtype


def test_random_labels(tmp_path):
    rng = np.random.default_rng(0)
    texts = pl.Series(sorted({"".join(chr(int(c)) for c in rng.integers(97, 103, rng.integers(1, 6))) for _ in range(500)}))
    asked = [*texts.to_list()[::3], *("".join(chr(int(c)) for c in rng.integers(97, 104, 4)) for _ in range(300))]
    assert find_all(index(texts, tmp_path), asked).tolist() == find(texts, asked).tolist()


@pytest.mark.parametrize("labels", [pl.Series([0.5, 1.5]), pl.Series([2**63], dtype=pl.UInt64), pl.Series([], dtype=pl.Int64)])
def test_labels_of_other_kinds_are_in_parquet(labels, tmp_path):
    write_labels(tmp_path, {"items": pl.Series(["a"])})
    write_labels(tmp_path, {"items": labels})
    assert [path.name for path in tmp_path.iterdir()] == ["items.labels.parquet"]
    assert read_series(tmp_path, "items").to_list() == labels.to_list()


def test_labels_are_stored_once_and_small(tmp_path):
    numbers = pl.Series(np.unique(np.random.default_rng(0).integers(0, 4000, 9000)))
    texts = pl.Series([f"user-{n:06}" for n in range(5000)])
    write_old_labels(tmp_path, "items", numbers)
    write_labels(tmp_path, {"items": numbers, "users": texts})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["items.labels.safetensors", "users.labels.safetensors"]
    assert (tmp_path / "items.labels.safetensors").stat().st_size < len(numbers) // 2 + 300  # gaps: less than four bits
    assert (tmp_path / "users.labels.safetensors").stat().st_size < 3 * len(texts)


@pytest.mark.parametrize("labels", [pl.Series(TEXT).sort(), pl.Series(NUMBERS)], ids=["text", "numbers"])
def test_labels_of_older_versions_are_read(labels, tmp_path):
    write_old_labels(tmp_path, "items", labels)
    assert read_series(tmp_path, "items").to_list() == labels.to_list()
    write_old_labels(tmp_path, "items", labels.head(2))  # the copy beside it does not count
    assert read_series(tmp_path, "items").to_list() == labels.head(2).to_list()


def test_damage_is_an_error(tmp_path):
    write_labels(tmp_path, {"users": pl.Series(["a", "b"]), "items": pl.Series([1, 2, 3])})
    for side, wanted in (("users", ["a", "b"]), ("items", [1, 2, 3])):
        path = tmp_path / f"{side}.labels.safetensors"
        stored = path.read_bytes()
        for at in range(0, len(stored), 7):
            path.write_bytes(stored[:at] + bytes([stored[at] ^ 255]) + stored[at + 1 :])
            with suppress(LabelsError):
                found = read_coded(path)
                assert [found[row] for row in range(len(found))] == wanted
        path.write_bytes(stored[:-3])
        with pytest.raises(LabelsError, match=r"labels\.safetensors is damaged .*; copy it again, or export it anew"):
            read_coded(path)


def test_a_damaged_parquet_file_is_an_error(tmp_path):
    write_old_labels(tmp_path, "items", pl.Series([1, 2, 3]))
    parquet = tmp_path / "items.labels.parquet"
    parquet.write_bytes(parquet.read_bytes()[:-20])
    with pytest.raises(LabelsError, match=r"items\.labels\.parquet"):
        read_series(tmp_path, "items")
