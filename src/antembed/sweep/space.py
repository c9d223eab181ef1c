"""A space of options (`l1_penalty=1e-5,1e-4` lists values, `lr=0.003..0.03:log` is a range): grid, draws, Optuna's choice."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import TypeAdapter, ValidationError
from scipy.stats import qmc

from antembed.files import JSON
from antembed.sweep.front import evaluated_on
from antembed.train.options import ConfigError, Option, explained, options_of
from antembed.train.registry import TASKS
from antembed.train.task import Task

if TYPE_CHECKING:
    from antembed.sweep.trials import Trial

    Plan = Callable[[list[JSON]], list[Trial]]
    Run = Callable[[list[Trial]], list[JSON]]

DIGITS = 4  # of a drawn number, so that it can be typed again
TURNS = 50  # draws for each point wanted, before a small space counts as used up
PER_TABLE = "anchors"  # an option with a number for each table, of which one will do
WHICH_DATA = ("data", "test", "label", "columns", "on_error")  # one digest stands for the data of all trials


def option_of(name: str, task: Task) -> Option:
    """`ridge-per-rating` or `ridge_per_rating` → that option."""
    option, known = name.strip().removeprefix("--").replace("-", "_"), options_of(task.Config)
    if option not in known:
        raise ConfigError(f"{name!r} is no option of a run; there are: {', '.join(known)}")
    return known[option]


def value_of(option: Option, text: object) -> Any:
    if option.choices:
        if text not in option.choices:
            raise ConfigError(f"{option.name} {text!r} is none of: {', '.join(option.choices)}", option.name)
        return text
    try:
        field = option.field
        kind: Any = Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
        return TypeAdapter(kind).validate_python(text.strip() if isinstance(text, str) else text)
    except ValidationError as error:
        complaint = explained(error)
        raise ConfigError(f"{option.name} {complaint}".replace(f"{option.name}  ", f"{option.name} "), option.name) from error


@dataclass(frozen=True)
class Choices:
    option: Option
    values: tuple[Any, ...]

    @property
    def name(self) -> str:
        return self.option.name

    def at(self, share: float) -> Any:
        """The value at a share of the way, 0 ≤ share < 1."""
        return self.values[int(share * len(self.values))]

    def distribution(self) -> Any:
        """For Optuna: by position, since its values may be pairs."""
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(list(range(len(self.values))))

    def value(self, position: int) -> Any:
        """Optuna's number → the option's value."""
        return self.values[position]

    def numbers(self, value: Any) -> list[int]:
        """The option's value → Optuna's number, in a list; none if it is not among the values."""
        return [self.values.index(value)] if value in self.values else []


@dataclass(frozen=True)
class Range:
    """An option between two numbers, both of them possible; `log`: as likely between 1 and 10 as between 10 and 100."""

    option: Option
    low: float
    high: float
    log: bool

    @property
    def name(self) -> str:
        return self.option.name

    @cached_property
    def integer(self) -> bool:
        return not isinstance(value_of(self.option, self.low), float)

    def at(self, share: float) -> Any:
        high = self.high + self.integer  # so that the last integer is as likely as the others
        number = self.low * (high / self.low) ** share if self.log else self.low + share * (high - self.low)
        return self.value(math.floor(number) if self.integer else number)

    def value(self, number: float) -> Any:
        """A number of the range, as the option has it."""
        if self.integer:
            return value_of(self.option, min(int(number), int(self.high)))
        return min(max(float(f"{number:.{DIGITS}g}"), self.low), self.high)

    def distribution(self) -> Any:
        from optuna.distributions import FloatDistribution, IntDistribution

        if self.integer:
            return IntDistribution(int(self.low), int(self.high), log=self.log)
        return FloatDistribution(self.low, self.high, log=self.log)

    def numbers(self, value: Any) -> list[float]:
        number = value[0] if isinstance(value, tuple) and len(set(value)) == 1 else value
        return [number] if isinstance(number, int | float) and self.low <= number <= self.high else []


Axis = Choices | Range


class Space(NamedTuple):
    """What a sweep tries."""

    axes: list[Axis]
    fixed: JSON  # options that are the same for all trials
    seeds: list[int]  # of the runs of a point
    trials: int | None  # points that are drawn; None: the full grid
    seed: int  # of the draws

    @classmethod
    def parse(cls, task: Task, vary: Sequence[str], fixed: Sequence[str], seeds: str, trials: int | None, seed: int) -> "Space":
        return cls(parse_axes(vary, task), parse_fixed(fixed, task), parse_seeds(seeds), trials, seed)

    def points(self) -> list[JSON]:
        return grid(self.axes) if self.trials is None else draws(self.axes, self.trials, self.seed)


def parse_axes(texts: Sequence[str], task: Task) -> list[Axis]:
    axes = [parse_axis(text, task) for text in texts]
    varied = [axis.name for axis in axes]
    if twice := {name for name in varied if varied.count(name) > 1}:
        raise ConfigError(f"{min(twice)} is varied {varied.count(min(twice))} times; give all its values in one --vary")
    return axes


def parse_seeds(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts) or len(set(parts)) < len(parts):
        raise ConfigError(f"{text!r} is no list of different seeds; say 0,1,2")
    return [int(part) for part in parts]


def parse_axis(text: str, task: Task) -> Axis:
    """`l1_penalty=1e-5,1e-4`, `anchors=5,10,40/16`, `lr=0.003..0.03:log`, `anchors=5..40`."""
    name, equals, body = text.partition("=")
    option = option_of(name, task)
    if not equals or not body.strip():
        raise ConfigError(f"{text!r} lists no values; say --vary {name}=VALUE,VALUE,… or --vary {name}=LOW..HIGH[:log]")
    remedy = dict.fromkeys(WHICH_DATA, "the data are the same for all trials")
    remedy |= {"seed": "repeat trials with --seeds 0,1,2", "threads": "it changes no result: give it with --set"}
    if option.name in remedy:
        raise ConfigError(f"{option.name} cannot be varied; {remedy[option.name]}")
    if ".." in body:
        return parse_range(option, body)
    values = tuple(value_in_list(option, word) for word in body.split(","))
    if len(set(values)) < len(values):
        raise ConfigError(f"{text!r} has {len(values)} values, {len(set(values))} of them different; name each once")
    return Choices(option, values)


def value_in_list(option: Option, word: str) -> object:
    """A comma is between values there, so several names are `title/text`. A file is one name, whatever folder it is in."""
    value = value_of(option, word)
    names = isinstance(value, tuple) and all(isinstance(part, str) for part in value)
    return value_of(option, word.replace("/", ",")) if names and not Path(word.strip()).is_file() else value


def parse_range(option: Option, body: str) -> Range:
    ends, _, scale = body.partition(":")
    try:
        low, high = (float(end) for end in ends.split(".."))
    except ValueError as error:
        raise ConfigError(f"{option.name}={body} is no range; say {option.name}=LOW..HIGH[:log]") from error
    found = value_of(option, int(low) if low == int(low) else low)
    if isinstance(found, bool | str) or (isinstance(found, tuple) and option.name != PER_TABLE):
        raise ConfigError(f"{option.name} is no number, so {body} is no range of it; list its values, as in a,b")
    if scale not in ("", "log"):
        raise ConfigError(f"{option.name}={body}: the scale {scale!r} is not log; leave it out for an even one")
    if not low < high:
        raise ConfigError(f"{option.name}={body}: {low:g} is not below {high:g}; the lower end comes first")
    if scale and low <= 0:
        raise ConfigError(f"{option.name}={body}: a log scale starts above 0, not at {low:g}")
    kind = float if isinstance(found, float) else int
    return Range(option, kind(low), kind(high), bool(scale))


def parse_fixed(texts: Sequence[str], task: Task) -> JSON:
    """Options that are the same for all trials: `solver=coordinate_descent`, `columns=user,item,stars`."""
    fixed: JSON = {}
    for text in texts:
        name, equals, body = text.partition("=")
        option = option_of(name, task)
        if not equals:
            raise ConfigError(f"{text!r} gives no value; say --set {name}=VALUE")
        if option.name == "seed":
            raise ConfigError(f"seed is not set but listed; say --seeds {body}")
        if option.name in fixed:
            raise ConfigError(f"{option.name} is set twice, to {fixed[option.name]} and {body}; set it once")
        fixed[option.name] = value_of(option, body)
    return fixed


def grid(axes: Sequence[Axis]) -> list[JSON]:
    """Every combination; the last option changes fastest."""
    ranges = [axis for axis in axes if isinstance(axis, Range)]
    if ranges:
        raise ConfigError(f"{ranges[0].name} is a range; say how many points to draw with --trials, or list its values")
    lists = [axis.values for axis in axes if isinstance(axis, Choices)]
    return [dict(zip((axis.name for axis in axes), values, strict=True)) for values in itertools.product(*lists)]


def draws(axes: Sequence[Axis], n: int, seed: int) -> list[JSON]:
    """n different points spread evenly (Halton, scrambled by the seed). The first of more draws are those of fewer."""
    shares = qmc.Halton(max(len(axes), 1), scramble=True, seed=seed).random(TURNS * n)
    found: dict[tuple[Any, ...], JSON] = {}
    for row in shares:
        point = {axis.name: axis.at(float(share)) for axis, share in zip(axes, row, strict=False)}
        found.setdefault(tuple(point.values()), point)
        if len(found) == n:
            break
    return list(found.values())


# Optuna chooses: two objectives, error and parameters; what the records have is what it has seen.


def search(asked: Space, finished: Mapping[str, JSON], plan: "Plan", run: "Run", *, together: int = 1) -> list[JSON]:
    """asked.trials points, those in `finished` (by trial.key) counted, `together` at a time; → the rows of their trials."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    n, distributions = asked.trials or 0, {axis.name: axis.distribution() for axis in asked.axes}
    rows: dict[str, JSON] = {}
    seen: dict[str, tuple[JSON, list[Trial]]] = {}
    for row in finished.values():
        if row["settings"].keys() == distributions.keys():
            point = {name: tuple(value) if isinstance(value, list) else value for name, value in row["settings"].items()}
            if all(axis.numbers(point[axis.name]) for axis in asked.axes):
                trials = plan([point])
                if all(trial.key in finished for trial in trials):
                    seen[trials[0].key] = (point, trials)
    # Another seed than last time, or a sampler that begins at random would begin with the same points again.
    sampler = optuna.samplers.TPESampler(seed=asked.seed + len(seen), constant_liar=True)
    study = optuna.create_study(directions=["minimize", "minimize"], sampler=sampler)
    for point, trials in list(seen.values())[:n]:
        found = {trial.key: finished[trial.key] for trial in trials}
        rows |= found
        if (values := objectives([*found.values()])) is not None:
            params = {axis.name: axis.numbers(point[axis.name])[0] for axis in asked.axes}
            study.add_trial(optuna.trial.create_trial(params=params, distributions=distributions, values=values))
    for start in range(min(len(seen), n), n, together):
        drawn = [study.ask(distributions) for _ in range(min(together, n - start))]
        points = [{axis.name: axis.value(trial.params[axis.name]) for axis in asked.axes} for trial in drawn]
        run([trial for point in points for trial in plan([point])])  # side by side; a point asked for twice is done once
        for one, point in zip(drawn, points, strict=True):
            trials = plan([point])
            measured = run(trials)
            values = objectives(measured)
            study.tell(one, values) if values is not None else study.tell(one, state=optuna.trial.TrialState.FAIL)
            rows |= {trial.key: row for trial, row in zip(trials, measured, strict=True)}
    return [*rows.values()]


def objectives(rows: Sequence[JSON]) -> list[float] | None:
    """Error and parameters, means over the seeds; None if a run failed."""
    if any("failed" in row for row in rows):
        return None
    part, error = evaluated_on(rows), TASKS[rows[0]["task"]].metric.name
    return [mean(row[part][error] for row in rows), mean(row["parameters"] for row in rows)]
