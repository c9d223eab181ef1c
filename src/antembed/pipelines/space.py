"""A space over the options of a run: `l1=1e-5,1e-4` lists values, `lr=0.003..0.03:log` is a range; its grid, or draws."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from scipy.stats import qmc

from antembed.pipelines.task import RECOMMEND, Point, Task

DIGITS = 4  # of a drawn number, so that it can be typed again
TURNS = 50  # draws for each point wanted, before a small space counts as used up


def option_of(name: str, task: Task) -> str:
    """`ridge-each` or `ridge_each` → ridge_each."""
    option = name.strip().removeprefix("--").replace("-", "_")
    if option not in task.options:
        raise ValueError(f"{name!r} is no option of a run; there are: {', '.join(task.options)}")
    return option


def truth(text: str) -> bool:
    return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[text.lower()]


def pair(text: str) -> tuple[int, int] | str:
    """`15` → (15, 15); `40/16` or `40,16` → (40, 16); `auto` stays."""
    if text == "auto":
        return text
    parts = [int(part) for part in text.replace("/", ",").split(",")]
    return {1: (parts[0], parts[0]), 2: (parts[0], parts[-1])}[len(parts)]


def names(text: str) -> tuple[str, ...]:
    """`title,text`, or in a list of several `title/text` → (title, text). A file is one name, whatever folder it is in."""
    between = "," if "," in text or Path(text).is_file() else "/"
    return tuple(part.strip() for part in text.split(between) if part.strip())


READERS: dict[Any, tuple[Callable[[str], Any], str]] = {
    bool: (truth, "true or false"),
    int: (int, "a whole number"),
    float: (float, "a number"),
    tuple[int, int]: (pair, "a number of anchors: 15, or 40/16 for users and items, or auto"),
    tuple[str, ...]: (names, "names"),
    str: (str, "a word"),
}


def kinds_of(option: str, task: Task) -> list[Any]:
    """The types an option may have, those that take any word last."""
    kind = task.kinds[option]
    kinds = [kind] if kind in READERS else [k for k in get_args(kind) if k is not type(None)]
    if tuple[int, int] in kinds:  # its reader knows the one word there is
        kinds = [k for k in kinds if k is not str]
    return sorted(kinds, key=lambda k: k not in READERS or k is str)


def value_of(option: str, text: str, task: Task = RECOMMEND) -> Any:
    """The text as a value of the option's type."""
    wanted = ""
    for kind in kinds_of(option, task):
        reader, wanted = READERS.get(kind, (str, "a word"))
        try:
            return reader(text.strip())
        except (ValueError, KeyError):
            continue
    raise ValueError(f"{option} {text!r} is not {wanted}")


@dataclass(frozen=True)
class Choices:
    """An option and its values."""

    option: str
    values: tuple[Any, ...]

    def at(self, share: float) -> Any:
        """The value at a share of the way, 0 ≤ share < 1."""
        return self.values[int(share * len(self.values))]


@dataclass(frozen=True)
class Range:
    """An option between two numbers, both of them possible; `log`: as likely between 1 and 10 as between 10 and 100."""

    option: str
    low: float
    high: float
    log: bool
    task: Task = RECOMMEND

    @property
    def whole(self) -> bool:
        return float not in kinds_of(self.option, self.task)

    def at(self, share: float) -> Any:
        high = self.high + self.whole  # so that the last whole number is as likely as the others
        number = self.low * (high / self.low) ** share if self.log else self.low + share * (high - self.low)
        return self.value(math.floor(number) if self.whole else number)

    def value(self, number: float) -> Any:
        """A number of the range, as the option has it."""
        if self.whole:
            return value_of(self.option, str(min(int(number), int(self.high))), self.task)
        return min(max(float(f"{number:.{DIGITS}g}"), self.low), self.high)


Axis = Choices | Range


def parse_axes(texts: Sequence[str], task: Task = RECOMMEND) -> list[Axis]:
    axes = [parse_axis(text, task) for text in texts]
    varied = [axis.option for axis in axes]
    if twice := {option for option in varied if varied.count(option) > 1}:
        raise ValueError(f"{min(twice)} is varied {varied.count(min(twice))} times; give all its values in one --vary")
    return axes


