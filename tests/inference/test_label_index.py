"""Labels found without polars are those that polars finds."""

import numpy as np
import polars as pl
import pytest

from antembed.inference.label_index import find_all, index_arrays, index_of, read_index, write_indexed_labels
from antembed.labels import LabelsError, find, write_labels

TEXT = ["", "10", "9", "Alien (1979)", "a", "a b", "aa", "zoë", "中文", "👩‍🚀"]
NUMBERS = [-7, 0, 3, 42, 10**12]
ASKED = ["42", "-7", "+3", "3.0", " 3", "4_2", "x", "", "1" * 30, "zoë", "zo", "中文", "a", "\ud800"]


def index(labels):
    arrays = index_arrays(labels)
    assert arrays is not None
    found = index_of({**arrays, "parquet": np.zeros(8, np.uint8)})
    assert found is not None
    return found


@pytest.mark.parametrize(
    "labels",
    [pl.Series(TEXT).sort(), pl.Series(NUMBERS), pl.Series([1, 42], dtype=pl.UInt8), pl.Series([], dtype=pl.String)],
    ids=["text", "numbers", "small numbers", "none"],
)
def test_the_index_finds_what_polars_finds(labels):
    own = index(labels)
    assert [own[row] for row in range(len(own))] == labels.to_list()
    asked = [*map(str, labels.to_list()), *ASKED]
    polars_takes = [text for text in asked if text.isprintable() or not text]
    polars_takes = [text for text in polars_takes if "\ud800" not in text]
    assert find_all(own, polars_takes).tolist() == find(labels, polars_takes).tolist()
    assert find_all(own, ["\ud800"]).tolist() == [-1]


def test_random_labels():
    rng = np.random.default_rng(0)
    texts = pl.Series(sorted({"".join(chr(int(c)) for c in rng.integers(97, 103, rng.integers(1, 6))) for _ in range(500)}))
    asked = [*texts.to_list()[::3], *("".join(chr(int(c)) for c in rng.integers(97, 104, 4)) for _ in range(300))]
    assert find_all(index(texts), asked).tolist() == find(texts, asked).tolist()


@pytest.mark.parametrize("labels", [pl.Series([0.5, 1.5]), pl.Series([2**63], dtype=pl.UInt64)])
def test_other_labels_have_no_index(labels):
    assert index_arrays(labels) is None


def test_an_index_belongs_to_its_parquet_file(tmp_path):
    labels = {"users": pl.Series(["a", "b"]), "items": pl.Series([1, 2, 3])}
    write_indexed_labels(tmp_path, labels)
    found = read_index(tmp_path, "items")
    assert found is not None
    assert [found[row] for row in range(3)] == [1, 2, 3]
    write_labels(tmp_path, {"items": pl.Series([1, 2, 4])})  # an older version writes no index
    assert read_index(tmp_path, "items") is None
    assert read_index(tmp_path, "users") is not None
    write_indexed_labels(tmp_path, {"users": pl.Series([0.5, 1.5])})  # the index of other labels goes
    assert not (tmp_path / "users.labels.safetensors").exists()


def test_a_damaged_index_is_not_used_and_a_damaged_parquet_file_is_an_error(tmp_path):
    write_indexed_labels(tmp_path, {"users": pl.Series(["a", "b"]), "items": pl.Series([1, 2, 3])})
    path = tmp_path / "items.labels.safetensors"
    whole = path.read_bytes()
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
        found = read_index(tmp_path, "items")
        assert found is None or [found[row] for row in range(3)] == [1, 2, 3]
    path.write_bytes(whole)
    parquet = tmp_path / "items.labels.parquet"
    parquet.write_bytes(parquet.read_bytes()[:-20])
    with pytest.raises(LabelsError, match=r"items\.labels\.parquet"):
        read_index(tmp_path, "items")
