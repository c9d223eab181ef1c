"""Damaged checkpoints, configs, logs, caches and label files are refused in one line, or change nothing."""

from tests.run_mutations import Runs

COUNT = 60  # `make fuzz` tries 2 000


def test_mutated_runs_and_caches(tmp_path, monkeypatch):
    monkeypatch.setenv("ANTEMBED_CACHE", str(tmp_path / "cache"))
    runs = Runs(tmp_path)
    found = [(number, *runs.mutated(number, seed=7)) for number in range(COUNT)]
    assert [row for row in found if row[-1] not in ("refused", "same", "other, forged")] == []
    assert sum(row[-1] == "refused" for row in found) > COUNT // 3
