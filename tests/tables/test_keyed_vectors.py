"""KeyedVectors answers as gensim does: against plain computations, and against gensim itself where that is installed."""

from pathlib import Path

import numpy as np
import pytest
from tests.words import WORDS, write_words

from antembed.compression.sources import read_source
from antembed.tables.container import pack, unpack
from antembed.tables.keyed_vectors import KeyedVectors
from antembed.tables.save import read_table, serialize
from antembed.tables.word_index import pack_words


@pytest.fixture(scope="module")
def kv(tmp_path_factory):
    return KeyedVectors.load(write_words(tmp_path_factory.mktemp("kv") / "words.ant"))


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def test_words_and_rows(kv):
    assert len(kv) == len(WORDS)
    assert kv.index_to_key == WORDS
    assert kv.key_to_index["käse"] == 7
    assert list(kv.key_to_index) == WORDS
    assert kv.vector_size == 16
    assert "cat" in kv
    assert "ca" not in kv
    assert None not in kv
    assert kv.get_index("none", default=-1) == -1
    np.testing.assert_allclose(kv["cat"], kv.vectors[5], atol=1e-5)
    np.testing.assert_allclose(kv[["cat", "dog"]], kv.vectors[5:7], atol=1e-5)
    np.testing.assert_allclose(kv.get_vector("cat", norm=True), unit(kv.vectors[5]), atol=1e-5)
    for ask in (kv.__getitem__, kv.get_vector, kv.get_index, kv.most_similar):
        with pytest.raises(KeyError, match="'none' not present"):
            ask("none")


def test_neighbours_are_those_of_a_plain_computation(kv):
    units = unit(kv.vectors)
    mean = unit(units[5] + units[6] - units[0])
    cosines = units @ mean
    np.testing.assert_allclose(kv.most_similar(["cat", "dog"], ["stock"], topn=None), cosines, atol=1e-5)
    order = [n for n in np.argsort(-cosines) if n not in (0, 5, 6)]
    found = kv.most_similar(positive=["cat", "dog"], negative=["stock"], topn=4)
    assert [word for word, _ in found] == [WORDS[n] for n in order[:4]]
    np.testing.assert_allclose([score for _, score in found], cosines[order[:4]], atol=1e-5)
    assert kv.similar_by_word("cat", 3) == kv.most_similar("cat", topn=3) == kv.most_similar([("cat", 2.0)], topn=3)
    assert kv.similar_by_vector(kv["cat"], topn=1)[0][0] == "cat"
    assert {word for word, _ in kv.most_similar("cat", topn=5, restrict_vocab=6)} <= set(WORDS[:6])
    assert kv.most_similar("cat", topn=0) == []
    with pytest.raises(ValueError, match="no input"):
        kv.most_similar()


def test_similarities(kv):
    units = unit(kv.vectors)
    assert kv.similarity("cat", "dog") == pytest.approx(float(units[5] @ units[6]), abs=1e-6)
    assert kv.distance("cat", "dog") == pytest.approx(1 - float(units[5] @ units[6]), abs=1e-6)
    wanted = unit(kv.vectors[5:7].mean(0)) @ unit(kv.vectors[[0, 2]].mean(0))
    assert kv.n_similarity(["cat", "dog"], ["stock", "share"]) == pytest.approx(float(wanted), abs=1e-6)
    four = [5, 6, 0, 2]
    least = min(four, key=lambda n: float(units[n] @ units[four].sum(0)))
    assert kv.doesnt_match(["cat", "dog", "stock", "share"]) == WORDS[least]


def test_unknown_words_are_left_out_with_a_warning(kv, caplog):
    assert kv.doesnt_match(["cat", "dog", "none"]) in ("cat", "dog")
    assert "no vectors for ['none']" in caplog.text


