"""Writes what `test_old_files.py` opens, with the code of an older commit: runs, exports, tables and a Hugging Face model.

git worktree add ../old d18518c && cd ../old
PYTHONPATH=src:. python ../antembed/tests/compatibility/write.py ../antembed/tests/compatibility/d18518c.tar.xz
"""

import json
import sys
import tarfile
import tempfile
from pathlib import Path

import numpy as np
import polars as pl
import torch
from antembed.data.topics import write_topics
from antembed.serving import load_table
from tests.command import call, write_ratings
from tests.huggingface.models import logits, made

import antembed as ant
from antembed.compression import compress

STEPS = ("--epochs", 3, "--batch-size", 64, "--embedding-dim", 8, "--lr", 0.03, "--quiet")
TRAINED = {  # folder: task, data, options
    "axes": (
        "recommend",
        "ratings.csv",
        ("--solver", "coordinate_descent", "--embedding-dim", 8, "--tolerance", "5%", "--basis", "axes"),
    ),
    "ratings": (
        "recommend",
        "ratings.csv",
        ("--solver", "coordinate_descent", "--epochs", 4, "--anchors", "6,5", "--embedding-dim", 8, "--l0-penalty", 0.05),
    ),
    "stochastic": (
        "recommend",
        "ratings.csv",
        (*STEPS, "--anchors", "6,5", "--l1-penalty", 1e-4, "--beta2", 0.99, "--halve-every", 500),
    ),
    "events": (
        "recommend",
        "events.csv",
        (
            "--implicit",
            "--solver",
            "coordinate_descent",
            "--epochs",
            4,
            "--anchors",
            "6,5",
            "--embedding-dim",
            8,
            "--l0-penalty",
            0.05,
        ),
    ),
    "mean": ("classify", "texts.csv", (*STEPS, "--model", "mean", "--anchors", 5)),
    "ngrams": (
        "classify-ngrams",
        "texts.csv",
        (
            "--budget",
            "2KB",
        ),
    ),
    "language": ("language", "words.txt", (*STEPS, "--anchors", 5, "--sequence-length", 14)),
}


def users_with_vectors(run: Path) -> list[str]:
    """Two whose rows are not empty: others' lists are popularity here, and folded in since."""
    filled = np.abs(load_table(run / "users.ant")[:]).any(1)
    return pl.read_parquet(run / "users.labels.parquet").to_series().filter(pl.Series(filled)).to_list()[:2]


def tables(folder: Path, expected: dict) -> None:
    rng = np.random.default_rng(0)
    dense = rng.normal(size=(300, 4)) @ rng.normal(size=(4, 32)) + 0.1 * rng.normal(size=(300, 32))
    words = [f"w{n}" for n in range(300)]
    sparse = np.where(rng.random((300, 7)) < 0.3, rng.random((300, 7)), 0).astype(np.float32)
    layer = ant.AnchorEmbedding(300, 12, num_anchors=7)
    with torch.no_grad():
        layer.transform.copy_(torch.from_numpy(sparse))
    made = {
        "transform": compress(dense, vocabulary=words, budget="4x", method="transform"),
        "sparse": compress(dense, vocabulary=words, budget="5x", method="sparse"),
        "free": compress(dense, budget="2x"),
    }
    for name, table in made.items():
        table.save(folder / f"{name}.ant")
    for values in ("fp32", "fp16", "int8"):
        for encoding in ("auto", "plain", "bitmap", "csr", "packed"):
            try:
                made[f"{encoding}-{values}"] = ant.export(
                    layer, folder / f"{encoding}-{values}.ant", values=values, encoding=encoding
                )
            except (ValueError, TypeError) as error:
                print("not written:", encoding, values, error)
    for name, table in made.items():
        expected[f"table/{name}"] = np.asarray(table[:], np.float32)[::100].round(6).tolist()


def main() -> None:
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        write_ratings(home / "ratings.csv")
        rows = (home / "ratings.csv").read_text().splitlines()[1:4000]
        (home / "ratings.csv").write_text("user,item,rating\n" + "\n".join(rows))
        (home / "events.csv").write_text("user,item\n" + "\n".join(",".join(row.split(",")[:2]) for row in rows))
        write_topics(home / "texts.csv", 300, 60)
        rng = np.random.default_rng(1)
        (home / "words.txt").write_text("\n".join(" ".join(f"w{w}" for w in rng.zipf(1.5, 12) % 50) for _ in range(200)))
        expected: dict = {}
        for run, (task, data, options) in TRAINED.items():
            call("train", task, home / data, "--out", home / "runs" / run, "--seed", 0, *options)
            call("export", home / "runs" / run, home / "exports" / run)
            result = json.loads((home / "runs" / run / "result.json").read_text())
            expected[f"run/{run}"] = {"test": result["test"], "anchors": result["anchors"]}
            if task == "recommend":
                users = users_with_vectors(home / "runs" / run)
                expected[f"run/{run}"]["users"] = users
                expected[f"run/{run}"]["recommend"] = json.loads(call("recommend", home / "runs" / run, *users, "--json"))
                expected[f"run/{run}"]["export"] = json.loads(call("similar", home / "exports" / run, "3", "--json"))
            elif task != "language":
                (home / "ask.txt").write_text(
                    "\n".join(line.split(",", 1)[1] for line in (home / "texts.csv").read_text().splitlines()[1:9])
                )
                for kind in ("runs", "exports"):
                    answers = call("predict", home / kind / run, home / "ask.txt", "--json")
                    expected[f"{kind}/{run}"] = answers.splitlines()
        (home / "tables").mkdir()
        tables(home / "tables", expected)
        model = made("bert")
        ant.replace_embeddings(model, num_anchors=5)
        expected["hf/logits"] = logits(model)[:, :, :20].double().numpy().round(6).tolist()
        model.save_pretrained(home / "hf")
        for config in home.glob("runs/*/config.json"):  # the data are beside the runs, wherever that is
            config.write_text(config.read_text().replace(f"{home}/", ""))
        (home / "expected.json").write_text(json.dumps(expected))
        with tarfile.open(sys.argv[1], "w:xz") as archive:
            archive.add(home, ".")


if __name__ == "__main__":
    main()
