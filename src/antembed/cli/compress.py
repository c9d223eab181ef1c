"""Commands for tables that exist: compress, neighbours."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from antembed.cli.common import AsJson
from antembed.files import JSON

if TYPE_CHECKING:
    import numpy as np

    from antembed.compression.quality import Progress
    from antembed.compression.texts import Distilled


def compress(
    source: Annotated[
        Path,
        typer.Argument(help="Vectors: .npy, .npz, .safetensors, GloVe, word2vec (.bin, text; .gz, .zst), or a model's folder."),
    ],
    out: Annotated[Path, typer.Argument(help="The file to write, NAME.ant; or, of a model's folder, the folder to write.")],
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
    distil: Annotated[
        Path | None,
        typer.Option(help="Texts, one a line (.gz, .zst): tune a model's table, so that sentences stay as similar."),
    ] = None,
    word_tests: Annotated[
        Path | None,
        typer.Option(
            help="A folder of word similarities (word word score) and analogies (a b c d), one a line: the loss is said.",
            show_default="wordsim and analogy in ANTEMBED_DATA, if there",
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same bytes.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Make a table of vectors small: an entropy-coded file that is looked up without torch. Or the input embedding of a model:
    its folder is written whole, and `import antembed.hf` makes transformers read it.

    Example:  antembed compress glove.6B.300d.txt glove.ant --budget 16x

    Example:  antembed compress all-MiniLM-L6-v2 small-MiniLM --budget 16x --distil texts.txt

    Example:  antembed compress vectors.npy vectors.ant --tolerance 1%
    """
    from antembed.compression.sources import existing

    how: JSON = {"budget": budget, "tolerance": tolerance, "method": method, "seed": seed}
    if existing(source).is_dir() and out.suffix != ".ant":
        only = {"words": words, "tokenizer": tokenizer, "word-tests": word_tests}
        if given := [f"--{name} {value}" for name, value in only.items() if value is not None]:
            raise ValueError(f"{given[0]} goes with files NAME.ant, and {out} is to be a model's folder; leave it out")
        return _compress_folder(source, out, how, tensor, bool(by_frequency), distil, overwrite, as_json)
    _check_out(out, overwrite)
    return _compress_table(source, out, how, tensor, words, tokenizer, by_frequency, distil, word_tests, as_json)


