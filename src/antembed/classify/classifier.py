"""Text classifiers in scikit-learn's manners: texts and labels in, classes out. Thin over the tasks of the same names."""

import json
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Literal

import numpy as np

from antembed.classify.config import NgramConfig, TextConfig, search_ngrams
from antembed.classify.dataset import TextSplits
from antembed.classify.documents import documents_of
from antembed.classify.ngram_task import HashedNgramTask
from antembed.classify.predictor import WordPredictor
from antembed.classify.task import Text, open_predictor
from antembed.data.frames import texts_from, values_from
from antembed.files import write_atomically
from antembed.tables.container import pack_arrays
from antembed.tables.model_folder import TOP_NGRAMS, WEIGHTS
from antembed.train.config import TaskConfig
from antembed.train.configure import search_of, silent
from antembed.train.estimator import Estimator, TableEstimator, write_folder
from antembed.train.options import from_options
from antembed.train.run import train

# Labels are text inside, and come back as what they were: by the name of their type.
BACK: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "bool": lambda name: name == "True", "str": str}
KIND = "classifier.json"  # what kind of labels it was fitted with
BESIDE = (KIND, "config.json", "result.json", "metrics.jsonl", "vocabulary.parquet", TOP_NGRAMS)


@dataclass(kw_only=True, eq=False, repr=False)
class Classifier(Estimator):
    """What both classifiers share."""

    tolerance: str | None = None
    max_length: int | None = None

    @abstractmethod
    def _splits(self, config: TaskConfig, texts: list[str | None], labels: list[Any]) -> TextSplits:
        """The parts of these documents, by the config."""

    def _configured(self, texts: list[str | None], labels: list[Any]) -> tuple[TaskConfig, TextSplits]:
        """The config and the parts: of the options, or what a search finds for these documents."""
        given = self.given
        config = self._config(given)
        if self.Config.to_search(given) is None:
            return config, self._splits(config, texts, labels)
        assert isinstance(config, NgramConfig)
        documents = documents_of(texts, labels, length=config.input.max_length)
        held = HashedNgramTask().split(config, documents)
        found = search_of(self.Config)(config, given, held, silent)
        best = from_options(NgramConfig, {**search_ngrams(given)[1], **found})
        return best, HashedNgramTask().split(best, documents)

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn asks before it clones, cross-validates or searches; it is there when it asks."""
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags

        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=True),
            classifier_tags=ClassifierTags(),
            input_tags=InputTags(one_d_array=True, two_d_array=False, string=True),
        )

    def fit(self, texts: Iterable[str | None], labels: Iterable[object]) -> "Classifier":
        """Learn; a tenth of the texts says in `result_` how good it is, and another may choose the best epoch."""
        texts, labels = texts_from(texts), plain_labels(labels)
        if len(texts) != len(labels):
            raise ValueError(f"{len(texts)} texts but {len(labels)} labels; give one for each")
        config, splits = self._configured(texts, labels)
        kind = next((type(label).__name__ for label in labels if label is not None), "str")
        with TemporaryDirectory() as folder:
            run = Path(folder) / "run"
            self.config = config
            self.result_ = train(config, run, splits=splits)
            write_atomically(run / KIND, json.dumps({"labels": kind}).encode())
            self._take(run)
        return self

    def _take(self, run: Path) -> None:
        """What is needed to predict, and the files that hold it."""
        self.model_ = open_predictor(run)
        # Labels come back as what they were, 3 and not "3", or every comparison with them would fail without a word.
        kind = json.loads((run / KIND).read_text())["labels"] if (run / KIND).is_file() else "str"
        self.names_ = self.model_.classes
        self.classes_ = np.array([BACK[kind](name) for name in self.names_])
        tables = [file.name for file in run.iterdir() if file.suffix in (".ant", ".ngrams")]
        self._files = {name: (run / name).read_bytes() for name in (*BESIDE, *tables) if (run / name).is_file()}
        if isinstance(self.model_, WordPredictor):
            self._files[WEIGHTS] = pack_arrays(self.model_.weights)

    def predict_proba(self, texts: Iterable[str | None]) -> np.ndarray:
        """(texts, classes), in the order of `classes_`."""
        self._check_fitted()
        texts = texts_from(texts)
        if not texts:
            return np.empty((0, len(self.classes_)), np.float32)
        return np.concatenate(list(self.model_.predict_texts(texts)))

    def predict(self, texts: Iterable[str | None]) -> np.ndarray:
        """The likeliest class of each text."""
        likeliest = self.predict_proba(texts).argmax(1)
        return self.classes_[likeliest]

    def score(self, texts: Sequence[str | None], labels: Iterable[object]) -> float:
        """The share of texts whose class is found, of those that have one."""
        texts, wanted = texts_from(texts), plain_labels(labels)
        if len(wanted) != len(texts):
            raise ValueError(f"{len(texts)} texts but {len(wanted)} labels; give one for each")
        right = [found == label for found, label in zip(self.predict(texts), wanted, strict=True) if label is not None]
        if not right:
            raise ValueError(f"of {len(wanted)} labels 0 are there to be compared with; give some")
        return float(np.mean(right))

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """What `antembed export` writes: `antembed predict`, `explain` and TextClassifier.load take it."""
        self._check_fitted()
        write_folder(folder, self._files, overwrite)


@dataclass(kw_only=True, eq=False, repr=False)
class TextClassifier(TableEstimator, Classifier):
    """A small text classifier.

        model = TextClassifier().fit(texts, labels)
        model.predict(["stocks fell again"]), model.predict_proba([…]), model.score(texts, labels)
        model.save("news"); TextClassifier.load("news")

    Without options it searches for the n-grams and the smallest file within 0.5 % of the best accuracy (`tolerance`), or of the
    size you say (`budget`). Those of a network (model="mean", embedding="anchor", anchors=10) train one; all other options of
    `antembed train classify` are given by name in `options`: TextClassifier(options={"l1_penalty": 1e-4}).
    """

    tasks: ClassVar[tuple[str, ...]] = ("classify", "classify-ngrams")
    Config = TextConfig

    model: Literal["auto", "cnn", "mean"] | None = None

    def _splits(self, config: TaskConfig, texts: list[str | None], labels: list[Any]) -> TextSplits:
        assert isinstance(config, TextConfig)
        own = config.input
        vocab = own.max_vocab or None
        documents = documents_of(texts, labels, min_count=own.min_count, max_vocab=vocab, length=own.max_length)
        return Text().split(config, documents)


@dataclass(kw_only=True, eq=False, repr=False)
class HashedNgramClassifier(Classifier):
    """A text classifier in one file of the size you say: hashed words and n-grams, no vocabulary, NumPy alone to predict.

        HashedNgramClassifier(budget="50KB").fit(texts, labels).save("news")

    All other options of `antembed train classify-ngrams` are given by name in `options`.
    """

    tasks: ClassVar[tuple[str, ...]] = ("classify-ngrams",)
    Config = NgramConfig

    ngrams: int | None = None

    def _splits(self, config: TaskConfig, texts: list[str | None], labels: list[Any]) -> TextSplits:
        assert isinstance(config, NgramConfig)
        return HashedNgramTask().split(config, documents_of(texts, labels, length=config.input.max_length))


def plain_labels(labels: Iterable[Any]) -> list[Any]:
    """Labels as Python's own text, numbers or booleans, all of one type; None where there is none (None, NaN)."""
    given = values_from(labels, "labels")
    plain = [label.item() if isinstance(label, np.generic) else label for label in given]
    found = [None if label is None or label != label else label for label in plain]
    kinds = {type(label).__name__ for label in found if label is not None}
    if kinds == {"int", "float"}:
        return [None if label is None else float(label) for label in found]
    if not kinds <= BACK.keys() or len(kinds) > 1:
        raise TypeError(
            f"labels are text, numbers or booleans, all of one type, not {' and '.join(sorted(kinds))}; convert them"
        )
    return found
