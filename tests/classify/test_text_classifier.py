"""TextClassifier and HashedNgramClassifier: scikit-learn's manners, labels as they were, files."""

import numpy as np
import pytest
from sklearn.base import clone, is_classifier
from sklearn.model_selection import GridSearchCV, cross_val_score
from tests.synthetic_text import topics

from antembed.classify.classifier import HashedNgramClassifier, TextClassifier
from antembed.train.options import ConfigError

OPTIONS = {"batch_size": 32, "lr": 0.01, "word_dropout": 0.1, "dropout": 0.1}
MEAN = {"model": "mean", "embedding_dim": 16, "epochs": 5, "options": OPTIONS}
BOTH = pytest.mark.parametrize(
    ("kind", "options"), [(TextClassifier, MEAN), (HashedNgramClassifier, {"budget": "2KB"})], ids=["text", "ngrams"]
)


def data(n=400, words=200, purity=0.7):
    frame = next(topics(n, words, classes=2, length=20, purity=purity))
    return frame["text"].to_list(), [int(label) for label in frame["class"]]


@BOTH
def test_the_classifiers_have_scikit_learns_manners(kind, options, tmp_path):
    texts, labels = data(500)
    model = kind(**options)
    with pytest.raises(ValueError, match="has not been fitted"):
        model.predict(texts)
    assert model.fit(texts, labels) is model
    assert model.score(texts, labels) > 0.9
    assert model.predict(texts).dtype.kind == "i"  # labels come back as they were
    assert np.allclose(model.predict_proba(texts[:5]).sum(1), 1)
    assert model.predict_proba([]).shape == (0, 2)
    assert model.predict(["", None]).shape == (2,)
    model.save(tmp_path / "m")
    again = kind.load(tmp_path / "m")
    assert np.array_equal(again.predict_proba(texts), model.predict_proba(texts))
    assert np.array_equal(again.predict(texts), model.predict(texts))
    assert again.predict(texts).dtype.kind == "i"
    assert again.get_params() == model.get_params()
    assert again.result_ == model.result_
    with pytest.raises(ValueError, match="overwrite=True"):
        model.save(tmp_path / "m")
    model.save(tmp_path / "m", overwrite=True)
    assert model.set_params(seed=3).get_params()["seed"] == 3
    with pytest.raises(ValueError, match="500 texts but 2 labels"):
        model.fit(texts, [1, 2])
    with pytest.raises(TypeError, match="a list of texts"):
        model.predict("one text")


def test_a_folder_of_the_other_task_is_refused(tmp_path):
    texts, labels = data(100)
    TextClassifier(**MEAN | {"epochs": 1}).fit(texts, labels).save(tmp_path / "text")
    HashedNgramClassifier(budget="1KB").fit(texts, labels).save(tmp_path / "ngrams")
    assert TextClassifier.load(tmp_path / "ngrams").score(texts, labels) > 0.8  # as it makes them itself
    with pytest.raises(ValueError, match="text is a run of classify, not of classify-ngrams"):
        HashedNgramClassifier.load(tmp_path / "text")
    (tmp_path / "none").mkdir()
    with pytest.raises(ValueError, match=r"is no run: it has no config\.json"):
        TextClassifier.load(tmp_path / "none")


def test_documents_without_a_class_are_no_errors_of_an_ngram_classifier():
    texts, labels = data(400, 100, 0.8)
    model = HashedNgramClassifier(budget="2KB").fit(texts, [label if n % 2 else None for n, label in enumerate(labels)])
    assert model.result_["test"]["accuracy"] > 0.8
    assert model.result_["test"]["examples"] == 20


def test_labels_come_back_as_they_were():
    texts, numbers = data(200, 60, 0.9)
    for kind in (bool, float, str, int, np.uint8, np.float32, np.bool_, np.str_):
        labels = [kind(label - 1) for label in numbers]
        found = HashedNgramClassifier(budget="1KB").fit(texts, labels).predict(texts)
        assert np.mean(found == np.array(labels)) > 0.9, kind


def test_budgets_set_later_are_budgets():
    for model in (TextClassifier(model="mean").set_params(budget="20KB"), TextClassifier(model="mean", budget="20KB")):
        assert (model.config.values, model.config.encoding) == ("int8", "packed")
    assert TextClassifier(options={"anchor_init": "frequency", "relations": "wordnet"}).config.anchors.relations == ("wordnet",)


