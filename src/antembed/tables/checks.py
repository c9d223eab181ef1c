"""What a file must be before the first vector is read: types, shapes, ranges. Anything else is a DamagedError.

Compressed parts are checked where they are decompressed: in encodings.py, number_formats.py, entropy_rows.py,
sparse_entropy_rows.py, word_index.py and static_model.py.
"""

from collections.abc import Collection

import numpy as np

from antembed.files import JSON
from antembed.tables.container import LARGEST_DIMENSION, DamagedError, TableError
from antembed.tables.number_formats import BIAS_ARRAYS, LARGEST_CODES, LARGEST_NUMBER, VALUES, anchors_as, largest, vector_bound

Arrays = dict[str, np.ndarray]
Shapes = dict[str, tuple[tuple[int | None, ...], tuple[str, ...]]]  # by name: the shape (None: any), and possible types
CHUNK = 1 << 20  # numbers at a time
FLOATS, UNSIGNED, BYTES = ("f4", "f2"), ("u1", "u2", "u4", "u8"), ("u1",)
KNOWN = ("plain", "bitmap", "csr", "packed", "coded", "sparse", "product")
WORDS = {"word_blocks": BYTES, "word_ends": UNSIGNED, "word_heads": BYTES, "word_rows": BYTES}


def check_table(arrays: Arrays, about: JSON, scan: bool) -> None:
    """Raise if these are not the arrays of a table. `scan`: look at every number; without, at types and shapes only."""
    encoding, values = _text(about, "encoding", KNOWN), _text(about, "values", VALUES)
    V, K, d = (_count(about, name) for name in ("objects", "columns", "dimensions"))
    rows = _count(about, "rows") if "rows" in about else V
    _number(about, "offset", 0.0)
    nonzeros = _count(about, "nonzeros") if "nonzeros" in about else None
    if arrays.keys() & {"packed_bits", "packed_values"} or arrays.get("word_rows", np.empty(0)).ndim == 2:
        raise TableError("has bits or words as before version 6 of the format, which are not read; export or compress it anew")
    required, optional = _shapes(arrays, encoding, values, (V, rows, K, d))
    if unknown := sorted(arrays.keys() - required.keys() - optional.keys()):
        raise DamagedError(f"a {encoding} table has no array {unknown[0]!r}")
    for name, (shape, kinds) in (required | {name: optional[name] for name in optional.keys() & arrays.keys()}).items():
        _check_shape(arrays, name, shape, kinds)
    for name in ("anchors", "anchor_scales", "mean", "scales", "books", "token_weights"):
        _check_finite(arrays, name)
    _check_below(arrays, "token_rows", V)
    if encoding in ("coded", "sparse"):
        _count(about, "rows_per_block")
        if encoding == "sparse":
            _count(about, "rate")
        for name, default in {"step": None, "weighting": None, "mean_place": None, "norm_base": 1.0, "first_shift": 0}.items():
            _number(about, name, default)
    elif encoding == "product":
        _check_product(arrays, about, V, d, scan)
    else:
        _check_sparse(arrays, (V, rows, K), scan)
        if BIAS_ARRAYS & arrays.keys():
            _check_bias(arrays, values)
    if scan and encoding == "plain" and nonzeros not in (None, found := int(np.count_nonzero(arrays["weights"]))):
        raise DamagedError(f"it has {found} non-zeros, expected {nonzeros}")
    if "anchors" not in arrays and d != K:
        raise DamagedError(f"vectors have {d} numbers, but rows have {K}, and there are no anchors")


