"""The parts of a run's config that all tasks share: solver, embedding, anchors, files, machine; and the rules between them.

Each solver has a config of its own, so an option of another solver cannot be given by mistake.
"""

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, model_validator

from antembed.budget import counts_bytes, parse_budget, parse_tolerance
from antembed.files import JSON
from antembed.layer.embedding_names import EMBEDDINGS, Plain
from antembed.tables.encodings import ENCODERS
from antembed.tables.number_formats import VALUES
from antembed.train.options import Config, ConfigError, Integer, Number, Options, option

if TYPE_CHECKING:  # options are checked before torch is imported
    from antembed.layer.embedding import Embedding

VERSION = 2  # of config.json; the first had no version
PLENTY = 48  # anchors with which a solver without --initial-anchors begins, if it is to find the number itself


OPTIMIZERS = ("yogi", "adam", "sgd")  # the classes are in layer/optim, which needs torch
AUTO = {"anchors": "auto"}
PROX = {"sparsify": "prox"}
MOMENTS = {"optimizer": ("yogi", "adam")}
NO_TARGET = {"budget": ("", None), "tolerance": ("", None)}  # None: a solver without that option


def _anchors(value: object) -> object:
    """15, "15", "40,16", "40/16" (users and items), "auto"."""
    if isinstance(value, str) and value != "auto":
        parts = [part.strip() for part in value.replace("/", ",").split(",")]
        if not all(part.isdecimal() for part in parts):
            raise ValueError(f"anchors {value!r} is not a number of anchors; say 15, or 40,16 for two tables, or auto")
        return tuple(int(part) for part in parts)
    return value if isinstance(value, tuple | list) or value == "auto" else (value,)


def _positive(value: tuple[int, ...] | str) -> tuple[int, ...] | str:
    if isinstance(value, tuple) and (not value or min(value) < 1):
        raise ValueError(f"anchors must be ≥ 1, got {', '.join(map(str, value)) or 'none'}; start with 10")
    return value


def among(name: str, known: Collection[str]) -> AfterValidator:
    """One of these words."""

    def check(value: str) -> str:
        if value not in known:
            raise ValueError(f"{name} {value!r} is none of: {', '.join(known)}")
        return value

    return AfterValidator(check)


def _parsed(parse: Callable[[str], object]) -> AfterValidator:
    """Empty, or text that `parse` takes."""

    def check(text: str) -> str:
        if text:
            parse(text)
        return text

    return AfterValidator(check)


Anchors = Annotated[tuple[int, ...] | Literal["auto"], BeforeValidator(_anchors), AfterValidator(_positive)]
BudgetText = Annotated[str, _parsed(lambda text: parse_budget(text, 1.0))]
ToleranceText = Annotated[str, _parsed(parse_tolerance)]


class SolverConfig(Config):
    """What every solver has: its name, and how often it goes over the data."""

    implementation: ClassVar[str]  # "module:name" of what makes the solver: its class, or a function
    heading: ClassVar[str] = "Solver"
    embeddings: ClassVar[tuple[str, ...]] = ()  # that it can train; empty: all
    shared: ClassVar[bool] = False  # whether several processes can train with it
    name: str
    epochs: int

    @property
    def records(self) -> int:
        """How many records a run has at most; 0 if unknown."""
        return self.epochs

    @property
    def size_goal(self) -> tuple[str, str]:
        """Budget and tolerance as they were given; empty where there is none."""
        return "", ""

    @property
    def initial_anchors(self) -> int:
        """With how many it begins, if it is to find the number itself."""
        return PLENTY

    def check_processes(self, size: int) -> None:
        """Raise if something is asked for that `size` processes cannot do."""
        if not self.shared:
            raise ConfigError(f"under torchrun ({size} processes) --solver {self.name} is not possible", "solver")


class OptimizerConfig(Config):
    """The gradient rule and its step."""

    heading: ClassVar[str] = "Optimizer"
    optimizer: Annotated[str, among("optimizer", OPTIMIZERS)] = option(
        "yogi", f"One of: {', '.join(OPTIMIZERS)}; the rows of yogi and sgd are exactly lazy."
    )
    lr: Number = option(0.01, "Learning rate at the start.", ge=0)
    eps: Number | None = option(None, "Of yogi and adam; default: the optimizer's own.", gt=0, only_with=MOMENTS)
    # Its user: ratings with --sparsify recode, 0.99 (recommend/config.py).
    beta2: Number | None = option(None, "Of yogi and adam; default: their own.", ge=0, lt=1, only_with=MOMENTS)
    schedule: Literal["halving", "cosine", "constant"] = option("halving", "Of the learning rate.", only_with=PROX)
    halve_every: Integer = option(
        100_000, "Steps between two halvings, as in the paper.", ge=1, only_with={"schedule": "halving"}
    )
    weight_decay: Number = option(0.0, "Decoupled decay of dense tables, anchors and biases; T has its penalty.", ge=0)


