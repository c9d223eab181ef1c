"""`antembed sweep` and `antembed select`: many runs, and which of them to take."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from antembed.cli.common import AsJson
from antembed.cli.terminal import printable
from antembed.extras import install
from antembed.files import JSON

if TYPE_CHECKING:  # `antembed inspect` imports this module, and must not wait for torch
    from rich.table import Table

    from antembed.train.task import Splits, Task


Vary = Annotated[
    list[str], typer.Option(help="OPTION=VALUE,VALUE,… (anchors=10,40/16 for two tables) or OPTION=LOW..HIGH[:log].")
]
Fixed = Annotated[list[str] | None, typer.Option("--set", help="OPTION=VALUE, the same for all trials.")]
Out = Annotated[Path, typer.Option(help="Records, a row a trial; trials that are in it are not repeated.")]
Trials = Annotated[int | None, typer.Option(min=1, help="Draw so many points; default: the whole grid.")]
Seeds = Annotated[str, typer.Option(help="Of the runs: each point once with each, and means count.")]
Jobs = Annotated[int, typer.Option(min=1, help="Runs at a time, with a thread each if there are several.")]
Keep = Annotated[Path | None, typer.Option(help="Keep the runs in this folder; default: only their records.")]
Optuna = Annotated[bool, typer.Option("--optuna", help="Let Optuna choose the --trials by what it has seen so far.")]
Plot = Annotated[Path | None, typer.Option(help="Draw error against size into this file, .svg or .png.")]
Paper = Annotated[bool | None, typer.Option(help="With the paper's points beside ours; default: if the data are its own.")]


def sweep(
    data: Annotated[Path, typer.Argument(help="As for antembed train TASK.")],
    vary: Vary,
    task: Annotated[str, typer.Option(help="As after antembed train: recommend, classify, …")] = "recommend",
    set_: Fixed = None,
    out: Out = Path("sweep.jsonl"),
    trials: Trials = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the draws.")] = 0,
    seeds: Seeds = "0",
    jobs: Jobs = 1,
    keep: Keep = None,
    optuna: Optuna = False,
    plot: Plot = None,
    paper: Paper = None,
    as_json: AsJson = False,
) -> None:
    """Try many settings on the same data; → those that no other beats in both error and size.

    The error is the MSE of ratings or the error rate (1 − accuracy) of text, on validation data.

    Example:  antembed sweep ratings.dat --vary l1-penalty=1e-5,3e-5,1e-4 --vary anchors=5,10,15 --out sweep.jsonl

    Example:  antembed sweep ratings.dat --vary lr=0.003..0.03:log --vary l1-penalty=1e-6..1e-3:log --trials 16

    Example:  antembed sweep train.csv --task classify --set test=test.csv --set model=mean --vary anchors=10,20,40
    """
    from antembed.cli import show
    from antembed.sweep import trials as job
    from antembed.sweep.front import draw_settings
    from antembed.train.options import ConfigError
    from antembed.train.registry import TASKS

    must_have("matplotlib", "plot", plot is not None)
    must_have("optuna", "sweep", optuna)
    if task not in TASKS:
        raise typer.BadParameter(f"{task!r} is none of: {', '.join(TASKS)}", param_hint="--task")
    swept = TASKS[task]
    if paper and not swept.published:
        raise typer.BadParameter(f"the paper has no points for {task}; leave out --paper", param_hint="--paper")
    try:
        rows, splits = run_sweep(swept, str(data), vary, set_ or [], out, trials, seed, seeds, jobs, keep, optuna)
    except ConfigError as error:
        raise typer.BadParameter(printable(error)) from error
    except KeyboardInterrupt:
        show.say(f"interrupted; the same command continues, with what is in {out}")
        raise typer.Exit(1) from None
    result = job.front_of(rows)
    found = result.pop("all")
    beside = swept.is_published(splits) if paper is None else paper
    if plot is not None:
        published = swept.published if beside else {}
        draw_settings(found, plot, error=f"{result['error']} {swept.metric.label}", published=published)
    if beside:
        result["paper"] = swept.published
    if as_json:
        show.print_json(result | {"records": str(out)})
    else:
        show.console().print(front_table(result, swept.metric.label))


def run_sweep(
    task: "Task",
    data: str,
    vary: Sequence[str],
    fixed_texts: Sequence[str],
    out: Path,
    trials: int | None,
    seed: int,
    seeds: str,
    jobs: int,
    keep: Path | None,
    optuna: bool,
) -> "tuple[list[JSON], Splits]":
    """Plan the trials, and do those that the records lack."""
    import torch

    from antembed.cli import show
    from antembed.native.threads import usable_cpus
    from antembed.sweep import space
    from antembed.sweep import trials as job
    from antembed.sweep.search import search

    if optuna and trials is None:
        raise typer.BadParameter("--optuna needs to know how many points to try; add --trials 16", param_hint="--trials")
    axes, fixed, chosen = space.parse_axes(vary, task), space.parse_fixed(fixed_texts, task), space.parse_seeds(seeds)
    points = space.grid(axes) if trials is None else space.draws(axes, trials, seed)
    threads = int(fixed.get("threads", 1 if jobs > 1 else min(2, usable_cpus())))
    # Wrong options are reported before the data are read.
    first, *_ = job.plan(task, data, points, fixed, chosen, examples=0)
    torch.set_num_threads(threads)
    with show.status(f"reading {data}"):
        splits = task.load(first.config)

    def plan(points: Sequence[JSON]) -> list[job.Trial]:
        return job.plan(task, data, points, fixed, chosen, splits.count, threads, splits.objects)

    def run(trials: Sequence[job.Trial]) -> list[JSON]:
        return job.sweep(trials, out, splits, jobs=jobs, keep=keep, callback=print_trial)

    if optuna:
        assert trials is not None
        return search(axes, trials, seed, job.finished(out, splits, task), plan, run, together=jobs), splits
    planned, done = plan(points), job.finished(out, splits, task)
    there = sum(trial.key in done for trial in planned)
    show.say(f"{len(planned)} trials, {there} of them in {out} already")
    return run(planned), splits


def must_have(package: str, extra: str, wanted: bool) -> None:
    """Said before the first trial, not after the last."""
    if wanted and importlib.util.find_spec(package) is None:
        raise ValueError(f"{package} is not installed; {install(extra)}")


def print_trial(row: JSON) -> None:
    """A line on stderr for a trial that is done."""
    from antembed.cli import show
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


def front_table(result: JSON, error: str) -> "Table":
    """The front, smallest error first, and the paper's points, which are test errors."""
    from rich.table import Table

    from antembed.sweep.trials import label

    caption = f"{len(result['front'])} of {result['settings']} settings are on the front"
    table = Table(box=None, header_style="bold", caption=caption)
    for heading in (f"{result['error']} {error}", f"test {error}", "parameters", "bytes", "seeds", "settings"):
        table.add_column(heading, justify="left" if heading == "settings" else "right", overflow="fold")
    for row in result["front"]:
        spread = f" ± {row['spread']:.4f}" if len(row["seeds"]) > 1 else ""
        sizes = (f"{row['parameters']:,.0f}", f"{row['bytes']:,.0f}", str(len(row["seeds"])))
        table.add_row(f"{row['error']:.4f}{spread}", f"{row['test']:.4f}", *sizes, printable(label(row["settings"])))
    for name, points in result.get("paper", {}).items():
        for parameters, value in points:
            table.add_row("–", f"{value:.3f}", f"{parameters:,.0f}", "–", "–", name)
    return table


