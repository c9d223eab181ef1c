"""Text classifiers in scikit-learn's manners: texts and labels in, classes out. Thin over the tasks of the same names."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
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
from antembed.files import JSON, write_atomically
from antembed.tables.model_folder import TOP_NGRAMS, WEIGHTS, pack_weights
from antembed.train.config import TaskConfig
from antembed.train.estimator import Estimator, NotFittedError, own_arguments, write_folder
from antembed.train.options import Options, from_options, to_options
from antembed.train.registry import TASKS
from antembed.train.run import train
from antembed.train.run_folder import RunFolder
from antembed.train.search_cache import search_of

# Labels are text inside, and come back as what they were: by the name of their type.
BACK: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "bool": lambda name: name == "True", "str": str}
KIND = "classifier.json"  # what kind of labels it was fitted with
BESIDE = (KIND, "config.json", "result.json", "metrics.jsonl", "vocabulary.parquet", TOP_NGRAMS)


class Classifier(Estimator, ABC):
    """What both classifiers share; a subclass names its task and makes the splits."""

    tasks: ClassVar[tuple[str, ...]]  # whose runs it can load

    @abstractmethod
    def _splits(self, texts: list[str | None], labels: list[Any]) -> TextSplits:
        """The parts of these documents, by the config."""

    def _configured(self, texts: list[str | None], labels: list[Any]) -> tuple[TaskConfig, TextSplits]:
        """The config and the parts: of the options, or what a search finds for these documents."""
        config = self._config(self.options)
        if not self.is_automatic():
            self.config = config
            return config, self._splits(texts, labels)
        assert isinstance(config, NgramConfig)
        documents = documents_of(texts, labels, length=config.input.max_length)
        held = HashedNgramTask().split(config, documents)
        found = search_of(TASKS.configs[self.task])(config, self.options, held, lambda line: None)
        best = from_options(NgramConfig, {**search_ngrams(self.options)[1], **found})
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

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

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
            self._files[WEIGHTS] = pack_weights(self.model_.weights)

    def _must_be_fitted(self) -> None:
        if not self.__sklearn_is_fitted__():
            raise NotFittedError("this classifier has not been fitted; call fit(texts, labels), or load one")

    def predict_proba(self, texts: Iterable[str | None]) -> np.ndarray:
        """(texts, classes), in the order of `classes_`."""
        self._must_be_fitted()
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
        self._must_be_fitted()
        write_folder(folder, self._files, overwrite)

    @classmethod
    def load(cls, folder: str | Path) -> "Classifier":
        """What `save`, `antembed train` or `antembed export` wrote."""
        run = RunFolder(folder)
        if run.task().name not in cls.tasks:
            raise ValueError(f"{run.path} is a run of {run.task().name}, not of {' or '.join(cls.tasks)}")
        self = cls.__new__(cls)
        Estimator.__init__(self, {})
        self.config, _ = run.open()
        if isinstance(self.config, cls.Config):
            known = set(cls._names())
            self.options = {name: value for name, value in to_options(self.config).items() if name in known}
        self._take(run.path)
        if run.result_file.is_file():
            self.result_ = json.loads(run.result_file.read_text())
        return self


class TextClassifier(Classifier):
    """A small text classifier.

        model = TextClassifier().fit(texts, labels)
        model.predict(["stocks fell again"]), model.predict_proba([…]), model.score(texts, labels)
        model.save("news"); TextClassifier.load("news")

    Without options it searches for the n-grams and the smallest file within 0.5 % of the best accuracy (`tolerance`), or of the
    size you say (`budget`). Options are those of `antembed train classify`, by their names; those of a network
    (model="mean", embedding=…, l1_penalty=…) train one.
    """

    task: ClassVar[str] = "classify"
    tasks: ClassVar[tuple[str, ...]] = ("classify", "classify-ngrams")
    Config = TextConfig

    def __init__(
        self,
        *,
        budget: str | None = None,
        tolerance: str | None = None,
        model: Literal["auto", "cnn", "mean"] | None = None,
        embedding: str | None = None,
        embedding_dim: int | None = None,
        anchors: int | str | Sequence[int] | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        pieces: int | None = None,
        patience: int | None = None,
        device: str | None = None,
        engine: Literal["auto", "fused", "torch"] | None = None,
        optimizer: str | None = None,
        lr: float | None = None,
        eps: float | None = None,
        schedule: Literal["halving", "cosine", "constant"] | None = None,
        halve_every: int | None = None,
        weight_decay: float | None = None,
        l2_penalty: float | None = None,
        l1_penalty: float | None = None,
        l1_warmup: float | None = None,
        prune: float | None = None,
        max_nonzeros: int | None = None,
        sparsify: str | None = None,
        events: int | None = None,
        beta2: float | None = None,
        polish: float | None = None,
        anchor_penalty: float | None = None,
        l0_penalty: float | None = None,
        growth: Literal["plateau", "trend"] | None = None,
        initial_anchors: int | None = None,
        anchor_step: int | None = None,
        seed: int | None = None,
        threads: int | None = None,
        dropout: float | None = None,
        word_dropout: float | None = None,
        anchor_init: str | None = None,
        relations: str | Sequence[str] | None = None,
        wordnet: str | None = None,
        vectors: str | None = None,
        unrelated_penalty: float | None = None,
        orthogonality_penalty: float | None = None,
        values: str | None = None,
        encoding: str | None = None,
        max_length: int | None = None,
        min_count: int | None = None,
        max_vocab: int | None = None,
    ):
        super().__init__(own_arguments(locals()))

    def usual(self, options: Options) -> JSON:
        return TextConfig.defaults(0, options)

    def _splits(self, texts: list[str | None], labels: list[Any]) -> TextSplits:
        assert isinstance(self.config, TextConfig)
        own = self.config.input
        vocab = own.max_vocab or None
        documents = documents_of(texts, labels, min_count=own.min_count, max_vocab=vocab, length=own.max_length)
        return Text().split(self.config, documents)


class HashedNgramClassifier(Classifier):
    """A text classifier in one file of the size you say: hashed words and n-grams, no vocabulary, NumPy alone to predict.

        HashedNgramClassifier(budget="50KB").fit(texts, labels).save("news")

    Options are those of `antembed train classify-ngrams`, by their names: budget, ngrams, max_length, seed.
    """

    task: ClassVar[str] = "classify-ngrams"
    tasks: ClassVar[tuple[str, ...]] = ("classify-ngrams",)
    Config = NgramConfig

    def __init__(
        self,
        *,
        budget: str | int | None = None,
        tolerance: str | None = None,
        epochs: int | None = None,
        ngrams: int | None = None,
        repeats: bool | None = None,
        prefix: int | None = None,
        ridge: float | None = None,
        rarity: float | None = None,
        noise: float | None = None,
        hold_out: bool | None = None,
        seed: int | None = None,
        max_length: int | None = None,
    ):
        super().__init__(own_arguments(locals()))

    def _splits(self, texts: list[str | None], labels: list[Any]) -> TextSplits:
        assert isinstance(self.config, NgramConfig)
        return HashedNgramTask().split(self.config, documents_of(texts, labels, length=self.config.input.max_length))


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
