"""Words between white space are numbered as str.split would."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from antembed.language.corpus import Numbers, split_words, words_of_text

LETTERS = st.text(st.characters(exclude_categories=("Cs", "Cc", "Zs", "Zl", "Zp")), min_size=1, max_size=6)


@given(st.lists(st.lists(LETTERS, max_size=8), max_size=12))
def test_the_words_are_those_of_split(lines):
    known, text = Numbers(), "".join(" ".join(line) + "\n" for line in lines)
    numbers = known.of(split_words(text.encode()))
    wanted = [word for line in lines for word in (*" ".join(line).split(" "), "<eos>") if word]
    assert [[*known][n].decode() for n in numbers] == words_of_text(text) == wanted


def test_words_keep_their_numbers():
    words, known = [f"w{n}".encode() for n in range(5000)], Numbers()
    first = known.of(words)
    np.testing.assert_array_equal(first, 3 + np.arange(len(words)))
    np.testing.assert_array_equal(known.of(words[::-1]), first[::-1])
