"""antembed data: public data sets, fetched and checked."""

from pathlib import Path
from typing import Annotated

import typer

from antembed.cli.common import AsJson

data_app = typer.Typer(help="Public data sets: list, get, verify.", no_args_is_help=True)
Folder = Annotated[Path | None, typer.Option("--to", help="Default: ANTEMBED_DATA, or data in the cache.")]


@data_app.command("list")
def list_sets(to: Folder = None, as_json: AsJson = False) -> None:
    """Say which there are, and which are here.

    Example:  antembed data list
    """
    from antembed.cli import show
    from antembed.data import download

    folder = to or download.default_folder()
    rows = [
        {"name": name, "about": each.about, "here": str(folder / name) if (folder / name).is_dir() else None}
        for name, each in download.DATA_SETS.items()
    ]
    if as_json:
        show.print_json(rows)
        return
    for row in rows:
        show.answer(f"{row['name']:12} {row['about']:60} {row['here'] or '–'}")


@data_app.command()
def get(
    name: Annotated[str, typer.Argument(help="See: antembed data list")],
    to: Folder = None,
    local: Annotated[Path | None, typer.Option("--from", help="A folder that has its files as they are fetched.")] = None,
) -> None:
    """Fetch a data set, check it and unpack it. Broken off, the same command goes on.

    Example:  antembed data get ag-news
    """
    from antembed.cli import show
    from antembed.data import download

    with show.fetching(name) as tell:
        found = download.get(name, to or download.default_folder(), local=local, callback=tell)
    show.answer(str(found))


@data_app.command()
def verify(
    names: Annotated[list[str] | None, typer.Argument(help="Default: all that are here.")] = None,
    to: Folder = None,
) -> None:
    """Check the files of data sets with the checksums that were written down when they came.

    Example:  antembed data verify ag-news
    """
    from antembed.cli import show
    from antembed.data import download

    folder = to or download.default_folder()
    chosen = names or [name for name in download.DATA_SETS if (folder / f"{name}.json").is_file()]
    if not chosen:
        raise ValueError(f"{folder} has no data set that was fetched; see: antembed data list")
    wrong = [line for name in chosen for line in download.verify(name, folder)]
    if wrong:
        raise ValueError("; ".join(wrong) + "; delete the folder and fetch it again")
    show.answer(f"{', '.join(chosen)}: as fetched")
