"""Labelled text → classifier: every embedding is trained, saved, found again and continued; budgets are met."""

import pytest
import torch
from tests.synthetic_text import write_topics

from antembed.baselines import EMBEDDINGS
from antembed.budget import BudgetError
from antembed.classify.config import TextConfig
from antembed.classify.dataset import TextSplits
from antembed.classify.documents import documents_of, read_documents
from antembed.classify.task import INIT_SCALE, Text
from antembed.data.vocabulary import Vocabulary
from antembed.tables.save import load_table
from antembed.train.options import from_options
from antembed.train.run import load_model, train
from antembed.train.run_folder import RunFolder

QUICK = {"embedding_dim": 16, "epochs": 3, "batch_size": 32, "lr": 0.01, "word_dropout": 0.1, "dropout": 0.1}


def configured(**options):
    return from_options(TextConfig, {"l1_penalty": 1e-4} | QUICK | options)


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "train.csv"
    write_topics(path, 600, 300, classes=3, length=20, purity=0.6)
    return read_documents(path)


def run(config, out, documents, **more):
    return train(config, out, splits=Text().split(config, documents), **more)


@pytest.mark.parametrize("model", ["cnn", "mean"])
def test_planted_topics_are_learned(model, documents, tmp_path):
    result = run(configured(model=model, epochs=6), tmp_path / "r", documents)
    assert result["test"]["accuracy"] > 0.8
    assert result["parameters"] < 0.5 * result["words"] * 16
    assert result["bytes"] == (tmp_path / "r" / "words.ant").stat().st_size
    assert set(result["quantized"]) == {"fp16", "int8", "int8 packed"}
    assert abs(result["quantized"]["fp16"]["test_accuracy"] - result["test"]["accuracy"]) < 0.05


@pytest.mark.parametrize("embedding", sorted(set(EMBEDDINGS) - {"frequency", "tf-idf"}))  # most words of these share a row
def test_vectors_start_at_one_size_and_words_apart_from_each_other(embedding):
    words = documents_of([" ".join(f"w{n}" for n in range(1998))], length=None).vocabulary
    splits = TextSplits(vocabulary=words, classes=list("abcd"))
    table = Text().build(from_options(TextConfig, {"embedding": embedding}), splits).words
    assert table.num_embeddings == 2000
    E = table(torch.arange(2, 2000)).detach()
    assert 0.5 * INIT_SCALE < float(E.square().mean().sqrt()) < 2 * INIT_SCALE
    assert float((E - E.mean(0)).square().mean().sqrt()) > 0.5 * INIT_SCALE


@pytest.mark.parametrize("embedding", sorted(EMBEDDINGS))
def test_every_embedding_is_trained_saved_and_found_again(embedding, documents, tmp_path):
    config = configured(model="mean", embedding=embedding, epochs=1)
    result = run(config, tmp_path / "r", documents)
    assert Text().evaluate(load_model(tmp_path / "r"), Text().split(config, documents), "test") == result["test"]
    assert Vocabulary.read(tmp_path / "r" / "vocabulary.parquet").words == documents.vocabulary.words


@pytest.mark.parametrize(
    "options",
    [
        {"anchor_init": "frequency", "unrelated_penalty": 0.1, "orthogonality_penalty": 0.01},
        {"model": "mean", "budget": "3KB", "anchors": 4},
        {"model": "mean", "anchors": "auto", "initial_anchors": 4},
        {"model": "mean", "anchor_init": "group-lasso", "anchors": 4},
    ],
    ids=["penalties", "budget", "auto", "pretrained anchors"],
)
def test_a_stopped_run_ends_in_the_same_bytes(options, documents, tmp_path):
    config = configured(**options)
    run(config, tmp_path / "whole", documents)

    def stop(progress):
        if progress.record.get("epoch") == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "parts", documents, callback=stop)
    assert len(RunFolder(tmp_path / "parts").rows()) == 1
    run(config, tmp_path / "parts", documents, resume=True)
    assert (tmp_path / "parts" / "words.ant").read_bytes() == (tmp_path / "whole" / "words.ant").read_bytes()


def test_patience_ends_a_run_that_gets_no_better(documents, tmp_path):
    result = run(configured(model="mean", patience=1, lr=0.0, epochs=20), tmp_path / "r", documents)
    assert result["epochs"] == 2


@pytest.mark.parametrize(("budget", "unit", "amount"), [("400", "parameters", 400), ("1.5KB", "bytes", 1500)])
def test_budgets_are_met(budget, unit, amount, documents, tmp_path):
    result = run(configured(model="mean", budget=budget, anchors=4, epochs=6), tmp_path / "r", documents)
    assert 0.6 * amount < result[unit] <= amount
    table = load_table(tmp_path / "r" / "words.ant")
    assert (table.encoding == "packed") == (unit == "bytes")  # where bytes count, as few as can be
    assert (table.values == "int8") == (unit == "bytes")


def test_a_budget_that_leaves_no_weights_is_an_error(documents, tmp_path):
    config = configured(model="mean", budget="100B", anchors=4)  # an anchor alone has 16 numbers
    with pytest.raises(BudgetError, match=r"leaves no weight|every weight was lost|cannot be met"):
        run(config, tmp_path / "r", documents)


def test_the_number_of_anchors_is_found(documents, tmp_path):
    config = configured(
        model="mean", anchors="auto", initial_anchors=6, anchor_penalty=0.1, l1_penalty=1e-5, epochs=12, lr=0.05
    )
    result = run(config, tmp_path / "r", documents)
    rows = RunFolder(tmp_path / "r").rows()
    assert next(row["growth"]["decision"] for row in rows if row.get("growth")) == "add"
    assert result["anchors"] <= 6  # those of the epoch with the lowest objective, not of the last one, nor of the fewest errors


def test_short_batches_have_unrelated_pairs_too(tmp_path):
    few = documents_of([f"w{n} w{n + 1}" for n in range(90)], ["x", "y"] * 45)
    config = configured(model="mean", anchor_init="frequency", unrelated_penalty=1.0, epochs=1)
    assert run(config, tmp_path / "r", few)["epochs"] == 1
