"""What is called first on a machine: the demo, public data sets, and kernels compiled in advance."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from antembed.cli import show
from antembed.cli.common import AsJson, command

data_app = typer.Typer(help="Public data sets: list, get, verify.", no_args_is_help=True)
Folder = Annotated[Path | None, typer.Option("--to", help="Default: ANTEMBED_DATA, or data in the cache.")]


def demo(
    out: Annotated[Path | None, typer.Option(help="Keep the runs in this folder; default: a temporary one.")] = None,
    seed: Annotated[int, typer.Option(help="Same seed, same machine, same threads: same bytes.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Compare full and anchored tables on synthetic ratings with a known answer: a minute, no download.

    Example:  antembed demo

    Example:  antembed demo --out runs/demo --seed 1
    """
    import torch

    from antembed.recommend.synthetic import compare

    torch.set_num_threads(1)
    results = compare(out, seed, show.progress_bar)
    if as_json:
        show.print_json([result | {"command": command()} for result in results.values()])
        return
    show.result_table(results)
    full, anchored = results["full"], results["anchor"]
    for line in (
        "",
        f"The anchored tables are {full['bytes'] / anchored['bytes']:.1f} times smaller on disk "
        f"({full['parameters'] / anchored['parameters']:.1f} times fewer parameters), at "
        f"{anchored['test']['mse'] / full['test']['mse']:.2f} × the error; the noise in the data is {anchored['noise']:.4f}.",
        "Parameters are the weights of T that pruning leaves, the anchors and the mean rating: of "
        f"{anchored['nnz_before_pruning']:,} weights (nnz in the last epoch) {sum(anchored['nnz'].values()):,} are left. "
        "Seconds are training alone, with kernels compiled before.",
    ):
        show.answer(line)


@data_app.command("list")
def list_sets(to: Folder = None, as_json: AsJson = False) -> None:
    """List the data sets that can be fetched, and where they are if they have been.

    Example:  antembed data list

    Example:  antembed data list --to data --json
    """
    from antembed.data import download

    folder = to or download.default_folder()
    rows = [
        {"name": name, "about": each.about, "here": str(folder / name) if (folder / name).is_dir() else None}
        for name, each in download.DATA_SETS.items()
    ]
    show.print_result(rows, (f"{row['name']:12} {row['about']:60} {row['here'] or '–'}" for row in rows), as_json)


@data_app.command()
def get(
    name: Annotated[str, typer.Argument(help="A name from: antembed data list")],
    to: Folder = None,
    local: Annotated[Path | None, typer.Option("--from", help="A folder that has its files as they are fetched.")] = None,
) -> None:
    """Fetch a data set, check it and unpack it. The same command continues an interrupted download.

    Example:  antembed data get ag-news

    Example:  antembed data get ml-1m --to data --from downloads
    """
    from antembed.data import download

    with show.fetching(name) as callback:
        found = download.get(name, to or download.default_folder(), local=local, callback=callback)
    show.answer(str(found))


@data_app.command()
def verify(
    names: Annotated[list[str] | None, typer.Argument(help="Default: all that have been fetched.")] = None, to: Folder = None
) -> None:
    """Compare the files of data sets with the checksums of when they were fetched.

    Example:  antembed data verify

    Example:  antembed data verify ag-news ml-1m
    """
    from antembed.data import download

    folder = to or download.default_folder()
    chosen = names or [name for name in download.DATA_SETS if (folder / f"{name}.json").is_file()]
    if not chosen:
        raise ValueError(f"{folder} has no data set that was fetched; see: antembed data list")
    wrong = [line for name in chosen for line in download.verify(name, folder)]
    if wrong:
        raise ValueError("; ".join(wrong) + "; delete the folder and fetch it again")
    show.answer(f"{', '.join(chosen)}: as fetched")


