"""`antembed demo` and `antembed bench`."""

from pathlib import Path
from typing import Annotated

import typer

from antembed.cli.common import AsJson, Seed, command
from antembed.extras import install


def demo(
    out: Annotated[Path | None, typer.Option(help="Keep the runs in this folder; default: a temporary one.")] = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """A minute, no download: full and anchored tables side by side on synthetic ratings with a known answer.

    Example:  antembed demo
    """
    import torch

    from antembed.cli import show
    from antembed.experiments.demo import compare

    torch.set_num_threads(1)
    results = compare(out, seed, show.progress_bar)
    if as_json:
        show.print_json([result | {"command": command()} for result in results.values()])
        return
    show.console().print(show.result_table(results))
    full, anchored = results["full"], results["anchor"]
    show.console().print(
        f"\nThe anchored tables are {full['bytes'] / anchored['bytes']:.1f} times smaller on disk "
        f"({full['parameters'] / anchored['parameters']:.1f} times fewer parameters), "
        f"at {anchored['test']['mse'] / full['test']['mse']:.2f} × the error; the data's own noise is "
        f"{results['anchor']['noise']:.4f}.\n"
        "Parameters are the weights of T that pruning leaves, the anchors and the mean rating: of "
        f"{anchored['nnz_before_pruning']:,} weights (nnz in the last epoch) {sum(anchored['nnz'].values()):,} are left. "
        "Seconds are training alone; all was compiled before."
    )


def bench(
    name: Annotated[str, typer.Argument(help="recommend: against the peers; growth: larger tables; amazon: 58.7M rows.")],
    ratings: Annotated[
        int | None,
        typer.Option(help="Synthetic ratings; default 4M, 8M for growth, 233M for amazon (fewer: fewer objects too)."),
    ] = None,
    repeats: Annotated[int, typer.Option(help="Turns of each contestant; medians count.")] = 5,
    threads: Annotated[int, typer.Option(min=1, help="For the PyTorch peers, and for us where it is not said.")] = 2,
    busy: Annotated[int, typer.Option(min=0, help="Busy processes beside the contestants of `recommend`.")] = 0,
    record: Annotated[Path | None, typer.Option(help="Append the result to this JSONL file of records.")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure speed, side by side in one run; `recommend` needs the extra `bench`, `amazon` 20 GB of memory and some minutes.

    Example:  antembed bench recommend --record results/bench.jsonl
    """
    from antembed.cli import show
    from antembed.experiments import bench as benches
    from antembed.experiments.records import append_record

    if name not in benches.DEFAULT_RATINGS:
        raise typer.BadParameter(f"{name!r} is none of: {', '.join(benches.DEFAULT_RATINGS)}", param_hint="NAME")
    if busy and name != "recommend":
        raise typer.BadParameter(f"{busy} busy processes go with `recommend`, not with {name!r}", param_hint="--busy")
    n = ratings or benches.DEFAULT_RATINGS[name]
    if name == "amazon":
        with show.counting("ratings", n) as callback:
            result = benches.amazon(n, threads, callback)
    else:
        try:
            with show.status("measuring"):
                growth = name == "growth"
                result = benches.growth(n, repeats, threads) if growth else benches.recommend(n, repeats, threads, busy)
        except ModuleNotFoundError as error:
            raise ValueError(f"the peer {error.name} is not installed; {install('bench')}") from error
    result["command"] = command()
    if record is not None:
        append_record(record, result)
    if as_json:
        show.print_json(result)
        return
    speeds = result["million_ratings_a_second"]
    for what, speed in (speeds if isinstance(speeds, dict) else {"": speeds}).items():
        show.answer(f"{what:30} {speed:8.3f} M ratings/s")
    for more in ("train_mse", "nnz", "entries", "peak_gigabytes", "seconds"):
        if more in result:
            show.answer(f"{more.replace('_', ' '):30} {show.pairs(result[more])}")
