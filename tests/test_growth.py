"""nbANT as a whole: it finds the planted number of anchors, with both engines, also when stopped and resumed."""

import contextlib
import json
import subprocess
import sys
import time
from unittest import mock

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from antembed.cli.app import app
from antembed.data.synthetic import planted, ratings
from antembed.embedding import AnchorEmbedding, param_groups
from antembed.growth.objective import nbant_objective
from antembed.growth.policy import Add, Keep, Plateau, PlateauState, Remove, Stop
from antembed.growth.resize import remove_anchors
from antembed.optim import ProximalYogi
from antembed.pipelines.recommend import reopen_model, train
from antembed.pipelines.settings import Settings
from antembed.training import FusedEngine, Grower, TorchEngine
from antembed.training.grower import pruned


@pytest.fixture(autouse=True)
def _one_thread(_same_start):
    torch.set_num_threads(1)  # nothing here is large enough for two


def toy(kstar=3, n=12_000, V=(90, 60)):
    users = planted(V[0], 6, anchors=kstar, exponent=0, seed=0)
    return ratings(users, planted(V[1], exponent=0, seed=1, like=users), n, mean=0, noise=0.2, seed=2)


GROWING = {"data": "", "anchors": "auto", "lambda1": 3e-3, "l1": 3e-5, "dimensions": 6, "batch_size": 32, "biases": False}