def select(
    runs: Annotated[list[Path], typer.Argument(help="Folders of finished runs, and files of records (of a sweep, say).")],
    anchor_penalty: Annotated[float, typer.Option(min=0, help="λ1, the cost of an anchor in eq. 5.")],
    l0_penalty: Annotated[
        float | None, typer.Option(min=0, help="λ2, the cost of a non-zero; default: that of each run.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="How many to print.")] = 10,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the objective against the anchors into this file, .svg or .png.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Rank finished runs by eq. 5 of the paper: loss + λ2·nnz(T) + (λ1 − λ2)·anchors, lowest first.

    The loss is ½·MSE for ratings, cross-entropy for text.

    Example:  antembed select sweep.jsonl --anchor-penalty 0.01 --l0-penalty 1e-6 --plot objective.svg
    """
    from rich.table import Table

    from antembed.cli import show
    from antembed.sweep.front import draw_objective
    from antembed.sweep.select import gather, rank, task_of
    from antembed.sweep.trials import label

    must_have("matplotlib", "plot", plot is not None)
    rows = gather(runs)
    part, ranked = rank(rows, anchor_penalty, l0_penalty)
    if plot is not None:
        title = f"eq. 5 on {part} data, λ1 = {anchor_penalty:g}"
        draw_objective(ranked, plot, title + ("" if l0_penalty is None else f", λ2 = {l0_penalty:g}"))
    if as_json:
        show.print_json({"evaluated_on": part, "left_out": len(rows) - len(ranked), "ranking": ranked[:top]})
        return
    left_out = f"; {len(rows) - len(ranked)} without anchors left out" if len(rows) > len(ranked) else ""
    table = Table(box=None, header_style="bold", caption=f"{len(ranked)} runs, evaluated on {part} data{left_out}")
    metric = task_of(rows).metric
    for heading in ("objective", f"{part} {metric.label}", "nnz", "anchors", "parameters", "run"):
        table.add_column(heading, justify="left" if heading == "run" else "right", overflow="fold")
    for row in ranked[:top]:
        run = row["source"] + (f" {label(row['settings'])} seed={row['seed']}" if row["settings"] else "")
        table.add_row(
            f"{row['objective']:.4f}",
            f"{row[metric.name]:.4f}",
            f"{row['nnz']:,}",
            "/".join(map(str, row["anchors"].values())) + (" nbANT" if row["auto"] else ""),
            f"{row['parameters']:,}",
            printable(run),
        )
    show.console().print(table)
