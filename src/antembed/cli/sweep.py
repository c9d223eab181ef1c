"""`antembed sweep` and `antembed select`: many runs, and which of them to take."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from antembed.cli.common import AsJson, checked


def sweep(
    data: Annotated[Path, typer.Argument(help="As for antembed train recommend, or whatever the --task is.")],
    vary: Annotated[
        list[str], typer.Option(help="OPTION=VALUE,VALUE,… (anchors=10,40/16 for users/items) or OPTION=LOW..HIGH[:log].")
    ],
    task: Annotated[str, typer.Option(help="recommend (ratings) or classify (labelled text).")] = "recommend",
    test: Annotated[Path | None, typer.Option(help="classify: text to be tested by; default: a tenth of DATA.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="OPTION=VALUE, the same for all trials.")] = None,
    out: Annotated[Path, typer.Option(help="Records, a row a trial; trials that are in it are not repeated.")] = Path(
        "sweep.jsonl"
    ),
    trials: Annotated[int | None, typer.Option(min=1, help="Draw so many points; default: the whole grid.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the draws.")] = 0,
    seeds: Annotated[str, typer.Option(help="Of the runs: each point once with each, and means count.")] = "0",
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time, with a thread each if there are several.")] = 1,
    keep: Annotated[Path | None, typer.Option(help="Keep the runs in this folder; default: only their records.")] = None,
    optuna: Annotated[
        bool, typer.Option("--optuna", help="Let Optuna choose the --trials by what it has seen so far.")
    ] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw error against size into this file, .svg or .png.")] = None,
    paper: Annotated[
        bool | None, typer.Option(help="With the paper's points beside ours; default: if the data are MovieLens 1M.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Try many settings on the same data; → those that no other beats in both error and size.

    The error is the MSE of ratings or the error rate (1 − accuracy) of text, on validation data.

    Example:  antembed sweep ratings.dat --vary l1=1e-5,3e-5,1e-4 --vary anchors=5,10,15 --out sweep.jsonl

    Example:  antembed sweep ratings.dat --vary lr=0.003..0.03:log --vary l1=1e-6..1e-3:log --trials 16

    Example:  antembed sweep train.csv --task classify --test test.csv --set model=bag --vary l1=1e-5..3e-4:log
    --vary anchors=10,20,40 --trials 12 --plot front.svg
    """
    import torch

    from antembed.cli import show
    from antembed.kernels.threads import usable_cpus
    from antembed.pipelines import space
    from antembed.pipelines import sweep as job
    from antembed.pipelines.search import search
    from antembed.pipelines.task import TASKS
    from antembed.reporting.front import MOVIELENS_1M, draw_settings

    must_have("matplotlib", "plot", plot is not None)
    must_have("optuna", "sweep", optuna)
    threads = 1 if jobs > 1 else min(2, usable_cpus())
    with checked():
        if task not in TASKS:
            raise ValueError(f"task {task!r} is none of: {', '.join(TASKS)}")
        if optuna and trials is None:
            raise ValueError("--optuna needs to know how many points to try; add --trials 16")
        swept = TASKS[task]
        if paper and not swept.published:
            raise ValueError(f"the paper's points are of ratings, not of {task}; leave out --paper")
        tested = [] if test is None else [f"test={test}"]
        axes, fixed = space.parse_axes(vary, swept), space.parse_fixed([*tested, *(set_ or [])], swept)
        chosen = space.parse_seeds(seeds)
        points = space.grid(axes) if trials is None else space.draws(axes, trials, seed)
        # Wrong options are told before the data are read.
        first, *_ = job.plan(str(data), points, fixed, chosen, examples=0, task=swept)
    torch.set_num_threads(fixed.get("threads", threads))
    with show.status(f"reading {data}"):
        read = swept.read(first.settings)
        examples = len(read)

    def plan(points: Sequence[dict[str, Any]]) -> list[job.Trial]:
        return job.plan(str(data), points, fixed, chosen, examples, threads, swept)

    def run(trials: Sequence[job.Trial]) -> list[dict[str, Any]]:
        return job.sweep(trials, out, read, jobs=jobs, keep=keep, tell=tell_trial)

    try:
        if optuna:
            assert trials is not None
            rows = search(axes, trials, seed, job.finished(out, read, swept), plan, run, together=jobs)
        else:
            planned, done = plan(points), job.finished(out, read, swept)
            there = sum(trial.key in done for trial in planned)
            show.err.print(f"{len(planned)} trials, {there} of them in {out} already", highlight=False)
            rows = run(planned)
    except KeyboardInterrupt:
        show.err.print(f"stopped; the same command goes on, with what is in {out}", highlight=False)
        raise typer.Exit(1) from None
    told = job.front_of(rows)
    found = told.pop("all")
    beside = read.digest == MOVIELENS_1M if paper is None else paper
    if plot is not None:
        draw_settings(found, plot, error=f"{told['error']} {swept.heading}", size=swept.size, paper=beside)
    if beside:
        told["paper"] = swept.published
    if as_json:
        show.print_json(told | {"records": str(out)})
    else:
        show.out.print(front_table(told, swept.heading))


