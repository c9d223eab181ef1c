"""What exists → small: tables of vectors as entropy-coded files.

table = compress(vectors, vocabulary=words, budget="16x")
table.save("words.ant"); table["stock"], table.most_similar("stock", k=10)
"""

import os
from collections.abc import Sequence

import numpy as np

from antembed.budget import parse_budget
from antembed.compression.report import Progress, compare, quiet
from antembed.compression.sources import Source, read_source
from antembed.compression.static import is_static, read_tokens
from antembed.compression.transform import Coded, fit
from antembed.serving import Table
from antembed.serving.coded import CodedRows
from antembed.serving.table import read_table, serialize_coded
from antembed.serving.tokens import pack_tokens
from antembed.serving.words import pack_words

__all__ = ["Source", "compare", "compress", "is_static", "read_source"]

WEIGHTING = 0.25  # rows that come first, the frequent ones, are kept better: (place + 10)^−¼
NORM_SAMPLE = 20_000
HEADER = 1500  # bytes of a file beside its arrays, at most


def compress(
    vectors: object,
    *,
    budget: str | int = "16x",
    vocabulary: Sequence[str] | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    by_frequency: bool | None = None,
    split_norms: bool | None = None,
    seed: int = 0,
    progress: Progress = quiet,
) -> Table:
    """A table of vectors (V, d): an array, a torch tensor, an nn.Embedding, or anything with `weight` → a small Table.

    `budget`: "16x" (of fp32; the words not counted), or "2MB", everything counted. `vocabulary`: a word for each row; then
    `table["word"]` works. `tokenizer`: a tokenizer.json, or the folder of a static model: then StaticModel reads the file.
    `by_frequency`: rows are in the order of falling frequency, and the first are kept better (default:
    if there is a vocabulary). `split_norms`: store lengths apart (default: what is better on a sample).
    """
    E = as_array(vectors)
    V, d = E.shape
    if vocabulary is not None and len(vocabulary) != V:
        raise ValueError(f"{len(vocabulary)} words for {V} vectors; give one for each")
    words = {} if vocabulary is None else pack_words(list(vocabulary))
    if tokenizer is not None:
        words |= pack_tokens(read_tokens(tokenizer, V), vocabulary)
    wanted = parse_budget(str(budget), 4.0 * V * d)
    if wanted.unit != "bytes":
        raise ValueError(f"a budget of {budget} counts parameters; say how small the file is to be: 16x or 2MB")
    counted = sum(array.nbytes for array in words.values()) if not str(budget).lower().endswith("x") else 0
    target = wanted.amount - counted - HEADER
    if target <= 0:
        raise ValueError(
            f"a budget of {wanted.amount:,.0f} bytes is less than the words take: {counted + HEADER:,}; allow more"
        )
    weighting = WEIGHTING if (by_frequency if by_frequency is not None else vocabulary is not None) else 0.0
    apart = split_norms if split_norms is not None else _norms_apart(E, target / (4.0 * V * d), weighting, seed)
    coded = fit(E, target, weighting=weighting, split_norms=apart, seed=seed, progress=progress)
    return read_table(serialize_coded(coded.arrays, coded.about, words))


def as_array(vectors: object) -> np.ndarray:
    """(V, d) float32, of what people have."""
    found = vectors.weight if hasattr(vectors, "weight") else vectors
    array = np.asarray(found.detach().cpu().float().numpy() if hasattr(found, "detach") else found)
    if array.ndim != 2 or array.dtype.kind not in "fiu" or not array.size:
        raise ValueError(f"a table is (objects, width) of numbers, got shape {array.shape} of {array.dtype}")
    array = np.ascontiguousarray(array, np.float32)
    if not np.isfinite(array).all():
        row = int(np.flatnonzero(~np.isfinite(array).all(1))[0])
        raise ValueError(f"row {row} has a number that is not finite; mend or remove it before compressing")
    return array


def _norms_apart(E: np.ndarray, share: float, weighting: float, seed: int) -> bool:
    """Whether lengths stored apart lose less, on a sample of rows in their order."""
    rows = np.sort(np.random.default_rng(seed).choice(len(E), min(len(E), NORM_SAMPLE), replace=False))
    sample = E[rows]
    errors = []
    for apart in (False, True):
        try:
            coded = fit(sample, share * sample.size * 4, weighting=weighting, split_norms=apart, seed=seed)
        except ValueError:
            errors.append(np.inf)
            continue
        errors.append(float(((decoded(coded) - sample) ** 2).sum(dtype=np.float64)))
    return errors[1] < errors[0]


def decoded(coded: Coded) -> np.ndarray:
    """All vectors of a compressed table."""
    rows = CodedRows(coded.arrays, dict(coded.about))
    found: np.ndarray = rows(np.arange(rows.total)) @ coded.arrays["anchors"].astype(np.float32)
    return found
