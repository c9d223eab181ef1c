"""Files that are whole or not there, locks, and logs that survive a crash."""

import json
import os
import signal
import socket
import subprocess
import sys

import pytest

from antembed.files import (
    TEMPORARY,
    LockedError,
    append_json,
    is_temporary,
    locked,
    read_json_lines,
    write_atomically,
)

HOLD = """
import sys, time
from pathlib import Path
from antembed.files import locked, replacing
path = Path(sys.argv[2])
with locked(path, "the run") if sys.argv[1] == "lock" else replacing(path) as file:
    print("inside", flush=True)
    time.sleep(600)
"""


def holding(how, path):
    """A process inside `locked` or `replacing`."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, how, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "inside\n"
    return process


def killed(process):
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()


def take(lock):
    with locked(lock, "runs/a"):
        pass


def test_the_next_write_removes_what_a_killed_one_left(tmp_path):
    killed(holding("write", tmp_path / "a[1].json"))
    (left,) = tmp_path.iterdir()
    assert is_temporary(left)
    for other in (".a[1].json.mine", ".env.local", ".b.json.x" + TEMPORARY):
        (tmp_path / other).write_text("mine")
    write_atomically(tmp_path / "a[1].json", b"{}")
    assert {file.name for file in tmp_path.iterdir()} == {"a[1].json", ".a[1].json.mine", ".env.local", ".b.json.x" + TEMPORARY}


def test_the_file_of_a_living_process_is_left_alone(tmp_path):
    process = holding("write", tmp_path / "a.json")
    write_atomically(tmp_path / "a.json", b"{}")
    assert sum(map(is_temporary, tmp_path.iterdir())) == 1
    killed(process)


def test_a_failed_write_leaves_the_old_file(tmp_path):
    write_atomically(tmp_path / "a", b"old")
    with pytest.raises(TypeError):
        write_atomically(tmp_path / "a", iter([b"new", 3]))
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"old"]


def test_a_second_process_is_told_who_is_there_and_a_killed_one_leaves_no_lock(tmp_path):
    lock = tmp_path / ".lock"
    process = holding("lock", lock)
    with pytest.raises(LockedError, match=f"runs/a is in use by process {process.pid} on {socket.gethostname()}; wait for it"):
        take(lock)
    killed(process)
    assert lock.exists()
    with locked(lock, "runs/a"):
        assert json.loads(lock.read_text())["pid"] == os.getpid()
    assert not lock.exists()


def test_the_lock_of_another_host_stays(tmp_path):
    lock = tmp_path / ".lock"
    lock.write_text(json.dumps({"pid": 7, "host": "elsewhere"}))
    with pytest.raises(LockedError, match=r"was in use by process 7 on elsewhere.*if it has ended, delete .*\.lock"):
        take(lock)
    assert lock.exists()
    lock.write_text("no JSON")
    take(lock)


def test_waiting_for_a_lock(tmp_path):
    count = """
import sys, time
from pathlib import Path
from antembed.files import locked
number = Path(sys.argv[2])
for _ in range(30):
    with locked(Path(sys.argv[1]), "the number", wait=True):
        n = int(number.read_text())
        time.sleep(0.001)
        number.write_text(str(n + 1))
"""
    (tmp_path / "number").write_text("0")
    words = [sys.executable, "-c", count, str(tmp_path / ".lock"), str(tmp_path / "number")]
    processes = [subprocess.Popen(words) for _ in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert (tmp_path / "number").read_text() == "90"


def test_a_log_is_read_from_its_end(tmp_path):
    log = tmp_path / "log.jsonl"
    row = {"text": "x" * 200_000}
    for _ in range(3):
        append_json(log, row)
    with open(log, "ab") as file:
        file.write(b'{"half": ')
    append_json(log, {"n": 1})
    assert read_json_lines(log) == [row] * 3 + [{"n": 1}]
    log.write_bytes(log.read_bytes()[:-1])
    append_json(log, {"n": 2})
    assert read_json_lines(log)[-2:] == [{"n": 1}, {"n": 2}]


def test_what_is_no_log_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("the last line has no end")
    with pytest.raises(ValueError, match="ends with b'the last line has no end', which is no row of records"):
        append_json(tmp_path / "thesis.txt", {})
    assert (tmp_path / "thesis.txt").read_text() == "the last line has no end"
    with pytest.raises(OSError, match="/dev/full is no file"):
        append_json("/dev/full", {})
