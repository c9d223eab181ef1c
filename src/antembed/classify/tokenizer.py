"""Tokenization: the words of texts as numbers, by a compiled pass (classify/tokenizer_kernel.py).

Text is converted to lower case. A word is a run of letters, marks and digits (any script); a point or comma between two digits
belongs to it ("3.5", "2,000"). The clitics 's, 't, 'd, 'm, 're, 've and 'll are words of their own with their apostrophe
("company's" is company and 's; "don't" is don and 't), since WordNet and GloVe contain only company. Everything else separates
words and is dropped: punctuation, hyphens, underscores, symbols, emoji, backslashes (line ends in AG-News), and a literal \\n
unless a lower-case letter follows. HTML references are dropped (&lt; &quot; &amp; &gt; &nbsp; &#36;), also without the
ampersand, as in AG-News (#36; quot;); but ’, #39; and #x27; are apostrophes. In scripts without spaces (Chinese, Japanese,
Thai, Lao, Khmer, Burmese) every character is a word; runs of words (n-grams) take the place of words there.
"""

import unicodedata
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from antembed.classify.tokenizer_kernel import ALONE as STANDS_ALONE
from antembed.classify.tokenizer_kernel import Lexicon

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# Scripts without spaces: Thai and Lao, Burmese, Khmer, Hiragana and Katakana, Han.
SPACELESS = ((0xE00, 0xEFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x3040, 0x30FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF),
             (0xF900, 0xFAFF), (0x20000, 0x3FFFF))  # fmt: skip
_RANGES = "".join(rf"\x{{{first:x}}}-\x{{{last:x}}}" for first, last in SPACELESS)
CHARACTER = r"[\p{L}\p{M}\p{N}]"
ALONE, TOGETHER = rf"[\p{{L}}\p{{M}}\p{{N}}&&[{_RANGES}]]", rf"[\p{{L}}\p{{M}}\p{{N}}&&[^{_RANGES}]]"
WORD = rf"{ALONE}|{TOGETHER}+(?:(?<=[0-9])[.,](?=[0-9]){TOGETHER}+)*|'(?:s|t|d|m|re|ve|ll)(?!{CHARACTER})"
APOSTROPHE = r"’|#39;|#x27;"
REFERENCE = rf"#[0-9]+;|#x[0-9a-f]+;|(?<!{TOGETHER})(?:quot|amp|lt|gt|nbsp|apos);"
LINE_END = r"\\n(?![a-z])"
THREADS = 2
ALL = 1 << 40  # more words than any document has
# Letters, marks and digits are below the first bound; variation selectors (marks) are in the range after it.
PLANES, SELECTORS, CHARACTERS = 0x40000, range(0xE0100, 0xE01F0), 0x110000


@lru_cache(maxsize=1)
def characters() -> tuple[np.ndarray, np.ndarray]:
    """For every code point: whether it is part of a word (uint8), and its lower case (int32)."""
    kind, lower = np.zeros(CHARACTERS, np.uint8), np.arange(CHARACTERS, dtype=np.int32)
    for code in (*range(PLANES), *SELECTORS):
        kind[code] = unicodedata.category(chr(code))[0] in "LMN"
    for first, last in SPACELESS:
        kind[first : last + 1] *= STANDS_ALONE
    for code in (*range(PLANES), *SELECTORS):
        lower[code] = ord(chr(code).lower()[0])  # one character except for İ, which the kernel handles
    return kind, lower


class Numberer:
    """Texts, piece by piece → numbers of their words, by several threads, each with its own lexicon."""

    def __init__(self, words: list[str] | None = None, threads: int = THREADS):
        if threads < 1:
            raise ValueError(f"threads must be ≥ 1, got {threads}")
        kind, lower = characters()
        first = Lexicon(kind, lower, words)
        # A fixed lexicon can be shared.
        self.lexicons = [first] + [first if words is not None else Lexicon(kind, lower) for _ in range(threads - 1)]
        self._pool = ThreadPoolExecutor(threads, "antembed-words")

    def __call__(self, texts: pl.Series, length: int | None) -> list[tuple[np.ndarray, np.ndarray]]:
        """For each lexicon, in order: (numbers of the words, words per text) of its part of the texts."""
        sizes = texts.str.len_bytes().fill_null(0).to_numpy()
        starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        joined = texts.str.join("").cast(pl.Binary).item()
        text = np.frombuffer(joined, np.uint8)
        parts = len(self.lexicons)
        cuts = [*np.searchsorted(starts, [starts[-1] * part // parts for part in range(parts)]).tolist(), len(texts)]
        cuts[0] = 0  # leading empty texts belong to the first part
        work = [
            self._pool.submit(lexicon.number, text, starts[a : b + 1], ALL if length is None else length)
            for lexicon, a, b in zip(self.lexicons, cuts, cuts[1:], strict=False)
        ]
        return [done.result() for done in work]

    def __enter__(self) -> "Numberer":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()


def words_of(texts: Sequence[str]) -> list[list[str]]:
    """The words of each text, as strings."""
    with Numberer(threads=1) as numberer:
        ((numbers, sizes),) = numberer(pl.Series("text", texts, pl.String), None)
    words = numberer.lexicons[0].words
    ends = np.cumsum(sizes)
    return [[words[n] for n in numbers[end - size : end]] for end, size in zip(ends, sizes, strict=True)]


def library_tokenizer(words: Sequence[str] | None = None) -> "Tokenizer":
    """The same tokenizer in Hugging Face's library, for tests and other programs. Needs the extra `text`."""
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

    table = {word: number for number, word in enumerate(words or ("<pad>", "<unk>"))}
    tokenizer = Tokenizer(models.WordLevel(table, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Replace(Regex(LINE_END), " "),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(APOSTROPHE), "'"),
            normalizers.Replace(Regex(REFERENCE), " "),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(WORD), behavior="removed", invert=True)
    return tokenizer


@lru_cache(maxsize=1)
def _library() -> "Tokenizer":
    return library_tokenizer()


def library_words(text: str) -> list[str]:
    """The words of one text, by Hugging Face's library."""
    tokenizer = _library()
    normal = tokenizer.normalizer.normalize_str(text)
    return [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normal)]