def test_cosmul_is_its_formula(kv):
    cosines = unit(kv.vectors) @ unit(kv.vectors)[[5, 6, 0]].T
    wanted = np.prod((1 + cosines[:, :2]) / 2, axis=1) / ((1 + cosines[:, 2]) / 2 + 1e-6)
    np.testing.assert_allclose(kv.most_similar_cosmul(["cat", "dog"], "stock", topn=None), wanted, rtol=1e-4)
    order = [n for n in np.argsort(-wanted) if n not in (0, 5, 6)]
    found = kv.most_similar_cosmul(["cat", "dog"], ["stock"], topn=3)
    assert [word for word, _ in found] == [WORDS[n] for n in order[:3]]
    assert {word for word, _ in kv.most_similar_cosmul("cat", topn=4, restrict_vocab=6)} <= set(WORDS[:6])
    assert kv.most_similar_cosmul("cat", topn=0) == []
    with pytest.raises(ValueError, match="no input"):
        kv.most_similar_cosmul(negative="cat")


def test_normed_vectors(kv):
    np.testing.assert_allclose(kv.get_normed_vectors(), unit(kv.vectors), atol=1e-6)


@pytest.mark.parametrize("binary", [False, True])
def test_word2vec_files_are_read_again(kv, tmp_path, binary):
    file = tmp_path / ("w.bin" if binary else "w.txt")
    kv.save_word2vec_format(file, binary=binary)
    found = read_source(file)
    assert found.words == WORDS
    assert (np.asarray(found.vectors) == kv.vectors).all()


def test_word2vec_files_without_header_and_with_a_prefix(kv, tmp_path):
    kv.save_word2vec_format(tmp_path / "w.txt", write_header=False, prefix="*")
    assert (tmp_path / "w.txt").read_text().startswith(f"*{WORDS[0]} ")
    with pytest.raises(ValueError, match=r"w\.txt\.gz would be compressed, which is not done here"):
        kv.save_word2vec_format(tmp_path / "w.txt.gz")
    with pytest.raises(ValueError, match="row 0 is 'a stock', which word2vec's files cannot hold; use antembed export"):
        kv.save_word2vec_format(tmp_path / "x.txt", prefix="a ")
    assert not (tmp_path / "x.txt").exists()


def planted():
    """King − man + woman is queen; king is nearer, but King in lower case; the last two words are rare."""
    words = ["man", "woman", "King", "king", "queen", "pear", "boy", "girl"]
    vectors = np.eye(8, 6, dtype=np.float32)
    vectors[1], vectors[4] = [1, 0, 0, 0, 0, 1], [0, 0, 1, 0, 0, 1]
    vectors[3] = [-0.3, 0, 1, 0, 0, 0.7]
    vectors[6], vectors[7] = [1, 0, 0, 1, 0, 0], [1, 0, 0, 1, 0, 1]
    return KeyedVectors(read_table(with_words(vectors, words)))


def with_words(vectors, words):
    found = unpack(serialize(vectors, None))
    return pack({**found.arrays, **pack_words(words)}, found.about)


def test_analogies_by_hand(tmp_path):
    kv, file = planted(), tmp_path / "questions.txt"
    file.write_text(
        ": royal\nman King woman queen\nman woman king pear\n\nman king\n: young\nman woman boy girl\nman x boy girl\n"
    )
    royal, wrong = ("MAN", "KING", "WOMAN", "QUEEN"), ("MAN", "WOMAN", "KING", "PEAR")
    young, unknown = ("MAN", "WOMAN", "BOY", "GIRL"), ("MAN", "X", "BOY", "GIRL")
    score, sections = kv.evaluate_word_analogies(file)
    assert score == pytest.approx(2 / 3)
    assert sections == [
        {"section": "royal", "correct": [royal], "incorrect": [wrong]},
        {"section": "young", "correct": [young], "incorrect": []},
        {"section": "Total accuracy", "correct": [royal, young], "incorrect": [wrong]},
    ]
    score, sections = kv.evaluate_word_analogies(file, dummy4unknown=True)
    assert score == pytest.approx(2 / 4)
    assert sections[1]["incorrect"] == [unknown]
    assert kv.evaluate_word_analogies(file, restrict_vocab=6)[0] == pytest.approx(1 / 2)
    _, sections = kv.evaluate_word_analogies(file, case_insensitive=False)
    assert sections[0]["incorrect"] == [("man", "King", "woman", "queen"), ("man", "woman", "king", "pear")]  # king is nearer
    with pytest.raises(ValueError, match="has no analogy to ask, and 4 with unknown words"):
        kv.evaluate_word_analogies(file, restrict_vocab=1)
    file.write_text("man King woman queen\n")
    with pytest.raises(ValueError, match="line 1 comes before the first section"):
        kv.evaluate_word_analogies(file)


