"""TextClassifier: scikit-learn's manners, labels as they were, files."""

import numpy as np
import pytest
from antembed.pipelines import tiny
from antembed.pipelines.classifier import TextClassifier
from antembed.pipelines.text import TextSettings
from sklearn.base import clone, is_classifier
from sklearn.model_selection import GridSearchCV, cross_val_score

from antembed.data.documents import documents_of
from antembed.data.topics import topics

QUICK = {"dimensions": 16, "epochs": 5, "batch_size": 32, "lr": 0.01, "word_dropout": 0.1, "dropout": 0.1}


def test_the_classifier_has_scikit_learns_manners(tmp_path):
    frame = next(topics(500, 200, classes=2, length=20, purity=0.7))
    texts, labels = frame["text"].to_list(), [int(label) for label in frame["class"]]
    model = TextClassifier(model="bag", **QUICK)
    with pytest.raises(ValueError, match="has not been fitted"):
        model.predict(texts)
    assert model.fit(texts, labels) is model
    assert model.score(texts, labels) > 0.9
    assert model.predict(texts).dtype.kind == "i"  # labels come back as they were
    assert np.allclose(model.predict_proba(texts[:5]).sum(1), 1)
    assert model.predict_proba([]).shape == (0, 2)
    assert model.predict(["", None]).shape == (2,)
    model.save(tmp_path / "m")
    again = TextClassifier.load(tmp_path / "m")
    assert np.array_equal(again.predict_proba(texts), model.predict_proba(texts))
    assert again.predict(texts).dtype.kind == "i"
    with pytest.raises(ValueError, match="overwrite=True"):
        model.save(tmp_path / "m")
    model.save(tmp_path / "m", overwrite=True)
    assert model.set_params(l1=1e-3).get_params()["l1"] == 1e-3
    with pytest.raises(ValueError, match="500 texts but 2 labels"):
        model.fit(texts, [1, 2])
    with pytest.raises(TypeError, match="a list of texts"):
        model.predict("one text")


def test_a_tiny_classifier_in_python(tmp_path):
    frame = next(topics(400, 200, classes=2, length=20, purity=0.7))
    model = TextClassifier(model="tiny", size="2KB").fit(frame["text"], frame["class"].to_list())
    assert model.score(frame["text"], frame["class"].to_list()) > 0.9
    model.save(tmp_path / "m")
    assert np.array_equal(TextClassifier.load(tmp_path / "m").predict(frame["text"]), model.predict(frame["text"]))


def test_documents_without_a_class_are_no_errors_of_a_tiny_classifier(tmp_path):
    frame = next(topics(400, 100, classes=2, length=20, purity=0.8))
    labels = [label if n % 2 else None for n, label in enumerate(frame["class"].to_list())]
    model = TextClassifier(model="tiny", size="2KB").fit(frame["text"], labels)
    assert model.result_["test"]["accuracy"] > 0.8
    assert model.result_["test"]["examples"] == 20
    with pytest.raises(ValueError, match="0 are of a class that is trained"):
        tiny.train(TextSettings(data="", model="tiny"), tmp_path / "r", learned=documents_of(["a"] * 20, ["x", "y"] * 10),
                   test=documents_of(["a"], classes=["x", "y"]))  # fmt: skip


def test_labels_come_back_as_they_were():
    frame = next(topics(200, 60, classes=2, length=20, purity=0.9))
    for kind in (bool, float, str, int, np.uint8, np.float32, np.bool_, np.str_):
        labels = [kind(label - 1) for label in frame["class"].to_list()]
        found = TextClassifier(model="tiny", size="1KB").fit(frame["text"], labels).predict(frame["text"])
        assert np.mean(found == np.array(labels)) > 0.9, kind


def test_budgets_set_later_are_budgets():
    assert TextClassifier().set_params(budget="20KB").settings.stored == TextClassifier(budget="20KB").settings.stored == "int8"
    assert TextClassifier(choice="frequency", relations="wordnet").settings.relations == ("wordnet",)


def test_scikit_learn_clones_validates_and_searches():
    frame = next(topics(300, 100, classes=2, length=20, purity=0.8))
    texts, labels = frame["text"].to_list(), frame["class"].to_list()
    model = TextClassifier(model="tiny", size="1KB", text=("title", "text"))
    assert is_classifier(model)
    assert clone(model).get_params() == model.get_params()
    assert cross_val_score(model, texts, labels, cv=2).min() > 0.8
    found = GridSearchCV(model, {"size": ["0.6KB", "1KB"]}, cv=2).fit(texts, labels)
    assert found.best_estimator_.settings.size == found.best_params_["size"]
    assert found.score(texts, labels) > 0.8


def test_many_classes_of_few_documents_are_judged_too():
    texts = [f"word{n % 30} other{n}" for n in range(90)]
    model = TextClassifier(model="tiny", size="3KB").fit(texts, [n % 30 for n in range(90)])
    assert model.result_["test"]["examples"] == 9
    assert model.result_["bytes"] <= 3000  # six anchors a class would take more than 10 000
    assert model.score(texts, [n % 30 for n in range(90)]) > 0.5  # by chance .03


def test_missing_labels_are_left_out_and_strange_ones_refused():
    frame = next(topics(200, 60, classes=2, length=20, purity=0.9))
    texts, labels = frame["text"].to_list(), [float(label) for label in frame["class"]]
    for missing in (None, float("nan"), np.float64("nan")):
        some = [missing if n % 4 == 0 else label for n, label in enumerate(labels)]
        model = TextClassifier(model="tiny", size="1KB").fit(texts, some)
        assert model.classes_.tolist() == [1.0, 2.0]
        assert model.score(texts, some) > 0.9  # of those that there are
    assert TextClassifier(model="tiny", size="1KB").fit(texts, np.array(labels)[:, None]).score(texts, labels) > 0.9
    assert TextClassifier(model="tiny", size="1KB").fit(texts, [1, 2.0] * 100).classes_.tolist() == [1.0, 2.0]
    for wrong, told in (([b"x"] * 200, "not bytes"), ([(1,)] * 200, "not tuple"), ([1, "a"] * 100, "not int and str")):
        with pytest.raises(TypeError, match=f"labels are text, numbers or booleans, all of one type, {told}; convert them"):
            TextClassifier(model="tiny").fit(texts, wrong)
    with pytest.raises(ValueError, match=r"labels have the shape \(100, 2\); give one for each text: \(100,\)"):
        TextClassifier(model="tiny").fit(texts[:100], np.ones((100, 2)))
    with pytest.raises(ValueError, match="of 200 labels 0 are there to be compared with"):
        model.score(texts, [None] * 200)


def test_numbers_of_numpy_are_numbers():
    frame = next(topics(200, 60, classes=2, length=20, purity=0.9))
    found = TextClassifier(model="bag", **QUICK | {"epochs": np.int64(1), "anchors": np.int32(3), "l1": np.float32(1e-4)})
    found.fit(frame["text"], frame["class"].to_list())
    assert type(found.get_params()["anchors"]) is int
    assert TextClassifier(model="tiny", size=1000).settings.size == "1000B"
    with pytest.raises(ValueError, match=r"\[1\] is no budget|'\[1\]' is no budget"):
        TextClassifier(budget=[1])
