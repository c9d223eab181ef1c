"""Texts say which rows of a static model matter."""

import json

import numpy as np
import pytest
from tests.command import call
from tests.tables.test_static_model import WORDS, write_model

import antembed as ant
from antembed.compression.texts import importance
from antembed.data.text_file import DataError

pytest.importorskip("tokenizers", reason="tokenizers is not installed: pip install '.[text]'")


@pytest.fixture
def texts(tmp_path):
    """Few of the words, at the end of the table, are frequent."""
    rng = np.random.default_rng(0)
    lines = [" ".join(WORDS[-n] for n in np.minimum(rng.zipf(1.4, 6), 290)) for _ in range(400)]
    (tmp_path / "texts.txt").write_text("\n".join(lines))
    return tmp_path / "texts.txt"


@pytest.mark.parametrize("shared", [False, True])
def test_sentences_are_more_like_the_original(shared, texts, tmp_path):
    folder = write_model(tmp_path / "m", shared=shared, width=64)
    words = ("compress", folder, tmp_path / "m.ant", "--budget", "8x", "--distil", texts, "--json")
    found = json.loads(call(*words))
    spearman = found["spearman"]
    assert spearman["after"] == spearman["rows by frequency"] > spearman["before"] + 0.01
    assert found["times_smaller"] >= 8
    call(*words[:2], tmp_path / "again.ant", *words[3:])
    assert (tmp_path / "again.ant").read_bytes() == (tmp_path / "m.ant").read_bytes()
    sentence = ant.StaticModel.from_pretrained(tmp_path / "m.ant").encode("w1 w2")
    assert sentence.shape == (64,)
    said = call(*words[:-1], "--overwrite")
    assert "similarities of held-out texts follow the original's (Spearman): 0." in said


def test_a_row_counts_the_fourth_root_of_how_often_it_occurs():
    found = importance([[1, 1], [2] * 16 + [1] * 14], 3)
    np.testing.assert_allclose(found[1] / found[2], 1.0)
    np.testing.assert_allclose((found[1] / found[0]) ** 4, 16.2 / 0.2)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--by-frequency",), "cannot follow --by-frequency"),
        (("--method", "sparse"), "cannot follow --method sparse"),
        (("--tolerance", "10%"), "cannot follow --tolerance"),
    ],
)
def test_what_does_not_go_together(options, error, texts, tmp_path):
    folder = write_model(tmp_path / "m")
    with pytest.raises(ValueError, match=error):
        call("compress", folder, tmp_path / "m.ant", "--distil", texts, *options)
    assert not (tmp_path / "m.ant").exists()


def test_texts_that_cannot_be_used(texts, tmp_path):
    folder = write_model(tmp_path / "m")
    np.save(tmp_path / "v.npy", np.eye(40, dtype=np.float32))
    with pytest.raises(ValueError, match="give --tokenizer"):
        call("compress", tmp_path / "v.npy", tmp_path / "v.ant", "--distil", texts)
    texts.write_text("strange\n" * 200)
    with pytest.raises(DataError, match="knows words of 0 of the 200 texts"):
        call("compress", folder, tmp_path / "m.ant", "--budget", "2.5x", "--distil", texts)


def test_importance_goes_alone():
    E, ones = np.random.default_rng(0).normal(size=(400, 16)).astype(np.float32), np.ones(400)
    for other in ({"by_frequency": True}, {"method": "sparse"}):
        with pytest.raises(ValueError, match="importance goes with transform and alone"):
            ant.compress(E, budget="3x", importance=ones, **other)
    named = ant.compress(E, budget="3x", importance=ones, vocabulary=[f"w{n}" for n in range(400)])
    np.testing.assert_array_equal(named[:], ant.compress(E, budget="3x", importance=ones, by_frequency=False)[:])
