"""The commands."""

import os
import shlex
import sys
import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer

from antembed import __version__
from antembed.cli import sweep

app = typer.Typer(
    help="Small embedding tables: every vector a sparse mix of a few anchors.\n\nStart with: antembed demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
train_app = typer.Typer(help="Train a model with small tables from a file of data.", no_args_is_help=True)
app.add_typer(train_app, name="train")
app.command()(sweep.sweep)
app.command()(sweep.select)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Seed = Annotated[int, typer.Option(help="Same seed, same machine, same threads: same bytes.")]


def version(asked: bool) -> None:
    if asked:
        typer.echo(f"antembed {__version__}")
        raise typer.Exit


@app.callback()
def common(
    show_version: Annotated[bool, typer.Option("--version", callback=version, is_eager=True, help="Say which.")] = False,
) -> None:
    pass


def numbers(text: str) -> tuple[int, int] | str:
    """'15' → (15, 15); '40,16' → (40, 16); 'auto' stays."""
    if text == "auto":
        return text
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts) or len(parts) > 2:
        raise typer.BadParameter(f"{text!r} is not a number of anchors; say 15, or 40,16 for users and items, or auto")
    return int(parts[0]), int(parts[-1])


@train_app.command("recommend")
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
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out after a stop.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in --out, if there is one.")] = False,
    columns: Annotated[str | None, typer.Option(help="USER,ITEM,RATING[,WEIGHT] columns, by name or place (from 1).")] = None,
    on_error: Annotated[str, typer.Option(help="At a row that is no rating: stop, or skip it and say how many.")] = "stop",
    protocol: Annotated[
        str, typer.Option(help="honest: 80/10/10, the best epoch by validation; paper: 90/10, the last epoch.")
    ] = "honest",
    embedding: Annotated[
        str,
        typer.Option(
            help="anchor, full, low-rank, low-rank-nonnegative, mixture, softmax-mixture, mixed (dimensions), hashed, sparse, "
            "sparse-subgradient, slimming or slimming-transform."
        ),
    ] = "anchor",
    anchors: Annotated[
        str, typer.Option(help="How many: 15, or 40,16 for users and items, or auto: as eq. 5 says; hashed: rows.")
    ] = "15",
    lambda1: Annotated[float, typer.Option(help="auto: the price of an anchor (λ1).")] = 0.01,
    growth: Annotated[str, typer.Option(help="auto: plateau (try, keep or go back) or trend (the paper's rule).")] = "plateau",
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
    device: Annotated[str, typer.Option(help="cpu, cuda, …")] = "cpu",
    engine: Annotated[
        str, typer.Option(help="auto: fused (compiled, CPU) where it can, else torch; both give the same.")
    ] = "auto",
    values: Annotated[
        str | None,
        typer.Option(help="Numbers in the exported tables: fp32, fp16 or int8; default fp32, for a budget of bytes int8."),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="Default: two (in the fused engine the same bytes as with one), or one with --engine torch."),
    ] = None,
    record: Annotated[Path | None, typer.Option(help="Append the result to this JSONL file of records.")] = None,
    as_json: AsJson = False,
) -> None:
    """Learn users' and items' tables from ratings, and write them as small files.

    Example:  antembed train recommend ratings.dat --anchors 15 --l1 1e-4 --out runs/ml-1m
    """
    import torch

    from antembed.cli import show
    from antembed.data import PROTOCOLS, default_cache, read_ratings
    from antembed.pipelines.job import what_it_means
    from antembed.pipelines.recommend import train
    from antembed.pipelines.settings import Settings, paper_settings
    from antembed.reporting import append_record
    from antembed.training import RunFolder

    threads = threads or (1 if engine == "torch" else min(2, os.cpu_count() or 1))
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
        "values": values or ("int8" if budget.lower().rstrip().endswith(("x", "b")) else "fp32"),
    }
    if online:
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
    try:
        settings = Settings(**chosen | paper_settings(len(ratings)) | given)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if dry_run:
        show.print_json(what_it_means(settings, ratings.objects)) if as_json else show.facts(
            what_it_means(settings, ratings.objects)
        )
        return
    folder = out or Path("runs") / f"recommend-{embedding}-{seed}"
    if overwrite and not resume:  # "the same command and --resume" must not begin by deleting the run
        RunFolder(folder).remove()
    examples = round(len(ratings) * PROTOCOLS[settings.protocol][0])
    with show.progress_bar(embedding, epochs, examples) as tell:
        try:
            result = train(settings, folder, resume=resume, ratings=ratings, tell=tell)
        except KeyboardInterrupt:
            show.err.print(f"stopped; go on with the same command and --resume --out {folder}")
            raise typer.Exit(1) from None
    result["command"] = command()
    if record is not None:
        append_record(record, result)
    if as_json:
        show.print_json(result)
    else:
        show.out.print(show.result_table({embedding: result}))
        full = 4 * sum(ratings.objects) * dimensions
        show.err.print(f"{folder}/users.ant and items.ant: {full / result['bytes']:.3g} times smaller than full tables in fp32")


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
    from antembed.reporting import append_record
    from antembed.training import RunFolder

    try:
        settings = Settings(**chosen | {"solver": "cd"})
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    folder = out or Path("runs") / f"recommend-online-{settings.seed}"
    if overwrite and not resume:
        RunFolder(folder).remove()

    def tell(row: dict[str, Any]) -> None:
        before = "" if row["mse_before"] is None else f"MSE before learning {row['mse_before']:.4f}, "
        numbers = f"{before}anchors {show.pairs(row['anchors'])}, {row['seconds']:.1f} s"
        show.err.print(f"batch {row['batch']}: {show.size(row['ratings'])} ratings, {numbers}", highlight=False)

    try:
        result = online.learn(settings, folder, batch_size=batch_size or online.BATCH, test=test, resume=resume, tell=tell)
    except KeyboardInterrupt:
        show.err.print(f"stopped; go on with the same command and --resume --out {folder}")
        raise typer.Exit(1) from None
    result["command"] = command()
    if record is not None:
        append_record(record, result)
    if as_json:
        show.print_json(result)
    else:
        show.out.print(show.result_table({"online": result}))


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    data: Annotated[Path | None, typer.Option(help="The ratings, if they have moved.")] = None,
    as_json: AsJson = False,
) -> None:
    """Judge a finished run again, on the very split it was trained with.

    Example:  antembed evaluate runs/ml-1m
    """
    from antembed.cli import show
    from antembed.pipelines.recommend import measure, reopen

    job, folder = reopen(run, str(data) if data else None)
    result = measure(job, folder) | {"command": command()}
    if as_json:
        show.print_json(result)
    else:
        show.out.print(show.result_table({job.settings.embedding: result}))


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    out: Annotated[Path, typer.Argument(help="A folder for all tables of the run, or FILE.ant with --table.")],
    table: Annotated[str | None, typer.Option(help="Which table: users or items.")] = None,
    values: Annotated[str, typer.Option(help="fp32, fp16 or int8.")] = "fp32",
    encoding: Annotated[
        str, typer.Option(help="auto (the smallest of plain, bitmap and csr), or one of these, or packed.")
    ] = "auto",
) -> None:
    """Write a run's tables as small files.

    Example:  antembed export runs/ml-1m items.ant --table items --values fp16
    """
    from antembed import serving
    from antembed.cli import show
    from antembed.pipelines.job import write_tables
    from antembed.pipelines.recommend import reopen_model

    model = reopen_model(run)
    tables = model.tables
    if table is not None and table not in tables:
        raise typer.BadParameter(f"{table!r} is none of: {', '.join(tables)}", param_hint="--table")
    if table is None and out.suffix == ".ant":
        raise typer.BadParameter(
            f"this run has {len(tables)} tables; say which with --table ({', '.join(tables)}), or give a folder",
            param_hint="OUT",
        )
    if table is None:
        written = write_tables(model, out, values=values, encoding=encoding)
    else:
        biases = model.exported_biases()[table]
        written = {out: serving.export(tables[table], out, values=values, encoding=encoding, **biases)}
    for path, file in written.items():
        show.err.print(f"{path}: {file}", highlight=False)


