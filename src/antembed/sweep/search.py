"""Optuna chooses the trials of a sweep: two objectives, error and parameters; what the records have is what it has seen."""

from collections.abc import Callable, Mapping, Sequence
from statistics import mean
from typing import Any

from antembed.files import JSON
from antembed.sweep.front import evaluated_on
from antembed.sweep.space import Axis, Choices
from antembed.sweep.trials import Trial
from antembed.train.registry import TASKS


def search(
    axes: Sequence[Axis],
    n: int,
    seed: int,
    finished: Mapping[str, JSON],
    plan: Callable[[Sequence[JSON]], list[Trial]],
    run: Callable[[Sequence[Trial]], list[JSON]],
    *,
    together: int = 1,
) -> list[JSON]:
    """n points in all, those in `finished` (by trial.key) counted, `together` at a time; → the rows of their trials."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    distributions = {axis.name: distribution(axis) for axis in axes}
    rows: dict[str, JSON] = {}
    seen = {}
    for row in finished.values():
        if row["settings"].keys() == distributions.keys() and all(positions(axis, row["settings"]) for axis in axes):
            point = {axis.name: as_typed(row["settings"][axis.name]) for axis in axes}
            trials = plan([point])
            if all(trial.key in finished for trial in trials):
                seen[trials[0].key] = (point, trials)
    # Another seed than last time, or a sampler that begins at random would begin with the same points again.
    sampler = optuna.samplers.TPESampler(seed=seed + len(seen), constant_liar=True)
    study = optuna.create_study(directions=["minimize", "minimize"], sampler=sampler)
    for point, trials in list(seen.values())[:n]:
        found = {trial.key: finished[trial.key] for trial in trials}
        rows |= found
        if (values := objectives([*found.values()])) is not None:
            params = {axis.name: positions(axis, point)[0] for axis in axes}
            study.add_trial(optuna.trial.create_trial(params=params, distributions=distributions, values=values))
    for start in range(min(len(seen), n), n, together):
        asked = [study.ask(distributions) for _ in range(min(together, n - start))]
        points = [{axis.name: value_at(axis, trial.params[axis.name]) for axis in axes} for trial in asked]
        run([trial for point in points for trial in plan([point])])  # side by side; a point asked for twice is done once
        for asked_for, point in zip(asked, points, strict=True):
            trials = plan([point])
            measured = run(trials)
            values = objectives(measured)
            study.tell(asked_for, values) if values is not None else study.tell(asked_for, state=optuna.trial.TrialState.FAIL)
            rows |= {trial.key: row for trial, row in zip(trials, measured, strict=True)}
    return [*rows.values()]


def objectives(rows: Sequence[JSON]) -> list[float] | None:
    """Error and parameters, means over the seeds; None if a run failed."""
    if any("failed" in row for row in rows):
        return None
    part, error = evaluated_on(rows), TASKS[rows[0]["task"]].metric.name
    return [mean(row[part][error] for row in rows), mean(row["parameters"] for row in rows)]


def distribution(axis: Axis) -> Any:
    """Optuna's word for an axis; a list by its places, since its values may be pairs."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(axis, Choices):
        return CategoricalDistribution(list(range(len(axis.values))))
    if axis.whole:
        return IntDistribution(int(axis.low), int(axis.high), log=axis.log)
    return FloatDistribution(axis.low, axis.high, log=axis.log)


def value_at(axis: Axis, place: Any) -> Any:
    """Optuna's number → the option's value."""
    return axis.values[place] if isinstance(axis, Choices) else axis.value(place)


def positions(axis: Axis, point: JSON) -> list[Any]:
    """The option's value → Optuna's number, in a list; none if it lies outside."""
    value = as_typed(point[axis.name])
    if isinstance(axis, Choices):
        return [axis.values.index(value)] if value in axis.values else []
    number = value[0] if isinstance(value, tuple) and len(set(value)) == 1 else value
    return [number] if isinstance(number, int | float) and axis.low <= number <= axis.high else []


def as_typed(value: Any) -> Any:
    """JSON has no pairs."""
    return tuple(value) if isinstance(value, list) else value
