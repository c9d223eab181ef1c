"""Runs of several processes end as one process ends on the same pieces: ratings, text and language."""

from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from processes import errors, launch, succeed
from safetensors.torch import load_file

from antembed.layer.sharded.collectives import Ranks
from antembed.recommend.synthetic import planted, ratings
from antembed.train.configure import configure
from antembed.train.options import ConfigError, from_options
from antembed.train.processes import check_options, shared_options
from antembed.train.registry import TASKS
from antembed.train.run import train

COMMON = {"engine": "torch", "sparsify": "prox", "pieces": 4}
RATINGS = {"solver": "stochastic", "anchors": "6,5", "embedding_dim": 8, "batch_size": 500, "lr": 0.05}
TEXT = {"batch_size": 50, "anchors": "5", "embedding_dim": 8, "lr": 0.02, "l1_penalty": 1e-4}
WORDS = TEXT | {"batch_size": 80, "sequence_length": 8, "layers": 1}
WITHOUT_L1 = {name: value for name, value in WORDS.items() if name != "l1_penalty"}
WITHOUT_PENALTY = {name: value for name, value in TEXT.items() if name != "l1_penalty"}
DESCENT = {"solver": "coordinate_descent", "anchors": "6,5", "embedding_dim": 8}
SPARSIFIED = {"epochs": 8, "events": 3}
MANY = {
    "budget": ("recommend", RATINGS | {"epochs": 5, "budget": "700"}),
    "growth": ("recommend", RATINGS | {"anchors": "auto", "initial_anchors": 3, "epochs": 9, "anchor_penalty": 1e-4}),
    "ridge": ("recommend", RATINGS | {"epochs": 2, "optimizer": "sgd", "l2_penalty": 0.02, "polish": 0.4}),
    "prune": ("recommend", RATINGS | SPARSIFIED | {"sparsify": "prune", "budget": "600"}),
    "recode": ("recommend", RATINGS | SPARSIFIED | {"sparsify": "recode", "budget": "4KB"}),
    "recoded text": ("classify", WITHOUT_PENALTY | SPARSIFIED | {"model": "mean", "sparsify": "recode", "budget": "150"}),
    "descent": ("recommend", DESCENT | {"epochs": 5, "l0_penalty": 0.05}),
    "narrow descent": ("recommend", DESCENT | {"anchors": "auto", "embedding_dim": 4, "epochs": 4, "ridge": 0.01}),
    "descent to a budget": ("recommend", DESCENT | {"epochs": 8, "budget": "500"}),
    "tolerance": ("recommend", DESCENT | {"tolerance": "2%"}),
    "axes": ("recommend", DESCENT | {"tolerance": "2%", "basis": "axes"}),
    "text": ("classify", TEXT | {"model": "mean", "epochs": 3, "dropout": 0.2, "word_dropout": 0.2}),
    "cnn": ("classify", TEXT | {"model": "cnn", "epochs": 2}),
    "language": ("language", WORDS | {"epochs": 2, "softmax": "sampled", "negatives": 20}),
    "full": ("recommend", RATINGS | {"embedding": "full", "epochs": 2}),
    "full words": ("language", WORDS | {"embedding": "full", "epochs": 2, "softmax": "full"}),
    "pruned words": ("language", WITHOUT_L1 | SPARSIFIED | {"sparsify": "prune", "budget": "180", "softmax": "full"}),
    "softmax": ("language", WORDS | {"epochs": 4, "average_after": 1, "optimizer": "sgd", "max_grad_norm": 0.2}),
}


def write_data(task: str, folder: Path) -> Path:
    random = np.random.default_rng(0)
    words = np.array([f"w{number}" for number in range(60)])
    chance = 1 / np.arange(1, 61)
    if task == "recommend":
        users, items = planted(90, 6, anchors=4, exponent=0.3, seed=0), planted(40, 6, anchors=4, exponent=0.3, seed=1)
        r = ratings(users, items, 2500, noise=0.2, seed=2)
        lines = ["user,item,rating", *(f"{u},{i},{v:.3f}" for u, i, v in zip(r.users, r.items, r.values, strict=True))]
    elif task == "classify":
        lines = ["text,label"]
        for row in range(330):
            own = np.roll(chance, 20 * (row % 3))
            lines.append(" ".join(random.choice(words, 6, p=own / own.sum())) + f",c{row % 3}")
    else:
        lines = [" ".join(random.choice(words, 30, p=chance / chance.sum())) for _ in range(60)]
    file = folder / {"recommend": "r.csv", "classify": "t.csv", "language": "corpus.txt"}[task]
    file.write_text("\n".join(lines) + "\n")
    return file