class TrainConfig(Config):
    """The loop, and where it runs."""

    heading: ClassVar[str] = "Training"
    batch_size: Integer = option(32, "Examples a step.", ge=1)
    patience: Integer = option(0, "Stop after so many epochs that were no better on validation data; 0: never.", ge=0)
    device: str = option("cpu", "cpu, cuda, …")
    engine: Literal["auto", "fused", "torch"] = option(
        "auto", "fused (compiled, on the CPU) where the task has one, else torch."
    )

    pieces: Integer = option(1, "Parts of a batch, one after the other or shared among processes (torchrun: 8).", ge=1)

    @property
    def clip(self) -> float | None:
        """The norm to which longer gradients are shortened."""
        return None

    @property
    def averaging(self) -> int:
        """Epochs without progress after which weights are averaged; 0: never."""
        return 0


class SparsityConfig(Config):
    """How T becomes sparse, and how sparse."""

    heading: ClassVar[str] = "Sparsity"
    sparsify: Literal["prox", "prune", "recode"] = option(
        "prox", "prox (ℓ1, the paper's), or ℓ0 by curvature, to a budget: recode (rows coded anew), prune (weights dropped)."
    )
    events: Integer = option(12, "Epochs after which T becomes sparser.", ge=1, only_with={"sparsify": ("recode", "prune")})
    l1_penalty: Number = option(1e-4, "λ2, the weight of ‖T‖₁ in the loss.", ge=0, only_with=PROX)
    l1_warmup: Number = option(0.25, "Share of the training over which λ2 (or a KL term) rises from 0.", ge=0, le=1)
    prune: Number = option(0.1, "Drop weights below this share of the mean contribution; 0: none.", ge=0, only_with=PROX)
    max_nonzeros: Integer = option(0, "Keep this many weights, the largest; 0: by --prune.", ge=0, only_with=PROX)
    budget: BudgetText = option("", "40x (times smaller), 400k (parameters) or 2MB (bytes).")
    polish: Number = option(0.0, "Last share of the epochs: zeros stay, λ2 = 0; with a budget 0.2.", ge=0, lt=1, only_with=PROX)


class GrowthConfig(Config):
    """`--anchors auto`: the number of anchors by eq. 5 of the paper."""

    heading: ClassVar[str] = "How many anchors (--anchors auto)"
    anchor_penalty: Number = option(0.01, "λ1, the cost of an anchor in eq. 5.", ge=0, only_with=AUTO)
    l0_penalty: Number | None = option(None, "λ2 of eq. 5, a non-zero's cost; default: --l1-penalty.", ge=0, only_with=AUTO)
    growth: Literal["plateau", "trend"] = option("plateau", "Try and keep or undo, or the paper's rule.", only_with=AUTO)
    initial_anchors: Integer = option(10, "How many to begin with.", ge=1, only_with=AUTO)
    anchor_step: Integer = option(1, "How many at a time.", ge=1, only_with=AUTO | {"growth": "trend"})


class StochasticConfig(SolverConfig):
    """Mini-batches, a gradient rule, the prox: any task, any embedding."""

    implementation: ClassVar[str] = "antembed.train.stochastic:Stochastic"
    shared: ClassVar[bool] = True
    name: Literal["stochastic"] = option("stochastic", "How the loss is minimised.")
    epochs: Integer = option(25, "Passes over the data.", ge=1)
    train: TrainConfig = TrainConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    sparsity: SparsityConfig = SparsityConfig()
    growth: GrowthConfig = GrowthConfig()

    @property
    def size_goal(self) -> tuple[str, str]:
        return self.sparsity.budget, ""

    def check_processes(self, size: int) -> None:
        under = f"under torchrun ({size} processes)"
        if self.train.engine == "fused":
            raise ConfigError(f"{under} the fused engine is not possible; use --engine torch", "engine")
        if self.train.device != "cpu":
            raise ConfigError(f"{under} device {self.train.device!r} is not possible yet; leave it at cpu", "device")
        if self.train.pieces < size:
            raise ConfigError(
                f"{size} processes share {self.train.pieces} pieces of a batch: give --pieces {size} or more", "pieces"
            )

    @property
    def initial_anchors(self) -> int:
        return self.growth.initial_anchors

    @property
    def l0_penalty(self) -> float:
        """λ2 of eq. 5."""
        return self.sparsity.l1_penalty if self.growth.l0_penalty is None else self.growth.l0_penalty


