"""What is known of words: which are anchors, which are related to them, and what a run says of its anchors afterwards."""

from unittest import mock

import numpy as np
import pytest
from tests.synthetic_text import write_topics

from antembed.classify.config import TextConfig
from antembed.classify.documents import read_documents
from antembed.classify.task import Text
from antembed.layer.anchors.initializers import INITIALIZERS, Initializer
from antembed.tasks import explain
from antembed.train.options import from_options
from antembed.train.run import load_model, train
from antembed.train.run_folder import RunFolder

QUICK = {"model": "mean", "embedding_dim": 16, "epochs": 1, "batch_size": 32, "lr": 0.01, "word_dropout": 0.1, "dropout": 0.1}


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "train.csv"
    write_topics(path, 600, 300, classes=3, length=20, purity=0.6)
    return read_documents(path)


def run(out, documents, **options):
    config = from_options(TextConfig, {"l1_penalty": 1e-4, "anchors": 4} | QUICK | options)
    return train(config, out, splits=Text().split(config, documents))


def facts(run):
    return RunFolder(run).open()[1]


def test_related_entries_alone_survive_a_high_penalty(documents, tmp_path):
    words = documents.vocabulary.words
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("".join(f"{words[2]},{words[n]}\n" for n in (10, 11, 12)))
    related = {"anchor_init": "frequency", "anchors": 3, "relations": (str(pairs),)}
    run(tmp_path / "r", documents, **related, l1_penalty=10.0, prune=0.0, epochs=3)
    T = load_model(tmp_path / "r").words.transform
    kept = {tuple(entry) for entry in T.nonzero().tolist()}
    free = {(2, 0), (3, 1), (4, 2), (10, 0), (11, 0), (12, 0)}
    assert kept <= free  # a gradient may have brought one of them to zero, but no other entry can be left
    assert len(kept) >= 4
    assert facts(tmp_path / "r")["free_entries"] == len(free)


def test_a_new_initializer_is_one_entry(documents, tmp_path, monkeypatch):
    """One entry in the dict, and a run may ask for it; what it requires is gathered for it."""
    monkeypatch.setenv("ANTEMBED_CACHE", str(tmp_path / "cache"))
    seen = []

    def longest(statistics, K, seed):
        seen.append(statistics)
        return 2 + np.argsort(-np.linalg.norm(statistics.features[2:], axis=1))[:K]

    with mock.patch.dict(INITIALIZERS, longest=Initializer(longest, frozenset({"features"}))):
        run(tmp_path / "r", documents, anchor_init="longest")
        words = documents.vocabulary.words
        assert facts(tmp_path / "r")["anchor_words"] == [words[i] for i in longest(seen[0], 4, 0)]
    assert seen[0].scores is None  # no model was trained for it


@pytest.mark.parametrize("choice", ["tf-idf", "kmeans", "frequency-kmeans", "coreset", "random", "group-lasso", "vvd"])
def test_anchors_are_chosen_among_the_words(choice, documents, tmp_path, monkeypatch):
    monkeypatch.setenv("ANTEMBED_CACHE", str(tmp_path / "cache"))
    run(tmp_path / "r", documents, anchor_init=choice)
    chosen = facts(tmp_path / "r")["anchor_words"]
    assert len(set(chosen)) == 4
    assert set(chosen) <= set(documents.vocabulary.words[2:])


def test_anchors_are_selected_whatever_else_is_known(documents, tmp_path):
    assert run(tmp_path / "r", documents, anchor_init="group-lasso", orthogonality_penalty=0.1)["anchors"] > 0


def test_explain_names_anchors_words_and_rows_of_zeros(documents, tmp_path):
    run(tmp_path / "r", documents, anchor_init="frequency", anchors=3, l1_penalty=1e-2, epochs=3)
    found, lines = explain(tmp_path / "r", 4, None)
    words = documents.vocabulary.words[2:5]
    assert [anchor["word"] for anchor in found["anchors"]] == words
    assert [line.partition(":")[0] for line in lines if line.startswith("anchor ")] == [
        f"anchor {k} ({word})" for k, word in enumerate(words)
    ]
    T = load_model(tmp_path / "r").words.transform[2:]
    assert found["zero_rows"]["words"] == int((T == 0).all(1).sum())
    assert found["largest"][0][2] >= found["largest"][-1][2]