# What `antembed warmup` calls: all kernels are compiled by it. Words in capitals are files and folders.
WARM_UP = (
    "train recommend RATINGS --solver stochastic --epochs 2 --l1-penalty 1e-4 --threads 2 --out RUN/fused",
    "train recommend RATINGS --solver stochastic --epochs 4 --budget 700 --embedding-dim 4 --anchors 6 --out RUN/recode",
    "train recommend RATINGS --solver coordinate_descent --embedding-dim 4 --anchors 6 --threads 2 --out RUN/descent",
    "train recommend EVENTS --solver coordinate_descent --embedding-dim 4 --anchors 6 --threads 2 --out RUN/events",
    "train classify TEXTS --model mean --epochs 2 --embedding-dim 8 --anchors 6 --threads 2 --out RUN/mean",
    "train classify TEXTS --threads 2 --out RUN/ngrams",
    "train language TEXT --epochs 2 --embedding-dim 8 --anchors 6 --batch-size 700 --threads 2 --out RUN/language",
    "compress VECTORS RUN/vectors.ant --budget 4x",
    "compress VECTORS RUN/few.ant --budget 24x",
    "recommend RUN/fused u1",
    "similar RUN/fused i1",
)


def warm_up(call: Callable[[list[str]], object]) -> None:
    """Train, look up and compress small models of every kind. `call`: the command line."""
    from contextlib import redirect_stderr, redirect_stdout
    from io import StringIO
    from tempfile import TemporaryDirectory
    from time import perf_counter

    from antembed.native.compile import FOLDER, HERE, KERNELS, WITHOUT, kept_in

    if FOLDER is None:
        raise ValueError(f"machine code would not be kept: {WITHOUT}; set NUMBA_CACHE_DIR to a folder of your own")
    asked, started = (show.verbosity.quiet, show.verbosity.debug), perf_counter()
    with TemporaryDirectory() as name, show.bar("compiling") as progress:
        progress("layers in a training loop", 0, len(WARM_UP) + 1)
        train_layers()
        files = write_data(Path(name)) | {"RUN": Path(name)}
        for n, line in enumerate(WARM_UP, 1):
            progress(line, n, len(WARM_UP) + 1)
            parts = [word.partition("/") for word in line.split()]
            words = [f"{files.get(first, first)}{slash}{rest}" for first, slash, rest in parts]
            try:
                with redirect_stdout(StringIO()), redirect_stderr(StringIO()):  # small models have many warnings
                    call(["--quiet", *words])
            finally:
                show.verbosity.quiet, show.verbosity.debug = asked
    compiled = sum(len(list((FOLDER / kept_in(file)).glob("*.nbi"))) for file in [*HERE.glob("*.py"), *KERNELS.values()])
    show.answer(f"{compiled} functions are compiled for this processor; it took {perf_counter() - started:.0f} s")


def train_layers() -> None:
    """Steps of layers with lazy rows, in batches large enough to be grouped."""
    import torch

    from antembed.layer.anchor import AnchorEmbedding
    from antembed.layer.bag import AnchorEmbeddingBag
    from antembed.layer.optim.rules import ProximalYogi
    from antembed.layer.row_table import WORTH_GROUPING

    for layer in (AnchorEmbedding(100, 8, num_anchors=6, sparse=True), AnchorEmbeddingBag(100, 8, num_anchors=6, sparse=True)):
        optimizer = ProximalYogi(layer.param_groups(l1_penalty=1e-4))
        for step in range(2):
            layer((torch.arange(2 * WORTH_GROUPING) % (90 + step)).view(-1, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        layer.eval()


def write_data(folder: Path) -> dict[str, Path]:
    """Small files of each kind."""
    import numpy as np

    rng = np.random.default_rng(0)
    pairs = [(int(u), int(i)) for u, i in rng.integers(0, 40, (1500, 2))]
    lines = [" ".join(f"w{10 * (n % 3) + word}" for word in rng.integers(0, 20, 10)) for n in range(400)]
    vectors = [f"v{n} {' '.join(f'{x:.4f}' for x in row)}" for n, row in enumerate(rng.standard_normal((2000, 16)).tolist())]
    written = {
        "RATINGS": ["user,item,rating", *(f"u{u},i{i},{1 + 3 * (u % 2 == i % 2) + u % 3 / 2}" for u, i in pairs)],
        "EVENTS": ["user,item", *(f"u{u},i{i}" for u, i in pairs if u % 4 == i % 4)],
        "TEXTS": ["label,text", *(f"{n % 3},{line}" for n, line in enumerate(lines))],
        "TEXT": lines,
        "VECTORS": vectors,
    }
    files = {name: folder / f"{name.lower()}{'.csv' if name not in ('TEXT', 'VECTORS') else '.txt'}" for name in written}
    for name, file in files.items():
        file.write_text("\n".join(written[name]) + "\n")
    return files