def _shapes(arrays: Arrays, encoding: str, values: str, sizes: tuple[int, int, int, int]) -> tuple[Shapes, Shapes]:
    """The arrays that a file must have, and those that it may have."""
    V, rows, K, d = sizes
    stored, line = (np.dtype(VALUES[values]).str[1:],), (None,)
    required: dict[str, Shapes] = {
        "plain": {"weights": ((rows, K), stored)},
        "bitmap": {"bits": ((rows, -(-K // 8)), BYTES), "values": (line, stored)},
        "csr": {"counts": ((rows,), UNSIGNED[:3]), "columns": (line, UNSIGNED), "values": (line, stored)},
        "packed": {"coded_bits": (line, BYTES), "order": ((K,), UNSIGNED)},
        "coded": {
            "payload": (line, BYTES), "offsets": (line, UNSIGNED), "classes": ((K - 1,), BYTES), "promise": ((48,), ("u2",)),
            "frequencies": ((96, 16), ("u2",)), "centres": ((96, 4), ("i1",)),
        },
        "sparse": {
            "payload": (line, BYTES), "offsets": (line, UNSIGNED), "widths": ((K - 1,), ("u2",)), "groups": ((K - 1,), BYTES),
            "value_frequencies": ((None, 48), ("u2",)),
        },
        "product": {"codes": ((V, None), BYTES), "books": ((None, None, None), FLOATS)},
    }  # fmt: skip
    optional: Shapes = {"tokenizer": (line, BYTES), "token_rows": (line, UNSIGNED)}
    found, tokens = required[encoding], arrays["token_rows"].shape if "token_rows" in arrays else (V,)
    optional["token_weights"] = (tokens, ("f2",))
    if encoding in ("coded", "sparse"):
        optional |= {"shift_places": (line, ("u4",)), "norms": ((V,), BYTES)} if encoding == "coded" else {}
        optional |= {"norm_frequencies": (line, ("u2",))} if encoding == "sparse" else {}
        if "anchor_scales" in arrays:
            found |= {"anchors": ((K - 1, d), ("i1",)), "mean": ((d,), ("f2", "f4"))}
            optional["anchor_scales"] = ((K - 1,), ("f2",))
        else:
            found["anchors"] = ((K, d), (np.dtype(anchors_as(values)).str[1:],))
    elif encoding != "product":
        optional |= {"anchors": ((K, d), (np.dtype(anchors_as(values)).str[1:],)), "places": ((V,), UNSIGNED)}
        optional |= {"coded_values": (line, BYTES), "values": (line, stored)} if encoding == "packed" else {}
        if values in LARGEST_CODES:
            found["scales"] = ((K,), ("f4",))
        alone = values in LARGEST_CODES and "bias_scale" not in arrays
        optional |= {"bias": ((1,) if alone else line, ("f4",) if alone else stored), "bias_scale": ((1,), ("f4",))}
        optional |= {"coded_bias": (line, BYTES), "bias_bits": ((-(-V // 8),), BYTES)}
    optional |= {name: (line, kinds) for name, kinds in WORDS.items()}
    found |= {name: optional[name] for name in WORDS if WORDS.keys() & arrays.keys()}
    found |= {"tokenizer": optional["tokenizer"]} if {"token_rows", "token_weights"} & arrays.keys() else {}
    return found, optional


def largest_weights(arrays: Arrays, K: int) -> np.ndarray:
    """A bound of |T| by column, (K,), of rows that are not entropy-coded."""
    stored = next((arrays[name] for name in ("weights", "values") if name in arrays), np.empty(0, np.int8))
    return largest(stored) * arrays.get("scales", np.ones(K)).astype(np.float64)


def check_vectors(weights: np.ndarray, anchors: np.ndarray | None, token_weights: np.ndarray | None) -> None:
    """Raise if vectors could be beyond fp32, where |T| is at most `weights` by column."""
    factor = 1.0 if token_weights is None else float(np.abs(token_weights).max(initial=1))
    reach = vector_bound(np.abs(weights), anchors) * factor
    if not reach <= LARGEST_NUMBER:
        raise DamagedError(f"its numbers multiply to {reach:.3g}, fp32 ends at {LARGEST_NUMBER:.3g}")


def _check_sparse(arrays: Arrays, sizes: tuple[int, int, int], scan: bool) -> None:
    V, rows, K = sizes
    if "order" in arrays:
        if ("coded_values" in arrays) == ("values" in arrays):
            raise DamagedError("numbers are in 'values' or in 'coded_values', one of them")
        _check_below(arrays, "order", max(K, 1))
        if np.bincount(arrays["order"].astype(np.int64), minlength=K).max(initial=1) != 1:
            raise DamagedError(f"'order' is no order of {K} columns")
    if "columns" in arrays and arrays["columns"].shape != arrays["values"].shape:
        raise DamagedError(f"'columns' has the shape {arrays['columns'].shape}, expected {arrays['values'].shape}")
    if scan:
        _check_below(arrays, "columns", K)
        _check_below(arrays, "places", rows)
        _check_finite(arrays, "weights")
        _check_finite(arrays, "values")
    if "places" not in arrays and rows != V:
        raise DamagedError(f"{V} objects, but {rows} rows")


def _check_bias(arrays: Arrays, values: str) -> None:
    if ("bias" in arrays) == ("coded_bias" in arrays):
        raise DamagedError("biases are in 'bias' or in 'coded_bias', one of them")
    if ("bias_scale" in arrays) != (values in LARGEST_CODES and arrays.get("bias", np.empty(0, "i1")).dtype == np.int8):
        raise DamagedError(f"biases of {values} numbers with a scale, or without")


def _check_product(arrays: Arrays, about: JSON, V: int, d: int, scan: bool) -> None:
    (parts, entries, width), codes = arrays["books"].shape, arrays["codes"]
    if parts * width != d or not 1 <= entries <= 256:
        raise DamagedError(f"{parts} parts of {width} numbers and {entries} entries, for vectors of {d}")
    half = entries <= 16
    _check_shape(arrays, "codes", (V, -(-parts // 2) if half else parts), BYTES)
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
        raise DamagedError(f"{name} is {str(found)[:40]}, expected an integer up to 2⁴⁰")
    return found


def _number(about: JSON, name: str, default: float | None = None) -> None:
    found: object = about.get(name, default)
    if not isinstance(found, int | float) or isinstance(found, bool) or not abs(found) <= 1e30:  # nan is neither
        raise DamagedError(f"{name} is {str(found)[:40]}, expected a finite number")


def _text(about: JSON, name: str, known: Collection[str]) -> str:
    found = about.get(name)
    if not isinstance(found, str) or found not in known:
        raise DamagedError(f"{name} is {str(found)[:40]!r}; there are: {', '.join(known)}")
    return found


def _check_shape(arrays: Arrays, name: str, shape: tuple[int | None, ...], kinds: tuple[str, ...]) -> None:
    if name not in arrays:
        raise DamagedError(f"it lacks {name!r}")
    array = arrays[name]
    if array.dtype.str[1:] not in kinds:
        raise DamagedError(f"{name!r} has the type {array.dtype}, expected {' or '.join(kinds)}")
    if array.ndim != len(shape) or any(want is not None and want != n for want, n in zip(shape, array.shape, strict=True)):
        raise DamagedError(f"{name!r} has the shape {array.shape}, expected {shape}")


def _check_below(arrays: Arrays, name: str, limit: int) -> None:
    if name in arrays and (most := int(arrays[name].max(initial=0))) >= limit and arrays[name].size:
        raise DamagedError(f"{name!r} has {most}, expected less than {limit}")


def _check_finite(arrays: Arrays, name: str) -> None:
    flat = arrays.get(name, np.empty(0)).reshape(-1)
    if flat.dtype.kind == "f" and not all(np.isfinite(flat[at : at + CHUNK]).all() for at in range(0, len(flat), CHUNK)):
        raise DamagedError(f"{name!r} has a number that is not finite")
