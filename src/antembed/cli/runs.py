"""Commands that look at finished runs and files: evaluate, export, explain, inspect, report."""

from pathlib import Path
from typing import Annotated

import typer

from antembed.cli import show
from antembed.cli.common import AsJson, Overwrite, command, folder_of
from antembed.files import JSON, write_atomically

Written = tuple[dict[Path, int], list[str]]  # the sizes of files, and remarks


def evaluate(
    run: Annotated[Path, folder_of("a run")],
    data: Annotated[Path | None, typer.Option(help="The data, if they have moved.")] = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a finished run on the split it was trained with.

    Example:  antembed evaluate runs/ml-1m

    Example:  antembed evaluate runs/ml-1m --data data/ml-1m/ratings.dat --json
    """
    from antembed.train import run as runs

    result = runs.evaluate(run, str(data) if data else None) | {"command": command()}
    if as_json:
        show.print_json(result)
    else:
        show.result_table({result["embedding"]: result})


def export(
    source: Annotated[Path, typer.Argument(help="Folder of a run; with --to also of an export, or FILE.ant.")],
    out: Annotated[Path, typer.Argument(help="A folder for all tables of the run, FILE.ant, or a file of another format.")],
    to: Annotated[
        str | None,
        typer.Option(help="glove, word2vec (.bin: binary), npy, parquet, safetensors, projector or onnx; default: by OUT."),
    ] = None,
    table: Annotated[str | None, typer.Option(help="Which table to write to a file, if the run has several.")] = None,
    values: Annotated[
        str | None, typer.Option(help="fp32, fp16, int8; packed also int6, int5, int4; default: the run's.")
    ] = None,
    encoding: Annotated[
        str | None, typer.Option(help="plain, bitmap, csr, packed or auto (smallest of the first three); default: the run's.")
    ] = None,
    with_seen: Annotated[bool, typer.Option("--with-seen", help="Store what users rated, so that lists leave it out.")] = False,
    overwrite: Overwrite = False,
) -> None:
    """Write a run as small files, or a table for other programs. An exported folder needs nothing else to recommend, predict
    or explain.

    Example:  antembed export runs/ml-1m small --values int8

    Example:  antembed export runs/ml-1m items.onnx --table items --values int8
    """
    from antembed.tables.export_formats import BY_NAME

    if not overwrite and out.exists() and not out.is_dir():
        raise ValueError(f"{out} exists; choose another name, or say --overwrite")
    if to is not None or source.is_file() or out.suffix in BY_NAME:
        for option, given in (("--encoding", encoding), ("--with-seen", with_seen or None)):
            if given is not None:
                raise typer.BadParameter(f"{option} goes with small files, a folder or FILE.ant", param_hint=option)
        sizes, remarks = _for_others(source, out, to, table, values)
    else:
        sizes, remarks = _small(source, out, table, values, encoding, with_seen, overwrite)
    for line in (*(f"{path}: {size:,} bytes" for path, size in sizes.items()), *remarks):
        show.say(line)


def _small(
    run: Path, out: Path, table: str | None, values: str | None, encoding: str | None, seen: bool, overwrite: bool
) -> Written:
    """The run's tables, or one of them; → the sizes of the files, and of the folder by part."""
    from antembed.cli.train import usage_errors
    from antembed.tables.model_folder import by_part
    from antembed.train import run as runs

    if out.suffix == ".ant":
        if seen:
            raise typer.BadParameter(f"--with-seen goes with a folder, {out} is one table", param_hint="--with-seen")
        with usage_errors():
            return {out: runs.export_table(run, out, table, values=values, encoding=encoding)}, []
    if table is not None:
        raise typer.BadParameter(f"--table {table} goes with a file, as {out}/{table}.ant", param_hint="--table")
    sizes = runs.export(run, out, values=values, encoding=encoding, seen=seen, overwrite=overwrite)
    shown = {**by_part(sizes), "total": sum(sizes.values())}
    return {out / name: size for name, size in sizes.items()}, [f"{out}: {show.parts(shown)}"]


def _for_others(source: Path, out: Path, to: str | None, table: str | None, values: str | None) -> Written:
    """A table in another format; → the sizes of the files, and remarks."""
    from antembed.tables.export_formats import format_of, open_named, write

    if out.suffix == ".ant":
        raise ValueError(f"{source} is a table already; copy it to {out}, or give a name of another format")
    format_of(out, to)
    named = open_named(source, table, values)
    sizes, remarks = write(named, out, to)
    return sizes, [*remarks, f"{named.table.size:,} bytes as an .ant file"]


def explain(
    run: Annotated[Path, folder_of("a run, of an export, or of what an estimator saved")],
    items: Annotated[
        Path | None, typer.Option(help="Titles and genres: movies.dat, or a file of label, title, genres.")
    ] = None,
    text: Annotated[str | None, typer.Option(help="A text: show which of its n-grams speak for which class.")] = None,
    top: Annotated[int, typer.Option(min=1, help="How many items or words of each anchor, or n-grams of each class.")] = 5,
    as_json: AsJson = False,
) -> None:
    """Show what the anchors stand for: their items and genres, or their words. Of hashed n-grams: which of them speak most for
    each class.

    Example:  antembed explain runs/ml-1m --items ml-1m/movies.dat

    Example:  antembed explain runs/news --text 'stocks fell again'
    """
    from antembed.tasks import explain as explain_model

    if text is not None and items is not None:
        raise typer.BadParameter("--items goes with a recommender, --text with a classifier; give one", param_hint="--items")
    show.print_result(*explain_model(run, top, items, text), as_json)


def inspect(
    file: Annotated[Path, typer.Argument(help="A table, FILE.ant.")],
    verify: Annotated[bool, typer.Option("--verify", help="Compare all checksums; default: of files up to 64 MB.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what is in a small file.

    Example:  antembed inspect items.ant

    Example:  antembed inspect items.ant --verify --json
    """
    from antembed.tables.save import load_table

    table = load_table(file, verify=True if verify else None)
    dense = 4 * table.num_embeddings * table.embedding_dim
    about: JSON = {
        "num_embeddings": table.num_embeddings,
        "embedding_dim": table.embedding_dim,
        "anchors": 0 if table.anchors is None else len(table.anchors),
        "nnz": table.nnz,
        "parameters": table.parameters,
        "encoding": table.encoding,
        "values": table.values,
        "bytes": table.size,
        "bytes_of_words": (words := table.sizes().get("words", 0)),
        "bytes_of_full_table": dense,
        "times_smaller": round(dense / (table.size - words), 2),  # as `antembed compress` counts
        "checksums": table.checksums,
    }
    if words and not as_json:
        about["times_smaller"] = f"{about['times_smaller']} (words not counted)"
    show.facts(about, as_json)


def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of finished runs.")],
    out: Annotated[Path | None, typer.Option(help="Write the table to this Markdown file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare finished runs: metrics, sizes, and the options in which they differ.

    Example:  antembed report runs/full runs/anchor

    Example:  antembed report runs/* --out report.md
    """
    from antembed.report.page import compare_runs, report_table

    rows = compare_runs(runs)
    if out is not None and not as_json:
        write_atomically(out, (report_table(rows) + "\n").encode())
        show.say(str(out))
    else:
        show.print_result(rows, report_table(rows).splitlines(), as_json)
