"""A process reads its own pieces of mapped examples, and has neither them nor their order in memory of its own."""

import os
import sys
import zlib
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from processes import errors, launch, succeed
from tests.command import write_ratings

from antembed.cli.train import read_together
from antembed.files import default_cache
from antembed.layer.sharded.collectives import Ranks
from antembed.recommend import read_ratings as reader
from antembed.train.examples import Examples
from antembed.train.processes import one_copy, share_rows
from antembed.train.registry import TASKS
from antembed.train.task import Splits

N, PIECES = 12_000_000, 8  # 4·N bytes are more than what malloc may keep for later (32 MiB)


def copies(ranks: Ranks, folder: Path) -> None:
    os.environ["ANTEMBED_CACHE"] = str(folder / "cache")
    made: list[int] = []

    def make() -> np.ndarray:
        made.append(1)
        return np.arange(10, dtype=np.int32)

    found = one_copy(ranks, make, 10, np.dtype(np.int32))
    assert np.array_equal(found, np.arange(10))
    assert len(made) == (1 if ranks.first else 0)
    assert not found.flags.writeable
    ranks.wait()  # the one that made it removes it
    assert not list((folder / "cache").iterdir())  # the mapping is all that is left
    assert len(one_copy(ranks, lambda: np.arange(0), 0, np.dtype(np.int64))) == 0


def test_one_process_of_a_machine_makes_an_array_that_all_map(tmp_path):
    succeed(copies, 3, tmp_path)


def no_cache(ranks: Ranks, folder: Path) -> None:
    os.environ["ANTEMBED_CACHE"] = str(folder / "file" / "cache")
    one_copy(ranks, lambda: np.arange(3), 3, np.dtype(np.int64))


def test_a_cache_that_cannot_be_written_is_an_error_everywhere(tmp_path):
    (tmp_path / "file").write_text("")
    assert launch(no_cache, 2, tmp_path) == [1, 1]
    for text in errors(tmp_path, 2):
        assert text.startswith("RankError: rank 0 could not write the order of the examples")
        assert text.endswith("set ANTEMBED_CACHE to another folder")


def without_shared_cache(ranks: Ranks, folder: Path, data: Path) -> None:
    """Two machines of two processes, each machine with a cache of its own."""
    machine, parsed, read = ranks.rank // 2, [], reader._RatingsFile.read
    os.environ["ANTEMBED_CACHE"] = str(folder / f"cache-{machine}")

    def counting(*args):
        parsed.append(1)
        return read(*args)

    with (
        mock.patch("socket.gethostname", return_value=f"machine-{machine}"),
        mock.patch.object(reader, "CACHED_FROM", 0),
        mock.patch.object(reader._RatingsFile, "read", counting),
    ):
        _, splits = read_together(TASKS["recommend"], {"data": str(data), "anchors": "4"}, ranks)
        share_rows(splits, ranks)
        train = splits.train
        order = one_copy(ranks, lambda: train.order(0, 1), len(train), train.rows.dtype)
    assert ranks.gather(torch.tensor(len(parsed))).view(2, 2).sum(1).tolist() == [1, 1]
    ranks.check_same({"data": int(splits.digest[:12], 16), "order": zlib.crc32(order.tobytes())}, "the same everywhere")


def test_without_a_shared_cache_each_machine_parses_once(tmp_path):
    succeed(without_shared_cache, 4, tmp_path, write_ratings(tmp_path / "ratings.csv"))


def private() -> int:
    """Bytes that no file has: of mapped files, what is private depends on who else has them open."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Anonymous"))


def epoch(splits: Splits, number: int, ranks: Ranks) -> int:
    """Fetch the pieces of this process; → the sum of their first column."""
    train, total = splits.train, 0
    order = one_copy(ranks, lambda: train.order(0, number), len(train), train.rows.dtype)
    for batch in train.in_order(order).pieces(100_000, PIECES):
        for piece in range(ranks.rank, len(batch.sizes), ranks.size):
            total += int(batch.fetch(piece)[0].sum())
    return total


def measured(ranks: Ranks, folder: Path) -> None:
    os.environ["ANTEMBED_CACHE"] = str(folder / "cache")
    columns = tuple(np.memmap(folder / "column", np.int32, "r", shape=(N,)) for _ in range(2))
    small = Splits(Examples(columns, np.arange(20_000, dtype=np.int32), threads=1))
    share_rows(small, ranks)
    epoch(small, 1, ranks)  # compiles
    before = private()
    splits = Splits(Examples(columns, np.arange(N, dtype=np.int32), threads=1))
    share_rows(splits, ranks)
    for number in (1, 2):
        own = epoch(splits, number, ranks)
        (folder / f"{ranks.rank}.{number}").write_text(str(own))
    assert default_cache() == folder / "cache"
    assert private() - before < 4 * N / 2, f"{private() - before} bytes for {N} examples"


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/smaps_rollup is Linux's")
def test_examples_and_their_order_are_nobodys_own(tmp_path):
    """The rows of a part and the order of an epoch are 4 bytes an example each, the columns 8: none of these is private."""
    np.arange(N, dtype=np.int32).tofile(tmp_path / "column")
    succeed(measured, 2, tmp_path)
    for number in (1, 2):  # together they have read each example once
        assert sum(int((tmp_path / f"{rank}.{number}").read_text()) for rank in range(2)) == N * (N - 1) // 2
