"""Tables on labelled text: who is chosen by what, and the picture."""

import pytest
from experiments.figures import draw_text_front
from experiments.recommendation_tables import objective
from experiments.text_tables import (
    best_of,
    budgets,
    embeddings,
    front,
    front_points,
    knowledge,
    knowledge_of,
    large,
    quantized,
    step,
)

from antembed.classify.config import NgramConfig, TextConfig
from antembed.recommend.config import RatingsConfig
from antembed.train.options import from_options


def config(kind=TextConfig, **options):
    return from_options(kind, options).model_dump(mode="json")


def run(embedding, seed, validation, test, parameters, trial=0, words=1000):
    return {
        "model": "mean", "embedding": embedding, "seed": seed, "trial": {"l1_penalty": trial}, "words": words, "anchors": 3,
        "parameters": parameters, "validation": {"accuracy": validation}, "test": {"accuracy": test},
        "quantized": {"int8": {"bytes": 4000}}, "free_entries": 7,
    }  # fmt: skip


def test_trials_are_chosen_by_validation_among_those_that_fit():
    trials = [run("anchor", 0, 0.8, 0.9, 6000, 1), run("anchor", 0, 0.9, 0.5, 9000, 2), run("anchor", 0, 0.7, 0.9, 2000, 3)]
    assert best_of(trials, 40)["trial"] == {
        "l1_penalty": 1
    }  # 256·1000 / 40 = 6400: the better one is too large, and its test unseen
    assert best_of(trials, 100)["trial"] == {"l1_penalty": 3}
    assert best_of(trials, 1000) is None
    assert best_of([run("full", 0, 0.8, 0.9, 256_000)], 100) is not None


def test_the_table_has_means_over_the_seeds_of_the_chosen_trial():
    records = [run("anchor", 0, 0.8, 0.90, 6000, 1), run("anchor", 1, 0.8, 0.92, 5000, 1), run("anchor", 0, 0.7, 0.99, 50, 2)]
    rows = embeddings([], records).splitlines()
    assert rows[2:] == ["| anchored (ANT) | – | – | 91.00 ± 1.00 | 99.00 |"]


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"model": "mean"}, "no relations"),
        ({"model": "mean", "anchor_init": "frequency", "relations": "wordnet"}, "WordNet"),
        (
            {"model": "mean", "anchor_init": "frequency", "relations": "wordnet,cooccurrence", "unrelated_penalty": 0.1},
            "both, unrelated pairs apart",
        ),
        (
            {"model": "mean", "anchor_init": "frequency", "relations": "cooccurrence", "orthogonality_penalty": 0.1},
            "co-occurrence, orthogonal anchors",
        ),
        ({"anchor_init": "kmeans"}, "no relations, anchors from co-occurrence; the network"),
        (
            {"anchor_init": "kmeans", "vectors": "glove.txt"},
            "no relations, anchors from pretrained vectors; the network",
        ),
        ({"embedding": "full"}, "full table; the network"),
    ],
)
def test_knowledge_is_read_from_the_config(options, name):
    assert knowledge_of(config(**options)) == name


def test_knowledge_is_by_what_was_known():
    known = {"model": "mean", "anchor_init": "frequency", "relations": "wordnet,cooccurrence"}
    records = [run("anchor", s, 0.8, 0.9, 6000) | {"config": config(**known, seed=s)} for s in (0, 1)]
    assert knowledge(records).splitlines()[-1] == "| both | 7 | 80.00 | 90.00 ± 0.00 | 6.0K | 43 × | 2 |"


def test_quantized_tables_are_in_the_order_of_their_bytes():
    rows = [("full", "int8", 9000, 0.9), ("anchor", "int8", 2000, 0.8), ("full", "int8", 9000, 0.7)]
    records = [{"model": "mean", "embedding": e, "form": f, "bytes": b, "accuracy": a} for e, f, b, a in rows]
    assert quantized(records).splitlines()[2:] == [
        "| anchored (ANT) | int8 | – | – | 2 kB | 80.00 |",
        "| full table | int8 | – | – | 9 kB | 80.00 ± 10.00 |",
    ]


def test_of_large_files_the_newest_measurement_counts():
    reading = {"model": "reading, first time", "peak_gigabytes": 1.0, "seconds": 4.2, "megabytes_a_second": 20.0}
    records = [reading | {"seconds": 9}, {"model": "mean", "peak_gigabytes": 2.0, "seconds": 30.0}, reading]
    assert large(records).splitlines()[2:] == [
        "| reading, first time | 1.00 GB | 4 s | 20.0 MB/s |",
        "| `train classify --model mean` | 2.00 GB | 30 s | – |",
    ]


def test_steps_are_set_beside_their_peers():
    record = {
        "setting": "V=9", "milliseconds": {"plain": 30.0, "plain, dense Adam": 60.0, "full": 10.0},
        "ratios": {"full": {"plain": 3.0, "plain, dense Adam": 6.0}},
    }  # fmt: skip
    assert step([record]).splitlines()[-1] == "| full | 10 ms | 3 × | 6 × |"


def test_the_front_has_points_by_bytes(tmp_path):
    asked = {"part": "test", "model": "ngrams", "config": config(NgramConfig, budget="1KB")}
    ours = [asked | {"bytes": 990 + n, "accuracy": 0.8 + n / 100} for n in (0, 2)]
    lasso = {"part": "test", "model": "lasso", "orders": 1, "bits": 24, "C": 1, "bytes": 9000, "accuracy": 0.7}
    records = [*ours, lasso | {"bytes_packed": 500, "accuracy_packed": 0.6}, {"part": "validation"}]
    points = front_points(records)
    assert points["antembed, hashed n-grams"] == [(991, 81.0)]
    assert points["ℓ1 regression, words"] == [(9000, 70.0)]
    assert front(records).splitlines()[2].startswith("| 10 kB | 81.00 | 70.00 | 60.00 |")
    draw_text_front(records, tmp_path / "a.svg")
    assert (tmp_path / "a.svg").stat().st_size > 1000


def test_eq_5_by_the_anchors_asked_for():
    record = {"validation": {"mse": 0.8, "loss": 0.4}, "nnz": {"users": 10, "items": 20}, "anchors": {"users": 1, "items": 2}}
    records = [
        record | {"seconds": 5, "config": config(RatingsConfig, anchors=3)},
        record | {"seconds": 5, "config": config(RatingsConfig, anchors="auto"), "validation": {"mse": 0.6, "loss": 0.3}},
    ]
    rows = objective(records, anchor_penalty=0.01, l0_penalty=0.001).splitlines()
    assert rows[2] == "| nbANT | 0.3570 | 0.6000 | 30 | 1/2 | 5.0 s | 1 |"
    assert rows[3].startswith("| 3/3 | 0.4570 |")


def test_budgets_are_beside_penalties_set_by_hand_by_size():
    rows = [(900, {"l1_penalty": 1e-3, "polish": 0.2}), (700, {"l1_penalty": 2.0}), (500, {"budget": "1KB", "l1_penalty": 9})]
    records = [
        run("anchor", 0, 0.8, 0.9, 60)
        | {"config": config(**options), "quantized": {"int8 packed": {"bytes": size, "test_accuracy": 0.7}}}
        for size, options in rows
    ]
    assert budgets(records).splitlines()[2:] == [
        "| `--budget 1KB` | 0.5 kB | 60 | 80.00 | 70.00 |",
        "| `--l1-penalty 2` | 0.7 kB | 60 | 80.00 | 70.00 |",
        "| `--l1-penalty 0.001 --polish 0.2` | 0.9 kB | 60 | 80.00 | 70.00 |",
    ]
