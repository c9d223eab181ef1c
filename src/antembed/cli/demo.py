"""`antembed demo`."""

from pathlib import Path
from typing import Annotated

import typer

from antembed.cli.common import AsJson, Seed, command


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
    from antembed.recommend.demo import compare

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
