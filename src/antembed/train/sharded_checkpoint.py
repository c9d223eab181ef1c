"""Checkpoints of processes that share tables: safetensors that torch.distributed.checkpoint reads and cuts anew.

A checkpoint NAME is a folder NAME-NUMBER with one file a process and about.json (shapes and plain data), and NAME.json that
says which number counts. That file is replaced last, so a checkpoint is complete or not there. The files are those of torch's
HuggingFaceStorageWriter, written in blocks: its own way needs two more copies of the rows in memory. about.json has the
checksum of each of them, NAME.json that of about.json; all are compared before anything is loaded.
"""

import json
import shutil
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint import HuggingFaceStorageReader
from torch.distributed.checkpoint._hf_utils import CUSTOM_METADATA_KEY, SAVED_OFFSETS_KEY
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.optim import Optimizer
from typing_extensions import Buffer

from antembed.files import JSON, write_atomically
from antembed.layer.sharded.collectives import RankError, Ranks
from antembed.layer.sharded.sharded_embedding import sharded_tables
from antembed.layer.sharded.sharded_table import Spread
from antembed.train.checkpoint import KINDS, Checkpoint, CheckpointError, capture, in_blocks, restore

ABOUT = "about.json"
PIECE = 1 << 22  # bytes
DTYPES = {name: kind for kind, name in KINDS.items()}


class ShardedStorage:
    """Reads and writes checkpoints of a model with shared tables (and its optimizer); called by all processes."""

    def __init__(self, ranks: Ranks, model: nn.Module, optimizer: Optimizer | None = None):
        self.ranks, self.model, self.optimizer = ranks, model, optimizer

    def exists(self, path: Path) -> bool:
        return bool(self.ranks.from_first({"found": _pointer(path).is_file()})["found"])

    def save(self, path: Path, checkpoint: Checkpoint) -> None:
        """Every process writes its rows; then the checkpoint counts, and the one before is removed."""
        number = self.ranks.from_first({"number": _begin(path) if self.ranks.first else 0})["number"]
        folder, rows = _folder(path, number), self._rows_of(checkpoint.tensors)
        own: dict[str, Tensor] = {}
        offsets: JSON = {}
        for name, tensor in checkpoint.tensors.items():
            if tensor.numel() and (name in rows or self.ranks.first):
                own[name] = _listed(tensor)
                first = Spread(rows[name], self.ranks.size).range(self.ranks.rank)[0] if name in rows else 0
                offsets[name] = {SAVED_OFFSETS_KEY: [first, *[0] * (own[name].dim() - 1)]}
        about = {CUSTOM_METADATA_KEY: json.dumps(offsets)}
        write_atomically(folder / _file(self.ranks.rank), contents := Summed(in_blocks(own, about)))
        sums = self.ranks.gather(torch.tensor(contents.sum)).tolist()  # and all have written
        if self.ranks.first:
            shapes: JSON = {}
            for name, tensor in checkpoint.tensors.items():
                shape = [rows[name], *tensor.shape[1:]] if name in rows else list(tensor.shape)
                shapes[name] = {"shape": shape, "dtype": KINDS[tensor.dtype], "rows": name in rows}
            packed = json.dumps({"tensors": shapes, "plain": checkpoint.plain, "sums": sums}).encode()
            write_atomically(folder / ABOUT, packed)
            write_atomically(_pointer(path), json.dumps({"number": number, "sum": zlib.crc32(packed)}).encode())
            for other in path.parent.glob(f"{path.stem}-[0-9]*/"):
                if other != folder:
                    shutil.rmtree(other)
        self.ranks.wait()

    def load(self, path: Path) -> Checkpoint:
        """What was saved, with the rows of this process, whatever the number of processes that saved it."""
        found = self.ranks.from_first(_about(path) if self.ranks.first else None)
        if "error" in found:
            raise CheckpointError(found["error"])
        folder = _folder(path, found["number"])
        self._compare(folder, found["sums"])
        tensors, labelled = {}, {}
        for name, about in found["tensors"].items():
            shape, kind = list(about["shape"]), DTYPES[about["dtype"]]
            start, stop = Spread(shape[0], self.ranks.size).range(self.ranks.rank) if about["rows"] else (0, 0)
            tensors[name] = torch.empty([stop - start, *shape[1:]] if about["rows"] else shape, dtype=kind)
            if torch.Size(shape).numel():
                labelled[name] = self._label(tensors[name], shape[0] if about["rows"] else None)
        with self.ranks.reporting(f"reading {folder.name}"), _quiet():
            dcp.load(labelled, storage_reader=HuggingFaceStorageReader(str(folder)), process_group=self.ranks.group)
        return Checkpoint(tensors, found["plain"])

    def _compare(self, folder: Path, sums: list[int]) -> None:
        """Raise everywhere if the checksum of a file is another one. Each process reads some of the files."""
        wrong = [-1, 0]
        for number in range(self.ranks.rank, len(sums), self.ranks.size):
            if (found := _sum_of(folder / _file(number))) != sums[number]:
                wrong = [number, found]
        for number, found in self.ranks.gather(torch.tensor(wrong)).tolist():
            if number >= 0:
                what = "is missing" if found < 0 else f"is damaged: its checksum is {found:08x}, expected {sums[number]:08x}"
                raise CheckpointError(f"{folder / _file(number)} {what}; copy the checkpoint again, or start the run anew")

    def _label(self, tensor: Tensor, rows: int | None) -> Tensor:
        """Say which part of the tensor this is. Without its shape, parts of unequal length would overlap."""
        if rows is None:
            return _listed(tensor)
        shape = torch.Size([rows, *tensor.shape[1:]])
        mesh = DeviceMesh.from_group(self.ranks.group, "cpu")
        stride = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(tensor, mesh, [Shard(0)], run_check=False, shape=shape, stride=stride)

    def _rows_of(self, names: Mapping[str, Tensor]) -> dict[str, int]:
        """Tensors with one row a row of a shared table, and how many rows it has in all processes."""
        tables = {f"{name}.weight".lstrip("."): table for name, table in sharded_tables(self.model).items()}
        found = {f"{kind}/{name}": table.num_embeddings for name, table in tables.items() for kind in ("model", "extra/mean")}
        for name in names:
            for weight, table in tables.items():  # anchors that growth has removed
                if name.startswith(f"extra/removed/{weight.removesuffix('.rows.weight')}/T/"):
                    found[name] = table.num_embeddings
        groups = [] if self.optimizer is None else self.optimizer.param_groups
        for index, weight in enumerate(weight for group in groups for weight in group["params"]):
            for table in tables.values():
                if weight is table.weight:
                    own = [name for name in names if name.startswith(f"optimizer/{index}/")]
                    found |= dict.fromkeys(own, table.num_embeddings)
        return {name: rows for name, rows in found.items() if name in names}


