"""Commands for tables that exist: compress, neighbours."""

import json
import time
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from antembed.cli.common import AsJson
from antembed.files import JSON


def compress(
    source: Annotated[
        Path,
        typer.Argument(help="Vectors: .npy, .npz, .safetensors, GloVe, word2vec (.bin, text; .gz, .zst), or a model's folder."),
    ],
    out: Annotated[Path, typer.Argument(help="The file to write, NAME.ant.")],
    budget: Annotated[
        str | None,
        typer.Option(help="16x (times smaller than fp32, words not counted), or 2MB, all counted.", show_default="16x"),
    ] = None,
    tolerance: Annotated[
        str | None, typer.Option(help="Instead of a budget: the smallest file of at most this relative squared error, 1%.")
    ] = None,
    method: Annotated[
        str, typer.Option(help="transform (principal axes), sparse (a few of many anchors), auto: what is better on a sample.")
    ] = "auto",
    tensor: Annotated[str, typer.Option(help="Which table, where a file has several.")] = "",
    words: Annotated[Path | None, typer.Option(help="A word a line, one for each vector.")] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="A tokenizer.json to keep inside, for StaticModel.encode; default: that of a static model's folder."),
    ] = None,
    by_frequency: Annotated[
        bool | None,
        typer.Option(
            "--by-frequency/--no-frequency", help="The first rows are the frequent ones, and kept better; default: of words."
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same bytes.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Make a table of vectors small: an entropy-coded file that is looked up without torch.

    Example:  antembed compress glove.6B.300d.txt glove.ant --budget 16x

    Example:  antembed compress all-MiniLM-L6-v2 minilm.ant --budget 3MB

    Example:  antembed compress vectors.npy vectors.ant --tolerance 1%
    """
    from antembed.cli import show
    from antembed.compression import METHOD_OF, as_array, compare, is_static, read_source
    from antembed.compression import compress as make

    _check_out(out, overwrite)
    started = time.perf_counter()
    found = read_source(source, tensor=tensor, words=words)
    E = as_array(found.vectors)
    frequent = found.by_frequency if by_frequency is None else by_frequency
    tokens = tokenizer or (source if is_static(source) else None)
    with show.bar(f"compressing {E.shape[0]:,} × {E.shape[1]}") as progress:
        how = partial(make, E, budget=budget, tolerance=tolerance, method=method, seed=seed)
        table = how(vocabulary=found.words, tokenizer=tokens, by_frequency=frequent, progress=progress)
    table.save(out)
    kept = compare(E, table[:], seed)
    sizes = table.sizes()
    result: JSON = {"source": str(source), "vectors": len(E), "embedding_dim": E.shape[1], "bytes": table.size, "parts": sizes}
    result["method"] = METHOD_OF[table.encoding]
    result |= {"times_smaller": 4 * E.size / (table.size - sizes["words"]), **kept}
    result["seconds"] = round(time.perf_counter() - started, 1)
    typer.echo(json.dumps(result) if as_json else f"{out}: {_in_words(result, frequent)}")


def _check_out(out: Path, overwrite: bool) -> None:
    if out.is_dir():
        raise ValueError(f"{out} is a folder; give a file in it, such as {out / 'vectors.ant'}")
    if out.exists() and not overwrite:
        raise ValueError(f"{out} exists; choose another name, or say --overwrite")


def _in_words(result: JSON, frequent: bool) -> str:
    """What was reached, for people."""
    parts = ", ".join(f"{name} {size:,}" for name, size in result["parts"].items())
    near = f"nearest neighbours kept {result['neighbours_kept']:.1%}"
    if frequent:
        near += f", of frequent words {result['neighbours_kept_first_tenth']:.1%}"
    smaller = f"{result['method']}, {result['times_smaller']:.1f} times smaller than fp32 (words not counted)"
    error = f"relative error {result['relative_error']:.4f}, cosine {result['cosine']:.4f}"
    return f"{result['bytes']:,} bytes: {parts}\n{smaller}; {error}, {near}"


def neighbours(
    file: Annotated[Path, typer.Argument(help="A file with words, as `antembed compress` writes it.")],
    words: Annotated[list[str], typer.Argument(help="Words.")],
    k: Annotated[int, typer.Option("-k", min=1, help="How many for each.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Say which words are nearest to these.

    Example:  antembed neighbours glove.ant stock bond -k 5
    """
    from antembed.serving import load_table

    table = load_table(file)
    for word in words:
        if word not in table:
            have = f"none of its {len(table):,} words" if table.words is not None else "asked of a file without words"
            raise ValueError(f"{word!r} is {have}; is it written as there, in lower case for example?")
        near = table.most_similar(word, k)
        if as_json:
            typer.echo(json.dumps({"word": word, "neighbours": near}))
        else:
            typer.echo(f"{word}: " + ", ".join(f"{name} {cosine:.3f}" for name, cosine in near))
