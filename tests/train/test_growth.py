"""nbANT: between epochs anchors come and go, and the planted number of them is found."""

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
from antembed.layer.anchor import AnchorEmbedding
from antembed.layer.embedding import param_groups
from antembed.layer.growth_rule import Add, Keep, Plateau, PlateauState, Remove, Stop, nbant_objective
from antembed.layer.optim.rules import ProximalYogi
from antembed.layer.resize_anchors import remove_anchors
from antembed.recommend.config import RatingsConfig
from antembed.recommend.dataset import cut
from antembed.recommend.fused import FusedEngine
from antembed.recommend.model import MatrixFactorization
from antembed.recommend.synthetic import planted, ratings
from antembed.train.anchor_growth import GrowthControl
from antembed.train.callbacks import pruned
from antembed.train.engine import Loop, TorchEngine, constant
from antembed.train.examples import Examples
from antembed.train.options import from_options
from antembed.train.run import load_model, train


@pytest.fixture(autouse=True)
def _one_thread(_same_start):
    torch.set_num_threads(1)  # nothing here is large enough for two


def toy(kstar=3, n=12_000, V=(90, 60)):
    users = planted(V[0], 6, anchors=kstar, exponent=0, seed=0)
    return ratings(users, planted(V[1], exponent=0, seed=1, like=users), n, mean=0, noise=0.2, seed=2)


GROWING = {"anchors": "auto", "anchor_penalty": 3e-3, "l1_penalty": 3e-5, "embedding_dim": 6, "batch_size": 32, "biases": False}


def growing(**options):
    return from_options(RatingsConfig, GROWING | options)


def fit(config, out, data, **more):
    return train(config, out, splits=cut(data, config.input.split, config.machine.seed), **more)