def save(path: str | Path, model: nn.Module, optimizer: Optimizer | None = None, progress: JSON | None = None) -> None:
    """Write model, optimizer and `progress` (plain data) as a checkpoint that any number of processes can load."""
    ShardedStorage(Ranks(), model, optimizer).save(Path(path), capture(model, optimizer, progress))


def load(path: str | Path, model: nn.Module, optimizer: Optimizer | None = None) -> JSON:
    """Read a checkpoint of `save` into a model of the same make; → its `progress`."""
    return restore(ShardedStorage(Ranks(), model, optimizer).load(Path(path)), model, optimizer)


class Summed:
    """Blocks of a file, and, once they have been taken, the checksum of all of them."""

    def __init__(self, blocks: Iterable[Buffer]):
        self.blocks, self.sum = blocks, 0

    def __iter__(self) -> Iterator[Buffer]:
        for block in self.blocks:
            self.sum = zlib.crc32(block, self.sum)
            yield block


def _sum_of(file: Path) -> int:
    """The checksum of a file, −1 if there is none."""
    if not file.is_file():
        return -1
    found = 0
    with file.open("rb") as opened:
        while block := opened.read(PIECE):
            found = zlib.crc32(block, found)
    return found


def _file(rank: int) -> str:
    return f"rank-{rank:05d}.safetensors"


def _listed(tensor: Tensor) -> Tensor:
    """A single number as a list of one, which the reader can cut."""
    return tensor.detach().reshape(1) if tensor.dim() == 0 else tensor.detach()


def _pointer(path: Path) -> Path:
    return path.with_suffix(".json")


def _folder(path: Path, number: int) -> Path:
    return path.with_name(f"{path.stem}-{number:06d}")


def _begin(path: Path) -> int:
    """The number of the next checkpoint; what a killed process has left of it is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    number = 1 + (int(json.loads(_pointer(path).read_text())["number"]) if _pointer(path).is_file() else 0)
    shutil.rmtree(_folder(path, number), ignore_errors=True)
    _folder(path, number).mkdir()
    return number


def _about(path: Path) -> JSON:
    try:
        pointer = json.loads(_pointer(path).read_text())
        number, file = int(pointer["number"]), _folder(path, int(pointer["number"])) / ABOUT
        packed = file.read_bytes()
        if (found := zlib.crc32(packed)) != pointer["sum"]:
            wrong = f"its checksum is {found:08x}, {_pointer(path).name} says {pointer['sum']:08x}"
            return {"error": f"{file} is damaged: {wrong}; copy the checkpoint again, or start the run anew"}
        about: JSON = json.loads(packed)
        return {"number": number, "tensors": about["tensors"], "plain": about["plain"], "sums": about["sums"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        return {"error": f"{path} is no checkpoint of several processes ({error}); start the run anew"}


@contextmanager
def _quiet() -> Iterator[None]:
    """torch warns of its own storage classes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", UserWarning)
        try:
            yield
        except dcp.CheckpointException as error:
            raise RankError(str(error).splitlines()[0]) from error
