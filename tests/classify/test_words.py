"""What a word is: polars and Hugging Face's library agree, on chosen texts and on any text."""

import unicodedata
from functools import cache
from importlib.util import find_spec

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antembed.classify.documents import documents_of
from antembed.classify.tokenizer import ALONE, LETTER, tokenize
from antembed.data.vocabulary import Vocabulary

with_library = pytest.mark.skipif(find_spec("tokenizers") is None, reason="tokenizers is not installed: the extra `text`")

# The definition in one expression, with looks ahead and back.
ANY = r"[\p{L}\p{M}\p{N}]"
WORD = rf"{ALONE}|{LETTER}+(?:(?<=[0-9])[.,](?=[0-9]){LETTER}+)*|'(?:s|t|d|m|re|ve|ll)(?!{ANY})"
REFERENCE = rf"#[0-9]+;|#x[0-9a-f]+;|(?<!{LETTER})(?:quot|amp|lt|gt|nbsp|apos);"


@cache
def library_tokenizer():
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    replaced = [(r"\\n(?![a-z])", " "), None, (r"’|#39;|#x27;", "'"), (REFERENCE, " ")]
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Replace(Regex(pair[0]), pair[1]) if pair else normalizers.Lowercase() for pair in replaced]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(WORD), behavior="removed", invert=True)
    return tokenizer


def library_words(text):
    tokenizer = library_tokenizer()
    return [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(text))]


def words_of(texts):
    words, counts = tokenize(pl.Series(texts, dtype=pl.String))
    ends = np.cumsum(counts).tolist()
    return [words[end - n : end].to_list() for end, n in zip(ends, counts.tolist(), strict=True)]


CHOSEN = {
    "The Company's": ["the", "company", "'s"],
    "don't they're I'D 'tis": ["don", "'t", "they", "'re", "i", "'d", "tis"],
    "boys' 'so' o'neill 'sun": ["boys", "so", "o", "neill", "sun"],
    "3.5 2,000 1.2.3b 3. x.5 4,x": ["3.5", "2,000", "1.2.3b", "3", "x", "5", "4", "x"],
    "e-mail snake_case a/b": ["e", "mail", "snake", "case", "a", "b"],
    "&lt;b&gt; AT&amp;T &QUOT;x &nbsp;": ["b", "at", "t", "x"],
    "company #39;s  #36;10 quot;yes quot; #x27;ll": ["company", "'s", "10", "yes", "'ll"],
    "#39 #; #x; # 12; #12": ["39", "x", "12", "12"],
    "&amp;#39;s &amp;lt;": ["'s"],
    "second\\team one\\nTwo\\n\\nthree a\\": ["second", "team", "one", "two", "nthree", "a"],
    "naïve É日本語 İI ΣΑΣ Ⱥ K": ["naïve", "é", "日", "本", "語", "i̇i", "σασ", "ⱥ", "k"],
    "👍🏽 … — “x”’s": ["x", "'s"],
    "e\u0301": ["e\u0301"],
    "xquot; quot ;lt;": ["xquot", "quot"],
    "": [],
    "'": [],
    "#": [],
    "\\": [],
    "\x00a\x00": ["a"],
}


def test_chosen_texts_have_these_words():
    assert dict(zip(CHOSEN, words_of(list(CHOSEN)), strict=True)) == CHOSEN


@with_library
@pytest.mark.parametrize("text", CHOSEN)
def test_the_library_has_the_same(text):
    assert library_words(text) == CHOSEN[text]


PIECES = st.sampled_from(
    ["'", "’", "#39;", "#x27;", "#36;", "#", ";", "&", "lt", "quot", "amp;", "s", "t", "re", "ll", "3", ".", ",", "\\n", "\\",
     "n", "N", "x", "é", "İ", "K", "Ⱥ", "日", " ", "_", "-", "👍", "\u0301", "٣", "Ⅷ", "ſ"]
)  # fmt: skip


@with_library
@settings(max_examples=150, deadline=None)
@given(st.lists(PIECES, max_size=25).map("".join))
def test_debris_of_any_kind_is_read_like_the_library_does(text):
    assert words_of([text]) == [library_words(text)]


# The library's tables and Python's are of different Unicode versions: only characters that both have had for long.
KNOWN = st.characters(max_codepoint=0x2FFFF, exclude_categories=["Cn", "Cs", "Co"]).filter(
    lambda character: unicodedata.ucd_3_2_0.category(character) != "Cn"
)


@with_library
@settings(max_examples=150, deadline=None)
@given(st.lists(st.text(KNOWN, max_size=12), max_size=4))
def test_any_text_is_read_like_the_library_does(texts):
    assert words_of(texts) == [library_words(text) for text in texts]


def test_a_given_vocabulary_gives_its_ids():
    vocabulary = Vocabulary(["<pad>", "<unk>", "stock", "'s", "up"], np.zeros(5), np.zeros(5), 0)
    documents = documents_of(["Stock's up", "", "the STOCK"], vocabulary=vocabulary)
    assert documents.tokens.tolist() == [2, 3, 4, 1, 2]
    assert documents.lengths.tolist() == [3, 0, 2]


def test_words_and_texts_of_any_size():
    long = "É" * 3_000_000
    many = " ".join(f"w{n}" for n in range(300_000))
    first, second = words_of([long, many])
    assert first == ["é" * 3_000_000]
    assert second == many.split()


def test_words_are_counted_like_numpy_does():
    rng = np.random.default_rng(0)
    texts = [" ".join(f"w{n}" for n in rng.integers(0, 12, size)) for size in rng.integers(0, 9, 50)]
    found = documents_of(texts)
    V = len(found.vocabulary)
    assert found.vocabulary.counts.tolist() == np.bincount(found.tokens, minlength=V).tolist()
    each = [np.unique(found[n]) for n in range(len(found))]
    assert found.vocabulary.document_counts.tolist() == np.bincount(np.concatenate(each), minlength=V).tolist()


@with_library
@pytest.mark.shared_data
def test_ag_news_is_read_like_the_library_does(shared_data):
    texts = pl.read_csv(shared_data / "ag-news" / "test.csv", has_header=False).to_series(2).head(1500).to_list()
    assert words_of(texts) == [library_words(text) for text in texts]
