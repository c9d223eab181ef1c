"""`antembed compress`: a table of vectors, or the input embedding of a model's folder, made small."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from antembed.cli import show
from antembed.cli.common import AsJson, Overwrite
from antembed.files import JSON

if TYPE_CHECKING:
    from antembed.compression.sources import Source

Answer = tuple[JSON, list[str]]  # the result, and lines that say it


def compress(
    source: Annotated[
        Path, typer.Argument(help="Vectors (.npy, .npz, .safetensors, GloVe, word2vec; .gz, .zst), or a model's folder.")
    ],
    out: Annotated[Path, typer.Argument(help="The file to write, NAME.ant; or, of a model's folder, the folder to write.")],
    budget: Annotated[
        str | None,
        typer.Option(
            help="16x (times smaller than fp32, words not counted) or 2MB (the whole file). [default: 16x]", show_default=False
        ),
    ] = None,
    tolerance: Annotated[
        str | None,
        typer.Option(help="Instead of a budget: the smallest file of at most this relative squared error (1%)."),
    ] = None,
    method: Annotated[
        str, typer.Option(help="transform (principal axes), sparse (a few of many anchors), auto: the better on a sample.")
    ] = "auto",
    tensor: Annotated[str, typer.Option(help="Which table, if a file has several.")] = "",
    words: Annotated[Path | None, typer.Option(help="A word a line, one for each vector.")] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="A tokenizer.json to keep inside, for StaticModel.encode; default: that of the folder.")
    ] = None,
    by_frequency: Annotated[
        bool | None,
        typer.Option(
            "--by-frequency/--no-frequency",
            help="Frequent rows come first: err less there. Default: if there are words.",
        ),
    ] = None,
    distil: Annotated[
        Path | None,
        typer.Option(help="Texts, one a line (.gz, .zst): tune a model's table to preserve similarities of sentences."),
    ] = None,
    word_tests: Annotated[
        Path | None,
        typer.Option(help="A folder of word similarities (word word score) and analogies (a b c d). Default: $ANTEMBED_DATA."),
    ] = None,
    overwrite: Overwrite = False,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same bytes.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Compress a table of vectors to a small file that is read without torch; or the input embedding of a model,
    whose folder transformers reads after `import antembed.hf`.

    Example:  antembed compress glove.6B.300d.txt glove.ant --budget 16x

    Example:  antembed compress all-MiniLM-L6-v2 small-MiniLM --budget 16x --distil texts.txt
    """
    from antembed.compression.sources import existing, is_static, read_source

    started = time.perf_counter()
    how: JSON = {"budget": budget, "tolerance": tolerance, "method": method, "seed": seed}
    if existing(source).is_dir() and out.suffix != ".ant":
        for name, value in (("words", words), ("tokenizer", tokenizer), ("word-tests", word_tests)):
            if value is not None:
                raise ValueError(f"--{name} {value} goes with files NAME.ant, and {out} is to be a model folder; leave it out")
        _check_distil(distil, how, by_frequency)
        how["by_frequency"] = bool(by_frequency)
        result, lines = _compress_folder(source, out, how, tensor, distil, overwrite)
    else:
        _check_out(out, overwrite)
        found = read_source(source, tensor=tensor, words=words)
        for line in found.notes:
            show.note(f"{source}: {line}")
        how |= {"vocabulary": found.words, "tokenizer": tokenizer or (source if is_static(source) else None)}
        _check_distil(distil, how, by_frequency)
        how["by_frequency"] = found.by_frequency if by_frequency is None else by_frequency
        result, lines = _compress_table(found, out, how, distil, word_tests)
    show.print_result({"source": str(source), **result, "seconds": round(time.perf_counter() - started, 1)}, lines, as_json)


def _check_out(out: Path, overwrite: bool) -> None:
    if out.is_dir():
        raise ValueError(f"{out} is a folder; give a file in it, such as {out / 'vectors.ant'}")
    if out.suffix != ".ant":
        raise ValueError(f"{out} would be an .ant file: name it {out.with_suffix('.ant')}; `antembed export` writes others")
    if out.exists() and not overwrite:
        raise ValueError(f"{out} exists; choose another name, or say --overwrite")


def _check_distil(texts: Path | None, how: JSON, by_frequency: bool | None) -> None:
    """Tuning by texts keeps a size and weighs tokens by the texts; of a table alone (which has a tokenizer), not of anchors."""
    if texts is None:
        return
    if "tokenizer" in how and how["tokenizer"] is None:
        raise ValueError(f"--distil {texts} needs to know the tokens of texts; give --tokenizer FILE, or a model's folder")
    sparse = how["method"] == "sparse" and "tokenizer" in how
    excluded = {"--by-frequency": by_frequency, "--method sparse": sparse, "--tolerance": how["tolerance"] is not None}
    for option, given in excluded.items():
        if given:
            raise ValueError(f"--distil keeps a size, and weighs tokens by the texts: it cannot follow {option}; leave one out")


