"""The hashed n-gram classifier as a run: stopped and continued, evaluated again, refused where it has nothing to say."""

import pytest
from tests.synthetic_text import write_topics

from antembed.budget import BudgetError
from antembed.classify.config import NgramConfig
from antembed.classify.documents import read_documents
from antembed.classify.ngram_task import FILE, HashedNgramTask
from antembed.tables.model_folder import RunError
from antembed.train.options import from_options
from antembed.train.run import evaluate, load_model, train
from antembed.train.run_folder import RunFolder

TASK = HashedNgramTask()


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "train.csv"
    write_topics(path, 300, 120, classes=3, length=15, purity=0.6)
    return path


def configured(file, **options):
    return from_options(NgramConfig, {"data": str(file), "budget": "1KB"} | options)


@pytest.mark.parametrize("epoch", [1, 2])
def test_a_stopped_run_ends_in_the_same_bytes(epoch, file, tmp_path):
    config = configured(file)
    whole = train(config, tmp_path / "whole")

    def stop(progress):
        if progress.record.get("epoch") == epoch + 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "parts", callback=stop)
    assert len(RunFolder(tmp_path / "parts").rows()) == epoch
    with pytest.raises(RunError, match=rf"is not finished: {epoch} of 6 epochs; continue it with --resume"):
        load_model(tmp_path / "parts")
    with pytest.raises(RunError, match="was started with budget='1KB', not '2KB'; resume with the same options"):
        train(configured(file, budget="2KB"), tmp_path / "parts", resume=True)
    again = train(config, tmp_path / "parts", resume=True)
    assert (tmp_path / "parts" / FILE).read_bytes() == (tmp_path / "whole" / FILE).read_bytes()
    assert again["test"] == whole["test"]
    kept, kept_again = ([row["nnz"] for row in RunFolder(tmp_path / name).rows()] for name in ("whole", "parts"))
    assert kept == kept_again  # no epoch twice


def test_held_out_documents_are_evaluated_and_not_learned(file, tmp_path):
    held, all_learned = (train(configured(file, hold_out=hold), tmp_path / str(hold)) for hold in (True, False))
    assert held["validation"]["examples"] == held["test"]["examples"] == all_learned["test"]["examples"] == 30
    assert all_learned["validation"] is None
    parts = {name: RunFolder(tmp_path / name).open()[1]["documents"] for name in ("True", "False")}
    assert parts["True"] == {"train": 240, "validation": 30, "test": 30}
    assert parts["False"] == {"train": 270, "validation": 0, "test": 30}
    assert (tmp_path / "True" / FILE).read_bytes() != (tmp_path / "False" / FILE).read_bytes()
    for name, result in (("True", held), ("False", all_learned)):
        again = evaluate(tmp_path / name)
        assert (again["test"], again["validation"]) == (result["test"], result["validation"])


def test_documents_in_memory_give_what_the_file_gives(file, tmp_path):
    config = configured(file)
    train(config, tmp_path / "file")
    train(config, tmp_path / "memory", splits=TASK.split(config, read_documents(file)))
    assert (tmp_path / "file" / FILE).read_bytes() == (tmp_path / "memory" / FILE).read_bytes()


def test_too_small_a_file_is_refused(file, tmp_path):
    with pytest.raises(BudgetError, match=r"a file without objects has \d+ bytes, 50 are allowed; allow more"):
        train(configured(file, budget="50B"), tmp_path / "r")


def test_a_model_that_was_not_trained_says_so(file):
    with pytest.raises(ValueError, match="this classifier has not been trained yet"):
        _ = TASK.build(configured(file), TASK.load(configured(file))).classifier
