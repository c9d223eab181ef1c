"""The configs of the solvers. Each has its own, so an option of another solver cannot be given by mistake."""

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, model_validator

from antembed.budget import parse_budget, parse_tolerance
from antembed.train.options import Config, Number, Whole, option

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

    heading: ClassVar[str] = "Solver"
    name: str
    epochs: int

    @property
    def records(self) -> int:
        """How many records a run has at most; 0: nobody knows."""
        return self.epochs


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

    name: Literal["stochastic"] = option("stochastic", "How the loss is minimised.")
    epochs: Whole = option(25, "Passes over the data.", ge=1)
    train: TrainConfig = TrainConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    sparsity: SparsityConfig = SparsityConfig()
    growth: GrowthConfig = GrowthConfig()

    @property
    def l0_penalty(self) -> float:
        """λ2 of eq. 5."""
        return self.sparsity.l1_penalty if self.growth.l0_penalty is None else self.growth.l0_penalty


class PenaltyConfig(Config):
    """What coordinate descent adds to the summed ½·squared error."""

    heading: ClassVar[str] = "Coordinate descent"
    l0_penalty: Number = option(
        2.0, "λ2: a weight stays only if it lowers the summed ½·squared error by more.", ge=0, only_with=NO_TARGET
    )
    penalize_biases: bool = option(True, "Biases pay --l0-penalty too, and are zero where they are not worth it.")
    ridge: Number = option(7.0, "½·ridge·‖e‖² on every vector e = t·A.", ge=0)
    ridge_per_rating: Number = option(0.02, "And as much again for each rating of the object.", ge=0)
    bias_ridge: Number = option(6.0, "The same on every bias.", ge=0)


class CoordinateDescentConfig(SolverConfig):
    """Exact alternating descent on the ℓ0 objective itself: ratings, anchored and full tables."""

    heading: ClassVar[str] = "Coordinate descent"
    name: Literal["coordinate_descent"] = option("coordinate_descent", "How the loss is minimised.")
    epochs: Whole = option(25, "Sweeps over all users and items.", ge=1, only_with={"tolerance": ""})
    penalties: PenaltyConfig = PenaltyConfig()
    unobserved_weight: Number = option(0.0, "Weight of every pair there is, as if rated 0: a model of what is chosen.", ge=0)
    budget: BudgetText = option("", "40x (times smaller), 400k (parameters) or 2MB (bytes): λ2 is adjusted to meet it.")
    tolerance: ToleranceText = option(
        "", "1%: the smallest file whose validation error is at most so much above the dense model's; λ2 is searched."
    )

    basis: Literal["learned", "axes"] = option(
        "learned", "The anchors: learned, or the principal axes and their opposites (fast for wide tables; with a tolerance)."
    )

    @property
    def records(self) -> int:
        return 0 if self.tolerance else self.epochs

    @model_validator(mode="after")
    def _one_target(self) -> "CoordinateDescentConfig":
        if self.basis == "axes" and not self.tolerance:
            raise ValueError("basis axes goes with a tolerance; add --tolerance 1%, or leave it at learned")
        if self.budget and self.tolerance:
            raise ValueError(f"budget {self.budget} and tolerance {self.tolerance} both decide the size; give one of them")
        return self


class OnlineConfig(SolverConfig):
    """Coordinate descent on a stream: batches are learned once, in the file's order, and never seen again."""

    heading: ClassVar[str] = "Online"
    inferred: ClassVar[bool] = False
    name: Literal["online"] = option("online", "How the loss is minimised.")
    epochs: Whole = option(25, "Sweeps over a batch, at most.", ge=1)
    batch_size: Whole = option(100_000, "Ratings in a batch of the stream.", ge=1)
    test: str = option("", "Ratings to be tested on at the end.")
    penalties: PenaltyConfig = PenaltyConfig()

    @property
    def records(self) -> int:
        return 0
