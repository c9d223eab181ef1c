"""The commands."""

import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer

from antembed import __version__
from antembed.cli import classify, sweep
from antembed.cli.common import AsJson, Seed, command
from antembed.cli.data import data_app
from antembed.cli.train import train_app

app = typer.Typer(
    help="Small embedding tables: every vector a sparse mix of a few anchors.\n\nStart with: antembed demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(train_app, name="train")
train_app.command("classify")(classify.train_classify)
app.command()(classify.predict)
app.add_typer(data_app, name="data")
app.command()(sweep.sweep)
app.command()(sweep.select)


def version(asked: bool) -> None:
    if asked:
        typer.echo(f"antembed {__version__}")
        raise typer.Exit


@app.callback()
def common(
    show_version: Annotated[bool, typer.Option("--version", callback=version, is_eager=True, help="Say which.")] = False,
) -> None:
    pass


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    data: Annotated[Path | None, typer.Option(help="The ratings or labelled text, if they have moved.")] = None,
    as_json: AsJson = False,
) -> None:
    """Judge a finished run again, on the very split it was trained with.

    Example:  antembed evaluate runs/ml-1m
    """
    from antembed.cli import show
    from antembed.pipelines import classify, recommend
    from antembed.training import RunFolder

    task = classify if RunFolder(run).config().get("task") == "classify" else recommend
    result = task.again(run, str(data) if data else None) | {"command": command()}
    if as_json:
        show.print_json(result)
    else:
        show.out.print(show.result_table({result["embedding"]: result}))


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    out: Annotated[Path, typer.Argument(help="A folder for all tables of the run, or FILE.ant with --table.")],
    table: Annotated[str | None, typer.Option(help="Which table: users or items.")] = None,
    values: Annotated[str | None, typer.Option(help="fp32, fp16 or int8; default: as the run's own files.")] = None,
    encoding: Annotated[
        str | None,
        typer.Option(help="auto (the smallest of plain, bitmap and csr), or one of these, or packed; default: as the run's."),
    ] = None,
) -> None:
    """Write a run's tables as small files; into a folder, with what says which row is whose.

    Example:  antembed export runs/ml-1m items.ant --table items --values fp16
    """
    from antembed import serving
    from antembed.cli import show
    from antembed.files import write_atomically
    from antembed.pipelines import classify
    from antembed.pipelines.job import write_tables
    from antembed.pipelines.recommend import reopen_model, settings_of
    from antembed.training import RunFolder

    if RunFolder(run).config().get("task") == "classify":
        told, _ = classify.settings_of(RunFolder(run))
        values, encoding = values or told.stored, encoding or told.encoding
        path = out if out.suffix == ".ant" else out / "words.ant"
        file = serving.export(classify.reopen_model(run)[0].embedding, path, values=values, encoding=encoding)
        if path != out:
            write_atomically(out / "vocabulary.parquet", (run / "vocabulary.parquet").read_bytes())
        show.err.print(f"{path}: {file}", highlight=False)
        return
    model = reopen_model(run)
    tables = model.tables
    values, encoding = values or settings_of(RunFolder(run))[0].values, encoding or "auto"
    if table is not None and table not in tables:
        raise typer.BadParameter(f"{table!r} is none of: {', '.join(tables)}", param_hint="--table")
    if table is None and out.suffix == ".ant":
        raise typer.BadParameter(
            f"this run has {len(tables)} tables; say which with --table ({', '.join(tables)}), or give a folder",
            param_hint="OUT",
        )
    if table is None:
        written = write_tables(model, out, values=values, encoding=encoding)
        for name in tables:
            write_atomically(out / f"{name}.labels.parquet", (run / f"{name}.labels.parquet").read_bytes())
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
    top: Annotated[int, typer.Option(min=1, help="How many items or words of each anchor.")] = 5,
    as_json: AsJson = False,
) -> None:
    """Say what the anchors stand for: their items and genres, or their words, and what is left without a vector.

    Example:  antembed explain runs/ml-1m --items movies.dat
    """
    from antembed.cli import show
    from antembed.pipelines import explain as job
    from antembed.pipelines.explain_words import explain_words
    from antembed.training import RunFolder

    if RunFolder(run).config().get("task") == "classify":
        show.words(explain_words(run, top), as_json)
        return
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
    from antembed.serving import load_table

    table = load_table(file)
    dense = 4 * table.num_embeddings * table.embedding_dim
    about: dict[str, Any] = {
        "objects": table.num_embeddings,
        "dimensions": table.embedding_dim,
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
