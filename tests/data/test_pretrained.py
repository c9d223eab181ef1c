"""Pretrained vectors: every format gives the same, words without one are handled and counted, bad lines are named."""

import gzip
import tracemalloc

import numpy as np
import pytest
from safetensors.numpy import save_file

from antembed.data.text_file import DataError
from antembed.data.vector_files import read_vectors

LISTED = ["the", "dog", "café", "New York", "cat", "dog"]
WORDS = ["<pad>", "<unk>", "cat", "café", "New York", "unheard", "dog"]
TABLE = np.arange(18, dtype=np.float32).reshape(6, 3) / 8 - 1


def lines(blank=""):
    return [f"{word} {' '.join(f'{x:.4f}' for x in row)}{blank}" for word, row in zip(LISTED, TABLE, strict=True)]


def write(folder, form):
    path = folder / "vectors"
    if form == "npy":
        path = path.with_suffix(".npy")
        np.save(path, TABLE)
    elif form == "safetensors":
        path = path.with_suffix(".safetensors")
        save_file({"weight": TABLE, "bias": np.zeros(3)}, path)
    else:
        header = ["6 3"] if "header" in form else []
        text = "\n".join(header + lines(" " if "blanks" in form else "")).encode()
        path.write_bytes(gzip.compress(text) if "gz" in form else text + b"\n")
        return path
    (folder / "words.txt").write_text("\n".join(LISTED) + "\n")
    return path


@pytest.mark.parametrize("form", ["glove", "glove gz", "header", "header blanks gz", "npy", "safetensors"])
def test_every_format_gives_the_same(tmp_path, form):
    found = read_vectors(write(tmp_path, form), WORDS)
    assert found.vectors.dtype == np.float32
    np.testing.assert_array_equal(found.found, [False, False, True, True, True, False, True])
    assert found.missing == 3
    np.testing.assert_array_equal(found.vectors[found.found], TABLE[[4, 2, 3, 1]])  # of two dogs the first
    assert not found.vectors[~found.found].any()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("dog 1 2 3\ncat 1 2\n", r"line 2: 2 numbers, the first vector has 3"),
        ("dog 1 2 3\ncat .1 2 3 4\n", r"line 2: 4 numbers, the first vector has 3"),
        ("dog 1 2 3\ncat 1 two 3\n", r"line 2: 'two' is no number"),
        ("dog 1 2 3\ncat 1 nan 3\n", "a vector has inf or nan in it"),
        ("2 3\ndog 1 2 3\ncat 1 2\n", r"line 3: 2 numbers, the first line says 3"),
        ("3 3\ndog 1 2 3\ncat 1 2 3\n", r"has 3 vectors, and has 2"),
        ("dog\ncat\n", r"line 1: no word and numbers"),
        ("he 1 2 3\nshe 1 2 3\n", r"vectors of 0 of the 7 words"),
    ],
)
def test_bad_text_is_named(tmp_path, text, complaint):
    (tmp_path / "vectors.txt").write_text(text)
    with pytest.raises(DataError, match=complaint):
        read_vectors(tmp_path / "vectors.txt", WORDS)


def test_bad_arrays_are_named(tmp_path):
    path = write(tmp_path, "npy")
    save_file({"a": TABLE, "b": TABLE}, tmp_path / "two.safetensors")
    with pytest.raises(DataError, match="has 2 tables"):
        read_vectors(tmp_path / "two.safetensors", WORDS)
    (tmp_path / "words.txt").write_text("dog\ncat\n")
    with pytest.raises(DataError, match=r"words\.txt has 2 words for 6 vectors"):
        read_vectors(path, WORDS)
    (tmp_path / "words.txt").unlink()
    with pytest.raises(DataError, match=r"no words\.txt or .* beside it"):
        read_vectors(path, WORDS)
    (tmp_path / "words.txt").write_text("\n".join(LISTED))
    np.save(path, np.full((6, 3), np.nan))
    with pytest.raises(DataError, match="inf or nan"):
        read_vectors(path, WORDS)


def test_files_are_found_where_the_data_are(tmp_path, monkeypatch):
    (tmp_path / "glove").mkdir()
    (tmp_path / "glove" / "vectors.txt").write_text("dog 1 2 3\n")
    monkeypatch.setenv("ANTEMBED_DATA", str(tmp_path))
    assert read_vectors("glove/vectors.txt", ["dog"]).found.all()
    with pytest.raises(DataError, match=r"glove/none\.npy is no file, neither here nor in .*; put the vectors there"):
        read_vectors("glove/none.npy", ["dog"])


def test_a_large_text_is_never_held(tmp_path):
    row = " ".join(["0.12345678"] * 300)
    with open(tmp_path / "large.txt", "w") as file:
        file.writelines(f"word{n} {row}\n" for n in range(2500))
    tracemalloc.start()
    assert read_vectors(tmp_path / "large.txt", ["word2499"]).found.all()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3e6 < 8e6 < (tmp_path / "large.txt").stat().st_size


@pytest.mark.shared_data
def test_glove_itself(shared_data):
    found = read_vectors(shared_data / "glove-6b-50d-100k" / "vectors.npy", ["<pad>", "the", "cat", "dog", "economics"])
    assert found.missing == 1
    unit = found.vectors[1:] / np.linalg.norm(found.vectors[1:], axis=1, keepdims=True)
    assert unit[1] @ unit[2] > 0.9 > unit[1] @ unit[3]
