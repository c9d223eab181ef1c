"""What a file must be before the first vector is read: types, shapes, ranges. Anything else is a DamagedError.

Compressed parts are checked where they are decompressed: in encodings.py, biases.py, coded.py,
sparse_coded.py, words.py and tokens.py.
"""

import numpy as np

from antembed.files import JSON
from antembed.tables.biases import BIAS_ARRAYS
from antembed.tables.container import LARGEST_DIMENSION, DamagedError
from antembed.tables.number_formats import LARGEST_CODES, LARGEST_NUMBER, VALUES, anchors_as, largest, vector_bound

Arrays = dict[str, np.ndarray]
PIECE = 1 << 20  # numbers at a time
FLOATS, UNSIGNED, BYTES = ("f4", "f2"), ("u1", "u2", "u4", "u8"), ("u1",)
WORDS = {"word_blocks", "word_ends", "word_heads", "word_rows"}
TOKENS = {"tokenizer", "token_rows", "token_weights"}  # of a static model
ANCHORS = {"anchors", "anchor_scales", "mean"}  # of entropy-coded rows
SPARSE = {"anchors", "scales", "places", *BIAS_ARRAYS}
# The arrays that a file of each encoding may have, besides words and tokens.
KNOWN = {
    "plain": {"weights"} | SPARSE,
    "bitmap": {"bits", "values"} | SPARSE,
    "csr": {"counts", "columns", "values"} | SPARSE,
    "packed": {"coded_bits", "packed_bits", "values", "coded_values", "packed_values", "order"} | SPARSE,
    "coded": {"payload", "offsets", "classes", "promise", "frequencies", "centres", "shift_places", "norms"} | ANCHORS,
    "sparse": {"payload", "offsets", "widths", "groups", "value_frequencies", "norm_frequencies"} | ANCHORS,
    "product": {"codes", "books"},
}


def check_table(arrays: Arrays, about: JSON, scan: bool) -> None:
    """Raise if these are not the arrays of a table. `scan`: look at every number; without, at types and shapes only."""
    encoding, values = _text(about, "encoding", KNOWN), _text(about, "values", VALUES)
    V, K, d = (_count(about, name) for name in ("objects", "columns", "dimensions"))
    rows = _count(about, "rows") if "rows" in about else V
    _number(about, "offset", 0.0)
    nonzeros = _count(about, "nonzeros") if "nonzeros" in about else None
    if unknown := sorted(arrays.keys() - KNOWN[encoding] - WORDS - TOKENS):
        raise DamagedError(f"a {encoding} table has no array {unknown[0]!r}")
    if encoding in ("coded", "sparse"):
        _check_coded(arrays, about, (V, K, d))
    elif encoding == "product":
        _check_product(arrays, about, V, d, scan)
    else:
        _check_sparse(arrays, encoding, values, (V, rows, K), scan)
        _check_bias(arrays, V, values)
    if scan and encoding == "plain" and nonzeros not in (None, found := int(np.count_nonzero(arrays["weights"]))):
        raise DamagedError(f"it has {found} non-zeros, expected {nonzeros}")
    if "anchor_scales" in arrays:
        _shape(arrays, "anchors", (K - 1, d), ("i1",))
        _shape(arrays, "anchor_scales", (K - 1,), ("f2",))
        _shape(arrays, "mean", (d,), ("f2", "f4"))
        _check_finite(arrays, "anchor_scales")
        _check_finite(arrays, "mean")
    elif "anchors" in arrays:
        _shape(arrays, "anchors", (K, d), (np.dtype(anchors_as(values)).str[1:],))
        _check_finite(arrays, "anchors")
    elif d != K:
        raise DamagedError(f"vectors have {d} numbers, but rows have {K}, and there are no anchors")
    if WORDS & arrays.keys():
        _shape(arrays, "word_rows", (V, None) if arrays.get("word_rows", np.empty(0)).ndim == 2 else (None,), BYTES)
        _shape(arrays, "word_ends", (None,), UNSIGNED)
        for name in ("word_blocks", "word_heads"):
            _shape(arrays, name, (None,), BYTES)
    if TOKENS & arrays.keys():
        _check_tokens(arrays, V)


def largest_weights(arrays: Arrays, K: int) -> np.ndarray:
    """A bound of |T| by column, (K,), of rows that are not entropy-coded."""
    stored = next((arrays[name] for name in ("weights", "values") if name in arrays), np.empty(0, np.int8))
    return largest(stored) * arrays.get("scales", np.ones(K)).astype(np.float64)