@app.command()
def recommend(
    run: Annotated[Path, typer.Argument(help="Folder of a run, or of Recommender.save.")],
    users: Annotated[list[str], typer.Argument(help="Users, by their labels.")],
    k: Annotated[int, typer.Option("-k", "--items", min=1, help="How many items for each.")] = 10,
    seen: Annotated[bool, typer.Option("--seen", help="Also items that the user has rated.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say what users would like best among what they have not rated yet.

    Example:  antembed recommend runs/ml-1m 42 4711 --items 5
    """
    from antembed.cli import show
    from antembed.pipelines.recommend import read, settings_of
    from antembed.pipelines.recommender import Recommender
    from antembed.training import RunFolder

    known = Recommender.load(run)
    if not seen and not hasattr(known, "seen_"):
        known.remember(read(settings_of(RunFolder(run))[0]))
    found = known.recommend(users, k, filter_seen=not seen)
    show.listing(found, as_json)


@app.command()
def similar(
    run: Annotated[Path, typer.Argument(help="Folder of a run, or of Recommender.save.")],
    item: Annotated[str, typer.Argument(help="An item, by its label.")],
    k: Annotated[int, typer.Option("-k", "--items", min=1, help="How many.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Say which items are most like this one.

    Example:  antembed similar runs/ml-1m 260 --items 5
    """
    from antembed.cli import show
    from antembed.pipelines.recommender import Recommender

    show.listing(Recommender.load(run).similar_items(item, k), as_json)


@app.command()
def explain(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    items: Annotated[
        Path | None, typer.Option(help="Titles and genres: MovieLens movies.dat, or label, title, genres.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="How many items of each anchor.")] = 5,
    as_json: AsJson = False,
) -> None:
    """Say what the anchors stand for: their items, genres, and which items are left without a vector.

    Example:  antembed explain runs/ml-1m --items movies.dat
    """
    from antembed.cli import show
    from antembed.pipelines import explain as job

    told = job.explain(run, items, top)
    if as_json:
        show.print_json(told)
        return
    for anchor in told["anchors"]:
        genre = f"{anchor['genre']} {anchor['purity']:.0%}" if anchor["genre"] else ""
        show.out.print(f"anchor {anchor['anchor']}: {anchor['items']} items {genre}", highlight=False)
        show.out.print(f"    {' · '.join(anchor['best'])}", highlight=False, markup=False)
    if told["purity"] is not None:
        show.out.print(f"purity, all anchors            {told['purity']:.1%}", highlight=False)
    show.out.print(f"items without a vector         {show.pairs(told['zero_rows'])}", highlight=False)


@app.command()
def inspect(
    file: Annotated[Path, typer.Argument(help="A table, FILE.ant.")],
    as_json: AsJson = False,
) -> None:
    """Say what is in a small file.

    Example:  antembed inspect items.ant
    """
    from antembed.cli import show
    from antembed.serving import open_table

    table = open_table(file)
    dense = 4 * table.objects * table.dimensions
    about: dict[str, Any] = {
        "objects": table.objects,
        "dimensions": table.dimensions,
        "anchors": 0 if table.anchors is None else len(table.anchors),
        "nnz": table.nnz,
        "parameters": table.parameters,
        "encoding": table.encoding,
        "values": table.values,
        "bytes": table.size,
        "bytes_of_full_table": dense,
        "times_smaller": round(dense / table.size, 2),
    }
    if as_json:
        show.print_json(about)
        return
    show.facts(about)


@app.command()
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
    from antembed.pipelines.demo import compare

    torch.set_num_threads(1)
    results = compare(out, seed, lambda label, epochs, n: show.progress_bar(label, epochs, n))
    if as_json:
        show.print_json([result | {"command": command()} for result in results.values()])
        return
    show.out.print(show.result_table(results))
    full, anchored = results["full"], results["anchor"]
    show.out.print(
        f"\nThe anchored tables are {full['bytes'] / anchored['bytes']:.1f} times smaller on disk "
        f"({full['parameters'] / anchored['parameters']:.1f} times fewer parameters), "
        f"at {anchored['test']['mse'] / full['test']['mse']:.2f} × the error; the data's own noise is "
        f"{results['anchor']['noise']:.4f}."
    )


@app.command()
def bench(
    name: Annotated[str, typer.Argument(help="recommend: against the peers; growth: larger tables; amazon: 58.7M rows.")],
    ratings: Annotated[
        int | None,
        typer.Option(help="Synthetic ratings; default 4M, 8M for growth, 233M for amazon (fewer: fewer objects too)."),
    ] = None,
    repeats: Annotated[int, typer.Option(help="Turns of each contestant; medians count.")] = 5,
    threads: Annotated[int, typer.Option(min=1, help="For the PyTorch peers, and for us where it is not said.")] = 2,
    record: Annotated[Path | None, typer.Option(help="Append the result to this JSONL file of records.")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure speed, side by side in one run; `recommend` needs the extra `bench`, `amazon` 20 GB of memory and some minutes.

    Example:  antembed bench recommend --record results/bench.jsonl
    """
    from antembed.cli import show
    from antembed.pipelines import bench as benches
    from antembed.reporting import append_record

    defaults = {"recommend": 4_000_000, "growth": 8_000_000, "amazon": benches.AMAZON_RATINGS}
    if name not in defaults:
        raise typer.BadParameter(f"{name!r} is none of: {', '.join(defaults)}", param_hint="NAME")
    n = ratings or defaults[name]
    if name == "amazon":
        with show.counting("ratings", n) as tell:
            result = benches.amazon(n, threads, tell)
    elif name == "growth":
        with show.status("measuring"):
            result = benches.growth(n, repeats, threads)
    else:
        try:
            with show.status("measuring"):
                result = benches.recommend(n, repeats, threads)
        except ModuleNotFoundError as error:
            raise ValueError(f"the peer {error.name} is not installed; pip install 'antembed[bench]'") from error
    result["command"] = command()
    if record is not None:
        append_record(record, result)
    if as_json:
        show.print_json(result)
        return
    speeds = result["million_ratings_a_second"]
    for what, speed in (speeds if isinstance(speeds, dict) else {"": speeds}).items():
        show.out.print(f"{what:30} {speed:8.3f} M ratings/s", highlight=False)
    for more in ("train_mse", "nnz", "entries", "peak_gigabytes", "seconds"):
        if more in result:
            show.out.print(f"{more.replace('_', ' '):30} {show.pairs(result[more])}", highlight=False)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def run(
    context: typer.Context,
    recipe: Annotated[Path, typer.Argument(help="A recipe, FILE.toml.")],
) -> None:
    """Run an experiment that is written down: a command with its options. More options may follow; they win.

    Example:  antembed run recipes/amazon.toml --ratings 2330000
    """
    raise typer.Exit(app([*recipe_words(recipe), *context.args], standalone_mode=False) or 0)


def recipe_words(recipe: Path) -> list[str]:
    """What would be typed instead: command = "train recommend", arguments = […], and the table [options]."""
    if not recipe.is_file():
        raise ValueError(f"{recipe} is no file; recipes are .toml files with a command and its options")
    try:
        written = tomllib.loads(recipe.read_text())
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{recipe} is no TOML: {error}") from error
    unknown = set(written) - {"about", "command", "arguments", "options"}
    if unknown or not isinstance(written.get("command"), str) or not written["command"].split():
        wrong = f"has {min(unknown)!r}" if unknown else "has no command"
        raise ValueError(f"{recipe} {wrong}; a recipe has about, command, arguments and [options]")
    words = [*written["command"].split(), *(str(argument) for argument in written.get("arguments", []))]
    if words[0] == "run":
        raise ValueError(f"{recipe} runs a recipe; write down its command instead")
    for name, value in written.get("options", {}).items():
        for each in value if isinstance(value, list) else [value]:  # a list: the option as often as that
            words += [f"--{name}"] if each is True else [f"--no-{name}"] if each is False else [f"--{name}", str(each)]
    return words


def command() -> str:
    """What was typed, for the record."""
    return shlex.join(["antembed", *sys.argv[1:]])
