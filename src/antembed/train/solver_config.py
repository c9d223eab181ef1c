"""The configs of the solvers. Each has its own, so an option of another solver cannot be given by mistake."""

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator

from antembed.budget import parse_budget, parse_tolerance
from antembed.train.options import Config, ConfigError, Number, Whole, option

OPTIMIZERS = ("yogi", "adam", "sgd")  # the classes are in antembed/optim, which needs torch
AUTO = {"anchors": "auto"}
PROX = {"sparsify": "prox"}
NO_TARGET = {"budget": ("", None), "tolerance": ("", None)}  # None: a solver without that option


def _budget(text: str) -> str:
    if text:
        parse_budget(text, 1.0)
    return text


def _optimizer(name: str) -> str:
    if name not in OPTIMIZERS:
        raise ValueError(f"optimizer {name!r} is none of: {', '.join(OPTIMIZERS)}")
    return name


def _tolerance(text: str) -> str:
    if text:
        parse_tolerance(text)
    return text


ToleranceText = Annotated[str, AfterValidator(_tolerance)]
BudgetText = Annotated[str, AfterValidator(_budget)]


class SolverConfig(Config):
    """What every solver has: its name, and how often it goes over the data."""

    implementation: ClassVar[str]  # "module:name" of what makes the solver: its class, or a function
    heading: ClassVar[str] = "Solver"
    embeddings: ClassVar[tuple[str, ...]] = ()  # that it can train; empty: all
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

    def check_processes(self, size: int) -> None:
        """Raise if something is asked for that `size` processes cannot do."""
        raise ConfigError(
            f"under torchrun ({size} processes) --solver stochastic and coordinate_descent are what there is, not {self.name}",
            "solver",
        )


class OptimizerConfig(Config):
    """The gradient rule and its step."""

    heading: ClassVar[str] = "Optimizer"
    optimizer: Annotated[str, AfterValidator(_optimizer)] = option(
        "yogi", f"One of: {', '.join(OPTIMIZERS)}; the rows of yogi and sgd are exactly lazy."
    )
    lr: Number = option(0.01, "Learning rate at the start.", ge=0)
    eps: Number | None = option(
        None, "Of yogi and adam; default: the optimizer's own.", gt=0, only_with={"optimizer": ("yogi", "adam")}
    )
    beta2: Number | None = option(
        None, "Of yogi and adam; default: the optimizer's own.", ge=0, lt=1, only_with={"optimizer": ("yogi", "adam")}
    )
    schedule: Literal["halving", "cosine", "constant"] = option("halving", "Of the learning rate.", only_with=PROX)
    halve_every: Whole = option(100_000, "Steps between two halvings.", ge=1, only_with={"schedule": "halving"})
    weight_decay: Number = option(0.0, "Decoupled decay of dense tables, anchors and biases; T has its penalty.", ge=0)


class TrainConfig(Config):
    """The loop, and where it runs."""

    heading: ClassVar[str] = "Training"
    batch_size: Whole = option(32, "Examples a step.", ge=1)
    patience: Whole = option(0, "Stop after so many epochs that were no better on validation data; 0: never.", ge=0)
    device: str = option("cpu", "cpu, cuda, …")
    engine: Literal["auto", "fused", "torch"] = option("auto", "fused (compiled, CPU, ratings) where it can, else torch.")

    pieces: Whole = option(
        1, "Cut each batch into so many pieces, shared among processes (under torchrun 8) or one after the other.", ge=1
    )

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
        "prox",
        "How: prox (ℓ1, the paper's), or ℓ0 by curvature, to a budget: recode (rows coded anew), prune (weights dropped).",
    )
    events: Whole = option(12, "Epochs after which T becomes sparser.", ge=1, only_with={"sparsify": ("recode", "prune")})
    l1_penalty: Number = option(1e-4, "λ2, the weight of ‖T‖₁ in the loss.", ge=0, only_with=PROX)
    l1_warmup: Number = option(0.25, "Share of the training over which λ2 (or a KL term) rises from 0.", ge=0, le=1)
    prune: Number = option(
        0.1, "At the end, drop weights below this share of the mean contribution; 0 keeps all.", ge=0, only_with=PROX
    )
    max_nonzeros: Whole = option(
        0, "At the end, keep this many weights, the largest; 0: --prune instead.", ge=0, only_with=PROX
    )
    budget: BudgetText = option("", "40x (times smaller), 400k (parameters) or 2MB (bytes): met by λ2, or by --sparsify.")
    polish: Number = option(
        0.0, "Share of the epochs, the last, with zeros frozen and λ2 = 0; with a budget 0.2.", ge=0, lt=1, only_with=PROX
    )


class GrowthConfig(Config):
    """`--anchors auto`: the number of anchors by eq. 5 of the paper."""

    heading: ClassVar[str] = "How many anchors (--anchors auto)"
    anchor_penalty: Number = option(0.01, "λ1, the cost of an anchor in eq. 5.", ge=0, only_with=AUTO)
    l0_penalty: Number | None = option(
        None, "λ2 of eq. 5, the cost of a non-zero; default: --l1-penalty.", ge=0, only_with=AUTO
    )
    growth: Literal["plateau", "trend"] = option("plateau", "Try and keep or undo, or the paper's rule.", only_with=AUTO)
    initial_anchors: Whole = option(10, "How many to begin with.", ge=1, only_with=AUTO)
    anchor_step: Whole = option(1, "How many at a time.", ge=1, only_with=AUTO | {"growth": "trend"})


class StochasticConfig(SolverConfig):
    """Mini-batches, a gradient rule, the prox: any task, any embedding."""

    implementation: ClassVar[str] = "antembed.train.stochastic:Stochastic"
    name: Literal["stochastic"] = option("stochastic", "How the loss is minimised.")
    epochs: Whole = option(25, "Passes over the data.", ge=1)
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
    def l0_penalty(self) -> float:
        """λ2 of eq. 5."""
        return self.sparsity.l1_penalty if self.growth.l0_penalty is None else self.growth.l0_penalty
