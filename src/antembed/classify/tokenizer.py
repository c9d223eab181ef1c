"""Tokenization: texts as words, by regular expressions of polars.

Text is converted to lower case. A word is a run of letters, marks and digits (any script); a point or comma between two digits
belongs to it ("3.5", "2,000"). The clitics 's, 't, 'd, 'm, 're, 've and 'll are words of their own with their apostrophe
("company's" is company and 's; "don't" is don and 't), since WordNet and GloVe contain only company. Everything else separates
words and is dropped: punctuation, hyphens, underscores, symbols, emoji, backslashes (line ends in AG-News), and a literal \\n
unless a lower-case letter follows. HTML references are dropped (&lt; &quot; &amp; &gt; &nbsp; &#36;), also without the
ampersand, as in AG-News (#36; quot;); but ’, #39; and #x27; are apostrophes. In scripts without spaces (Chinese, Japanese,
Thai, Lao, Khmer, Burmese) every character is a word; runs of words (n-grams) take the place of words there.

The regular expressions of polars cannot look ahead or back. So a reference and an apostrophe with the letters after it are
found as tokens, and corrected afterwards. tests/classify/test_words.py has the definition in one expression, which can.
"""

import numpy as np
import polars as pl

# Scripts without spaces: Thai and Lao, Burmese, Khmer, Hiragana and Katakana, Han.
SPACELESS = ((0xE00, 0xEFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x3040, 0x30FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF),
             (0xF900, 0xFAFF), (0x20000, 0x3FFFF))  # fmt: skip
RANGES = "".join(rf"\x{{{first:x}}}-\x{{{last:x}}}" for first, last in SPACELESS)
ALONE, LETTER = rf"[\p{{L}}\p{{M}}\p{{N}}&&[{RANGES}]]", rf"[\p{{L}}\p{{M}}\p{{N}}&&[^{RANGES}]]"
NUMBER = rf"{LETTER}*[0-9](?:[.,][0-9](?:{LETTER}*[0-9])?)*[.,][0-9]{LETTER}*"
REFERENCE = r"#[0-9]+;|#x[0-9a-f]+;|'?(?:quot|amp|lt|gt|nbsp|apos);"
TOKEN = rf"{REFERENCE}|{ALONE}|'?{NUMBER}|'?{LETTER}+"
CLITICS = ["'s", "'t", "'d", "'m", "'re", "'ve", "'ll"]
# Replaced before and after the conversion to lower case, where a sigma would depend on whether it ends its word.
RAW = {r"\\n([a-z])": " n$1", r"\\n": " ", "Σ": "σ"}
LOWERED = {"’|#39;|#x27;": "'", rf"'(s|t|d|m|re|ve|ll)({ALONE})": " $1$2"}  # a letter follows: it is no clitic


def tokenize(texts: pl.Series) -> tuple[pl.Series, np.ndarray]:
    """The words of the texts one after the other, and how many each text has; a missing text has none."""
    text, word = pl.col("text").fill_null(""), pl.col("word")
    for pattern, new in RAW.items():
        text = text.str.replace_all(pattern, new)
    text = text.str.to_lowercase()
    for pattern, new in LOWERED.items():
        text = text.str.replace_all(pattern, new)
    found = texts.alias("text").to_frame().with_row_index().select("index", word=text.str.extract_all(TOKEN))
    found = found.explode("word").drop_nulls().filter(~word.str.ends_with(";"))
    bare = word.str.starts_with("'") & ~word.is_in(CLITICS)
    words = found.select(pl.when(bare).then(word.str.slice(1)).otherwise(word)).to_series()
    return words, np.bincount(found["index"], minlength=len(texts))
