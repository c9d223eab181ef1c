"""Error against size: points are means over seeds, and the same records give the same picture."""

from pathlib import Path

from antembed.reporting import read_records
from antembed.reporting.front import draw, points
from antembed.reporting.readme import front

RECORDS = Path(__file__).parents[1] / "results" / "front.jsonl"


def record(embedding, seed, mse, parameters, price=1):
    command = f"antembed train recommend r.csv --price {price} --seed {seed} --out runs/{seed}"
    files = {kind: {"bytes": parameters, "test_mse": mse} for kind in ("fp16", "int8", "int8 packed")}
    sizes = {"parameters": parameters, "bytes": 4 * parameters, "seconds": 1, "smaller_files": files}
    return {"embedding": embedding, "command": command, "test": {"mse": mse}, **sizes}


def test_points_are_means_over_seeds_by_size():
    records = [record("anchor", 0, 0.8, 2000), record("anchor", 1, 0.6, 1000), record("anchor", 0, 0.9, 500, price=9)]
    assert points([*records, record("full", 0, 0.5, 9000)], "parameters") == {
        "anchor": [(500, 0.9), (1500, 0.7)],
        "full": [(9000, 0.5)],
    }
    *_, row = front(records).splitlines()
    assert row == "| anchor | 0.7000 ± 0.1000 | 1.5K | 6 kB | 1 s | 2 | `--price 1` |"


def test_the_same_records_give_the_same_picture(tmp_path):
    records = read_records(RECORDS)
    for name in ("a.svg", "b.svg"):
        draw(records, tmp_path / "docs" / name)
    assert (tmp_path / "docs" / "a.svg").read_bytes() == (tmp_path / "docs" / "b.svg").read_bytes()
