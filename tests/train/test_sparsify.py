"""`--sparsify`: runs that meet a budget by events, are interrupted, and say what does not go together."""

import json

import pytest
from tests.command import call, refusal, write_ratings
from typer.testing import CliRunner

from antembed.cli.app import app
from antembed.train.stochastic import Stochastic

OPTIONS = (
    "--solver",
    "stochastic",
    "--budget",
    "400",
    "--anchors",
    "6",
    "--embedding-dim",
    "4",
    "--epochs",
    "10",
    "--threads",
    "1",
)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return write_ratings(tmp_path_factory.mktemp("ratings") / "ratings.csv")


@pytest.mark.parametrize("way", ["recode", pytest.param("prune", marks=pytest.mark.slow)])
def test_an_interrupted_run_ends_in_the_same_bytes(file, tmp_path, monkeypatch, way):
    words = ("train", "recommend", file, *OPTIONS, "--sparsify", way)
    result = json.loads(call(*words, "--out", tmp_path / "whole", "--json"))
    assert result["parameters"] <= 400
    train, done = Stochastic._train, []

    def stops(self, *arguments):
        if len(done) == 5:  # between two events
            raise MemoryError
        done.append(arguments)
        return train(self, *arguments)

    monkeypatch.setattr(Stochastic, "_train", stops)
    with pytest.raises(MemoryError):
        CliRunner().invoke(app, [str(word) for word in (*words, "--out", tmp_path / "r")], catch_exceptions=False)
    monkeypatch.setattr(Stochastic, "_train", train)
    call(*words, "--out", tmp_path / "r", "--resume")
    for name in ("users.ant", "items.ant", "checkpoint/last.safetensors", "checkpoint/final.safetensors"):
        assert (tmp_path / "r" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


def test_the_log_has_the_events(file, tmp_path):
    result = json.loads(call("train", "recommend", file, *OPTIONS, "--out", tmp_path / "r", "--json"))
    assert result["engine"] == "torch"
    rows = [json.loads(line) for line in (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()]
    events = [row["event"] for row in rows if row["event"]]
    assert len(events) == 5  # half of the epochs
    assert {"aim", "nnz", "loss_before", "loss", "scale", "penalty", "undone"} <= events[0].keys()
    assert rows[-1]["lr"] < 0.1 * rows[0]["lr"]  # tuning


def test_what_does_not_go_together(file, tmp_path):
    start = ("train", "recommend", file, "--solver", "stochastic", "--out", tmp_path / "r")
    assert "sparsify recode goes to a size" in refusal(*start, "--sparsify", "recode")
    assert "l1_penalty is for --sparsify prox, not recode" in refusal(
        *start, "--sparsify", "recode", "--budget", "400", "--l1-penalty", "1"
    )
    assert "events is for --sparsify recode or prune, not prox" in refusal(*start, "--sparsify", "prox", "--events", "3")
    assert "is for anchored tables" in refusal(*start, "--sparsify", "recode", "--budget", "400", "--anchors", "auto")
    assert "20 epochs or more, not 6" in refusal(
        *start, "--sparsify", "prune", "--budget", "400", "--events", "18", "--epochs", "6"
    )
    assert "--sparsify is an option of --solver stochastic" in refusal(
        *start[:3], "--solver", "coordinate_descent", "--sparsify", "recode"
    )


def test_a_step_is_the_same_in_any_unit_of_the_ratings(file, tmp_path):
    large = tmp_path / "large.csv"
    rows = [line.split(",") for line in file.read_text().splitlines()[1:]]
    large.write_text("user,item,rating\n" + "\n".join(f"{u},{i},{1e4 * float(r):.4f}" for u, i, r in rows))
    small, other = (
        json.loads(call("train", "recommend", name, *OPTIONS, "--out", tmp_path / f"r{n}", "--json"))["test"]["mse"]
        for n, name in enumerate((file, large))
    )
    assert other / 1e8 == pytest.approx(small, rel=0.1)


def test_ridges_are_searched_and_may_be_given(file, tmp_path):
    words = ("train", "recommend", file, *OPTIONS)
    call(*words, "--out", tmp_path / "searched")
    own = json.loads((tmp_path / "searched" / "config.json").read_text())["config"]["solver"]
    assert own["sparsity"]["sparsify"] == "recode"
    assert 0 < own["l2_penalty"] < 6
    assert own["bias_l2_penalty"] > 0
    call(*words, "--l2-penalty", "3", "--out", tmp_path / "given")
    own = json.loads((tmp_path / "given" / "config.json").read_text())["config"]["solver"]
    assert (own["l2_penalty"], own["bias_l2_penalty"]) == (3, None)


@pytest.mark.filterwarnings("ignore:the budget of 260 parameters is not met:UserWarning")
@pytest.mark.parametrize("epochs", [(5, 3), (6, 1), (8, 2)])
def test_a_steep_budget_is_met_in_few_epochs(file, tmp_path, epochs):
    """No better epoch from before the budget was met comes back at the end."""
    length, events = epochs
    words = ("train", "recommend", file, *OPTIONS, "--budget", "260", "--epochs", length, "--events", events)
    result = json.loads(call(*words, "--out", tmp_path / "r", "--json"))
    assert result["parameters"] <= 260
