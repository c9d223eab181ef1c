"""Sentences → vectors with the methods of model2vec's StaticModel: change the line that loads it, and the rest runs.

    tokenizer        tokenizer.json and what the model's config says, {"tokenizer": …, "normalize": …, "max_length": …}, zlib
    token_rows       (tokens,) the row of each token, where tokens share rows
    token_weights    (tokens,) fp16, what a token's vector is multiplied by

The vocabulary is left out of tokenizer.json where the file's words are the same.
"""

import json
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from antembed.extras import explained
from antembed.files import JSON
from antembed.tables.container import DamagedError, TableError, naming
from antembed.tables.number_formats import check_fits, smallest_unsigned
from antembed.tables.save import load_table
from antembed.tables.table import Table

if TYPE_CHECKING:
    pass

LARGEST = 1 << 28  # bytes of a tokenizer
AS_SAVED = -1  # max_length: as the model says
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
    positions, weights = arrays.get("token_rows"), arrays.get("token_weights")
    positions = None if positions is None else positions.astype(np.int64)
    return Tokens(tokenizer, normalize, max_length, positions, None if weights is None else weights.astype(np.float32))


class StaticModel:
    """model = StaticModel.from_pretrained("model.ant"); model.encode(["a sentence", "another"]) → (2, d).

    A sentence is the mean of its tokens' vectors, without the unknown ones; 0 if there are none."""

    def __init__(self, table: Table, tokens: Tokens, normalize: bool | None = None, max_length: int | None = AS_SAVED):
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise explained(error, "StaticModel") from error
        self.table, self._rows, self._weights = table, tokens.rows, tokens.weights
        self.normalize = tokens.normalize if normalize is None else normalize
        self.max_length = tokens.max_length if max_length == AS_SAVED else max_length
        self.tokenizer: Tokenizer = Tokenizer.from_str(json.dumps(tokens.tokenizer))
        self.tokenizer.no_padding()
        self.tokens = [token for token, _ in sorted(self.tokenizer.get_vocab().items(), key=lambda pair: pair[1])]
        model = tokens.tokenizer["model"]
        name = model.get("unk_token")  # a unigram model has its number
        self.unk_token_id: int | None = model.get("unk_id") if name is None else self.tokenizer.token_to_id(name)
        self._median = int(np.median([len(token) for token in self.tokens]))

    @classmethod
    def from_pretrained(
        cls, path: str | os.PathLike[str], normalize: bool | None = None, max_length: int | None = AS_SAVED
    ) -> "StaticModel":
        """The model that `antembed compress FOLDER model.ant` has written."""
        if Path(path).is_dir():
            raise TableError(f"{path} is a folder; make it small first: antembed compress {path} model.ant")
        table = load_table(path)
        if "tokenizer" not in table.tokens:
            remedy = "compress the model's folder, or vectors with --tokenizer tokenizer.json"
            raise TableError(f"{path} has no tokenizer; {remedy}")
        words = None if table.words is None else table.words.all()
        with naming(str(path)):
            tokens = unpack_tokens(table.tokens, words)
        return cls(table, tokens, normalize, max_length)

    @property
    def dim(self) -> int:
        """Of the vectors."""
        return self.table.embedding_dim

    @property
    def embedding(self) -> np.ndarray:
        """All vectors (V, d), decoded."""
        return self.table[:]

    def tokenize(self, sentences: Sequence[str], max_length: int | None = AS_SAVED) -> list[list[int]]:
        """The tokens of each sentence, without the unknown ones."""
        most = self.max_length if max_length == AS_SAVED else max_length
        if most is None:
            self.tokenizer.no_truncation()
            cut = list(sentences)
        else:
            self.tokenizer.enable_truncation(most)
            cut = [text[: most * self._median] for text in sentences]  # as model2vec: long texts are not tokenized in full
        found = self.tokenizer.encode_batch_fast(cut, add_special_tokens=False)
        return [[token for token in sentence.ids if token != self.unk_token_id] for sentence in found]

    def encode(
        self,
        sentences: str | Sequence[str],
        *,
        normalize: bool | None = None,
        max_length: int | None = AS_SAVED,
        batch_size: int = 1024,
    ) -> np.ndarray:
        """Sentences → (n, d); one string → (d,). `normalize`: to length 1; `max_length`: tokens, None for all."""
        given = [sentences] if isinstance(sentences, str) else list(sentences)
        batches = (given[start : start + batch_size] for start in range(0, len(given), batch_size))
        means = [self._means(self.tokenize(batch, max_length)) for batch in batches]
        vectors = np.concatenate([np.empty((0, self.dim), np.float32), *means])
        if self.normalize if normalize is None else normalize:
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True) + 1e-32
        return vectors[0] if isinstance(sentences, str) else vectors

    def encode_as_sequence(
        self, sentences: str | Sequence[str], *, max_length: int | None = None
    ) -> np.ndarray | list[np.ndarray]:
        """The vectors of each sentence's tokens, (tokens, d)."""
        given = [sentences] if isinstance(sentences, str) else list(sentences)
        parts = [self._of(np.array(tokens, np.int64)) for tokens in self.tokenize(given, max_length)]
        found = [self.table[rows] if weights is None else self.table[rows] * weights[:, None] for rows, weights in parts]
        return found[0] if isinstance(sentences, str) else found

    def _of(self, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Rows and weights of tokens."""
        return (tokens if self._rows is None else self._rows[tokens]), None if self._weights is None else self._weights[tokens]

    def _means(self, sentences: list[list[int]]) -> np.ndarray:
        counts = np.array([len(tokens) for tokens in sentences], np.int64)
        flat = np.array([token for tokens in sentences for token in tokens], np.int64)
        rows, weights = self._of(flat)
        sums = self.table.bag(rows, np.cumsum(counts) - counts, "sum", weights)
        return sums / np.maximum(counts, 1)[:, None].astype(np.float32)
