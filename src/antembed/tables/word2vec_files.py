"""word2vec's files of vectors, as text and binary."""

from collections.abc import Sequence

import numpy as np

NUMBER = "%.9g"  # the same fp32 number when it is read
SEPARATORS = " \n\r"  # which a word cannot have


def number_lines(vectors: np.ndarray, between: str) -> list[str]:
    """The numbers of each vector in a line, without its end."""
    form = between.join([NUMBER] * vectors.shape[1])
    return [form % tuple(row) for row in vectors.tolist()]


def first_unwritable(words: Sequence[str], forbidden: str) -> int | None:
    """The place of the first word that is empty or has a character that the format uses itself."""
    return next((n for n, word in enumerate(words) if not word or any(letter in word for letter in forbidden)), None)


def text_rows(words: Sequence[str], vectors: np.ndarray) -> bytes:
    """A word and its numbers a line."""
    return "".join(f"{word} {line}\n" for word, line in zip(words, number_lines(vectors, " "), strict=True)).encode()


def binary_rows(words: Sequence[str], vectors: np.ndarray) -> bytes:
    """A word, a space, its numbers in fp32, and a line end, as the original program writes it."""
    rows = zip(words, vectors.astype("<f4"), strict=True)
    return b"".join(word.encode() + b" " + vector.tobytes() + b"\n" for word, vector in rows)