def run(folder: Path, name: str, data: Path, ranks: Ranks | None = None) -> None:
    """In double precision."""
    torch.set_default_dtype(torch.float64)
    try:
        task, options = MANY[name]
        common = {} if options.get("solver") == "coordinate_descent" else COMMON
        config, splits = configure(TASKS[task], {"data": str(data), **common, **options}, search=False)
        with mock.patch("antembed.train.run.quantized", return_value={}):  # files have single precision
            train(config, folder / name, splits=splits, ranks=ranks)
    finally:
        torch.set_default_dtype(torch.float32)


def work(ranks: Ranks, folder: Path, data: dict[str, Path]) -> None:
    for name, file in data.items():
        run(folder, name, file, ranks)


@pytest.mark.parametrize(
    ("n", "names"),
    [
        pytest.param(2, ("budget", "text"), id="2"),
        pytest.param(2, ("prune",), id="2, sparsified"),
        pytest.param(3, ("descent", "tolerance"), id="3, descent"),
        *(pytest.param(n, tuple(MANY), id=f"{n}, all", marks=pytest.mark.slow) for n in (1, 2, 3, 4)),
    ],
)
def test_processes_end_as_one(n, names, tmp_path):
    data = {name: write_data(MANY[name][0], tmp_path) for name in names}
    succeed(work, n, tmp_path / "many", data)
    for name in names:
        run(tmp_path / "one", name, data[name])
        one, many = (load_file(tmp_path / kind / name / "checkpoint" / "final.safetensors") for kind in ("one", "many"))
        tables = [key for key in one if key.endswith("rows.weight") and "bias" not in key]
        assert tables
        for key in tables:
            assert one[key].dtype == torch.float64
            assert torch.equal(one[key] == 0, many[key] == 0), (name, key)
        for key, tensor in one.items():
            if key != "random":
                assert float((many[key] - tensor).abs().max()) <= 1e-12 * max(float(tensor.abs().max()), 1), (name, key)
        assert MANY[name][1].get("embedding") == "full" or any(bool((one[key] == 0).any()) for key in tables), name


REFUSED = {
    "embedding": ({"embedding": "hashed"}, "embedding hashed is not possible; use anchor or full"),
    "engine": ({"engine": "fused", "pieces": 1}, "the fused engine is not possible; use --engine torch"),
    "init": ({"init": "dense"}, "--init dense is not possible; leave it out"),
    "pieces": ({"pieces": 2}, "3 processes share 2 pieces of a batch: give --pieces 3 or more"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_processes_cannot_share_is_an_error(case):
    options, text = REFUSED[case]
    task = TASKS["recommend"]
    config = from_options(task.Config, {"data": "r.csv", **shared_options(task, options)})
    with pytest.raises(ConfigError, match=text):
        check_options(task, config, SimpleNamespace(size=3))


@pytest.mark.parametrize("name", ["recommend", "classify-ngrams"])
def test_other_solvers_are_for_one_process(name):
    with pytest.raises(ConfigError, match=r"under torchrun .*is for one process"):
        shared_options(TASKS[name], {"solver": "online"})
    descent = {"tolerance": "1%", "solver": "coordinate_descent"}
    assert shared_options(TASKS["recommend"], {"tolerance": "1%"}) == descent
    assert shared_options(TASKS["recommend"], {"solver": "coordinate_descent"}) == {"solver": "coordinate_descent"}
    assert shared_options(TASKS["recommend-events"], {"tolerance": "1%"}) == {"tolerance": "1%"}
    assert shared_options(TASKS["classify"], {"lr": 0.1}) == {"engine": "torch", "sparsify": "prox", "pieces": 8, "lr": 0.1}


def other_options(ranks: Ranks, folder: Path, data: Path, name: str, value: object) -> None:
    given = {"data": str(data), **COMMON, **RATINGS, "epochs": 1} | ({name: value} if ranks.rank == 1 else {})
    config, splits = configure(TASKS["recommend"], given, search=False)
    train(config, folder / "run", splits=splits, ranks=ranks)


@pytest.mark.parametrize(("name", "value"), [("seed", 7), ("lr", 0.1), ("optimizer", "sgd")])
def test_other_options_on_one_rank_are_an_error_everywhere(name, value, tmp_path):
    data = write_data("recommend", tmp_path)
    assert launch(other_options, 3, tmp_path, data, name, value) == [1, 1, 1]
    first, second, third = errors(tmp_path, 3)
    assert first == third == f"ConfigError: --{name} of rank 1 is not that of rank 0; give every rank the same options"
    assert f"there, {value} here; give every rank the same options" in second


def test_other_data_on_one_rank_are_an_error_everywhere(tmp_path):
    data = write_data("recommend", tmp_path)
    lines = data.read_text().splitlines()
    (tmp_path / "other.csv").write_text("\n".join(lines[:-1]) + "\n")
    assert launch(other_options, 3, tmp_path, data, "data", str(tmp_path / "other.csv")) == [1, 1, 1]
    for text in errors(tmp_path, 3):
        assert text.startswith(f"RankError: examples is {len(lines) - 1} on rank 0 and {len(lines) - 2} on rank 1; give every")