class EmbeddingConfig(Config):
    """The tables."""

    heading: ClassVar[str] = "Tables"
    embedding: Annotated[str, among("embedding", EMBEDDINGS)] = option("anchor", f"One of: {', '.join(EMBEDDINGS)}.")
    embedding_dim: Integer = option(16, "Width of the vectors.", ge=1)

    @property
    def plain(self) -> Plain:
        """What is known of the class without torch."""
        return EMBEDDINGS[self.embedding]

    @property
    def kind(self) -> "type[Embedding]":
        """The class; imports torch."""
        from antembed.baselines import EMBEDDINGS as CLASSES

        return CLASSES[self.embedding]


class AnchorConfig(Config):
    """The anchors."""

    heading: ClassVar[str] = "Anchors"
    anchors: Anchors = option((15,), "15, or 40,16 for two tables, or auto (eq. 5 of the paper); of baselines: how many rows.")


class ExportConfig(Config):
    """The files."""

    heading: ClassVar[str] = "Files"
    values: Annotated[str, among("values", ("auto", *VALUES))] = option(
        "auto", f"In the files: {', '.join(VALUES)}; auto: fp32, with a budget of bytes int8, with a tolerance int6."
    )
    encoding: Annotated[str, among("encoding", ("auto", *ENCODERS))] = option(
        "auto", f"Of T: {', '.join(ENCODERS)}; auto: smallest of the first three; packed with a budget of bytes or a tolerance."
    )


class MachineConfig(Config):
    """What does not belong to the method."""

    heading: ClassVar[str] = "Machine"
    seed: Integer = option(0, "Same seed, same machine, same threads: same bytes.", ge=0)


class ThreadsConfig(MachineConfig):
    """The same where several threads work."""

    threads: Integer = option(1, "Of PyTorch and of our kernels; default: two, if there are two cores to use.", ge=1)


class TaskConfig(Config):
    """A run. A task adds its own groups, and says which solvers it takes. Its docstring is the task's --help.

    What it decides needs no torch, so that wrong options and data are reported before that is imported.
    """

    version: Literal[2] = 2
    task: str
    solver: SolverConfig
    machine: MachineConfig = MachineConfig()
    usage: ClassVar[Sequence[str]] = ()  # examples for --help, without `antembed train NAME`
    implementation: ClassVar[str] = ""  # "module:Class" of the task, which needs torch
    searches: ClassVar[str] = ""  # the same of its search (configure.Search), where `to_search` leaves choices to one
    explains: ClassVar[str] = ""  # and of the function that explains a finished run: folder, top, items → data, lines
    sweep_options: ClassVar[JSON] = {}  # that a sweep adds to those it is given

    @classmethod
    def name(cls) -> str:
        """antembed train NAME."""
        return str(cls.model_fields["task"].default)

    @classmethod
    def defaults(cls, examples: int, given: Options, objects: int = 0) -> JSON:
        """Options that depend on how many examples there are, on the options that are given and, where it is known, on
        `Splits.objects`; only where they are not given themselves."""
        return {}

    @classmethod
    def to_search(cls, given: Options) -> tuple[str, Options] | None:
        """Where options leave the choice to a search (`searches`): the task to search in, and the options to read
        the data with. None: nothing is searched."""
        return None

    def read(self) -> str:
        """Read the data, if there are any to be read; they stay in memory for the task's `load`. → the task that suits them."""
        return self.task

    @classmethod
    def why(cls, given: Options) -> str:
        """Why data that were given to another task suit this one."""
        return "the data"

    def for_evaluation(self) -> Self:
        """The config by which a finished run is built again: without what is for the start of training alone."""
        return self

    @property
    def embedding_name(self) -> str:
        return "anchor"

    @property
    def budget(self) -> str:
        """As it was given; empty where there is none."""
        return self.solver.size_goal[0]

    @property
    def values(self) -> str:
        """Numbers in the files."""
        return "fp32"

    @property
    def encoding(self) -> str:
        """Of T in the files."""
        return "auto"

    @property
    def auto(self) -> bool:
        """Whether the number of anchors is to be found."""
        return False


