"""Machine code is kept by source and processor, written by one process; with bounds checks where they are asked for."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import antembed
from antembed.native import compile as compiled

CALL = """
import numpy as np
from antembed.native.random_bits import uniform_below
print(int(uniform_below(np.uint64(1 << 63), 5)), sum(uniform_below.stats.cache_hits.values()))
"""
OUTSIDE = """
import numpy as np
from antembed.native.compile import compile_kernel

@compile_kernel(nogil=True, cache=False)
def read(a, n):
    return a[n]

print(read(np.arange(3), 7))
"""


def run(text, umask=-1, **environment):
    source = str(Path(antembed.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", text],
        umask=umask,
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
    kept = {folder.name for folder in tmp_path.iterdir()}
    assert compiled.kept_in(compiled.HERE / "random_bits.py") in kept
    assert not list(tmp_path.rglob(".lock"))


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such bits")
def test_what_is_kept_is_private_whatever_the_mask_of_the_process(tmp_path):
    assert [run(CALL, umask=0, NUMBA_CACHE_DIR=str(tmp_path / "code"))[1][-1] for _ in range(2)] == ["0", "1"]
    assert {folder.stat().st_mode & 0o777 for folder in (tmp_path / "code").rglob("*") if folder.is_dir()} == {0o700}


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


def test_a_copy_of_the_source_uses_what_is_compiled(tmp_path):
    assert run(CALL, NUMBA_CACHE_DIR=str(tmp_path / "code"))[1][-1] == "0"
    shutil.copytree(Path(antembed.__file__).parent, tmp_path / "copy" / "antembed")
    there = {"PYTHONPATH": str(tmp_path / "copy"), "NUMBA_CACHE_DIR": str(tmp_path / "code")}
    code, words, error = run(CALL, **there)
    assert (code, words[-1]) == (0, "1"), error


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "file").touch()
    code, words, error = run(CALL, NUMBA_CACHE_DIR=str(tmp_path / "file"))
    assert (code, words[0]) == (0, "2"), error
    assert error.count("kernels are compiled in memory") == 1


def untrusted(how, folder):
    """Make the folder one that others could have written."""
    if how == "open":
        folder.chmod(0o777)
    elif how == "link":
        folder.rename(folder.with_name("elsewhere"))
        folder.symlink_to("elsewhere")
    else:
        os.chown(folder, 12345, 12345)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no owners of this kind")
@pytest.mark.parametrize("how", ["open", "link", "foreign"])
@pytest.mark.parametrize("variable", ["NUMBA_CACHE_DIR", "ANTEMBED_CACHE", "XDG_CACHE_HOME"])
def test_machine_code_is_kept_only_in_a_folder_that_nobody_else_can_write(tmp_path, monkeypatch, how, variable):
    if how == "foreign" and os.getuid() != 0:
        pytest.skip("only root can give a folder to another user")
    named = tmp_path / "cache"
    folder = named / {"NUMBA_CACHE_DIR": "", "ANTEMBED_CACHE": "kernels", "XDG_CACHE_HOME": "antembed/kernels"}[variable]
    monkeypatch.setattr(compiled, "HERE", tmp_path / "source")
    (tmp_path / "source").touch()  # nothing can be kept beside it
    monkeypatch.setattr(compiled.config, "CACHE_DIR", str(named) if variable == "NUMBA_CACHE_DIR" else "")
    for name in ("ANTEMBED_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(named) if variable == name else "")
    assert compiled._own_folder() == (folder.resolve(), "")
    untrusted(how, folder)
    found, why = compiled._own_folder()
    assert found is None
    assert why.startswith(str(folder))
    assert {"open": "can be written by others", "link": "is a symbolic link", "foreign": "belongs to user 12345"}[how] in why


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such bits")
def test_where_others_can_write_kernels_are_compiled_in_memory_and_a_line_says_so(tmp_path):
    tmp_path.chmod(0o777)
    code, words, error = run(CALL, NUMBA_CACHE_DIR=str(tmp_path))
    assert (code, words[0], words[-1]) == (0, "2", "0"), error
    assert error.count("kernels are compiled in memory") == 1
    assert f"{tmp_path} can be written by others (mode 777" in error
    assert "set NUMBA_CACHE_DIR to a folder of your own" in error
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such bits")
def test_source_that_others_can_write_does_not_keep_machine_code(tmp_path, monkeypatch):
    monkeypatch.setattr(compiled, "HERE", tmp_path / "source")
    monkeypatch.setattr(compiled.config, "CACHE_DIR", "")
    monkeypatch.setenv("ANTEMBED_CACHE", str(tmp_path / "cache"))
    (tmp_path / "source").mkdir()
    assert compiled._folder() == (tmp_path / "source" / "__pycache__").resolve()
    (tmp_path / "source").chmod(0o777)
    assert compiled._folder() == (tmp_path / "cache" / "kernels").resolve()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such bits")
def test_a_folder_of_the_cache_that_others_can_write_is_not_used_either(tmp_path):
    assert run(CALL, NUMBA_CACHE_DIR=str(tmp_path))[0] == 0
    (index, *_) = tmp_path.rglob("*.nbi")
    index.parent.chmod(0o777)
    code, words, error = run(CALL, NUMBA_CACHE_DIR=str(tmp_path))
    assert (code, words[-1]) == (0, "0")
    assert f"{index.parent} can be written by others" in error


def test_bounds_are_checked_where_it_is_asked_for():
    code, _, error = run(OUTSIDE, ANTEMBED_BOUNDSCHECK="1")
    assert code == 1
    assert "IndexError" in error


def test_the_digest_follows_the_source(tmp_path, monkeypatch):
    """Of a file, of the kernel files and those of native/ that it names, and of what those name; not of others."""
    names = ("a_kernel", "b_kernel", "c_kernel", "d_kernel", "vector", "threads")
    files = {name: tmp_path / f"{name}.py" for name in names}
    texts = "import b_kernel", "import c_kernel", "from antembed.native.vector import dot", "2", "3", "4"
    for file, text in zip(files.values(), texts, strict=True):
        file.write_text(text)
    monkeypatch.setattr(compiled, "KERNELS", {name: files[name] for name in names[:4]})
    monkeypatch.setattr(compiled, "HERE", tmp_path)

    def digest():
        compiled.digest.cache_clear()
        return compiled.digest(files["a_kernel"])

    seen = {digest()}
    for name in ("d_kernel", "threads"):
        files[name].write_text("5")
        assert digest() in seen
    for name in ("a_kernel", "b_kernel", "c_kernel", "vector"):
        files[name].write_text(files[name].read_text() + "  # changed")
        assert digest() not in seen
        seen.add(digest())
    monkeypatch.setattr(compiled, "BOUNDS_CHECKED", not compiled.BOUNDS_CHECKED)
    assert digest() not in seen
    compiled.digest.cache_clear()


def test_what_is_compiled_is_known_before_it_is_called(tmp_path):
    text = """
import numpy as np
from antembed.native.compile import is_compiled
from antembed.native.random_bits import uniform_below
print(is_compiled(uniform_below))
uniform_below(np.uint64(1 << 63), 5)
print(is_compiled(uniform_below))
"""
    assert [run(text, NUMBA_CACHE_DIR=str(tmp_path))[1] for _ in range(2)] == [["False", "True"], ["True", "True"]]
