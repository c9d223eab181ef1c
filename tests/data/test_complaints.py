"""What is said about data before training: assumptions, single documents, cut documents; and tables as texts."""

import numpy as np
import polars as pl
import pytest
from tests.data.pandas_like import DataFrame, Series
from tests.synthetic_text import topics

from antembed.classify.classifier import HashedNgramClassifier, TextClassifier
from antembed.classify.dataset import make_splits
from antembed.classify.documents import documents_of, read_documents
from antembed.data.text_file import DataError
from antembed.recommend.dataset import cut
from antembed.recommend.read_ratings import read_ratings


def test_what_was_assumed_of_ratings(tmp_path):
    (tmp_path / "r.csv").write_text("user;item;rating\n" + "".join(f"{n};{n % 5};{n % 3}\n" for n in range(20)) + "1;2;x\n")
    assumed, skipped = cut(read_ratings(tmp_path / "r.csv", on_error="skip"), "80/10/10", 0).complaints
    assert "read as separator ';'" in assumed
    assert skipped.startswith("skipped 1 rows")


def test_what_was_assumed_of_text(tmp_path):
    (tmp_path / "a.csv").write_bytes("".join(f"{'xy'[n % 2]},Größe\n" for n in range(20)).encode("latin-1"))
    documents = read_documents(tmp_path / "a.csv")
    assert [line.split(": ")[1] for line in make_splits(documents, None, 0).complaints] == [
        "text from column_2, the class from column_1; others with --text, --label",
        "read as Windows-1252 (it is not UTF-8); if that is wrong, convert the file to UTF-8 with commas",
    ]
    assert len(make_splits(documents, documents, 0).complaints) == 3


def test_classes_with_a_single_document():
    documents = documents_of(["a b"] * 60, ["x", "y"] * 28 + ["p", "q", "r", "x"])
    expected = "3 of 5 classes have a single document: they are not learned, or not tested"
    assert make_splits(documents, None, 0).complaints == (expected,)
    assert make_splits(documents_of(["a b"] * 60, ["x", "y"] * 30), None, 0).complaints == ()


@pytest.mark.parametrize(
    ("long", "told"), [(1, ()), (12, ("12 % of the documents are longer than --max-length 5 words and are",))]
)
def test_documents_that_are_cut(long, told):
    texts = ["w " * 9] * long + ["w " * 3] * (100 - long)
    complaints = make_splits(documents_of(texts, ["x", "y"] * 50, length=5), None, 0).complaints
    assert tuple(line.split(" cut; ")[0] for line in complaints) == told
    assert all(line.endswith("95 % have at most 9") for line in complaints)


def test_without_a_class_the_columns_are_named(tmp_path):
    (tmp_path / "a.csv").write_text("id,text,mood\n" + "".join(f"{n},good day,happy\n" for n in range(30)))
    said = r"which column is the class\? It has: id, text, mood; pass label=NAME \(--label NAME\)"
    with pytest.raises(DataError, match=said):
        make_splits(read_documents(tmp_path / "a.csv"), None, 0)


@pytest.mark.parametrize("classifier", [TextClassifier, HashedNgramClassifier])
def test_labels_in_memory_that_are_no_classes(classifier):
    with pytest.raises(DataError, match="has 50 classes in 50 documents, as '0': they number the documents"):
        classifier().fit(["a b"] * 50, list(range(50)))
    with pytest.raises(DataError, match="they are quantities"):
        classifier().fit(["a b"] * 50, np.linspace(0, 1, 50))


@pytest.mark.parametrize("table", [DataFrame, pl.DataFrame])
def test_tables_are_classified(table):
    frame = next(topics(200, 100, classes=2, length=20, purity=0.8))
    texts, labels = table({"text": frame["text"].to_list()}), table({"class": frame["class"].to_list()})
    model = HashedNgramClassifier(budget="1KB").fit(texts, labels)
    assert model.score(texts, labels) > 0.9
    assert (model.predict(texts) == model.predict(Series(frame["text"].to_list()))).all()
    assert model.classes_.tolist() == [1, 2]
    with pytest.raises(ValueError, match="the table of texts has 2 columns: text, n; give one of them"):
        model.predict(table({"text": ["a"], "n": [1]}))
