"""Threads: what the process may use, and a barrier that frees those who wait and leaves them the cores."""

import os
import threading
import time

import numpy as np
import pytest

from antembed.native.threads import cpu_quota, usable_cpus
from antembed.native.vector import ARRIVED, ASLEEP, CANCELLED, FUTEX, LOOKS, PATIENCE, barrier, barrier_counter


def tree(root, cgroup, files):
    for name, text in {"proc/self/cgroup": cgroup, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return root


V1 = "3:cpuset:/\n2:cpu,cpuacct:/docker/abc\n1:memory:/x"


@pytest.mark.parametrize(
    ("cgroup", "files", "quota"),
    [
        ("0::/", {}, np.inf),
        ("0::/", {"cpu.max": "max 100000"}, np.inf),
        ("0::/", {"cpu.max": "150000 100000"}, 1.5),
        ("0::/a/b", {"a/b/cpu.max": "400000 100000", "a/cpu.max": "250000 100000"}, 2.5),
        ("0::/a/b", {"a/b/cpu.max": "50000 100000", "a/cpu.max": "max 100000"}, 0.5),
        ("0::/a", {"unified/a/cpu.max": "300000 100000"}, 3),
        ("0::/not/mounted", {"cpu.max": "300000 100000"}, 3),
        ("0::/", {"cpu.max": "rubbish"}, np.inf),
        (V1, {"cpu/docker/abc/cpu.cfs_quota_us": "-1", "cpu/docker/abc/cpu.cfs_period_us": "100000"}, np.inf),
        (V1, {"cpu/docker/abc/cpu.cfs_quota_us": "350000", "cpu/docker/abc/cpu.cfs_period_us": "100000"}, 3.5),
        (V1, {"cpu,cpuacct/cpu.cfs_quota_us": "100000", "cpu,cpuacct/cpu.cfs_period_us": "50000"}, 2),
    ],
)
def test_the_quota_is_the_least_of_those_above(cgroup, files, quota, tmp_path, monkeypatch):
    root = tree(tmp_path, cgroup, {f"sys/fs/cgroup/{name}": text for name, text in files.items()})
    assert cpu_quota(root) == quota
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 2, 5}, raising=False)
    assert usable_cpus(root) == max(1, int(min(quota, 3)))


def test_without_control_groups_all_cores_may_be_used(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert usable_cpus(tmp_path) == 7
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cpus(tmp_path) == 1


def waiting(counter, arrivals):
    """A thread at the barrier, and the list that its answer will be in."""
    found = []
    thread = threading.Thread(target=lambda: found.append(barrier(counter, arrivals)), daemon=True)
    thread.start()
    return thread, found


@pytest.mark.parametrize("looks", [0, 1 << 62], ids=["asleep", "looking round"])
@pytest.mark.parametrize("late", [False, True])
def test_who_waits_for_one_who_does_not_come_is_freed(looks, late):
    counter = barrier_counter()
    counter[LOOKS] = looks
    if not late:
        counter[ARRIVED] = CANCELLED
    threads = [waiting(counter, 3) for _ in range(2)]
    if late:
        while counter[ARRIVED] < 2:
            time.sleep(0.001)
        counter[ARRIVED] = CANCELLED
    for thread, found in threads:
        thread.join(60)
        assert found == [False]


@pytest.mark.skipif(not FUTEX, reason="there they sleep a moment at a time, and nobody counts them")
def test_who_waits_leaves_his_core_to_others():
    counter, patience = barrier_counter(), 60_000
    threads = [waiting(counter, 3) for _ in range(2)]
    while counter[ASLEEP] < 2 and patience:
        time.sleep(0.001)
        patience -= 1
    assert counter[ASLEEP] == 2
    assert barrier(counter, 3)
    for thread, found in threads:
        thread.join(60)
        assert found == [True]
    assert counter[ASLEEP] == 0
    assert counter[LOOKS] < PATIENCE  # who had to sleep looks round less the next time
