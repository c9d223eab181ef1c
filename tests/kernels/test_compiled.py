"""Machine code is kept by source and processor, written by one process; with bounds checks where they are asked for."""

import os
import subprocess
import sys
from pathlib import Path

import antembed
from antembed.kernels import compiled

CALL = """
import numpy as np
from antembed.kernels.groups import first_outside
from antembed.kernels.ids import count_digits
print(first_outside(np.array([1, 2, 9]), 5), count_digits.stats.cache_hits, sum(first_outside.stats.cache_hits.values()))
"""
OUTSIDE = """
import numpy as np
from antembed.kernels.compiled import compile_kernel

@compile_kernel(nogil=True, cache=False)
def read(a, n):
    return a[n]

print(read(np.arange(3), 7))
"""


def run(text, **environment):
    source = str(Path(antembed.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": source} | environment,
    )
    return done.returncode, done.stdout.split(), done.stderr


def test_a_second_process_finds_what_the_first_compiled(tmp_path):
    hits = []
    for _ in range(2):
        code, words, error = run(CALL, NUMBA_CACHE_DIR=str(tmp_path))
        assert code == 0, error
        hits.append(words[-1])
    assert hits == ["0", "1"]
    (folder,) = tmp_path.iterdir()
    assert folder.name == compiled.DIGEST
    assert not list(folder.rglob(".lock"))


def test_an_index_whose_data_were_never_written_is_no_harm(tmp_path):
    assert run(CALL, NUMBA_CACHE_DIR=str(tmp_path))[0] == 0
    for data in tmp_path.rglob("*.nbc"):
        data.unlink()  # killed between the two
    code, words, error = run(CALL, NUMBA_CACHE_DIR=str(tmp_path))
    assert (code, words[0], words[-1]) == (0, "2", "0"), error
    assert list(tmp_path.rglob("*.nbc"))


def test_processes_that_compile_at_once_do_not_mix_their_code(tmp_path):
    other = CALL.replace("[1, 2, 9]", "[1, 2, 9], np.int32")
    source = str(Path(antembed.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": source, "NUMBA_CACHE_DIR": str(tmp_path)}
    words = [[sys.executable, "-c", text] for text in (CALL, other, CALL, other)]
    started = [subprocess.Popen(each, env=environment, stdout=subprocess.PIPE, text=True) for each in words]
    assert [process.communicate()[0].split()[0] for process in started] == ["2"] * 4
    for text in (CALL, other):
        assert run(text, NUMBA_CACHE_DIR=str(tmp_path))[1][-1] == "1"


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "file").touch()
    code, words, error = run(CALL, NUMBA_CACHE_DIR=str(tmp_path / "file"))
    assert (code, words[0]) == (0, "2"), error


def test_bounds_are_checked_where_it_is_asked_for():
    code, _, error = run(OUTSIDE, ANTEMBED_BOUNDSCHECK="1")
    assert code == 1
    assert "IndexError" in error


def test_the_digest_follows_the_source(tmp_path, monkeypatch):
    (tmp_path / "a.py").write_text("1")
    monkeypatch.setattr(compiled, "HERE", tmp_path)
    before = compiled._digest()
    (tmp_path / "a.py").write_text("2")
    assert compiled._digest() != before
    monkeypatch.setattr(compiled, "BOUNDS_CHECKED", True)
    assert compiled._digest() != before