def rows_of(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def examples(*columns):
    return Examples(tuple(column.numpy() for column in columns), np.arange(len(columns[0])))


@pytest.mark.parametrize("start", [1, pytest.param(12, marks=pytest.mark.slow)])
def test_the_planted_number_of_anchors_is_found(tmp_path, start):
    config = growing(initial_anchors=start, epochs=250)
    result = fit(config, tmp_path / "r", toy())
    assert all(abs(K - 3) <= 1 for K in result["anchors"].values()), result["anchors"]
    rows = rows_of(tmp_path / "r")
    assert rows[-1]["growth"] is None if "growth" in rows[-1] else True
    trials = [row["growth"]["trial"] for row in rows if row.get("growth") and "trial" in row["growth"]]
    # More anchors are judged by the loss; after it, what was kept is what lowered the objective.
    tried = [trial for trial in trials if trial["change"] == "remove"]
    assert tried
    assert all(trial["after"] < 0.995 * trial["before"] for trial in tried if trial["kept"])
    assert any(not trial["kept"] for trial in tried)
    best = min(rows, key=lambda row: row["objective"])
    assert best["objective"] == pytest.approx(
        nbant_objective(best["validation"]["loss"], sum(best["nnz"].values()), sum(best["anchors_in_use"].values()), 3e-3, 3e-5)
    )
    assert result["nnz"] == best["nnz"]  # evaluated as it is exported
    assert result["validation"]["mse"] / 2 == pytest.approx(best["validation"]["loss"], rel=1e-5)
    assert load_model(tmp_path / "r").users.num_anchors == best["anchors"]["users"]


def test_both_engines_grow_alike(tmp_path):
    """Every second epoch a decision, in turns: more, fewer, back again."""
    plan = iter([Add(2), Remove(1), Add(1, undo=True), Remove(2, table=0), Stop(undo=True)] * 2)

    def decide(self, memory, check):
        memory = PlateauState(since=(*memory.since, check.objective))
        return (memory, Keep()) if len(memory.since) < 2 else (PlateauState(), next(plan))

    found = {}
    for engine in ("fused", "torch"):
        config = growing(initial_anchors=4, epochs=13, l1_warmup=0.0, engine=engine)
        with mock.patch("antembed.layer.growth_rule.Plateau.__call__", decide):
            fit(config, tmp_path / engine, toy(n=1000))
        found[engine] = rows_of(tmp_path / engine)
    K = [tuple(row["anchors"].values()) for row in found["torch"]]
    assert K == [(4, 4)] * 2 + [(6, 6)] * 2 + [(5, 5)] * 2 + [(7, 7)] * 2 + [(5, 7)] * 2 + [(7, 7)] * 3
    for one, other in zip(*found.values(), strict=True):
        assert one["anchors"] == other["anchors"]
        assert one["objective"] == pytest.approx(other["objective"], rel=1e-4)


def test_trend_on_the_planted_data(tmp_path):
    result = fit(growing(growth="trend", epochs=12), tmp_path / "r", toy())
    rows = rows_of(tmp_path / "r")
    assert len(rows) == 12
    K = [row["anchors"]["users"] for row in rows]
    assert max(abs(np.diff(K))) == 1  # ΔK
    assert result["growth"]["policy"] == "trend"


def test_evaluating_leaves_the_model_alone():
    layer = AnchorEmbedding(20, 4, num_anchors=5, sparse=True, dtype=torch.float64)
    layer(torch.arange(20)).square().sum().backward()
    ProximalYogi(layer.param_groups(l1_penalty=1e-3), lr=0.1).step()
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
    growth = control(layer, held, l0_penalty=1e-4, epochs=150, l1_warmup=0.0)
    growth.policy = Plateau(longest=8)
    growth.policy_state, growth.anneal = growth.policy.initial_state(), 0

    def loss(batch, step=0):
        return (layer(batch[0]) - batch[1]).square().sum(1).mean() / 2

    engine, done, step = TorchEngine(held, loss), 0, 0
    ids = torch.arange(60)
    while growth.stopped is None and done < 200:
        done += 1
        layer.train()
        order = torch.randperm(60, generator=torch.Generator().manual_seed(done)).repeat(2)
        for _ in engine.run(Pairs(order, E[order]), 20, step, lambda s: 0.02, lambda s: 1e-4):
            step += 1
        layer.eval()
        with torch.no_grad():
            record = growth.evaluate(lambda: {"loss": float(loss((ids, E)))})
        if growth.adjust(done, step, record, tmp_path / "snapshot") is not None:
            engine = TorchEngine(held, loss)
    assert growth.stopped is not None
    assert abs(layer.num_anchors - 3) <= 1
    assert record["objective"] < 0.12  # no anchors: ½·E‖e‖² = 1.1; the answer: 0.04


def control(layer, optimizer, **options):
    """Of one table, without a task."""
    layer.embeddings = {"words": layer}
    config = from_options(RatingsConfig, {"solver": "stochastic", "anchors": "auto", "anchor_penalty": 0.01} | options)
    return GrowthControl(Loop(config, config.solver, layer, optimizer, 60, "loss", constant(), constant()))


class Pairs:
    """A task's own examples: whole vectors are wanted."""

    def __init__(self, ids, vectors):
        self.ids, self.vectors = ids, vectors

    def __len__(self):
        return len(self.ids)

    def batches(self, size):
        return zip(self.ids.split(size), self.vectors.split(size), strict=True)


def test_the_engine_made_anew_trains_what_was_resized():
    model = MatrixFactorization(*(AnchorEmbedding(V, 4, num_anchors=4, sparse=True) for V in (20, 10)))
    held = ProximalYogi(param_groups(model, 1e-4), lr=0.01)
    data = examples(torch.randint(0, 20, (100,)), torch.randint(0, 10, (100,)), torch.randn(100))
    list(FusedEngine(model, held, 1).run(data, 10, 0, lambda s: 0.01, lambda s: 1e-4))
    remove_anchors(model.users, held, [0, 1])
    users, items = model.users.transform.detach().clone(), model.items.transform.detach().clone()
    engine = FusedEngine(model, held, 1)
    assert torch.equal(model.users.transform, users)
    assert torch.equal(model.items.transform, items)
    list(engine.run(data, 10, 10, lambda s: 0.01, lambda s: 1e-4))
    assert model.users.transform.shape == (20, 2)
    assert not torch.equal(model.users.transform, users)


def test_what_cannot_grow_says_so():
    layer = AnchorEmbedding(20, 4, num_anchors=5)
    held = ProximalYogi(param_groups(layer, 1e-4))
    with pytest.raises(ValueError, match="0 epochs to warm up and 1 to anneal leave none of 1 to grow; raise --epochs"):
        control(layer, held, epochs=1)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    r = toy(n=4000)
    path = tmp_path_factory.mktemp("data") / "ratings.csv"
    rows = (f"{u},{i},{v:.4f}" for u, i, v in zip(r.users, r.items, r.values, strict=True))
    path.write_text("user,item,rating\n" + "\n".join(rows))
    return path


AUTO = ("--anchors", "auto", "--anchor-penalty", "0.003", "--l1-penalty", "3e-5", "--embedding-dim", "6", "--no-biases",
        "--epochs", "110", "--initial-anchors", "6", "--engine", "fused", "--threads", "1")  # fmt: skip


@pytest.mark.slow
def test_stopped_again_and_again_while_growing_a_run_ends_in_the_same_bytes(tmp_path):
    config, data = growing(batch_size=64, initial_anchors=20, epochs=90, l1_warmup=0.1), toy(n=3000)
    fit(config, tmp_path / "whole", data)
    for stop in range(2, 90, 7):  # after a decision was carried out, but before the checkpoint that knows of it

        def interrupt(progress, stop=stop):
            if progress.epoch == progress.record.get("epoch") == stop:
                raise KeyboardInterrupt

        with contextlib.suppress(KeyboardInterrupt):
            fit(config, tmp_path / "r", data, resume=True, callback=interrupt)
    fit(config, tmp_path / "r", data, resume=True)
    same_bytes(tmp_path / "r", tmp_path / "whole")


def same_bytes(run, whole):
    for name in ("users.ant", "items.ant", "checkpoint/last.safetensors", "checkpoint/final.safetensors"):
        assert (run / name).read_bytes() == (whole / name).read_bytes(), name
    decisions = [row["growth"] for row in rows_of(run) if row.get("growth")]
    assert any(made["undo"] for made in decisions)
    assert {made["decision"] for made in decisions} >= {"add", "remove"}


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
    ("wrong", "said"),
    [
        (("--split", "90/10"), "needs validation data"),
        (("--embedding", "full"), "is for --embedding anchor, not full"),
        (("--polish", "0.2"), "leave --polish at 0"),
        (("--anchor-step", "2"), "anchor_step is for --growth trend, not plateau"),
        (("--budget", "10x"), "takes no budget with anchors auto"),
        (("--anchor-penalty", "1e-9"), "raise --anchor-penalty"),
        (("--growth", "x"), "growth 'x' is none of: plateau, trend"),
        (("--initial-anchors", "0"), "initial_anchors must be ≥ 1, got 0"),
    ],
)
def test_what_auto_cannot_do_is_said(file, wrong, said):
    result = CliRunner().invoke(app, ["train", "recommend", str(file), *AUTO, *wrong])
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.replace("│", " ").split())
