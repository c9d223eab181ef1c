"""`antembed sweep`: train with many settings on the same data; or rank runs that are finished (--select)."""

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from antembed.cli import show
from antembed.cli.common import AsJson
from antembed.extras import install
from antembed.files import JSON

if TYPE_CHECKING:  # `antembed inspect` imports this module, and must not wait for torch
    from antembed.sweep.space import Space
    from antembed.train.task import Splits, Task

Penalty = Annotated[float | None, typer.Option(min=0, help="With --select: λ1 of eq. 5, the cost of an anchor.")]
L0Penalty = Annotated[float | None, typer.Option(min=0, help="With --select: λ2, the cost of a non-zero; default: each run's.")]


def sweep(
    data: Annotated[
        list[Path], typer.Argument(help="As for antembed train TASK; with --select: runs, record files.", show_default=False)
    ],
    vary: Annotated[
        list[str] | None,
        typer.Option(
            help="OPTION=VALUE,VALUE (anchors=10,40/16 for two tables), OPTION=LOW..HIGH or OPTION=LOW..HIGH:log (by factors). "
            "Worth varying: anchors, embedding-dim, l0-penalty, ridge; with mini-batches l1-penalty, lr."
        ),
    ] = None,
    task: Annotated[str, typer.Option(help="As after antembed train: recommend, classify, …")] = "recommend",
    set_: Annotated[list[str] | None, typer.Option("--set", help="OPTION=VALUE, the same for all trials.")] = None,
    out: Annotated[Path, typer.Option(help="File of records; trials in it are not repeated.")] = Path("sweep.jsonl"),
    trials: Annotated[int | None, typer.Option(min=1, help="Draw so many points; default: the full grid.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the drawn points.")] = 0,
    seeds: Annotated[str, typer.Option(help="E.g. 0,1,2: every point is trained once per seed; results are means.")] = "0",
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time; several have one thread each.")] = 1,
    keep: Annotated[Path | None, typer.Option(help="Keep the runs in this folder; default: only their records.")] = None,
    optuna: Annotated[bool, typer.Option("--optuna", help="Let Optuna choose the --trials by the results so far.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw error against size into this file, .svg or .png.")] = None,
    paper: Annotated[bool | None, typer.Option(help="Show the paper's points, too; default: on its data sets.")] = None,
    select: Annotated[bool, typer.Option("--select", help="Train nothing: rank finished runs by eq. 5 of the paper.")] = False,
    anchor_penalty: Penalty = None,
    l0_penalty: L0Penalty = None,
    top: Annotated[int, typer.Option(min=1, help="With --select: how many to print.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Train with many settings on the same data and list those that no other beats in both error and size, on validation data.
    With --select, rank finished runs by loss + λ2·nnz(T) + (λ1 − λ2)·anchors (eq. 5 of the paper), where the loss
    is ½·MSE for ratings, cross-entropy for text.

    Example:  antembed sweep ratings.dat --vary l1-penalty=1e-6..1e-3:log --vary anchors=5,10,15 --trials 16

    Example:  antembed sweep --select sweep.jsonl --anchor-penalty 0.01 --l0-penalty 1e-6 --plot objective.svg
    """
    must_have("matplotlib", "plot", plot is not None)
    must_have("optuna", "sweep", optuna)
    if select:
        if vary or anchor_penalty is None:
            wanted = "leave out --vary" if vary else "add --anchor-penalty 0.01"
            raise typer.BadParameter(f"ranks finished runs by the cost of an anchor; {wanted}", param_hint="--select")
        _select(data, anchor_penalty, l0_penalty, top, plot, as_json)
        return
    if len(data) > 1 or not vary:
        raise typer.BadParameter("needs one file and what to vary, as in ratings.dat --vary anchors=5,10", param_hint="DATA")
    from antembed.cli.train import usage_errors
    from antembed.report.pictures import draw_settings
    from antembed.sweep import front, space
    from antembed.train.registry import TASKS
    from antembed.train.task import Published

    if task not in TASKS:
        raise typer.BadParameter(f"{task!r} is none of: {', '.join(TASKS)}", param_hint="--task")
    if optuna and trials is None:
        raise typer.BadParameter("--optuna needs to know how many points to try; add --trials 16", param_hint="--trials")
    swept = TASKS[task]
    published = swept.published if isinstance(swept, Published) else {}
    if paper and not published:
        raise typer.BadParameter(f"the paper has no points for {task}; leave out --paper", param_hint="--paper")
    with usage_errors(), show.stoppable(f"the same command continues, with what is in {out}"):
        asked = space.Space.parse(swept, vary, set_ or [], seeds, trials, seed)
        rows, splits = _train_all(swept, str(data[0]), asked, out, jobs, keep, optuna)
    result = front.front_of(rows)
    found = result.pop("all")
    beside = isinstance(swept, Published) and (swept.is_published(splits) if paper is None else paper)
    if plot is not None:
        draw_settings(found, plot, error=f"{result['error']} {swept.metric.label}", published=published if beside else {})
    if beside:
        result["paper"] = published
    show.print_json(result | {"records": str(out)}) if as_json else print_front(result, swept.metric.label)


def _train_all(
    task: "Task", data: str, asked: "Space", out: Path, jobs: int, keep: Path | None, optuna: bool
) -> "tuple[list[JSON], Splits]":
    """Plan the trials, and do those that the records lack."""
    import torch

    from antembed.native.threads import usable_cpus
    from antembed.sweep import space
    from antembed.sweep import trials as job

    threads = int(asked.fixed.get("threads", 1 if jobs > 1 else min(2, usable_cpus())))
    points = asked.points()
    # Wrong options are reported before the data are read.
    first, *_ = job.plan(task, data, points, asked.fixed, asked.seeds, examples=0)
    torch.set_num_threads(threads)
    with show.status(f"reading {data}"):
        splits = task.load(first.config)

    def plan(points: list[JSON]) -> list[job.Trial]:
        return job.plan(task, data, points, asked.fixed, asked.seeds, splits.count, threads, splits.objects)

    def run(trials: list[job.Trial]) -> list[JSON]:
        return job.sweep(trials, out, splits, jobs=jobs, keep=keep, callback=print_trial)

    done = job.finished(out, splits, task)
    if optuna:
        return space.search(asked, done, plan, run, together=jobs), splits
    planned = plan(points)
    show.say(f"{len(planned)} trials, {sum(trial.key in done for trial in planned)} of them in {out} already")
    return run(planned), splits


def must_have(package: str, extra: str, wanted: bool) -> None:
    """Checked before the first trial, not after the last."""
    if wanted and importlib.util.find_spec(package) is None:
        raise ValueError(f"{package} is not installed; {install(extra)}")


def print_trial(row: JSON) -> None:
    """A line on stderr for a trial that is done."""
    from antembed.sweep.front import evaluated_on
    from antembed.sweep.trials import label
    from antembed.train.registry import TASKS

    metric = TASKS[row["task"]].metric
    if "failed" in row:
        line = f"failed: {row['failed']}"
    else:
        part = evaluated_on([row])
        error = f"{part} {metric.label} {row[part][metric.name]:.4f}"
        line = f"{error}, {show.size(row['parameters'])} parameters, {row['seconds']:.1f} s"
    show.say(f"{label(row['settings'])} seed={row['seed']}: {line}")


def print_front(result: JSON, error: str) -> None:
    """The front, smallest error first, and the paper's points, which are test errors."""
    from antembed.sweep.trials import label

    rows = []
    for row in result["front"]:
        spread = f" ± {row['spread']:.4f}" if len(row["seeds"]) > 1 else ""
        sizes = (f"{row['parameters']:,.0f}", f"{row['bytes']:,.0f}", str(len(row["seeds"])))
        rows.append((f"{row['error']:.4f}{spread}", f"{row['test']:.4f}", *sizes, label(row["settings"])))
    for name, points in result.get("paper", {}).items():
        rows += [("–", f"{value:.3f}", f"{parameters:,.0f}", "–", "–", name) for parameters, value in points]
    headings = (f"{result['error']} {error}", f"test {error}", "parameters", "bytes", "seeds", "settings")
    show.table(headings, rows, [True] * 5 + [False])
    show.answer(f"{len(result['front'])} of {result['settings']} settings are on the front")


def _select(
    runs: list[Path], anchor_penalty: float, l0_penalty: float | None, top: int, plot: Path | None, as_json: bool
) -> None:
    """Rank finished runs, and print the first."""
    from antembed.report.pictures import draw_objective
    from antembed.sweep.front import gather, rank, task_of
    from antembed.sweep.trials import label

    rows = gather(runs)
    part, ranked = rank(rows, anchor_penalty, l0_penalty)
    if plot is not None:
        title = f"eq. 5 on {part} data, λ1 = {anchor_penalty:g}"
        draw_objective(ranked, plot, title + ("" if l0_penalty is None else f", λ2 = {l0_penalty:g}"))
    if as_json:
        show.print_json({"evaluated_on": part, "left_out": len(rows) - len(ranked), "ranking": ranked[:top]})
        return
    metric, lines = task_of(rows).metric, []
    for row in ranked[:top]:
        anchors = "/".join(map(str, row["anchors"].values())) + (" nbANT" if row["auto"] else "")
        run = row["source"] + (f" {label(row['settings'])} seed={row['seed']}" if row["settings"] else "")
        errors = (f"{row['objective']:.4f}", f"{row[metric.name]:.4f}")
        lines.append((*errors, f"{row['nnz']:,}", anchors, f"{row['parameters']:,}", run))
    headings = ("objective", f"{part} {metric.label}", "nnz", "anchors", "parameters", "run")
    show.table(headings, lines, [True] * 5 + [False])
    left_out = f"; {len(rows) - len(ranked)} without anchors left out" if len(rows) > len(ranked) else ""
    show.answer(f"{len(ranked)} runs, evaluated on {part} data{left_out}")