def _compress_table(found: "Source", out: Path, how: JSON, distil: Path | None, word_tests: Path | None) -> Answer:
    """A table alone."""
    from antembed.compression import METHOD_OF, as_array
    from antembed.compression import compress as make
    from antembed.compression.quality import changes, compare, find_tests
    from antembed.compression.sources import read_tokens
    from antembed.compression.texts import compress_for_texts

    E, tests, similarity = as_array(found.vectors), find_tests(word_tests, found.words), {}
    with show.bar(f"compressing {E.shape[0]:,} × {E.shape[1]}") as progress:
        if distil is None:
            table = make(E, **how, progress=progress)
        else:
            tokens, by_texts = read_tokens(how["tokenizer"], len(E)), how | {"by_frequency": False}
            tuned = compress_for_texts(E, tokens, _texts(distil), how=by_texts, progress=progress)
            table, similarity = tuned.table, tuned.spearman
    table.save(out)
    sizes = table.sizes()
    result: JSON = {"vectors": len(E), "embedding_dim": E.shape[1], "bytes": table.size, "parts": sizes}
    result |= {"method": METHOD_OF[table.encoding], "times_smaller": 4 * E.size / (table.size - sizes["words"])}
    result |= {**compare(E, table, how["seed"]), "spearman": similarity, "word_tests": changes(E, table, tests, how["seed"])}
    near = f"nearest neighbours kept {result['neighbours_kept']:.1%}"
    if how["by_frequency"]:
        near += f", of frequent words {result['neighbours_kept_first_tenth']:.1%}"
    lines = [
        f"{out}: {table.size:,} bytes: {', '.join(f'{name} {size:,}' for name, size in sizes.items())}",
        f"{result['method']}, {result['times_smaller']:.1f} times smaller than fp32 (words not counted); relative error "
        f"{result['relative_error']:.4f}, cosine {result['cosine']:.4f}, {near}",
        *_similarity_in_words(similarity),
    ]
    for name, test in result["word_tests"].items():
        lines.append(f"{name}: {test['before']:.1%} → {test['after']:.1%} ({test['of']} with known words: {test['asked']:,})")
    return result, lines


def _similarity_in_words(spearman: dict[str, float]) -> list[str]:
    if not spearman:
        return []
    after, before = spearman["after"], spearman["before"]
    return [f"similarities of held-out texts follow the original's (Spearman): {after:.4f}, {before:.4f} without tuning"]


def _compress_folder(source: Path, out: Path, how: JSON, tensor: str, distil: Path | None, overwrite: bool) -> Answer:
    """A model folder with a small input embedding."""
    from antembed.compression import METHOD_OF, as_array
    from antembed.compression import compress as make
    from antembed.compression.quality import compare
    from antembed.hf.checkpoint_folder import check_out, folder_size, read_model_folder, write_model_folder

    folder = read_model_folder(source, tensor)
    check_out(folder, out, overwrite)
    texts = None
    if distil is not None:
        from antembed.compression.texts import check_texts
        from antembed.hf.distil import distil as tune

        texts = _texts(distil)
        check_texts(texts)
    E, similarity = as_array(folder.vectors()), {}
    with show.bar(f"compressing {E.shape[0]:,} × {E.shape[1]}") as progress:
        table = make(E, **how, progress=progress)
    if texts is not None:
        with show.bar(f"tuning on {len(texts):,} texts") as progress:
            tuned = tune(folder, table, texts, seed=how["seed"], progress=progress)
        table, similarity = tuned.table, tuned.spearman
    left_out = write_model_folder(folder, out, table, overwrite=overwrite)
    kept, before = compare(E, table, how["seed"]), len(folder.embedding.data)
    result: JSON = {"layer": folder.name, "vectors": len(E), "embedding_dim": E.shape[1], "bytes": table.size}
    result |= {"method": METHOD_OF[table.encoding], "bytes_before": before}
    result |= {"model_bytes": folder_size(out), "model_bytes_before": folder_size(source)}
    result |= {"times_smaller": 4 * E.size / table.size, **kept, "spearman": similarity, "left_out": left_out}
    lines = [
        f"{folder.name}: {table.size:,} bytes instead of {before:,}, {result['times_smaller']:.1f} times smaller than fp32",
        f"relative error {kept['relative_error']:.4f}, nearest neighbours kept {kept['neighbours_kept']:.1%}",
        *_similarity_in_words(similarity),
    ]
    if left_out:
        lines.append(f"left out, since they are the weights again or not part of the model: {', '.join(left_out)}")
    load = f"import antembed.hf, then AutoModel.from_pretrained({str(out)!r})"
    return result, [*lines, f"{out}: {result['model_bytes']:,} bytes; {load}"]


def _texts(file: Path) -> list[str]:
    """A text a line."""
    from antembed.data.text_file import DataError, decompressed

    if not file.is_file():
        raise DataError(f"{file} is no file; give one with a text a line (.gz and .zst too)")
    with file.open("rb") as opened:
        lines = b"".join(decompressed(file, opened)).decode("utf-8", "replace").splitlines()
    return [line for line in lines if line.strip()]
