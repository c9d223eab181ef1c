"""Biases in the file: one number for all, one for each object, or, where many are zero, a bitmap and the non-zeros."""

import numpy as np

from antembed.serving.numbers import VALUES, check_fits, quantize

Arrays = dict[str, np.ndarray]
BITMAP_FROM = 1 / 3  # share of zeros from which a bitmap is used


def encode_bias(bias: np.ndarray, num_embeddings: int, values: str) -> Arrays:
    """bias (V,) or (1,) → the arrays of the file."""
    bias = np.atleast_1d(bias)
    if bias.shape not in ((1,), (num_embeddings,)):
        raise ValueError(
            f"bias has the shape {bias.shape} for {num_embeddings} objects; give one number for each, or one for all"
        )
    check_fits("bias", bias, VALUES[values])
    if len(bias) == 1:
        return {"bias": bias.astype(np.float32 if values == "int8" else VALUES[values])}
    arrays: Arrays = {}
    if values == "int8":
        codes, arrays["bias_scale"] = quantize(bias[:, None])
        stored = codes[:, 0]
    else:
        stored = bias.astype(VALUES[values])
    nonzero = stored != 0
    if nonzero.sum() <= (1 - BITMAP_FROM) * num_embeddings:
        arrays["bias_bits"] = np.packbits(nonzero, bitorder="little")
        stored = stored[nonzero]
    return arrays | {"bias": stored}


def decode_bias(arrays: Arrays, num_embeddings: int) -> np.ndarray | None:
    """The inverse of encode_bias, in fp32; None if the file has no biases."""
    if "bias" not in arrays:
        return None
    bias = arrays["bias"].astype(np.float32)
    if "bias_scale" in arrays:
        bias *= arrays["bias_scale"]
    if "bias_bits" in arrays:
        whole = np.zeros(num_embeddings, np.float32)
        whole[np.unpackbits(arrays["bias_bits"], count=num_embeddings, bitorder="little").astype(bool)] = bias
        return whole
    return bias