@pytest.mark.parametrize("start", [1, 12])
def test_the_planted_number_of_anchors_is_found(tmp_path, start):
    settings = Settings(**GROWING, first_anchors=start, epochs=250)
    result = train(settings, tmp_path / "r", ratings=toy())
    assert all(abs(K - 3) <= 1 for K in result["anchors"].values()), result["anchors"]
    rows = [json.loads(line) for line in (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["growth"] is None if "growth" in rows[-1] else True
    trials = [row["growth"]["trial"] for row in rows if row.get("growth") and "trial" in row["growth"]]
    # The swelling is judged by the loss; after it, what was kept is what lowered the objective.
    judged = [trial for trial in trials if trial["change"] == "remove"]
    assert judged
    assert all(trial["after"] < 0.995 * trial["before"] for trial in judged if trial["kept"])
    assert any(not trial["kept"] for trial in judged)
    best = min(rows, key=lambda row: row["objective"])
    assert best["objective"] == pytest.approx(
        nbant_objective(best["validation"]["loss"], sum(best["nnz"].values()), sum(best["anchors_in_use"].values()), 3e-3, 3e-5)
    )
    assert result["nnz"] == best["nnz"]  # judged as it is exported
    assert result["validation"]["mse"] / 2 == pytest.approx(best["validation"]["loss"], rel=1e-5)
    assert reopen_model(tmp_path / "r").users.num_anchors == best["anchors"]["users"]


def test_both_engines_grow_alike(tmp_path):
    """Every second epoch a decision, in turns: more, fewer, back again."""
    plan = iter([Add(2), Remove(1), Add(1, undo=True), Remove(2, table=0), Stop(undo=True)] * 2)

    def decide(self, memory, check):
        memory = PlateauState(since=(*memory.since, check.objective))
        return (memory, Keep()) if len(memory.since) < 2 else (PlateauState(), next(plan))

    found = {}
    for engine in ("fused", "torch"):
        settings = Settings(**GROWING, first_anchors=4, epochs=13, l1_ramp=0.0, engine=engine)
        with mock.patch("antembed.growth.policy.Plateau.__call__", decide):
            train(settings, tmp_path / engine, ratings=toy(n=1000))
        found[engine] = [json.loads(line) for line in (tmp_path / engine / "metrics.jsonl").read_text().splitlines()]
    K = [tuple(row["anchors"].values()) for row in found["torch"]]
    assert K == [(4, 4)] * 2 + [(6, 6)] * 2 + [(5, 5)] * 2 + [(7, 7)] * 2 + [(5, 7)] * 2 + [(7, 7)] * 3
    for one, other in zip(*found.values(), strict=True):
        assert one["anchors"] == other["anchors"]
        assert one["objective"] == pytest.approx(other["objective"], rel=1e-4)


def test_trend_on_the_planted_data(tmp_path):
    result = train(Settings(**GROWING, growth="trend", epochs=12), tmp_path / "r", ratings=toy())
    rows = [json.loads(line) for line in (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 12
    K = [row["anchors"]["users"] for row in rows]
    assert max(abs(np.diff(K))) == 1  # ΔK
    assert result["growth"]["policy"] == "trend"


def test_judging_leaves_the_model_alone():
    layer = AnchorEmbedding(20, 4, num_anchors=5, dtype=torch.float64)
    layer.eval()
    before = layer.transform.detach().clone()
    with pruned([layer], 0.9):
        assert layer.rows.weight.count_nonzero() < before.count_nonzero()
    assert torch.equal(layer.rows.weight, before)


def test_one_table_with_any_loss(tmp_path):
    """Regression onto planted vectors with one table: the torch engine, driven by hand."""
    answer = planted(60, 6, anchors=3, exponent=0, seed=0)
    E = torch.from_numpy(answer.E).float()
    layer = AnchorEmbedding(60, 6, num_anchors=12, sparse=True)
    layer.anchors.data.normal_(std=0.4)
    held = ProximalYogi(param_groups(layer, 1e-4), lr=0.02)
    grower = Grower(
        layer, {"words": layer}, held, Plateau(longest=8), tmp_path / "snapshot", lambda1=0.01, lambda2=1e-4, epochs=150
    )

    def loss(model, batch):
        return (model(batch[0]) - batch[1]).square().sum(1).mean() / 2

    engine, done, step = TorchEngine(layer, held, loss), 0, 0
    ids = torch.arange(60)
    while grower.stopped is None and done < 200:
        done += 1
        layer.train()
        order = torch.randperm(60, generator=torch.Generator().manual_seed(done)).repeat(2)
        for _ in engine.run(Columns(order, E[order]), 20, step, lambda s: 0.02, lambda s: 1e-4):
            step += 1
        layer.eval()
        with torch.no_grad():
            judged = grower.judge(lambda: {"loss": float(loss(layer, (ids, E)))})
        if grower.due(done) and grower.adjust(done, step, judged) is not None:
            engine = TorchEngine(layer, held, loss)
    assert grower.stopped is not None
    assert abs(layer.num_anchors - 3) <= 1
    assert judged["objective"] < 0.12  # no anchors: ½·E‖e‖² = 1.1; the answer: 0.04


class Columns:
    def __init__(self, *columns):
        self.columns = columns

    def __len__(self):
        return len(self.columns[0])

    def __getitem__(self, piece):
        return tuple(column[piece] for column in self.columns)


def test_the_engine_made_anew_trains_what_was_resized():
    from antembed.tasks.recommend import MatrixFactorization

    model = MatrixFactorization(*(AnchorEmbedding(V, 4, num_anchors=4, sparse=True) for V in (20, 10)))
    held = ProximalYogi(param_groups(model, 1e-4), lr=0.01)
    data = Columns(torch.randint(0, 20, (100,)), torch.randint(0, 10, (100,)), torch.randn(100))
    list(FusedEngine(model, held, 1).run(data, 10, 0, lambda s: 0.01, lambda s: 1e-4))
    remove_anchors(model.users, held, [0, 1])
    users, items = model.users.transform.detach().clone(), model.items.transform.detach().clone()
    engine = FusedEngine(model, held, 1)
    assert torch.equal(model.users.transform, users)
    assert torch.equal(model.items.transform, items)
    list(engine.run(data, 10, 10, lambda s: 0.01, lambda s: 1e-4))
    assert model.users.transform.shape == (20, 2)
    assert not torch.equal(model.users.transform, users)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    r = toy(n=4000)
    path = tmp_path_factory.mktemp("data") / "ratings.csv"
    rows = (f"{u},{i},{v:.4f}" for u, i, v in zip(r.users, r.items, r.values, strict=True))
    path.write_text("user,item,rating\n" + "\n".join(rows))
    return path


AUTO = ("--anchors", "auto", "--lambda1", "0.003", "--l1", "3e-5", "--dimensions", "6", "--no-biases", "--epochs", "110",
        "--first-anchors", "6", "--engine", "fused", "--threads", "1")  # fmt: skip


def test_stopped_again_and_again_while_growing_a_run_ends_in_the_same_bytes(tmp_path):
    settings, data = Settings(**GROWING | {"batch_size": 64}, first_anchors=20, epochs=90, l1_ramp=0.1), toy(n=3000)
    train(settings, tmp_path / "whole", ratings=data)
    for stop in range(2, 90, 7):  # after a decision was carried out, but before the checkpoint that knows of it

        def tell(tick, stop=stop):
            if tick.epoch == tick.log.get("epoch") == stop:
                raise KeyboardInterrupt

        with contextlib.suppress(KeyboardInterrupt):
            train(settings, tmp_path / "r", ratings=data, resume=True, tell=tell)
    train(settings, tmp_path / "r", ratings=data, resume=True)
    same_bytes(tmp_path / "r", tmp_path / "whole")


def same_bytes(run, whole):
    for name in ("users.ant", "items.ant", "checkpoint/last.safetensors", "checkpoint/final.safetensors"):
        assert (run / name).read_bytes() == (whole / name).read_bytes(), name
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    decisions = [row["growth"] for row in rows if row.get("growth")]
    assert any(told["undo"] for told in decisions)
    assert {told["decision"] for told in decisions} >= {"add", "remove"}


def test_killed_while_growing_a_run_ends_in_the_same_bytes(file, tmp_path):
    words = ["train", "recommend", str(file), *AUTO, "--out"]
    assert CliRunner().invoke(app, [*words, str(tmp_path / "whole")]).exit_code == 0
    process = subprocess.Popen([sys.executable, "-m", "antembed", *words, str(tmp_path / "r")], stderr=subprocess.DEVNULL)
    log, deadline = tmp_path / "r" / "metrics.jsonl", time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        if log.exists() and log.read_text().count("\n") >= 40:
            break
        time.sleep(0.002)
    process.kill()
    assert process.wait() != 0
    assert CliRunner().invoke(app, [*words, str(tmp_path / "r"), "--resume"]).exit_code == 0
    same_bytes(tmp_path / "r", tmp_path / "whole")


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (("--split", "90/10"), "needs validation data"),
        (("--embedding", "full"), "is for --embedding anchor, not full"),
        (("--budget", "10x"), "go together with --solver cd only"),
        (("--lambda1", "1e-9"), "raise --lambda1"),
        (("--growth", "x"), "none of: plateau, trend"),
        (("--first-anchors", "0"), "first_anchors must be"),
    ],
)
def test_what_auto_cannot_do_is_said(file, wrong, told):
    result = CliRunner().invoke(app, ["train", "recommend", str(file), *AUTO, *wrong])
    assert result.exit_code == 2
    assert told in " ".join(result.stderr.replace("│", " ").split())