class EmbeddingTaskConfig(TaskConfig):
    """A run over embeddings: which ones, how many anchors, which files."""

    tables: EmbeddingConfig = EmbeddingConfig()
    anchors: AnchorConfig = AnchorConfig()
    export: ExportConfig = ExportConfig()
    machine: ThreadsConfig = ThreadsConfig()
    provides: ClassVar[frozenset[str]] = frozenset()  # what is known of the objects: counts, tf-idf, features

    @property
    def embedding_name(self) -> str:
        return self.tables.embedding

    @property
    def tolerance(self) -> str:
        """As it was given; empty where there is none."""
        return self.solver.size_goal[1]

    @property
    def values(self) -> str:
        """Numbers in the files."""
        auto = "int6" if self.tolerance else "int8" if counts_bytes(self.budget) else "fp32"
        return auto if self.export.values == "auto" else self.export.values

    @property
    def encoding(self) -> str:
        """Of T in the files: where bytes count, most objects have no weights, and a byte for each is too much."""
        small = self.tolerance or counts_bytes(self.budget)
        return "packed" if self.export.encoding == "auto" and small else self.export.encoding

    @property
    def auto(self) -> bool:
        """Whether the number of anchors is to be found."""
        return self.anchors.anchors == "auto"

    def num_anchors(self, tables: int) -> tuple[int, ...]:
        """How many anchors each table is built with."""
        if self.anchors.anchors == "auto":
            return (self.solver.initial_anchors,) * tables
        given = self.anchors.anchors
        if len(given) not in (1, tables):
            raise ValueError(f"{len(given)} numbers of anchors for {tables} tables; give one, or one for each")
        return given * tables if len(given) == 1 else given

    @model_validator(mode="after")
    def _fits_together(self) -> "EmbeddingTaskConfig":
        """The rules between groups, all of them here."""
        name = self.tables.embedding
        if missing := self.tables.plain.requires - self.provides:
            raise ValueError(
                f"embedding {name} needs {' and '.join(sorted(missing))} of the objects, which {self.task} has not; "
                "choose another --embedding"
            )
        if name != "anchor" and (self.budget or self.tolerance):
            raise ValueError(f"a {'budget' if self.budget else 'tolerance'} is for --embedding anchor, not {name}")
        if name != "anchor" and self.auto:
            raise ValueError(f"anchors auto is for --embedding anchor, not {name}")
        if self.solver.embeddings and name not in self.solver.embeddings:
            possible = " or ".join(self.solver.embeddings)
            raise ValueError(f"--solver {self.solver.name} trains {possible} tables, not {name}; use --solver stochastic")
        if isinstance(self.solver, StochasticConfig):
            self._check_stochastic(self.solver)
        return self

    def _check_stochastic(self, solver: StochasticConfig) -> None:
        sparsity, growth = solver.sparsity, solver.growth
        if sparsity.max_nonzeros and sparsity.budget:
            raise ValueError(f"a budget and max_nonzeros={sparsity.max_nonzeros} both say how many weights are left; give one")
        if sparsity.sparsify != "prox":
            self._can_sparsify(solver)
        if sparsity.budget and sparsity.sparsify == "prox" and not sparsity.l1_penalty > 0:
            raise ValueError(f"a budget starts from l1_penalty, which must be > 0, got {sparsity.l1_penalty}")
        if sparsity.polish and (self.tables.embedding != "anchor" or self.auto):
            raise ValueError("polishing is for anchored tables with a number of anchors; leave --polish at 0")
        if self.auto:
            if solver.train.averaging:
                raise ValueError("averaging needs a fixed number of anchors; give --anchors, or leave out --average-after")
            if sparsity.budget:
                raise ValueError("the stochastic solver takes no budget with anchors auto; give --anchors")
            if growth.anchor_penalty < solver.l0_penalty:
                raise ValueError(
                    f"an anchor costs λ1 − λ2 ≥ 0, but λ1 (anchor_penalty) is {growth.anchor_penalty} and λ2 "
                    f"{solver.l0_penalty}; raise --anchor-penalty"
                )
        if solver.train.device != "cpu":
            import torch

            try:
                torch.zeros(1, device=solver.train.device).item()
            except (RuntimeError, AssertionError) as error:
                raise ValueError(f"device {solver.train.device!r} cannot be used here; leave it at cpu") from error

    def _can_sparsify(self, solver: StochasticConfig) -> None:
        sparsity = solver.sparsity
        if not sparsity.budget:
            raise ValueError(f"sparsify {sparsity.sparsify} goes to a size; say which with --budget, or use prox")
        if self.tables.embedding != "anchor" or self.auto:
            raise ValueError(f"sparsify {sparsity.sparsify} is for anchored tables with a number of anchors; use prox")
        if sparsity.sparsify == "prune" and solver.optimizer.optimizer == "sgd":
            raise ValueError("sparsify prune needs the second moments of yogi or adam, sgd has none; use recode")
        if solver.epochs < sparsity.events + 2:
            raise ValueError(
                f"{sparsity.events} events need dense epochs before and tuning after them: {sparsity.events + 2} epochs or "
                f"more, not {solver.epochs}; raise --epochs, or lower --events"
            )
