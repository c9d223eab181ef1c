"""Corpora: layouts, vocabularies, compressed files, the cache; what is wrong with a folder is said."""

import gzip
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zstandard

from antembed.data.text_file import DataError
from antembed.language.corpus import corpus_of, read_corpus, words_of_text

TRAIN = "the cat sat on the mat\n\nthe <unk> sat :: there\n"


@pytest.fixture
def folder(tmp_path):
    for name, text in (("train", TRAIN), ("valid", "the dog sat\n"), ("test", "a mat\n")):
        (tmp_path / f"wiki.{name}.tokens").write_text(text)
    return tmp_path


def words(corpus, part):
    return [corpus.vocabulary.words[n] for n in part]


def test_a_folder_has_its_parts(folder, tmp_path):
    corpus = read_corpus(folder, cache=tmp_path / "cache")
    assert words(corpus, corpus.train) == TRAIN.replace("\n", " <eos> ").split()
    assert words(corpus, corpus.validation) == ["the", "dog", "sat", "<eos>"]
    assert words(corpus, corpus.test) == ["a", "mat", "<eos>"]  # words of all parts are known
    assert corpus.vocabulary.words[:4] == ["<pad>", "<unk>", "<eos>", "the"]
    assert corpus.vocabulary.counts[1:4].tolist() == [1, 3, 3]
    assert isinstance(corpus.train, np.memmap)


def test_it_is_read_once(folder, tmp_path, monkeypatch):
    first = read_corpus(folder, cache=tmp_path / "cache")
    monkeypatch.setattr("antembed.language.corpus._encode", lambda *_: pytest.fail("read again"))
    again = read_corpus(folder, cache=tmp_path / "cache")
    np.testing.assert_array_equal(first.train, again.train)
    assert first.digest == again.digest


def test_rare_words_are_unknown(folder, tmp_path):
    corpus = read_corpus(folder, min_count=2, cache=tmp_path / "cache")
    assert corpus.vocabulary.words == ["<pad>", "<unk>", "<eos>", "the", "sat"]
    assert words(corpus, corpus.test) == ["<unk>", "<unk>", "<eos>"]
    few = read_corpus(folder, max_vocab=1, cache=tmp_path / "cache")
    assert few.vocabulary.words == ["<pad>", "<unk>", "<eos>"]
    assert few.vocabulary.counts.sum() == len(few.train)


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.compress])
def test_one_file_is_cut_in_its_order(tmp_path, pack):
    text = " ".join(f"w{n}" for n in range(1000))
    (tmp_path / "text8").write_bytes(pack(text.encode()))
    corpus = read_corpus(tmp_path / "text8", cache=tmp_path / "cache")
    assert [len(corpus.train), len(corpus.validation), len(corpus.test)] == [900, 50, 50]
    assert words(corpus, np.concatenate([corpus.train, corpus.validation, corpus.test])) == text.split()
    assert "<eos>" not in corpus.vocabulary.words  # it has no lines


def test_words_in_memory_are_those_of_a_file(folder, tmp_path):
    parts = {"train": words_of_text(TRAIN), "validation": words_of_text("the dog sat\n"), "test": words_of_text("a mat\n")}
    here, there = corpus_of(parts), read_corpus(folder, cache=tmp_path / "cache")
    assert here.vocabulary.words == there.vocabulary.words
    for part in ("train", "validation", "test"):
        np.testing.assert_array_equal(vars(here)[part], vars(there)[part])


def test_what_is_wrong_is_said(tmp_path):
    with pytest.raises(DataError, match="neither a file nor a folder"):
        read_corpus(tmp_path / "none")
    (tmp_path / "valid.txt").write_text("a\n")
    with pytest.raises(DataError, match=r"needs a file for training .*valid.txt"):
        read_corpus(tmp_path)
    (tmp_path / "a-train.txt").write_text("a\n")
    (tmp_path / "b-train.txt").write_text("a\n")
    with pytest.raises(DataError, match=r"2 files for train: a-train\.txt, b-train\.txt"):
        read_corpus(tmp_path)
    (tmp_path / "latin.txt").write_bytes("café au lait\n".encode("latin-1"))
    with pytest.raises(DataError, match="no UTF-8 text"):
        read_corpus(tmp_path / "latin.txt", cache=tmp_path / "cache")


def test_the_official_files_of_wikitext():
    place = os.environ.get("ANTEMBED_DATA", "")
    folder = Path(place) / "wikitext-103"
    if not place or not folder.is_dir():
        pytest.skip("ANTEMBED_DATA has no wikitext-103")
    corpus = read_corpus(folder / "wiki.valid.tokens")
    assert len(corpus) == 217_646  # as published, with <eos>


READ_ALL = """
import sys
from pathlib import Path
from antembed.language.corpus import read_corpus
from antembed.language.config import LanguageConfig
from antembed.language.dataset import make_splits

def held():  # without pages of mapped files
    return next(int(line.split()[1]) for line in Path("/proc/self/status").open() if line.startswith("RssAnon")) >> 10

folder, most = Path(sys.argv[1]), 0
read_corpus(folder / "small.txt", cache=folder / "cache")  # kernels are compiled
before = held()
corpus = read_corpus(folder / "large.txt", cache=folder / "cache")
for n, (inputs, _, _) in enumerate(make_splits(corpus, LanguageConfig()).train.batches(35_000)):
    most = max(most, held()) if n % 50 == 0 else most
print(len(corpus.train), most - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_a_corpus_needs_no_memory_of_its_size(tmp_path):
    """60 MB of text, 42 MB of ids, read and trained on within 30 MB."""
    lines = "\n".join(" ".join(f"w{(7 * n + k) % 5000}" for k in range(20)) for n in range(2000)) + "\n"
    (tmp_path / "small.txt").write_text(lines)
    with (tmp_path / "large.txt").open("w") as file:
        for _ in range(250):
            file.write(lines)
    assert (tmp_path / "large.txt").stat().st_size > 55e6
    done = subprocess.run([sys.executable, "-c", READ_ALL, str(tmp_path)], capture_output=True, text=True, check=True)
    words, megabytes = map(int, done.stdout.split())
    assert words > 9_000_000
    assert megabytes < 30, f"{megabytes} MB for ids of {words * 4 >> 20} MB"


def test_lines_without_words_are_no_corpus(tmp_path):
    (tmp_path / "blank.txt").write_text("\n" * 1000)
    with pytest.raises(DataError, match="has no words to train on"):
        read_corpus(tmp_path / "blank.txt")