def must_have(package: str, extra: str, wanted: bool) -> None:
    """Said before the first trial, not after the last."""
    if wanted and importlib.util.find_spec(package) is None:
        raise ValueError(f"{package} is not installed; pip install 'antembed[{extra}]'")


def tell_trial(row: dict[str, Any]) -> None:
    """A line on stderr for a trial that is done."""
    from antembed.cli import show
    from antembed.pipelines.sweep import label
    from antembed.pipelines.task import TASKS
    from antembed.reporting.front import judged_on

    task = TASKS[row["task"]]
    if "failed" in row:
        told = f"failed: {row['failed']}"
    else:
        part = judged_on([row])
        error = f"{part} {task.heading} {row[part][task.error]:.4f}"
        told = f"{error}, {show.size(row['parameters'])} parameters, {row['seconds']:.1f} s"
    show.err.print(f"{label(row['settings'])} seed={row['seed']}: {told}", highlight=False, markup=False, soft_wrap=True)


def front_table(told: dict[str, Any], error: str) -> Any:
    """The front, smallest error first, and the paper's points, which are test errors."""
    from rich.table import Table

    from antembed.pipelines.sweep import label

    table = Table(
        box=None, header_style="bold", caption=f"{len(told['front'])} of {told['settings']} settings are on the front"
    )
    for heading in (f"{told['error']} {error}", f"test {error}", "parameters", "bytes", "seeds", "settings"):
        table.add_column(heading, justify="left" if heading == "settings" else "right", overflow="fold")
    for row in told["front"]:
        spread = f" ± {row['spread']:.4f}" if len(row["seeds"]) > 1 else ""
        sizes = (f"{row['parameters']:,.0f}", f"{row['bytes']:,.0f}", str(len(row["seeds"])))
        table.add_row(f"{row['error']:.4f}{spread}", f"{row['test']:.4f}", *sizes, label(row["settings"]))
    for name, those in told.get("paper", {}).items():
        for parameters, error in those:
            table.add_row("–", f"{error:.3f}", f"{parameters:,.0f}", "–", "–", name)
    return table


def select(
    runs: Annotated[list[Path], typer.Argument(help="Folders of finished runs, and files of records (of a sweep, say).")],
    lambda1: Annotated[float, typer.Option(min=0, help="λ1, the price of an anchor in eq. 5.")],
    lambda2: Annotated[
        float | None, typer.Option(min=0, help="λ2, the price of a non-zero; default: the l1 each was trained with.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="How many to print.")] = 10,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the objective against the anchors into this file, .svg or .png.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Rank finished runs by eq. 5 of the paper: loss + λ2·nnz(T) + (λ1 − λ2)·anchors, lowest first.

    The loss is ½·MSE for ratings, cross-entropy for text.

    Example:  antembed select sweep.jsonl --lambda1 0.01 --lambda2 1e-6 --plot objective.svg
    """
    from rich.table import Table

    from antembed.cli import show
    from antembed.pipelines.select import gather, rank
    from antembed.pipelines.sweep import label
    from antembed.pipelines.task import TASKS
    from antembed.reporting.objective import TABLES, draw_objective

    must_have("matplotlib", "plot", plot is not None)
    rows = gather(runs)
    part, ranked = rank(rows, lambda1, lambda2)
    if plot is not None:
        draw_objective(
            ranked, plot, f"eq. 5 on {part} data, λ1 = {lambda1:g}" + ("" if lambda2 is None else f", λ2 = {lambda2:g}")
        )
    if as_json:
        show.print_json({"judged_on": part, "left_out": len(rows) - len(ranked), "ranking": ranked[:top]})
        return
    left_out = f"; {len(rows) - len(ranked)} without anchors left out" if len(rows) > len(ranked) else ""
    table = Table(box=None, header_style="bold", caption=f"{len(ranked)} runs, judged on {part} data{left_out}")
    task = next(task for task in TASKS.values() if task.error in ranked[0])
    for heading in ("objective", f"{part} {task.heading}", "nnz", "anchors", "parameters", "run"):
        table.add_column(heading, justify="left" if heading == "run" else "right", overflow="fold")
    for row in ranked[:top]:
        run = row["source"] + (f" {label(row['settings'])} seed={row['seed']}" if row["settings"] else "")
        table.add_row(
            f"{row['objective']:.4f}",
            f"{row[task.error]:.4f}",
            f"{row['nnz']:,}",
            "/".join(str(row[table]) for table in TABLES if table in row) + (" nbANT" if row["auto"] else ""),
            f"{row['parameters']:,}",
            run,
        )
    show.out.print(table)
