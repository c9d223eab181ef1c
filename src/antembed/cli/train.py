"""`antembed train`: from a file of data to a run."""

from pathlib import Path
from typing import Annotated, Any

import typer

from antembed.cli.common import (
    AsJson,
    Device,
    Overwrite,
    Record,
    Resume,
    Seed,
    Values,
    checked,
    finish,
    grouped,
    stoppable,
    times_smaller,
)

train_app = typer.Typer(help="Train a model with small tables from a file of data.", no_args_is_help=True)


def numbers(text: str) -> tuple[int, int] | str:
    """'15' → (15, 15); '40,16' → (40, 16); 'auto' stays."""
    if text == "auto":
        return text
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts) or len(parts) > 2:
        raise typer.BadParameter(f"{text!r} is not a number of anchors; say 15, or 40,16 for users and items, or auto")
    return int(parts[0]), int(parts[-1])


@train_app.command("recommend")
@grouped(
    {
        "Data": "columns on_error protocol online test",
        "Tables": "embedding dimensions biases alpha init",
        "How many anchors": "anchors lambda1 growth first_anchors anchor_step",
        "How small": "l1 l1_ramp prune keep budget polish dry_run values",
        "Coordinate descent (--solver cd)": "solver price price_biases ridge ridge_each bias_ridge unseen",
        "Training": "optimiser lr schedule halve_every batch_size epochs l2",
        "Machine": "seed device engine threads",
        "Run": "out resume overwrite record as_json",
    }
)
def train_recommend(
    data: Annotated[
        Path,
        typer.Argument(help="Ratings: MovieLens .dat/.csv, any delimited file (also .gz, .zst), Parquet; - with --online."),
    ],
    online: Annotated[
        bool,
        typer.Option("--online", help="A stream: each batch is learned once, in the file's order (cd, anchors auto)."),
    ] = False,
    test: Annotated[Path | None, typer.Option(help="--online: ratings to be judged by at the end.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; default: runs/recommend-EMBEDDING-SEED.")] = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    columns: Annotated[str | None, typer.Option(help="USER,ITEM,RATING[,WEIGHT] columns, by name or place (from 1).")] = None,
    on_error: Annotated[str, typer.Option(help="At a row that is no rating: stop, or skip it and say how many.")] = "stop",
    protocol: Annotated[
        str, typer.Option(help="honest: 80/10/10, the best epoch by validation; paper: 90/10, the last epoch.")
    ] = "honest",
    embedding: Annotated[
        str,
        typer.Option(
            help="anchor, full, low-rank, low-rank-nonnegative, mixture, softmax-mixture, mixed (dimensions), hashed, "
            "frequency, group-lasso, sparse, sparse-subgradient, slimming or slimming-transform."
        ),
    ] = "anchor",
    anchors: Annotated[
        str, typer.Option(help="How many: 15, or 40,16 for users and items, or auto: as eq. 5 says; hashed: rows.")
    ] = "15",
    lambda1: Annotated[float, typer.Option(help="auto, prox: the price of an anchor (λ1).")] = 0.01,
    growth: Annotated[str, typer.Option(help="auto, prox: plateau (try, keep or go back) or trend (the paper's).")] = "plateau",
    first_anchors: Annotated[
        int | None, typer.Option(help="auto: how many to begin with; default 10, or 20 from 5M ratings on.")
    ] = None,
    anchor_step: Annotated[
        int | None, typer.Option(help="auto, trend: how many at a time; default 1, or 2 from 5M ratings on.")
    ] = None,
    init: Annotated[
        str, typer.Option(help="prox: signed anchors, half-normal (the paper's), or dense: from a full solution.")
    ] = "signed",
    dimensions: Annotated[int, typer.Option(help="Width of the vectors.")] = 16,
    l1: Annotated[
        float | None, typer.Option(help="λ2, the price of a non-zero; default 1e-4, or 2e-6 from 5M ratings on.")
    ] = None,
    l1_ramp: Annotated[float, typer.Option(help="Share of the training over which λ2 rises from 0.")] = 0.25,
    prune: Annotated[
        float, typer.Option(help="At the end, drop weights below this share of the mean contribution; 0 keeps all.")
    ] = 0.1,
    keep: Annotated[
        int, typer.Option(help="At the end, keep this many non-zeros over both tables, the largest; 0: --prune instead.")
    ] = 0,
    alpha: Annotated[float, typer.Option(help="mixed: a table's widths fall as popularity to this power.")] = 0.3,
    l2: Annotated[float, typer.Option(help="Decoupled weight decay of full tables, anchors and biases; T has λ2.")] = 0.0,
    budget: Annotated[
        str, typer.Option(help="40x (times smaller), 400k (parameters) or 2MB (bytes): found instead of --l1 or --price.")
    ] = "",
    polish: Annotated[
        float, typer.Option(help="prox: share of the epochs, the last, with zeros frozen and λ2 = 0; with a budget .2.")
    ] = 0.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what a budget means for these data.")] = False,
    biases: Annotated[bool, typer.Option(help="A bias for each user and item; they are counted.")] = True,
    solver: Annotated[
        str, typer.Option(help="prox: stochastic steps; cd: coordinate descent on the ℓ0 objective (epochs are sweeps).")
    ] = "prox",
    price: Annotated[
        float, typer.Option(help="cd: a weight stays only if it lowers the summed ½·squared error by more than this.")
    ] = 2.0,
    price_biases: Annotated[
        bool, typer.Option(help="cd: biases pay the price too, and are zero where they are not worth it.")
    ] = True,
    ridge: Annotated[float, typer.Option(help="cd: ½·ridge·‖e‖² on every vector e = t·A.")] = 7.0,
    ridge_each: Annotated[float, typer.Option(help="cd: and as much again for each rating of the object.")] = 0.02,
    bias_ridge: Annotated[float, typer.Option(help="cd: the same on every bias.")] = 6.0,
    unseen: Annotated[
        float, typer.Option(help="cd: weight of every pair there is, as if rated 0: a model of what is chosen, for lists.")
    ] = 0.0,
    optimiser: Annotated[str, typer.Option(help="yogi, adam or sgd.")] = "yogi",
    lr: Annotated[float, typer.Option(help="Learning rate at the start.")] = 0.01,
    schedule: Annotated[str, typer.Option(help="halving (the paper's), cosine or constant.")] = "halving",
    halve_every: Annotated[int | None, typer.Option(help="Steps; default 100000, or 200000 from 5M ratings on.")] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Default 32, or 1024 from 5M ratings on; with --online 100000.")
    ] = None,
    epochs: Annotated[int, typer.Option(help="Passes over the data.")] = 25,
    seed: Seed = 0,
    device: Device = "cpu",
    engine: Annotated[
        str, typer.Option(help="auto: fused (compiled, CPU) where it can, else torch; both give the same.")
    ] = "auto",
    values: Values = "auto",
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="Default: two (in the fused engine the same bytes as with one), or one with --engine torch."),
    ] = None,
    record: Record = None,
    as_json: AsJson = False,
) -> None:
    """Learn users' and items' tables from ratings, and write them as small files.

    Example:  antembed train recommend ratings.dat --anchors 15 --l1 1e-4 --out runs/ml-1m
    """
    import torch

    from antembed.cli import show
    from antembed.data import PROTOCOLS, default_cache, read_ratings
    from antembed.kernels.threads import usable_cpus
    from antembed.pipelines.job import full_bytes, what_it_means
    from antembed.pipelines.recommend import train
    from antembed.pipelines.settings import Settings, paper_settings
    from antembed.training import RunFolder

    threads = threads or (1 if engine == "torch" else min(2, usable_cpus()))
    torch.set_num_threads(threads)
    named = tuple(name.strip() for name in columns.split(",")) if columns else None
    chosen: dict[str, Any] = {
        "data": str(data),
        "columns": named,
        "on_error": on_error,
        "protocol": protocol,
        "embedding": embedding,
        "anchors": numbers(anchors),
        "lambda1": lambda1,
        "growth": growth,
        "init": init,
        "dimensions": dimensions,
        "l1_ramp": l1_ramp,
        "prune": prune,
        "keep": keep,
        "alpha": alpha,
        "l2": l2,
        "biases": biases,
        "solver": solver,
        "budget": budget,
        "polish": polish,
        "price": price,
        "price_biases": price_biases,
        "ridge": ridge,
        "ridge_each": ridge_each,
        "bias_ridge": bias_ridge,
        "unseen": unseen,
        "optimiser": optimiser,
        "lr": lr,
        "schedule": schedule,
        "epochs": epochs,
        "seed": seed,
        "threads": threads,
        "device": device,
        "engine": engine,
        "values": values,
    }
    if online:
        if dry_run:
            raise typer.BadParameter("--dry-run is about a budget, and a stream has none")
        stream(chosen, out, test, batch_size, resume, overwrite, record, as_json)
        return
    with show.status(f"reading {data}"):
        ratings = read_ratings(data, named, on_error=on_error, cache=default_cache())
    if ratings.skipped:
        show.err.print(f"skipped {ratings.skipped} rows that are no ratings; the first: {ratings.complaint}", highlight=False)
    open_ = {
        "l1": l1,
        "halve_every": halve_every,
        "batch_size": batch_size,
        "first_anchors": first_anchors,
        "anchor_step": anchor_step,
    }
    given = {name: value for name, value in open_.items() if value is not None}
    with checked():
        settings = Settings(**chosen | paper_settings(len(ratings)) | given)
    if dry_run:
        show.print_json(what_it_means(settings, ratings.objects)) if as_json else show.facts(
            what_it_means(settings, ratings.objects)
        )
        return
    folder = out or Path("runs") / f"recommend-{embedding}-{seed}"
    if overwrite and not resume:  # "the same command and --resume" must not begin by deleting the run
        RunFolder(folder).remove()
    examples = round(len(ratings) * PROTOCOLS[settings.protocol][0])
    with stoppable(folder), show.progress_bar(embedding, epochs, examples) as tell:
        result = train(settings, folder, resume=resume, ratings=ratings, tell=tell)
    told = times_smaller(full_bytes(settings, ratings.objects), result["bytes"])
    finish(result, record, as_json, f"{folder}/users.ant and items.ant: {told} than full tables in fp32")


def stream(
    chosen: dict[str, Any],
    out: Path | None,
    test: Path | None,
    batch_size: int | None,
    resume: bool,
    overwrite: bool,
    record: Path | None,
    as_json: bool,
) -> None:
    """train recommend --online."""
    from antembed.cli import show
    from antembed.pipelines import online
    from antembed.pipelines.settings import Settings
    from antembed.training import RunFolder

    with checked():
        settings = Settings(**chosen | {"solver": "cd"})
    folder = out or Path("runs") / f"recommend-online-{settings.seed}"
    if overwrite and not resume:
        RunFolder(folder).remove()

    def tell(row: dict[str, Any]) -> None:
        before = "" if row["mse_before"] is None else f"MSE before learning {row['mse_before']:.4f}, "
        numbers = f"{before}anchors {show.pairs(row['anchors'])}, {row['seconds']:.1f} s"
        show.err.print(f"batch {row['batch']}: {show.size(row['ratings'])} ratings, {numbers}", highlight=False)

    with stoppable(folder):
        result = online.learn(settings, folder, batch_size=batch_size or online.BATCH, test=test, resume=resume, tell=tell)
    finish(result, record, as_json, name="online")
