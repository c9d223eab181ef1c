"""Tokens between white space are numbered as str.split would."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from antembed.language.corpus_kernel import TokenTable

LETTERS = st.text(st.characters(exclude_categories=("Cs", "Cc", "Zs", "Zl", "Zp")), min_size=1, max_size=6)


@given(st.lists(st.lists(LETTERS, max_size=8), max_size=12))
def test_the_tokens_are_those_of_split(lines):
    table = TokenTable((b"<eos>",))
    text = "".join(" ".join(line) + "\n" for line in lines)
    numbers = table.number(text.encode(), 0)
    tokens = [token.decode() for token in table.tokens()]
    wanted = [word for line in lines for word in (*" ".join(line).split(" "), "<eos>") if word]
    assert [tokens[n] for n in numbers] == wanted
    assert table.counts[: table.known].sum() == len(wanted)


def test_many_tokens_make_it_grow_and_keep_their_numbers():
    words = [f"w{n}" * (1 + n % 7) for n in range(50_000)]
    table = TokenTable()
    first = table.number((" ".join(words) + " ").encode(), None)
    again = table.number((" ".join(reversed(words)) + " ").encode(), None)
    np.testing.assert_array_equal(first, np.arange(len(words)))
    np.testing.assert_array_equal(again, first[::-1])
    assert (table.counts[: table.known] == 2).all()
