"""Races with a clock that the test turns."""

from itertools import accumulate
from subprocess import Popen

from experiments.race import Others, busy_processes, compare, rounded, take_turns

from experiments import race


def test_turns_medians_quartiles_and_limit():
    now = 0.0

    def contestant(*seconds):
        each = iter(seconds)

        def work():
            nonlocal now
            now += next(each)
            return 2

        return work

    contestants = {
        "ours": contestant(90, 2, 4, 2, 2, 4),
        "peer": contestant(90, 6, 6, 6, 6, 6),
        "limit": contestant(90, 1, 1, 1, 1, 1),
    }
    times = take_turns(contestants, 5, lambda: now)
    assert times["ours"] == [1, 2, 1, 1, 2]  # two units of work; the first turn does not count
    (row,) = compare(times, "ours", "limit", busy=1)
    assert (row["seconds"], row["peer_seconds"], row["ratio"]) == (1, 3, 3)
    assert row["quartiles"] == [1.5, 3]
    assert (row["limit_seconds"], row["share_of_limit"], row["busy_processes"]) == (0.5, 0.5, 1)
    assert "limit_seconds" not in compare(times, "ours")[0]


def test_numbers_are_rounded_to_what_a_clock_gives():
    assert rounded([0.0123456, 3, "x"]) == [0.01235, 3, "x"]


def test_contestants_take_turns_and_medians_count(monkeypatch):
    calls = []
    clock = iter(accumulate([0, 0, *(step for took in (60, 60, 1, 1, 2, 2) for step in (100, took))]))
    monkeypatch.setattr(race.take_turns, "__defaults__", (lambda: next(clock),))

    def contestant(name):
        def work():
            calls.append(name)
            return 10

        return work

    seconds = race.median_turns({"a": contestant("a"), "b": contestant("b")}, 3)
    assert calls == ["a", "b"] * 4  # the first turn warms up
    assert seconds == {"a": 0.2, "b": 0.2}  # two seconds for ten, the median of 1, 2 and 60


def test_busy_processes_are_beside_and_then_gone(monkeypatch):
    started = []
    monkeypatch.setattr(race.subprocess, "Popen", lambda *words: started.append(Popen(*words)) or started[-1])
    with busy_processes(2):
        assert [process.poll() for process in started] == [None, None]
    assert len(started) == 2
    assert all(process.poll() is not None for process in started)


def test_busy_processes_end(monkeypatch):
    started = []

    class Process:
        def __init__(self, command):
            started.append(self)
            self.calls = []

        def kill(self):
            self.calls.append("kill")

        def wait(self):
            self.calls.append("wait")

    monkeypatch.setattr("experiments.race.subprocess.Popen", Process)
    monkeypatch.setattr("experiments.race.time.sleep", lambda seconds: None)
    with busy_processes(2):
        assert [process.calls for process in started] == [[], []]
    assert [process.calls for process in started] == [["kill", "wait"]] * 2


def test_cores_of_others(monkeypatch):
    moments = iter([(10.0, 3.0), (14.0, 9.0)])
    monkeypatch.setattr(Others, "_now", staticmethod(lambda: next(moments)))
    assert Others()() == 1.5
