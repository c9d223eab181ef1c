"""`antembed sweep` and `antembed select`: many runs, and which of them to take."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def sweep(
    data: Annotated[Path, typer.Argument(help="Ratings, as for antembed train recommend.")],
    vary: Annotated[
        list[str], typer.Option(help="OPTION=VALUE,VALUE,… (anchors=10,40/16 for users/items) or OPTION=LOW..HIGH[:log].")
    ],
    set_: Annotated[list[str] | None, typer.Option("--set", help="OPTION=VALUE, the same for all trials.")] = None,
    out: Annotated[Path, typer.Option(help="Records, a row a trial; trials that are in it are not repeated.")] = Path(
        "sweep.jsonl"
    ),
    trials: Annotated[int | None, typer.Option(min=1, help="Draw so many points; default: the whole grid.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the draws.")] = 0,
    seeds: Annotated[str, typer.Option(help="Of the runs: each point once with each, and means count.")] = "0",
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time, with a thread each if there are several.")] = 1,
    keep: Annotated[Path | None, typer.Option(help="Keep the runs in this folder; default: only their records.")] = None,
    as_json: AsJson = False,
) -> None:
    """Try many settings on one set of ratings; → those that no other beats in both error and size.

    Example:  antembed sweep ratings.dat --vary l1=1e-5,3e-5,1e-4 --vary anchors=5,10,15 --out sweep.jsonl
    """
    import torch

    from antembed.cli import show
    from antembed.data import default_cache, read_ratings
    from antembed.pipelines import space
    from antembed.pipelines import sweep as job

    threads = 1 if jobs > 1 else min(2, os.cpu_count() or 1)
    try:
        axes, fixed, chosen = space.parse_axes(vary), space.parse_fixed(set_ or []), space.parse_seeds(seeds)
        points = space.grid(axes) if trials is None else space.draws(axes, trials, seed)
        job.plan(str(data), points, fixed, chosen, ratings=0)  # wrong options are told before the data are read
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    torch.set_num_threads(fixed.get("threads", threads))
    with show.status(f"reading {data}"):
        on_error = fixed.get("on_error", "stop")
        ratings = read_ratings(data, fixed.get("columns"), on_error=on_error, cache=default_cache())
    planned = job.plan(str(data), points, fixed, chosen, len(ratings), threads)
    left = sum(trial.key not in job.finished(out, ratings) for trial in planned)
    show.err.print(f"{len(planned)} trials, {len(planned) - left} of them in {out} already", highlight=False)
    try:
        rows = job.sweep(planned, out, ratings, jobs=jobs, keep=keep, tell=teller(left))
    except KeyboardInterrupt:
        show.err.print(f"stopped; the same command goes on, with what is in {out}", highlight=False)
        raise typer.Exit(1) from None
    told = job.front_of(rows)
    if as_json:
        show.print_json(told | {"records": str(out)})
    else:
        show.out.print(front_table(told))


def teller(total: int) -> Any:
    """A line on stderr for each trial done."""
    from antembed.cli import show
    from antembed.pipelines.sweep import label
    from antembed.reporting.front import judged_on

    done = 0

    def tell(row: dict[str, Any]) -> None:
        nonlocal done
        done += 1
        if "failed" in row:
            told = f"failed: {row['failed']}"
        else:
            part = judged_on([row])
            told = f"{part} MSE {row[part]['mse']:.4f}, {show.size(row['parameters'])} parameters, {row['seconds']:.1f} s"
        show.err.print(f"{done}/{total} {label(row['settings'])} seed={row['seed']}: {told}", highlight=False, markup=False)

    return tell


def front_table(told: dict[str, Any]) -> Any:
    """The front, smallest error first."""
    from rich.table import Table

    from antembed.pipelines.sweep import label

    table = Table(
        box=None, header_style="bold", caption=f"{len(told['front'])} of {told['settings']} settings are on the front"
    )
    for heading in (f"{told['error']} MSE", "test MSE", "parameters", "bytes", "seeds", "settings"):
        table.add_column(heading, justify="left" if heading == "settings" else "right", overflow="fold")
    for row in told["front"]:
        spread = f" ± {row['spread']:.4f}" if len(row["seeds"]) > 1 else ""
        sizes = (f"{row['parameters']:,.0f}", f"{row['bytes']:,.0f}", str(len(row["seeds"])))
        table.add_row(f"{row['error']:.4f}{spread}", f"{row['test']:.4f}", *sizes, label(row["settings"]))
    return table
