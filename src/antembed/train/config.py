"""What every task's config has: which embedding, how many anchors, the files, the machine; and the rules between them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, model_validator

from antembed.budget import counts_bytes
from antembed.files import JSON
from antembed.layer.names import EMBEDDINGS, Plain
from antembed.tables.encodings import ENCODERS
from antembed.tables.number_formats import VALUES
from antembed.train.options import Config, Options, Whole, option
from antembed.train.solver_config import SolverConfig, StochasticConfig

if TYPE_CHECKING:  # options are checked before torch is imported
    from antembed.layer.embedding import Embedding

VERSION = 2  # of config.json; the first had no version
PLENTY = 48  # anchors with which coordinate descent begins, if it is to find the number itself


def _anchors(value: object) -> object:
    """15, "15", "40,16", "40/16" (users and items), "auto"."""
    if isinstance(value, str) and value != "auto":
        parts = [part.strip() for part in value.replace("/", ",").split(",")]
        if not all(part.isdecimal() for part in parts):
            raise ValueError(f"anchors {value!r} is not a number of anchors; say 15, or 40,16 for two tables, or auto")
        return tuple(int(part) for part in parts)
    if isinstance(value, tuple | list) or value == "auto":
        return value
    return (value,)


def _positive(value: tuple[int, ...] | str) -> tuple[int, ...] | str:
    if isinstance(value, tuple) and (not value or min(value) < 1):
        raise ValueError(f"anchors must be ≥ 1, got {', '.join(map(str, value)) or 'none'}; start with 10")
    return value


def _embedding(name: str) -> str:
    if name not in EMBEDDINGS:
        raise ValueError(f"embedding {name!r} is none of: {', '.join(EMBEDDINGS)}")
    return name


def _check_device(device: str) -> None:
    import torch

    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device {device!r} cannot be used here; leave it at cpu") from error


Anchors = Annotated[tuple[int, ...] | Literal["auto"], BeforeValidator(_anchors), AfterValidator(_positive)]
EmbeddingName = Annotated[str, AfterValidator(_embedding)]


class EmbeddingConfig(Config):
    """The tables."""

    heading: ClassVar[str] = "Tables"
    embedding: EmbeddingName = option("anchor", f"One of: {', '.join(EMBEDDINGS)}.")
    embedding_dim: Whole = option(16, "Width of the vectors.", ge=1)

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
    anchors: Anchors = option((15,), "How many: 15, or 40,16 for two tables, or auto: by eq. 5; baselines: their rows.")


class ExportConfig(Config):
    """The files."""

    heading: ClassVar[str] = "Files"
    values: str = option(
        "auto",
        "In the files: fp32, fp16, int8, int6, int5, int4; auto: fp32, with a budget of bytes int8, with a tolerance int6.",
    )
    encoding: str = option(
        "auto", f"Of T: {', '.join(ENCODERS)}; auto: the smallest but packed; with a budget of bytes or a tolerance packed."
    )

    @model_validator(mode="after")
    def _known(self) -> "ExportConfig":
        for name, given, known in (("values", self.values, VALUES), ("encoding", self.encoding, ENCODERS)):
            if given not in ("auto", *known):
                raise ValueError(f"{name} {given!r} is none of: auto, {', '.join(known)}")
        return self


class MachineConfig(Config):
    """What does not belong to the method."""

    heading: ClassVar[str] = "Machine"
    seed: Whole = option(0, "Same seed, same machine, same threads: same bytes.", ge=0)


class ThreadsConfig(MachineConfig):
    """The same where several threads work."""

    threads: Whole = option(1, "Of PyTorch and of our kernels; default: two, if there are two cores to use.", ge=1)


class TaskConfig(Config):
    """A whole run. A task adds its own groups, and says which solvers it takes. Its docstring is the task's --help.

    What it decides needs no torch, so that wrong options and data are reported before that is imported.
    """

    version: Literal[2] = 2
    task: str
    solver: SolverConfig
    machine: MachineConfig = MachineConfig()
    usage: ClassVar[Sequence[str]] = ()  # examples for --help, without `antembed train NAME`
    implementation: ClassVar[str] = ""  # "module:Class" of the task, which needs torch
    searches: ClassVar[str] = ""  # the same of its search (search_cache.Search), where `to_search` leaves choices to one
    explains: ClassVar[str] = ""  # and of the function that explains a finished run: folder, top, items → data, lines

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

    @property
    def embedding_name(self) -> str:
        return "anchor"

    @property
    def budget(self) -> str:
        """As it was given; empty where there is none."""
        return ""

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
    def budget(self) -> str:
        """As it was given; empty where there is none."""
        return self.solver.size_goal[0]

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
            first = self.solver.growth.initial_anchors if isinstance(self.solver, StochasticConfig) else PLENTY
            return (first,) * tables
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
                raise ValueError("a budget and anchors auto go together with --solver coordinate_descent only; give --anchors")
            if growth.anchor_penalty < solver.l0_penalty:
                raise ValueError(
                    f"an anchor costs λ1 − λ2 ≥ 0, but λ1 (anchor_penalty) is {growth.anchor_penalty} and λ2 "
                    f"{solver.l0_penalty}; raise --anchor-penalty"
                )
        if solver.train.device != "cpu":
            _check_device(solver.train.device)

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