def test_pairs_as_scipy(kv, tmp_path):
    stats = pytest.importorskip("scipy.stats")
    lines = [("cat", "dog", 9.0), ("Cat", "stock", 1.0), ("word3", "word4", 3.5), ("word5", "word6", 3.5), ("none", "cat", 8.0)]
    (tmp_path / "p.tsv").write_text("# a comment\n" + "".join(f"{a}\t{b}\t{score}\n" for a, b, score in lines) + "broken\n")
    cosines = [kv.similarity(a.lower(), b) for a, b, _ in lines[:4]]
    for dummy, known in ((False, cosines), (True, [*cosines, 0.0])):
        scores = [score for *_, score in lines[: len(known)]]
        pearson, spearman, unknown = kv.evaluate_word_pairs(tmp_path / "p.tsv", dummy4unknown=dummy)
        assert pearson == pytest.approx(tuple(stats.pearsonr(scores, known)), abs=1e-5)
        assert spearman == pytest.approx(tuple(stats.spearmanr(scores, known)), abs=1e-5)
        assert unknown == pytest.approx(20.0)
    assert kv.evaluate_word_pairs(tmp_path / "p.tsv", case_insensitive=False)[2] == pytest.approx(40.0)
    with pytest.raises(ValueError, match=r"has 0 lines `word word score`.*is the delimiter right"):
        kv.evaluate_word_pairs(tmp_path / "p.tsv", delimiter=" ")


def test_the_guide_names_every_method():
    guide = (Path(__file__).parents[2] / "docs" / "compress.md").read_text()
    public = {name for name in dir(KeyedVectors) if not name.startswith("_")} | {"key_to_index", "vector_size"}
    assert {name for name in public if f"`{name}`" not in guide} == set()


def test_a_file_without_words_is_refused():
    with pytest.raises(ValueError, match="has no words; compress vectors with their words"):
        KeyedVectors(read_table(serialize(np.eye(3, dtype=np.float32), None)))


@pytest.mark.filterwarnings("ignore")  # gensim's own
def test_a_program_written_for_gensim_gives_the_same(kv):
    gensim = pytest.importorskip("gensim.models")
    theirs = gensim.KeyedVectors(16)
    theirs.add_vectors(WORDS, kv.vectors)

    def program(kv):
        near = kv.most_similar(positive=["cat", "word3"], negative=["stock"], topn=7)
        more = [*kv.similar_by_vector(kv["dog"], topn=3), *kv.most_similar("cat", topn=5, restrict_vocab=100)]
        numbers = [kv.similarity("cat", "dog"), kv.n_similarity(["cat"], ["dog", "the"]), *kv.get_vector("the", norm=True)]
        words = [kv.doesnt_match(["cat", "dog", "stock"]), kv.index_to_key[3], "cat" in kv, len(kv), kv.key_to_index["the"]]
        return [word for word, _ in near + more], words, numbers + [score for _, score in near + more]

    ours, wanted = program(kv), program(theirs)
    assert ours[:2] == wanted[:2]
    np.testing.assert_allclose(ours[2], wanted[2], atol=1e-5)