def _compress_table(
    source: Path, out: Path, how: JSON, tensor: str, words: Path | None, tokenizer: Path | None, by_frequency: bool | None,
    distil: Path | None, word_tests: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """A table alone."""
    from antembed.cli import show
    from antembed.compression import METHOD_OF, as_array
    from antembed.compression import compress as make
    from antembed.compression.quality import changes, compare, find_tests
    from antembed.compression.sources import is_static, read_source

    started = time.perf_counter()
    found = read_source(source, tensor=tensor, words=words)
    for line in found.notes:
        show.note(f"{source}: {line}")
    E = as_array(found.vectors)
    frequent = found.by_frequency if by_frequency is None else by_frequency
    tokens = tokenizer or (source if is_static(source) else None)
    tests = find_tests(word_tests, found.words)
    how |= {"vocabulary": found.words, "tokenizer": tokens, "by_frequency": frequent}
    similarity = {}
    with show.bar(f"compressing {E.shape[0]:,} × {E.shape[1]}") as progress:
        if distil is None:
            table = make(E, **how, progress=progress)
        else:
            tuned = _tuned(E, how, distil, by_frequency, progress)
            table, similarity = tuned.table, tuned.spearman
    table.save(out)
    F, sizes = table[:], table.sizes()
    result: JSON = {"source": str(source), "vectors": len(E), "embedding_dim": E.shape[1], "bytes": table.size, "parts": sizes}
    result["method"] = METHOD_OF[table.encoding]
    result |= {"times_smaller": 4 * E.size / (table.size - sizes["words"]), **compare(E, F, how["seed"])}
    result |= {"spearman": similarity, "word_tests": changes(E, F, tests, how["seed"])}
    result["seconds"] = round(time.perf_counter() - started, 1)
    if as_json:
        show.print_json(result)
        return
    for line in f"{out}: {_in_words(result, frequent)}".split("\n"):
        show.answer(line)


def _tuned(E: "np.ndarray", how: JSON, texts: Path, by_frequency: bool | None, progress: "Progress") -> "Distilled":
    """A static model's table, by texts."""
    from antembed.compression.sources import read_tokens
    from antembed.compression.texts import compress_for_texts

    if how["tokenizer"] is None:
        raise ValueError(
            f"--distil {texts} needs to know the tokens of texts; give --tokenizer tokenizer.json, or a model's folder"
        )
    if by_frequency or how["method"] == "sparse" or how["tolerance"] is not None:
        other = "--by-frequency" if by_frequency else "--method sparse" if how["method"] == "sparse" else "--tolerance"
        raise ValueError(f"--distil keeps a size, and weighs tokens by the texts: it cannot follow {other}; leave one out")
    tokens = read_tokens(how["tokenizer"], len(E))
    return compress_for_texts(E, tokens, _texts(texts), how=how | {"by_frequency": False}, progress=progress)


def _check_out(out: Path, overwrite: bool) -> None:
    if out.is_dir():
        raise ValueError(f"{out} is a folder; give a file in it, such as {out / 'vectors.ant'}")
    if out.suffix != ".ant":
        raise ValueError(
            f"{out} would be an .ant file: name it {out.with_suffix('.ant')}; `antembed export` writes other formats"
        )
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
    lines = [f"{result['bytes']:,} bytes: {parts}", f"{smaller}; {error}, {near}"]
    if result["spearman"]:
        lines.append(_similarity_in_words(result["spearman"]))
    for name, test in result["word_tests"].items():
        lines.append(f"{name}: {test['before']:.1%} → {test['after']:.1%} ({test['of']} with known words: {test['asked']:,})")
    return "\n".join(lines)


def _similarity_in_words(spearman: dict[str, float]) -> str:
    after, before = spearman["after"], spearman["before"]
    return f"similarities of held-out texts follow the original's (Spearman): {after:.4f}, {before:.4f} without tuning"


def _compress_folder(
    source: Path, out: Path, how: JSON, tensor: str, frequent: bool, distil: Path | None, overwrite: bool, as_json: bool
) -> None:
    """A whole model, its input embedding small."""
    from antembed.cli import show
    from antembed.compression import METHOD_OF, as_array
    from antembed.compression import compress as make
    from antembed.compression.quality import compare
    from antembed.hf.checkpoint_folder import check_out, folder_size, read_model_folder, write_model_folder

    if distil is not None and (how["tolerance"] is not None or frequent):
        other = "--by-frequency" if frequent else "--tolerance"
        raise ValueError(f"--distil keeps a size, and weighs tokens by the texts: it cannot follow {other}; leave one out")
    started = time.perf_counter()
    folder = read_model_folder(source, tensor)
    check_out(folder, out, overwrite)
    texts = None
    if distil is not None:
        from antembed.compression.texts import check_texts
        from antembed.hf.distil import distil as tune

        texts = _texts(distil)
        check_texts(texts)
    E = as_array(folder.vectors())
    with show.bar(f"compressing {E.shape[0]:,} × {E.shape[1]}") as progress:
        table = make(E, **how, by_frequency=frequent, progress=progress)
    similarity = {}
    if texts is not None:
        with show.bar(f"tuning on {len(texts):,} texts") as progress:
            tuned = tune(folder, table, texts, seed=how["seed"], progress=progress)
        table, similarity = tuned.table, tuned.spearman
    left_out = write_model_folder(folder, out, table, overwrite=overwrite)
    kept, before = compare(E, table[:], how["seed"]), len(folder.embedding.data)
    result = {"source": str(source), "layer": folder.name, "vectors": len(E), "embedding_dim": E.shape[1], "bytes": table.size}
    result["method"] = METHOD_OF[table.encoding]
    result |= {
        "bytes_before": before,
        "model_bytes": folder_size(out),
        "model_bytes_before": folder_size(source),
    }
    result |= {"times_smaller": 4 * E.size / table.size, **kept, "spearman": similarity, "left_out": left_out}
    result["seconds"] = round(time.perf_counter() - started, 1)
    if as_json:
        show.print_json(result)
        return
    show.answer(
        f"{folder.name}: {table.size:,} bytes instead of {before:,}, {result['times_smaller']:.1f} times smaller than fp32"
    )
    show.answer(f"relative error {kept['relative_error']:.4f}, nearest neighbours kept {kept['neighbours_kept']:.1%}")
    if similarity:
        show.answer(_similarity_in_words(similarity))
    if left_out:
        show.answer(f"left out, since they are the weights again or not part of the model: {', '.join(left_out)}")
    show.answer(f"{out}: {result['model_bytes']:,} bytes; import antembed.hf, then AutoModel.from_pretrained({str(out)!r})")


def _texts(file: Path) -> list[str]:
    """A text a line."""
    from antembed.data.text_file import DataError, decompressed

    if not file.is_file():
        raise DataError(f"{file} is no file; give one with a text a line (.gz and .zst too)")
    with file.open("rb") as opened:
        lines = b"".join(decompressed(file, opened)).decode("utf-8", "replace").splitlines()
    return [line for line in lines if line.strip()]


def neighbours(
    file: Annotated[Path, typer.Argument(help="A file with words, as `antembed compress` writes it.")],
    words: Annotated[list[str], typer.Argument(help="Words.")],
    k: Annotated[int, typer.Option("-k", min=1, help="How many for each.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Say which words are nearest to these.

    Example:  antembed neighbours glove.ant stock bond -k 5
    """
    from antembed.cli import show
    from antembed.tables.save import load_table

    table = load_table(file)
    if table.words is None:
        raise ValueError(f"{file} has no words; compress vectors with their words, or with --words FILE")
    unknown = [word for word in words if word not in table]
    asked = ", ".join(map(repr, unknown))
    have = f"{asked}: none of the {len(table):,} words; are they written as there, in lower case for example?"
    if len(unknown) == len(words):
        raise ValueError(have)
    if unknown:
        show.note(have)
    for word in words:
        near = [] if word in unknown else table.most_similar(word, k)
        if as_json:
            show.print_json({"word": word, "neighbours": near})
        elif near:
            show.answer(f"{word}: " + ", ".join(f"{name} {cosine:.3f}" for name, cosine in near))
