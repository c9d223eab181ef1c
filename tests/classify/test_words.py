"""What a word is: the compiled pass and the library agree, on chosen texts and on any text."""

import unicodedata
from importlib.util import find_spec
from itertools import pairwise

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antembed.classify.tokenizer import Numberer, characters, library_tokenizer, library_words, words_of
from antembed.classify.tokenizer_kernel import count_words

with_library = pytest.mark.skipif(find_spec("tokenizers") is None, reason="tokenizers is not installed: the extra `text`")

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


@with_library
def test_the_library_with_our_words_gives_our_ids():
    words = ["<pad>", "<unk>", "stock", "'s", "up"]
    with Numberer(words, threads=1) as numberer:
        ((ids, sizes),) = numberer(pl.Series(["Stock's up", "", "the STOCK"]), None)
    assert ids.tolist() == [2, 3, 4, 1, 2]
    assert sizes.tolist() == [3, 0, 2]
    assert library_tokenizer(words).encode("Stock's up").ids == [2, 3, 4]


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_share_the_texts_and_lose_none(threads):
    texts = ["", "a b", *(f"w{n} w{n + 1} {'x ' * (n % 7)}" for n in range(5000)), ""]
    with Numberer(threads=threads) as numberer:
        parts = numberer(pl.Series(texts), 5)
    words = [lexicon.words for lexicon in numberer.lexicons]
    found = [words[owner][n] for owner, (numbers, _) in enumerate(parts) for n in numbers]
    assert found == [word for text in texts for word in text.split()[:5]]
    assert np.concatenate([sizes for _, sizes in parts]).tolist() == [min(len(text.split()), 5) for text in texts]
    assert sum(int(lexicon.counts.sum()) for lexicon in numberer.lexicons) == len(found)


def test_words_and_texts_of_any_size():
    long = "É" * 3_000_000
    many = " ".join(f"w{n}" for n in range(300_000))
    first, second = words_of([long, many])
    assert first == ["é" * 3_000_000]
    assert second == many.split()


def test_only_one_letter_has_two_in_lower_case():
    assert [chr(code) for code in range(0x40000) if len(chr(code).lower()) > 1] == ["İ"]
    kind, lower = characters()
    assert kind[ord("_")] == 0
    assert lower[ord("É")] == ord("é")


def test_words_are_counted_like_numpy_does():
    rng = np.random.default_rng(0)
    sizes = rng.integers(0, 9, 50)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    tokens = rng.integers(0, 12, starts[-1]).astype(np.int32)
    counts, documents = np.zeros(13, np.int64), np.zeros(13, np.int64)
    count_words(tokens, starts, counts, documents)
    assert counts.tolist() == np.bincount(tokens, minlength=13).tolist()
    each = [np.unique(tokens[a:b]) for a, b in pairwise(starts)]
    assert documents.tolist() == np.bincount(np.concatenate(each), minlength=13).tolist()


@with_library
@pytest.mark.shared_data
def test_ag_news_is_read_like_the_library_does(shared_data):
    texts = pl.read_csv(shared_data / "ag-news" / "test.csv", has_header=False).to_series(2).head(1500).to_list()
    assert words_of(texts) == [library_words(text) for text in texts]
