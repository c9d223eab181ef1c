"""Documents cut into parts: the same for every model of text, and too few are said to be."""

import numpy as np
import pytest
import torch
from tests.synthetic_text import write_topics

from antembed.classify.config import TextConfig
from antembed.classify.dataset import cut, drop_words
from antembed.classify.documents import documents_of, read_documents
from antembed.classify.task import Text
from antembed.train.options import from_options
from antembed.train.registry import TASKS
from antembed.train.run import train

KINDS = {"cnn": ("classify", {"model": "cnn"}), "mean": ("classify", {"model": "mean"}), "ngrams": ("classify-ngrams", {})}


def texts(part):
    """The words of each document of a part, whatever the vocabulary."""
    if not len(part):
        return []
    names = np.array(part.documents.vocabulary.words, object)
    taken = part.documents.take(part.rows)
    return [" ".join(names[taken[n]]) for n in range(len(taken))]


@pytest.mark.parametrize("seed", [0, 5])
@pytest.mark.parametrize("with_test", [False, True], ids=["held out", "own file"])
def test_every_model_of_text_has_the_same_test_documents(seed, with_test, tmp_path):
    write_topics(tmp_path / "t.csv", 200, 90, classes=2, length=12, purity=0.6)
    write_topics(tmp_path / "u.csv", 30, 90, classes=2, length=12, purity=0.6, seed=1)
    files = {"data": str(tmp_path / "t.csv")} | ({"test": str(tmp_path / "u.csv")} if with_test else {})
    found = {}
    for name, (task, more) in KINDS.items():
        config = from_options(TASKS[task].Config, files | more | {"seed": seed})
        splits = TASKS[task].load(config)
        found[name] = (texts(splits.test), {*texts(splits.train), *texts(splits.validation)})
    assert len(found["cnn"][0]) == (30 if with_test else 20)
    assert found["cnn"] == found["mean"] == found["ngrams"]
    assert with_test or not found["cnn"][1] & set(found["cnn"][0])  # nobody learns what it is tested on


def test_held_out_documents_are_those_of_other_models():
    documents = documents_of([f"w{n}" for n in range(100)], ["x", "y"] * 50)
    parts = {}
    for name, (task, more) in (KINDS | {"held": ("classify-ngrams", {"hold_out": True})}).items():
        splits = TASKS[task].split(from_options(TASKS[task].Config, more | {"seed": 2}), documents)
        parts[name] = {part: splits.part(part).rows.tolist() for part in ("train", "validation", "test")}
    assert parts["held"] == parts["cnn"] == parts["mean"]
    assert parts["ngrams"]["test"] == parts["cnn"]["test"]
    assert sorted(parts["ngrams"]["train"]) == sorted(parts["cnn"]["train"] + parts["cnn"]["validation"])
    assert parts["ngrams"]["validation"] == []


def test_documents_without_a_class_are_in_no_part():
    labels = [None if n % 4 == 0 else "xy"[n % 2] for n in range(80)]
    documents = documents_of([f"w{n}" for n in range(80)], labels)
    rows = cut(documents, None, 0)
    assert sorted(np.concatenate([*rows.values()])) == [n for n in range(80) if n % 4]
    assert {name: len(part) for name, part in rows.items()} == {"validation": 6, "test": 6, "train": 48}


def test_words_are_left_out_by_chance():
    words, starts = torch.arange(1000), torch.tensor([0, 400, 400, 1000])
    torch.manual_seed(0)
    left, places = drop_words(words, starts, 0.3)
    assert 600 < len(left) < 800
    assert places[0] == 0
    assert places[1] == places[2] == int((left < 400).sum())
    assert places[3] == len(left)


@pytest.mark.parametrize("kind", KINDS)
def test_one_class_is_no_task(kind, tmp_path):
    task, more = KINDS[kind]
    config = from_options(TASKS[task].Config, more)
    with pytest.raises(ValueError, match="1 classes"):
        train(config, tmp_path / "r", splits=TASKS[task].split(config, documents_of(["a b", "c"] * 10, ["x"] * 20)))


def test_too_few_documents_are_said_to_be():
    with pytest.raises(ValueError, match="2 documents with a class are too few, 10 are enough"):
        Text().split(from_options(TextConfig, {}), documents_of(["a b", "c"], ["x", "y"]))


@pytest.mark.parametrize("kind", KINDS)
def test_a_test_without_known_classes_is_refused(kind):
    task, more = KINDS[kind]
    config = from_options(TASKS[task].Config, more)
    with pytest.raises(ValueError, match="of 1 test documents 0 are of a class that is trained"):
        TASKS[task].split(config, documents_of(["a"] * 20, ["x", "y"] * 10), documents_of(["a"], classes=["x", "y"]))


def test_which_file_is_learned_is_part_of_what_the_data_are(tmp_path):
    for name, seed, n in (("a", 0, 200), ("b", 1, 80)):
        write_topics(tmp_path / f"{name}.csv", n, 60, classes=3, length=12, purity=0.6, seed=seed)
    a, b = (
        Text().load(from_options(TextConfig, {"data": str(tmp_path / f"{data}.csv"), "test": str(tmp_path / f"{test}.csv")}))
        for data, test in ("ab", "ba")
    )
    assert a.digest != b.digest
    assert (len(a.train) + len(a.validation), len(a.test)) == (200, 80)
    assert (len(b.train) + len(b.validation), len(b.test)) == (80, 200)
    assert read_documents(tmp_path / "a.csv").tokens.tolist() == a.train.documents.tokens.tolist()
