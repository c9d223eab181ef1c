"""Error against size: points are means over seeds, and the same records give the same picture."""

from pathlib import Path

from experiments.figures import draw_front, points
from experiments.recommendation_tables import front

from antembed.recommend.config import RatingsConfig
from antembed.sweep.front import mean_by_setting
from antembed.sweep.records import read_records
from antembed.train.options import from_options

RECORDS = Path(__file__).parents[2] / "results" / "front.jsonl"


def record(embedding, seed, mse, parameters, l0_penalty=1):
    options = {"data": f"{seed}.csv", "embedding": embedding, "solver": "coordinate_descent", "l0_penalty": l0_penalty}
    config = from_options(RatingsConfig, options | {"seed": seed, "threads": 1 + seed}).model_dump(mode="json")
    files = {kind: {"bytes": parameters, "test_mse": mse} for kind in ("fp16", "int8", "int8 packed")}
    sizes = {"parameters": parameters, "bytes": 4 * parameters, "seconds": 1, "quantized": files}
    return {"embedding": embedding, "config": config, "seed": seed, "test": {"mse": mse}, **sizes}


def test_points_are_means_over_seeds_by_size():
    records = [record("anchor", 0, 0.8, 2000), record("anchor", 1, 0.6, 1000), record("anchor", 0, 0.9, 500, l0_penalty=9)]
    assert points([*records, record("full", 0, 0.5, 9000)], "parameters") == {
        "anchor": [(500, 0.9), (1500, 0.7)],
        "full": [(9000, 0.5)],
    }
    *_, row = front(records).splitlines()
    options = "--anchors 15 --embedding-dim 16 --l0-penalty 1 --ridge 7 --ridge-per-rating 0.02"
    assert row == f"| anchor | 0.7000 ± 0.1000 | 1.5K | 6 kB | 2 kB | 1 s | `{options}` |"


def test_seeds_of_a_sweep_are_one_setting():
    rows = [record("anchor", seed, mse, 10) | {"settings": {}} for seed, mse in ((0, 0.5), (1, 0.7))]
    (found,) = mean_by_setting(rows, "test", "mse")
    assert (round(found["error"], 6), round(found["spread"], 6), found["seeds"]) == (0.6, 0.1, [0, 1])


def test_the_same_records_give_the_same_picture(tmp_path):
    records = read_records(RECORDS)
    for name in ("a.svg", "b.svg"):
        draw_front(records, tmp_path / "docs" / name)
    assert (tmp_path / "docs" / "a.svg").read_bytes() == (tmp_path / "docs" / "b.svg").read_bytes()