def check_vectors(weights: np.ndarray, anchors: np.ndarray | None, token_weights: np.ndarray | None) -> None:
    """Raise if vectors could be beyond fp32, where |T| is at most `weights` by column."""
    reach = vector_bound(np.abs(weights), anchors) * (
        1.0 if token_weights is None else float(np.abs(token_weights).max(initial=1))
    )
    if not reach <= LARGEST_NUMBER:
        raise DamagedError(f"its numbers multiply to {reach:.3g}, fp32 ends at {LARGEST_NUMBER:.3g}")


def _check_tokens(arrays: Arrays, V: int) -> None:
    _shape(arrays, "tokenizer", (None,), BYTES)
    if "token_rows" in arrays:
        _shape(arrays, "token_rows", (None,), UNSIGNED)
        _check_below(arrays, "token_rows", V)
    if "token_weights" in arrays:
        _shape(arrays, "token_weights", arrays["token_rows"].shape if "token_rows" in arrays else (V,), ("f2",))
        _check_finite(arrays, "token_weights")


def _check_sparse(arrays: Arrays, encoding: str, values: str, sizes: tuple[int, int, int], scan: bool) -> None:
    V, rows, K = sizes
    stored = (np.dtype(VALUES[values]).str[1:],)
    numbers = "weights" if encoding == "plain" else "values"
    if encoding == "plain":
        _shape(arrays, "weights", (rows, K), stored)
    elif encoding == "bitmap":
        _shape(arrays, "bits", (rows, -(-K // 8)), BYTES)
    elif encoding == "csr":
        _shape(arrays, "counts", (rows,), UNSIGNED[:3])
        _shape(arrays, "columns", _shape(arrays, "values", (None,), stored), UNSIGNED)
        if scan:
            _check_below(arrays, "columns", K)
    else:
        bits, *more = sorted(arrays.keys() & {"coded_bits", "packed_bits"}) or ["coded_bits"]
        numbers, *others = sorted(arrays.keys() & {"values", "coded_values", "packed_values"}) or ["values"]
        if more or others:
            raise DamagedError(f"it has both {bits if more else numbers!r} and {(more or others)[0]!r}")
        _shape(arrays, bits, (None,), BYTES)
        if np.bincount(_ids(arrays, "order", (K,)), minlength=K).max(initial=1) != 1:
            raise DamagedError(f"'order' is no order of {K} columns")
    if encoding != "plain":
        _shape(arrays, numbers, (None,), stored if numbers == "values" else BYTES)
    if scan and numbers in ("weights", "values"):
        _check_finite(arrays, numbers)
    if (values in LARGEST_CODES) != ("scales" in arrays):
        raise DamagedError(f"{values} numbers {'lack' if values in LARGEST_CODES else 'have'} 'scales'")
    if "scales" in arrays:
        _shape(arrays, "scales", (K,), ("f4",))
        _check_finite(arrays, "scales")
    if "places" in arrays:
        _shape(arrays, "places", (V,), UNSIGNED)
        if scan:
            _check_below(arrays, "places", rows)
    elif rows != V:
        raise DamagedError(f"{V} objects, but {rows} rows")


def _check_bias(arrays: Arrays, V: int, values: str) -> None:
    if not BIAS_ARRAYS & arrays.keys():
        return
    if ("bias" in arrays) == ("coded_bias" in arrays):
        raise DamagedError("biases are in 'bias' or in 'coded_bias', one of them")
    if "coded_bias" in arrays:
        _shape(arrays, "coded_bias", (None,), BYTES)
    else:
        alone = values in LARGEST_CODES and "bias_scale" not in arrays
        _shape(arrays, "bias", (1,) if alone else (None,), ("f4",) if alone else (np.dtype(VALUES[values]).str[1:],))
    if ("bias_scale" in arrays) != (values in LARGEST_CODES and arrays.get("bias", np.empty(0, "i1")).dtype == np.int8):
        raise DamagedError(f"biases of {values} numbers with a scale, or without")
    if "bias_scale" in arrays:
        _shape(arrays, "bias_scale", (1,), ("f4",))
    if "bias_bits" in arrays:
        _shape(arrays, "bias_bits", (-(-V // 8),), BYTES)


def _check_coded(arrays: Arrays, about: JSON, sizes: tuple[int, int, int]) -> None:
    V, K, _ = sizes
    _shape(arrays, "payload", (None,), BYTES)
    _shape(arrays, "offsets", (None,), UNSIGNED)
    if about["encoding"] == "coded":
        _shape(arrays, "classes", (K - 1,), BYTES)
        _shape(arrays, "promise", (48,), ("u2",))
        _shape(arrays, "frequencies", (96, 16), ("u2",))
        _shape(arrays, "centres", (96, 4), ("i1",))
    else:
        _shape(arrays, "widths", (K - 1,), ("u2",))
        _shape(arrays, "groups", (K - 1,), BYTES)
        _shape(arrays, "value_frequencies", (None, 48), ("u2",))
        _count(about, "rate")
    optional = {"shift_places": (None, "u4"), "norms": (V, "u1"), "norm_frequencies": (None, "u2")}
    for name, (length, kind) in optional.items():
        if name in arrays:
            _shape(arrays, name, (length,), (kind,))
    if "anchors" not in arrays:
        raise DamagedError("it lacks 'anchors'")
    _count(about, "rows_per_block")
    for name in ("step", "weighting", "mean_place"):
        _number(about, name)
    for name, default in (("norm_base", 1.0), ("first_shift", 0)):
        _number(about, name, default)


def _check_product(arrays: Arrays, about: JSON, V: int, d: int, scan: bool) -> None:
    parts, entries, width = _shape(arrays, "books", (None, None, None), FLOATS)
    if parts * width != d or not 1 <= entries <= 256:
        raise DamagedError(f"{parts} parts of {width} numbers and {entries} entries, for vectors of {d}")
    half = entries <= 16
    _shape(arrays, "codes", (V, -(-parts // 2) if half else parts), BYTES)
    _check_finite(arrays, "books")
    codes = arrays["codes"]
    if scan and codes.size and entries < 256 and not (half and entries == 16):
        largest = int(max((codes & 15).max(), (codes >> 4).max())) if half else int(codes.max())
        if largest >= entries:
            raise DamagedError(f"a code is {largest}, there are {entries} entries")
    padding = about.get("padding")
    if padding is not None and not (type(padding) is int and 0 <= padding < V):
        raise DamagedError(f"padding is {str(padding)[:40]}, there are {V} objects")


def _count(about: JSON, name: str) -> int:
    if name not in about:
        raise DamagedError(f"it lacks {name!r}, which every table has")
    found = about[name]
    if type(found) is not int or not 0 <= found <= LARGEST_DIMENSION:
        raise DamagedError(f"{name} is {str(found)[:40]}, expected a whole number up to 2⁴⁰")
    return found


def _number(about: JSON, name: str, default: float | None = None) -> None:
    found: object = about.get(name, default)
    if not isinstance(found, int | float) or isinstance(found, bool) or not abs(found) <= 1e30:  # nan is neither
        raise DamagedError(f"{name} is {str(found)[:40]}, expected a finite number")


def _text(about: JSON, name: str, known: dict[str, set[str]] | dict[str, type[np.number]]) -> str:
    found = about.get(name)
    if not isinstance(found, str) or found not in known:
        raise DamagedError(f"{name} is {str(found)[:40]!r}; there are: {', '.join(known)}")
    return found


def _shape(arrays: Arrays, name: str, shape: tuple[int | None, ...], kinds: tuple[str, ...]) -> tuple[int, ...]:
    """The array's shape, once it is as expected (None: any) and its type is one of `kinds`."""
    if name not in arrays:
        raise DamagedError(f"it lacks {name!r}")
    array = arrays[name]
    if array.dtype.str[1:] not in kinds:
        raise DamagedError(f"{name!r} has the type {array.dtype}, expected {' or '.join(kinds)}")
    if array.ndim != len(shape) or any(want is not None and want != n for want, n in zip(shape, array.shape, strict=True)):
        raise DamagedError(f"{name!r} has the shape {array.shape}, expected {shape}")
    return array.shape


def _ids(arrays: Arrays, name: str, shape: tuple[int, ...]) -> np.ndarray:
    _shape(arrays, name, shape, UNSIGNED)
    _check_below(arrays, name, max(shape[0], 1))
    return arrays[name].astype(np.int64)


def _check_below(arrays: Arrays, name: str, limit: int) -> None:
    largest = int(arrays[name].max(initial=0))
    if arrays[name].size and largest >= limit:
        raise DamagedError(f"{name!r} has {largest}, expected less than {limit}")


def _check_finite(arrays: Arrays, name: str) -> None:
    flat = arrays[name].reshape(-1)
    if flat.dtype.kind == "f" and not all(np.isfinite(flat[at : at + PIECE]).all() for at in range(0, len(flat), PIECE)):
        raise DamagedError(f"{name!r} has a number that is not finite")
