"""The picture of the cost model: the same records give the same one, and it is the one in docs/."""

from pathlib import Path

from experiments.figures import draw_cost

from antembed.sweep.records import read_records

ROOT = Path(__file__).parents[2]


def test_the_same_records_give_the_same_picture(tmp_path):
    records = read_records(ROOT / "results" / "distributed.jsonl")
    for name in ("a.svg", "b.svg"):
        draw_cost(records, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert "distributed-cost.svg" in (ROOT / "docs" / "results" / "distributed.md").read_text()
    assert (ROOT / "docs" / "results" / "distributed-cost.svg").exists()
