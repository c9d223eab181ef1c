"""Text files of vectors: GloVe's, word2vec's (also binary), and those of the Embedding Projector."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from antembed.files import write_atomically
from antembed.formats.named import Named, checked_words

NUMBER = "%.9g"  # the same fp32 number when it is read


def _lines(vectors: np.ndarray, between: str) -> list[str]:
    form = between.join([NUMBER] * vectors.shape[1])
    return [form % tuple(row) for row in vectors.tolist()]


def _text(named: Named, to: str, forbidden: str) -> Iterator[bytes]:
    for ids in named.pieces():
        words, numbers = checked_words(named, ids, forbidden, to), _lines(named.table[ids], " ")
        yield "".join(f"{word} {line}\n" for word, line in zip(words, numbers, strict=True)).encode()


def write_glove(named: Named, out: Path) -> list[Path]:
    """A word and its numbers a line; rows without words have their numbers as words. Words may contain spaces, as GloVe's."""
    write_atomically(out, _text(named, "glove", "\n\r"))
    return [out]


def write_word2vec(named: Named, out: Path) -> list[Path]:
    """As GloVe, after a line that says how many; binary if the file is called .bin."""
    head = f"{len(named.table)} {named.table.embedding_dim}\n".encode()

    def contents() -> Iterator[bytes]:
        yield head
        yield from _binary(named) if out.suffix == ".bin" else _text(named, "word2vec", " \n\r")

    write_atomically(out, contents())
    return [out]


def _binary(named: Named) -> Iterator[bytes]:
    for ids in named.pieces():
        vectors = named.table[ids].astype("<f4")
        words = checked_words(named, ids, " \n\r", "word2vec")
        yield b"".join(word.encode() + b" " + vector.tobytes() + b"\n" for word, vector in zip(words, vectors, strict=True))


def write_projector(named: Named, out: Path) -> list[Path]:
    """OUT.tsv with the vectors, OUT.metadata.tsv with the words, for projector.tensorflow.org."""
    labels = out.with_suffix(".metadata.tsv")
    write_atomically(out, ("".join(f"{line}\n" for line in _lines(named.table[ids], "\t")).encode() for ids in named.pieces()))
    names = (checked_words(named, ids, "\t\n\r", "projector") for ids in named.pieces())
    write_atomically(labels, ("".join(f"{word}\n" for word in some).encode() for some in names))
    return [out, labels]
