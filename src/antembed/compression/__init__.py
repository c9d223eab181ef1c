"""Compress tables of vectors that exist to small, entropy-coded files.

table = compress(vectors, vocabulary=words, budget="16x")
table.save("words.ant"); table["stock"], table.most_similar("stock", k=10)
"""

import os
from collections.abc import Sequence

import numpy as np

from antembed.budget import parse_budget, parse_tolerance
from antembed.compression.choose_method import FITS, best_way, say_if_compiled, ways_to_try
from antembed.compression.goal import Goal, Vectors
from antembed.compression.quality import Progress, chunks, named, quiet
from antembed.compression.sources import read_tokens
from antembed.files import JSON
from antembed.tables.save import read_table, serialize_coded
from antembed.tables.static_model import pack_tokens
from antembed.tables.table import Table
from antembed.tables.word_index import pack_words

METHODS = ("auto", "transform", "sparse")
METHOD_OF = {"coded": "transform", "sparse": "sparse"}  # by the encoding of a file
WEIGHTING = 0.25  # rows that come first, the frequent ones, are kept better: (place + 10)^−¼
LARGEST = 1e18  # its square is still a number in fp32
HEADER = 2048  # bytes of a file beside its arrays, at most


def compress(
    vectors: object,
    *,
    budget: str | int | None = None,
    tolerance: str | float | None = None,
    vocabulary: Sequence[str] | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    by_frequency: bool | None = None,
    split_norms: bool | None = None,
    method: str = "auto",
    importance: np.ndarray | None = None,
    seed: int = 0,
    progress: Progress = quiet,
) -> Table:
    """A table of vectors (V, d): an array, a torch tensor, an nn.Embedding, or anything with `weight` → a small Table.

    `budget`: "16x" (of fp32; the words not counted; the default), or "2MB", everything counted. `tolerance`: instead, the
    smallest file whose relative squared error is at most this, "1%" or 0.01. `vocabulary`: a word for each row; then
    `table["word"]` works. `tokenizer`: a tokenizer.json, or the folder of a static model: then StaticModel reads the file.
    `by_frequency`: rows are in the order of falling frequency, and the first are kept better (default:
    if there is a vocabulary). `split_norms`: store lengths apart (default: what is better on a sample). `method`: "transform"
    (principal axes), "sparse" (a few of many anchors), or "auto": what is better on a sample. `importance` (V,): the error of
    row i counts importance_i² times (transform only, instead of by_frequency). `progress(what, done, total)` is called on the
    way: what is compiled or tried, how far, of how much."""
    E = as_array(vectors)
    if vocabulary is not None and len(vocabulary) != len(E):
        raise ValueError(f"{len(vocabulary)} words for {len(E)} vectors; give one for each")
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}; there are: {', '.join(METHODS)}")
    words = {} if vocabulary is None else pack_words(list(vocabulary))
    if tokenizer is not None:
        words |= pack_tokens(read_tokens(tokenizer, len(E)), vocabulary)
    if tolerance is not None and budget is not None:
        raise ValueError(f"a budget of {budget} and a tolerance of {tolerance} were given; choose one")
    size = "16x" if budget is None else budget
    goal = Goal(error=parse_tolerance(tolerance)) if tolerance is not None else _size(size, E, words)
    if by_frequency is None:
        by_frequency = vocabulary is not None and importance is None
    weighting = WEIGHTING if by_frequency else 0.0
    if importance is not None:
        importance = np.asarray(importance)
        if importance.shape != (len(E),) or not (np.isfinite(importance).all() and (importance > 0).all()):
            wrong = f"importance has shape {importance.shape}, or numbers that are not positive"
            raise ValueError(f"{wrong}; give {len(E)} of them")
        if method == "sparse" or by_frequency:
            other = "by_frequency" if by_frequency else "the method sparse"
            raise ValueError(f"importance goes with transform and alone, {other} was given too; leave one of them out")
        method = "transform"
    unit = _unit(E)
    scaled = Vectors(E, unit)
    ways = ways_to_try(E.shape, goal, method, split_norms)
    (how, apart), known = (ways[0], None) if len(ways) == 1 else best_way(scaled, goal, ways, weighting, seed, progress)
    say_if_compiled(how, progress)
    more: JSON = {"importance": importance} if importance is not None else {"known": known} if how == "sparse" else {}
    coded = FITS[how](
        scaled, goal, weighting=weighting, split_norms=apart, seed=seed, progress=named(f"{how}: ", progress), **more
    )
    about = coded.about | {"norm_base": unit * coded.about["norm_base"]}
    return read_table(serialize_coded(coded.arrays, about, words))


def _unit(E: np.ndarray) -> float:
    """A power of two that brings numbers of another size near 1, where fp16 and the coders' limits are far."""
    size = float(np.sqrt(sum(float(np.square(E[part], dtype=np.float64).sum()) for part in chunks(E.shape)) / E.size))
    return 1.0 if size == 0 or 1e-2 < size < 1e2 else float(2.0 ** np.round(np.log2(size)))


def _size(budget: str | int, E: np.ndarray, words: dict[str, np.ndarray]) -> Goal:
    wanted = parse_budget(str(budget), 4.0 * E.size)
    if wanted.unit != "bytes":
        raise ValueError(f"a budget of {budget} counts parameters; say how small the file is to be: 16x or 2MB")
    counted = sum(array.nbytes for array in words.values()) if not str(budget).lower().endswith("x") else 0
    if wanted.amount <= counted + HEADER:
        taken = f"the header and the words take: {counted + HEADER:,}" if counted else f"a header takes: {HEADER:,}"
        raise ValueError(f"a budget of {wanted.amount:,.0f} bytes is less than {taken}; allow more")
    if wanted.amount - counted >= 4 * E.size:
        raise ValueError(
            f"a budget of {wanted.amount:,.0f} bytes is no less than the vectors take as they are, {4 * E.size:,} in fp32; "
            "say how much smaller they are to be, such as 16x"
        )
    return Goal(size=wanted.amount - counted - HEADER)


def as_array(vectors: object) -> np.ndarray:
    """(V, d) floats, perhaps mapped, of what people have."""
    found = vectors.weight if hasattr(vectors, "weight") else vectors
    array = np.asarray(found.detach().cpu().float().numpy() if hasattr(found, "detach") else found)
    if array.ndim != 2 or array.dtype.kind not in "fiu" or not array.size:
        raise ValueError(f"a table is (objects, width) of numbers, got shape {array.shape} of {array.dtype}")
    for part in chunks(array.shape):
        rows = array[part]
        if not np.isfinite(rows).all():
            row = part.start + int(np.flatnonzero(~np.isfinite(rows).all(1))[0])
            raise ValueError(f"row {row} has a number that is not finite; mend or remove it before compressing")
        if (largest := float(max(rows.max(), -rows.min()))) > LARGEST:
            raise ValueError(
                f"the largest number is {largest:.3g}, at most {LARGEST:g} can be compressed; divide all by a constant"
            )
    return array