def test_options_of_the_other_classifier_are_refused():
    with pytest.raises(TypeError, match="'ngrams'"):
        TextClassifier(ngrams=1)
    with pytest.raises(TypeError, match="'anchors'"):
        HashedNgramClassifier(anchors=4)
    with pytest.raises(ValueError, match="TextClassifier has no option 'ngrams'"):
        TextClassifier(options={"ngrams": 1})
    model = TextClassifier(options={"l1_penalty": 1e-4})
    with pytest.raises(ConfigError, match="l1_penalty must be ≥ 0, got -1"):
        model.set_params(l1_penalty=-1)
    assert model.get_params()["options"] == {"l1_penalty": 1e-4}


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        pytest.param(TextClassifier, MEAN, id="text"),
        pytest.param(HashedNgramClassifier, {"budget": "2KB"}, id="ngrams", marks=pytest.mark.slow),
    ],
)
def test_scikit_learn_clones_validates_and_searches(kind, options):
    texts, labels = data(200, 60, 0.9)
    model = kind(**options, seed=4)
    assert is_classifier(model)
    copy = clone(model)
    assert copy is not model
    assert copy.get_params() == model.get_params()
    assert clone(model.fit(texts, labels)).get_params() == model.get_params()
    assert not hasattr(clone(model), "model_")
    assert cross_val_score(model, texts, labels, cv=2).min() > 0.8
    values = {"l1_penalty": [1e-4, 10.0]} if kind is TextClassifier else {"budget": ["0.6KB", "1KB"]}
    ((name, (first, _)),) = values.items()
    found = GridSearchCV(model, values, cv=2).fit(texts, labels)
    assert found.best_estimator_.given[name] == found.best_params_[name]
    assert kind is HashedNgramClassifier or found.best_params_[name] == first  # the other leaves nothing of the words
    assert found.score(texts, labels) > 0.8


@pytest.mark.parametrize(
    "options",
    [{}, {"anchors": "auto"}, {"anchors": "auto", "options": {"growth": "trend", "anchor_step": 2}}, {"embedding": "full"},
     {"options": {"optimizer": "sgd"}}, {"options": {"schedule": "halving", "halve_every": 7}},
     {"options": {"anchor_init": "frequency", "relations": ("wordnet",)}}, {"budget": "40x"}],
)  # fmt: skip
def test_clones_have_all_options_whatever_goes_with_them(options):
    model = TextClassifier(**options)
    assert clone(model).get_params() == model.get_params()
    assert clone(model).config == model.config
    assert model.set_params(seed=1).get_params() == model.get_params() | {"seed": 1}


def test_many_classes_of_few_documents_are_evaluated_too():
    texts = [f"word{n % 30} other{n}" for n in range(90)]
    model = HashedNgramClassifier(budget="3KB").fit(texts, [n % 30 for n in range(90)])
    assert model.result_["test"]["examples"] == 9
    assert model.result_["bytes"] <= 3000  # six anchors a class would take more than 10 000
    assert model.score(texts, [n % 30 for n in range(90)]) > 0.5  # by chance .03


def test_missing_labels_are_left_out_and_strange_ones_refused():
    texts, labels = data(200, 60, 0.9)
    labels = [float(label) for label in labels]
    for missing in (None, float("nan"), np.float64("nan")):
        some = [missing if n % 4 == 0 else label for n, label in enumerate(labels)]
        model = HashedNgramClassifier(budget="1KB").fit(texts, some)
        assert model.classes_.tolist() == [1.0, 2.0]
        assert model.score(texts, some) > 0.9  # of those that there are
    assert HashedNgramClassifier(budget="1KB").fit(texts, np.array(labels)[:, None]).score(texts, labels) > 0.9
    assert HashedNgramClassifier(budget="1KB").fit(texts, [1, 2.0] * 100).classes_.tolist() == [1.0, 2.0]
    for wrong, told in (([b"x"] * 200, "not bytes"), ([(1,)] * 200, "not tuple"), ([1, "a"] * 100, "not int and str")):
        with pytest.raises(TypeError, match=f"labels are text, numbers or booleans, all of one type, {told}; convert them"):
            HashedNgramClassifier().fit(texts, wrong)
    with pytest.raises(ValueError, match=r"labels have the shape \(100, 2\); give one for each text: \(100,\)"):
        HashedNgramClassifier().fit(texts[:100], np.ones((100, 2)))
    with pytest.raises(ValueError, match="of 200 labels 0 are there to be compared with"):
        model.score(texts, [None] * 200)


def test_numbers_of_numpy_are_numbers():
    texts, labels = data(200, 60, 0.9)
    found = TextClassifier(
        model="mean",
        embedding_dim=16,
        epochs=np.int64(1),
        anchors=np.int32(3),
        options=OPTIONS | {"l1_penalty": np.float32(1e-4)},
    )
    found.fit(texts, labels)
    assert found.config.anchors.anchors == (3,)
    assert type(found.config.anchors.anchors[0]) is int
    assert HashedNgramClassifier(budget=1000).config.solver.budget == "1000B"
    with pytest.raises(ValueError, match=r"budget \[1\]"):
        TextClassifier(budget=[1])
