"""KeyedVectors answers as gensim does: against plain computations, and against gensim itself where that is installed."""

import numpy as np
import pytest
from tests.words import WORDS, write_words

from antembed.serving import KeyedVectors
from antembed.serving.table import read_table, serialize


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