def parse_seeds(text: str) -> list[int]:
    """`0,1,2`."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts) or len(set(parts)) < len(parts):
        raise ValueError(f"{text!r} is no list of different seeds; say 0,1,2")
    return [int(part) for part in parts]


def parse_axis(text: str, task: Task = RECOMMEND) -> Axis:
    """`l1=1e-5,1e-4`, `anchors=5,10,40/16`, `lr=0.003..0.03:log`, `anchors=5..40`."""
    name, equals, body = text.partition("=")
    option = option_of(name, task)
    if not equals or not body.strip():
        raise ValueError(f"{text!r} lists no values; say --vary {name}=VALUE,VALUE,… or --vary {name}=LOW..HIGH[:log]")
    if option in (*task.once, "seed", "threads"):
        remedy = {"seed": "repeat trials with --seeds 0,1,2", "threads": "it changes no result: give it with --set"}
        raise ValueError(f"{option} cannot be varied; {remedy.get(option, 'the data are read once: give it with --set')}")
    if ".." in body:
        return parse_range(option, body, task)
    values = tuple(value_of(option, word, task) for word in body.split(","))
    if len(set(values)) < len(values):
        raise ValueError(f"{text!r} has {len(values)} values, {len(set(values))} of them different; name each once")
    return Choices(option, values)


def parse_range(option: str, body: str, task: Task) -> Range:
    kinds = kinds_of(option, task)
    ends, _, scale = body.partition(":")
    if not {int, float, tuple[int, int]} & set(kinds):
        raise ValueError(f"{option} is no number, so {body} is no range of it; list its values, as in a,b")
    read = float if float in kinds else int
    try:
        low, high = (read(end) for end in ends.split(".."))
    except ValueError as error:
        raise ValueError(f"{option}={body} is no range; say {option}=LOW..HIGH or {option}=LOW..HIGH:log") from error
    if scale not in ("", "log"):
        raise ValueError(f"{option}={body}: the scale {scale!r} is not log; leave it out for an even one")
    if not low < high:
        raise ValueError(f"{option}={body}: {low} is not below {high}; the lower end comes first")
    if scale and low <= 0:
        raise ValueError(f"{option}={body}: a log scale starts above 0, not at {low}")
    return Range(option, low, high, bool(scale), task)


def parse_fixed(texts: Sequence[str], task: Task = RECOMMEND) -> Point:
    """Options that are the same for all trials: `solver=cd`, `columns=user,item,stars`."""
    fixed: Point = {}
    for text in texts:
        name, equals, body = text.partition("=")
        option = option_of(name, task)
        if not equals:
            raise ValueError(f"{text!r} gives no value; say --set {name}=VALUE")
        if option == "seed":
            raise ValueError(f"seed is not set but listed; say --seeds {body}")
        if option in fixed:
            raise ValueError(f"{option} is set twice, to {fixed[option]} and {body}; set it once")
        fixed[option] = value_of(option, body, task)
    return fixed


def grid(axes: Sequence[Axis]) -> list[Point]:
    """Every combination; the last option changes fastest."""
    ranges = [axis for axis in axes if isinstance(axis, Range)]
    if ranges:
        raise ValueError(f"{ranges[0].option} is a range; say how many points to draw with --trials, or list its values")
    lists = [axis.values for axis in axes if isinstance(axis, Choices)]
    return [dict(zip((axis.option for axis in axes), values, strict=True)) for values in itertools.product(*lists)]


def draws(axes: Sequence[Axis], n: int, seed: int) -> list[Point]:
    """n different points spread evenly (Halton, scrambled by the seed). The first of more draws are those of fewer."""
    shares = qmc.Halton(max(len(axes), 1), scramble=True, seed=seed).random(TURNS * n)
    found: dict[tuple[Any, ...], Point] = {}
    for row in shares:
        point = {axis.option: axis.at(float(share)) for axis, share in zip(axes, row, strict=False)}
        found.setdefault(tuple(point.values()), point)
        if len(found) == n:
            break
    return list(found.values())
