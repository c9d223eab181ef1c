"""Documents from the cache are those of the file, mapped; a run on them ends in the same bytes."""

from dataclasses import fields
from unittest import mock

import numpy as np
import pytest

from antembed.classify import config as text_config
from antembed.classify import documents as document_cache
from antembed.classify.documents import Documents, cached_documents, read_documents
from antembed.train.configure import configure
from antembed.train.registry import TASKS
from antembed.train.run import train


@pytest.fixture
def file(tmp_path):
    random = np.random.default_rng(0)
    words = np.array([f"w{number}" for number in range(40)])
    lines = [" ".join(random.choice(words, random.integers(0, 9))) + f",c{row % 3}" for row in range(120)]
    (tmp_path / "t.csv").write_text("\n".join(["text,label", *lines]) + "\n")
    return tmp_path / "t.csv"


@pytest.fixture
def always_cached():
    with mock.patch.object(document_cache, "CACHED_FROM", 0):
        yield


def assert_same(found: Documents, wanted: Documents) -> None:
    for field in fields(Documents):
        one, other = getattr(found, field.name), getattr(wanted, field.name)
        if field.name == "vocabulary":
            assert one.words == other.words
            assert one.documents == other.documents
            assert np.array_equal(one.counts, other.counts)
            assert np.array_equal(one.document_counts, other.document_counts)
        elif isinstance(other, np.ndarray):
            assert one.dtype == other.dtype
            assert np.array_equal(one, other)
        else:
            assert one == other, field.name


def test_cached_documents_are_those_of_the_file(file, tmp_path, always_cached):
    cache, wanted = tmp_path / "cache", read_documents(file, min_count=2, length=5)
    first = cached_documents(file, cache, min_count=2, length=5)
    with mock.patch.object(document_cache, "read_documents", None):  # it is not read again
        again = cached_documents(file, cache, min_count=2, length=5)
    for found in (first, again):
        assert_same(found, wanted)
        assert not found.tokens.flags.writeable  # mapped
    known = {"vocabulary": wanted.vocabulary, "classes": ["c0", "c1"]}
    assert_same(cached_documents(file, cache, **known), read_documents(file, **known))
    assert len(list(cache.glob("documents-*"))) == 2


def test_damaged_entries_are_written_anew(file, tmp_path, always_cached):
    cache = tmp_path / "cache"
    wanted = read_documents(file)
    for name in ("tokens", "starts", "labels", "counts", "words.parquet", "about.json"):
        cached_documents(file, cache)
        (entry,) = cache.glob("documents-*")
        damaged = bytearray((entry / name).read_bytes())
        damaged[len(damaged) // 2] ^= 1
        (entry / name).write_bytes(damaged)
        assert_same(cached_documents(file, cache), wanted)


def test_documents_without_words_and_small_files(tmp_path, always_cached):
    (tmp_path / "empty.csv").write_text("text,label\n,a\n,b\n")
    assert_same(cached_documents(tmp_path / "empty.csv", tmp_path / "cache"), read_documents(tmp_path / "empty.csv"))
    with mock.patch.object(document_cache, "CACHED_FROM", 1000):
        cached_documents(tmp_path / "empty.csv", tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_run_on_mapped_documents_ends_in_the_same_bytes(file, tmp_path, monkeypatch):
    monkeypatch.setenv("ANTEMBED_CACHE", str(tmp_path / "cache"))
    for kind, size in (("read", 1 << 30), ("mapped", 0)):
        text_config._read.cache_clear()
        with mock.patch.object(document_cache, "CACHED_FROM", size):
            given = {"data": str(file), "model": "mean", "anchors": "3", "embedding_dim": 4, "epochs": 2, "l1_penalty": 1e-4}
            config, splits = configure(TASKS["classify"], given, search=False)
            assert splits.train.documents.tokens.flags.writeable == (kind == "read")
            train(config, tmp_path / kind, splits=splits)
    text_config._read.cache_clear()
    assert (tmp_path / "read" / "words.ant").read_bytes() == (tmp_path / "mapped" / "words.ant").read_bytes()
