"""Biases in the file: one number for all, one for each object, or, where many are zero, a bitmap and the non-zeros."""

import numpy as np

from antembed.tables.container import DamagedError
from antembed.tables.encodings import compressed, decompressed
from antembed.tables.number_formats import LARGEST_CODES, VALUES, check_fits, quantize

Arrays = dict[str, np.ndarray]
LEAST_CODES = 63  # a bias is in every prediction, and there is one for an object: it is never coarser than this
BIAS_ARRAYS = {"bias", "coded_bias", "bias_bits", "bias_scale"}
BITMAP_FROM = 1 / 3  # share of zeros from which a bitmap is used


def encode_bias(bias: np.ndarray, num_embeddings: int, values: str, pack: bool = False) -> Arrays:
    """bias (V,) or (1,) → the arrays of the file. `pack`: compress them if that makes them smaller."""
    bias = np.atleast_1d(bias)
    if bias.shape not in ((1,), (num_embeddings,)):
        raise ValueError(
            f"bias has the shape {bias.shape} for {num_embeddings} objects; give one number for each, or one for all"
        )
    check_fits("bias", bias, VALUES[values])
    if len(bias) == 1:
        return {"bias": bias.astype(np.float32 if values in LARGEST_CODES else VALUES[values])}
    arrays: Arrays = {}
    if values in LARGEST_CODES:
        codes, arrays["bias_scale"] = quantize(bias[:, None], max(LARGEST_CODES[values], LEAST_CODES))
        stored = codes[:, 0]
    else:
        stored = bias.astype(VALUES[values])
    nonzero = stored != 0
    if nonzero.sum() <= (1 - BITMAP_FROM) * num_embeddings:
        arrays["bias_bits"] = np.packbits(nonzero, bitorder="little")
        stored = stored[nonzero]
    if pack and stored.dtype == np.int8 and len(smaller := compressed(stored)) < len(stored):
        return arrays | {"coded_bias": smaller}
    return arrays | {"bias": stored}


def decode_bias(arrays: Arrays, num_embeddings: int) -> np.ndarray | None:
    """The inverse of encode_bias, in fp32; None if the file has no biases."""
    if not arrays:
        return None
    nonzero, count = None, num_embeddings
    if "bias_bits" in arrays:
        nonzero = np.unpackbits(arrays["bias_bits"], bitorder="little").astype(bool)
        count = int(np.count_nonzero(nonzero))
        if nonzero[num_embeddings:].any():
            raise DamagedError(f"there are biases beyond the {num_embeddings} objects")
    if "coded_bias" in arrays:
        bias = decompressed(arrays["coded_bias"], count).view(np.int8).astype(np.float32)
    else:
        bias = arrays["bias"].astype(np.float32, copy=False)
    if len(bias) != count and (nonzero is not None or len(bias) != 1):
        raise DamagedError(f"{len(bias)} biases, {count} were expected")
    if "bias_scale" in arrays:
        bias = bias * arrays["bias_scale"]
    if not np.isfinite(bias).all():
        raise DamagedError("a bias is not finite")
    if nonzero is None:
        return bias
    whole = np.zeros(num_embeddings, np.float32)
    whole[nonzero[:num_embeddings]] = bias
    return whole
