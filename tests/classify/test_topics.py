"""Synthetic labelled text: the answer that was planted is there, and it is read back whole."""

import numpy as np
import pytest
from tests.synthetic_text import names, topics, write_topics

from antembed.classify.documents import read_documents


def test_words_are_distinct_and_short_first():
    words = names(30_000)
    assert len(set(words)) == 30_000
    assert words[:2] + words[25:28] == ["a", "b", "z", "aa", "ba"]
    assert [len(word) for word in words] == sorted(len(word) for word in words)


def test_every_word_is_met_and_tells_its_class(tmp_path):
    write_topics(tmp_path / "a.csv", 2000, 900, classes=3, length=20, purity=0.5)
    documents = read_documents(tmp_path / "a.csv")
    assert len(documents) == 2000
    assert sorted(documents.vocabulary.words[2:]) == sorted(names(900))
    assert documents.classes == ["1", "2", "3"]
    home = np.array([0, 0, *(names(900).index(word) % 3 for word in documents.vocabulary.words[2:])])
    votes = np.array([np.bincount(home[documents[n]], minlength=3) for n in range(2000)])
    assert (votes.argmax(1) == documents.labels).mean() > 0.95


def test_same_seed_same_text():
    one, two, other = (next(topics(50, 100, seed=seed)) for seed in (1, 1, 2))
    assert one.equals(two)
    assert not one.equals(other)


def test_bad_settings():
    with pytest.raises(ValueError, match=r"got purity 0\.3, 9 classes, V = 5, length 50"):
        next(topics(10, 5, classes=9))
