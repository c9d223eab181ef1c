"""Files that are whole or not there, locks, and logs that survive a crash."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from antembed import files
from antembed.files import (
    TEMPORARY,
    LockedError,
    append_json,
    default_cache,
    is_temporary,
    locked,
    private_folder,
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


posix = pytest.mark.skipif(os.name == "nt", reason="Windows has no owners of this kind")
root = pytest.mark.skipif(os.name == "nt" or os.getuid() != 0, reason="only root can give a folder to another user")
OTHER = 12345  # another user


@posix
def test_a_private_folder_is_made_for_the_user_alone(tmp_path):
    before = os.umask(0)
    try:
        made = private_folder(tmp_path / "a" / "b")
    finally:
        os.umask(before)
    assert made == (tmp_path / "a" / "b").resolve()
    assert [folder.stat().st_mode & 0o777 for folder in (made, made.parent)] == [0o700, 0o700]
    assert private_folder(made) == made


@posix
@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777, 0o702])
def test_a_folder_that_others_can_write_is_not_private(tmp_path, mode):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(mode)
    with pytest.raises(PermissionError, match=rf"open can be written by others \(mode {mode:o}; `chmod go-w` would forbid it"):
        private_folder(tmp_path / "open")


@posix
def test_others_could_replace_a_folder_in_an_open_one_unless_it_is_sticky(tmp_path):
    (tmp_path / "open" / "own").mkdir(parents=True)
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(PermissionError, match=r"open can be written by others \(mode 777"):
        private_folder(tmp_path / "open" / "own")
    (tmp_path / "open").chmod(0o1777)
    assert private_folder(tmp_path / "open" / "own").name == "own"


@root
def test_a_folder_of_another_user_is_not_private(tmp_path):
    (tmp_path / "theirs" / "own").mkdir(parents=True)
    os.chown(tmp_path / "theirs", OTHER, OTHER)
    for folder in ("theirs", "theirs/own", "theirs/new"):
        with pytest.raises(PermissionError, match=rf"theirs belongs to user {OTHER}, not to 0"):
            private_folder(tmp_path / folder)
    assert not (tmp_path / "theirs" / "new").exists()


@posix
def test_a_link_in_the_place_of_a_folder_is_refused_but_own_links_lead_to_it(tmp_path):
    (tmp_path / "real" / "own").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(PermissionError, match="link is a symbolic link"):
        private_folder(tmp_path / "link")
    assert private_folder(tmp_path / "link" / "own") == (tmp_path / "real" / "own").resolve()
    (tmp_path / "real").chmod(0o777)
    with pytest.raises(PermissionError, match="real can be written by others"):
        private_folder(tmp_path / "link" / "own")


@posix
def test_every_link_on_the_way_is_looked_at(tmp_path):
    (tmp_path / "real" / "own").mkdir(parents=True)
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "second").symlink_to("../real")
    (tmp_path / "first").symlink_to(tmp_path / "open" / "second")
    assert private_folder(tmp_path / "first" / "own") == (tmp_path / "real" / "own").resolve()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(PermissionError, match="open can be written by others"):
        private_folder(tmp_path / "first" / "own")
    (tmp_path / "round").symlink_to("round")
    with pytest.raises(OSError, match="more than 40 symbolic links"):
        private_folder(tmp_path / "round" / "own")


@root
def test_a_link_of_another_user_is_not_followed(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    os.chown(tmp_path / "link", OTHER, OTHER, follow_symlinks=False)
    with pytest.raises(PermissionError, match=rf"link belongs to user {OTHER}, not to 0"):
        private_folder(tmp_path / "link" / "own")


@pytest.fixture
def homeless(tmp_path, monkeypatch):
    """A user without a home folder; the temporary folder."""

    def home():
        raise RuntimeError

    for name in ("ANTEMBED_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", home)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    files._temporary_cache.cache_clear()
    yield tmp_path
    files._temporary_cache.cache_clear()


@posix
def test_without_a_home_folder_each_user_has_a_private_cache(homeless):
    assert default_cache() == (homeless / f"antembed-{os.getuid()}").resolve()
    assert default_cache().stat().st_mode & 0o777 == 0o700


@posix
@pytest.mark.parametrize("how", ["open", "link", pytest.param("foreign", marks=root)])
def test_a_cache_that_somebody_else_has_made_first_is_not_used(homeless, how, caplog):
    taken = homeless / f"antembed-{os.getuid()}"
    (homeless / "elsewhere").mkdir()
    taken.symlink_to("elsewhere") if how == "link" else taken.mkdir()
    if how == "open":
        taken.chmod(0o777)
    elif how == "foreign":
        os.chown(taken, OTHER, OTHER)
    found = default_cache()
    assert found == default_cache()
    assert found not in (taken, homeless / "elsewhere")
    assert found.stat().st_mode & 0o777 == 0o700
    (said,) = caplog.messages
    assert str(taken) in said
    assert "set ANTEMBED_CACHE to a folder of your own" in said
