"""What a hashed n-gram classifier is configured by: the size of its file, and little else."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import AfterValidator, BeforeValidator

from antembed.budget import parse_budget
from antembed.classify.config import NEUTRAL, TextInput, read_input, search_ngrams
from antembed.train.config import SolverConfig, ToleranceText
from antembed.train.config_base import Number, Whole, option
from antembed.train.config_shared import TaskConfig
from antembed.train.options import Options


def _number(value: object) -> object:
    """1000, in Python, is as many bytes."""
    return f"{value}B" if isinstance(value, int | np.integer) and not isinstance(value, bool) else value


def _bytes(text: str) -> str:
    if parse_budget(text, 0).unit != "bytes" or str(text).lower().strip().endswith("x"):
        raise ValueError(f"budget is the size of a file: 50KB or 1MB, not {text!r}")
    return text


class NgramDescentConfig(SolverConfig):
    """Coordinate descent on the logistic loss, to a size."""

    heading: ClassVar[str] = "Size"
    name: Literal["ngram_descent"] = option("ngram_descent", "How the loss is minimised.")
    epochs: Whole = option(6, "Sweeps over which the number of n-grams falls to the size, at most.", ge=1)
    budget: Annotated[str, BeforeValidator(_number), AfterValidator(_bytes)] = option(
        "50KB", "Of the file, all that is needed to predict."
    )
    tolerance: ToleranceText = option("", "0.5%: the smallest file with so little less accuracy, instead of a budget.")
    ngrams: Whole = option(2, "Runs of up to so many words.", ge=1, le=1000)
    repeats: bool = option(False, "Every occurrence of an n-gram in a document counts, not only the first.")
    prefix: Whole = option(5, "Longer words also count by their first letters, so many; 0: they do not.", ge=0, le=1000)
    ridge: Number = option(20.0, "Of an n-gram's scores.", gt=0)
    rarity: Number = option(2.5, "The ridge is divided by the n-gram's idf to this power.", ge=0)
    noise: Number = option(1.0, "N-grams are left out at random, as often as not on average at 1.", ge=0)
    hold_out: bool = option(False, "Hold a tenth out for validation, to compare settings; else it is learned too.")

    @property
    def records(self) -> int:
        return self.epochs + 1  # and one for the polish


class NgramConfig(TaskConfig):
    """Learn to tell classes of text apart, in one file of the size you say: hashed words and n-grams.

    The documents and the test part are those of `classify`. Validation data choose nothing here, so they are learned, too.
    """

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
