"""A static model's tokenizer in the file, so that sentences can be encoded.

    tokenizer        tokenizer.json and what the model's config says, {"tokenizer": …, "normalize": …, "max_length": …}, zlib
    token_rows       (tokens,) the row of each token, where tokens share rows
    token_weights    (tokens,) fp16, what a token's vector is multiplied by

The vocabulary is left out of tokenizer.json where the file's words are the same.
"""

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from antembed.files import JSON
from antembed.tables.container import DamagedError
from antembed.tables.nonzeros import smallest_unsigned
from antembed.tables.number_formats import check_fits

LARGEST = 1 << 28  # bytes of a tokenizer
MAX_LENGTH = 512  # tokens of a sentence, where the config says nothing; as model2vec


@dataclass(frozen=True)
class Tokens:
    """What turns a sentence into rows: the contents of tokenizer.json, and how vectors are put together."""

    tokenizer: JSON
    normalize: bool = False
    max_length: int | None = MAX_LENGTH
    rows: np.ndarray | None = None
    weights: np.ndarray | None = None


def pack_tokens(tokens: Tokens, words: Sequence[str] | None) -> dict[str, np.ndarray]:
    """The arrays of the file. `words`: those of its rows, if it has any."""
    model = tokens.tokenizer.get("model", {})
    same = words is not None and model.get("vocab") == {word: row for row, word in enumerate(words)}
    kept = tokens.tokenizer | {"model": model | {"vocab": None}} if same else tokens.tokenizer
    about = {"tokenizer": kept, "normalize": tokens.normalize, "max_length": tokens.max_length}
    packed = zlib.compress(json.dumps(about, ensure_ascii=False, separators=(",", ":")).encode(), 9)
    arrays = {"tokenizer": np.frombuffer(packed, np.uint8)}
    if tokens.rows is not None:
        arrays["token_rows"] = tokens.rows.astype(smallest_unsigned(int(tokens.rows.max(initial=0))))
    if tokens.weights is not None:
        check_fits("the tokens' weights", tokens.weights, np.float16)
        arrays["token_weights"] = tokens.weights.astype(np.float16)
    return arrays


def unpack_tokens(arrays: dict[str, np.ndarray], words: Sequence[str] | None) -> Tokens:
    """The inverse of pack_tokens; rows and weights were checked when the file was opened."""
    unpack = zlib.decompressobj()
    try:
        found = unpack.decompress(arrays["tokenizer"].tobytes(), LARGEST)
        if unpack.unconsumed_tail or not unpack.eof:
            raise DamagedError(f"the tokenizer does not end, or has more than {LARGEST} bytes")
        about: JSON = json.loads(found)
        tokenizer = about["tokenizer"]
        if words is not None and tokenizer["model"].get("vocab", {}) is None:
            tokenizer["model"]["vocab"] = {word: row for row, word in enumerate(words)}
        normalize, max_length = about["normalize"], about["max_length"]
        if type(normalize) is not bool or not (max_length is None or (type(max_length) is int and max_length >= 1)):
            raise DamagedError(f"normalize is {normalize}, max_length {max_length}")
    except (zlib.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError(f"the tokenizer cannot be read ({error})") from error
    places, weights = arrays.get("token_rows"), arrays.get("token_weights")
    return Tokens(
        tokenizer,
        normalize,
        max_length,
        None if places is None else places.astype(np.int64),
        None if weights is None else weights.astype(np.float32),
    )
