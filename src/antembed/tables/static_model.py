"""Sentences → vectors with the methods of model2vec's StaticModel: change the line that loads it, and the rest runs."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from antembed.extras import explained
from antembed.tables.container import TableError, naming
from antembed.tables.save import load_table
from antembed.tables.serving_tokens import Tokens, unpack_tokens
from antembed.tables.table import Table

if TYPE_CHECKING:
    from tokenizers import Tokenizer

AS_SAVED = -1  # max_length: as the model says


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
        self.unk_token_id = _unknown(self.tokenizer, tokens)
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
            raise TableError(
                f"{path} has no tokenizer; compress the model's folder, or vectors with --tokenizer tokenizer.json"
            )
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
            cut = [
                sentence[: most * self._median] for sentence in sentences
            ]  # as model2vec: long texts are not tokenized whole
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
        pieces = [np.empty((0, self.dim), np.float32)]
        for start in range(0, len(given), batch_size):
            pieces.append(self._means(self.tokenize(given[start : start + batch_size], max_length)))
        vectors = np.concatenate(pieces)
        if self.normalize if normalize is None else normalize:
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True) + 1e-32
        return vectors[0] if isinstance(sentences, str) else vectors

    def encode_as_sequence(
        self, sentences: str | Sequence[str], *, max_length: int | None = None
    ) -> np.ndarray | list[np.ndarray]:
        """The vectors of each sentence's tokens, (tokens, d)."""
        given = [sentences] if isinstance(sentences, str) else list(sentences)
        found = []
        for tokens in self.tokenize(given, max_length):
            rows, weights = self._of(np.array(tokens, np.int64))
            found.append(self.table[rows] if weights is None else self.table[rows] * weights[:, None])
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


def _unknown(tokenizer: "Tokenizer", tokens: Tokens) -> int | None:
    """The id of the unknown token: by its name, or, of a unigram model, by its number."""
    model = tokens.tokenizer["model"]
    name = model.get("unk_token")
    found: int | None = model.get("unk_id") if name is None else tokenizer.token_to_id(name)
    return found
