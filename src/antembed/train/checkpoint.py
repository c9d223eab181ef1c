"""Model, optimizer and progress in one safetensors file: tensors as tensors, numbers as JSON in its header. No pickle."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import safetensors
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import Buffer

from antembed.files import JSON, write_atomically
from antembed.layer.sharded.collectives import Ranks
from antembed.tables import container

PIECE = 1 << 18  # rows
CUDA = "random cuda/"  # and the number of a GPU: its random state
KINDS = {torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32", torch.float64: "F64", torch.bool: "BOOL",
         torch.int8: "I8", torch.int16: "I16", torch.int32: "I32", torch.int64: "I64", torch.uint8: "U8"}  # fmt: skip


class CheckpointError(ValueError):
    """A checkpoint that cannot be read or does not fit."""


@dataclass(frozen=True)
class Checkpoint:
    """Tensors by name, and plain data."""

    tensors: dict[str, Tensor]
    plain: JSON = field(default_factory=dict)

    def array(self, name: str, *shape: int | None) -> np.ndarray:
        """A tensor of finite float64 numbers, of this shape (None: of any length), for compiled code that trusts it."""
        found = self.tensors.get(name)
        if found is None:
            raise CheckpointError(f"the checkpoint has no {name}; start the run anew")
        fits = found.dim() == len(shape) and all(n in (None, m) for n, m in zip(shape, found.shape, strict=True))
        if not fits or found.dtype != torch.float64:
            wanted = tuple("any" if n is None else n for n in shape)
            raise CheckpointError(
                f"{name} of the checkpoint is {tuple(found.shape)} of {found.dtype}, expected {wanted} of float64; start anew"
            )
        if not bool(found.isfinite().all()):
            raise CheckpointError(f"{name} of the checkpoint has numbers that are not finite; start the run anew")
        return found.numpy().copy()

    def part(self, prefix: str) -> dict[str, Tensor]:
        return with_prefix(self.tensors, prefix)


def with_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin so, without that."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


@dataclass(frozen=True)
class RowBlocks:
    """A matrix that is written block by block, twice: for its checksum, and for its bytes."""

    dtype: torch.dtype
    shape: tuple[int, int]
    blocks: Callable[[], Iterator[Tensor]]


NO_ROWS: Mapping[str, RowBlocks] = {}


def capture(
    model: nn.Module, optimizer: Optimizer | None = None, progress: JSON | None = None, extra: dict[str, Tensor] | None = None
) -> Checkpoint:
    """All that training needs to continue: parameters, optimizer state, random state, `progress` (plain data), and `extra`."""
    tensors = {f"model/{name}": tensor for name, tensor in model.state_dict().items()}
    tensors |= {f"extra/{name}": tensor for name, tensor in (extra or {}).items()}
    tensors["random"] = torch.get_rng_state()
    if torch.cuda.is_available():
        tensors |= {f"{CUDA}{device}": state for device, state in enumerate(torch.cuda.get_rng_state_all())}
    plain: JSON = {"progress": progress or {}}
    if optimizer is not None:
        saved = optimizer.state_dict()
        plain["groups"] = saved["param_groups"]
        plain["state"] = {}
        for index, state in saved["state"].items():
            tensors |= {f"optimizer/{index}/{k}": v for k, v in state.items() if isinstance(v, Tensor)}
            plain["state"][str(index)] = {k: v for k, v in state.items() if not isinstance(v, Tensor)}
    return Checkpoint(tensors, plain)


def restore(checkpoint: Checkpoint, model: nn.Module, optimizer: Optimizer | None = None) -> JSON:
    """Put a checkpoint into a model (and an optimizer) of the same make; → its `progress`."""
    try:
        model.load_state_dict(checkpoint.part("model/"))
    except (RuntimeError, IndexError) as error:  # of torch, and of tables that take the size of what is loaded
        raise CheckpointError(f"the checkpoint is of another model ({error}); start the run anew") from error
    if optimizer is not None:
        if "groups" not in checkpoint.plain:
            raise CheckpointError("the checkpoint holds no optimizer state, so training cannot continue from it")
        state: dict[int, JSON] = {int(index): dict(plain) for index, plain in checkpoint.plain["state"].items()}
        for name, tensor in checkpoint.part("optimizer/").items():
            index, key = name.split("/")
            state[int(index)][key] = tensor
        _check_state(optimizer, state)
        optimizer.load_state_dict({"state": state, "param_groups": checkpoint.plain["groups"]})
        torch.set_rng_state(checkpoint.tensors["random"])
        if torch.cuda.is_available():
            states = checkpoint.part(CUDA)
            devices = min(torch.cuda.device_count(), len(states))
            torch.cuda.set_rng_state_all([states[str(device)] for device in range(devices)])
    progress = checkpoint.plain.get("progress")
    if not isinstance(progress, dict):
        raise CheckpointError(f"the checkpoint says nothing of the progress ({progress!r}); start the run anew")
    return progress


def _check_state(optimizer: Optimizer, state: dict[int, JSON]) -> None:
    """A parameter's state has its shape, or is one number: compiled code goes over both together."""
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    for index, own in state.items():
        if not 0 <= index < len(weights):
            raise CheckpointError(
                f"the checkpoint has state of parameter {index}, there are {len(weights)}; start the run anew"
            )
        for key, tensor in own.items():
            if isinstance(tensor, Tensor) and tensor.dim() and tensor.shape != weights[index].shape:
                raise CheckpointError(
                    f"{key} of parameter {index} is {tuple(tensor.shape)} in the checkpoint, the parameter is "
                    f"{tuple(weights[index].shape)}; start the run anew"
                )


class Storage(Protocol):
    """Where checkpoints are kept: a file, or a folder to which several processes write (train/sharded_checkpoint.py)."""

    def exists(self, path: Path) -> bool: ...

    def save(self, path: Path, checkpoint: Checkpoint) -> None: ...

    def load(self, path: Path) -> Checkpoint: ...


class FileStorage:
    """One file a checkpoint. Of processes with the same state, rank 0 writes it and all read it."""

    def __init__(self, ranks: Ranks | None = None):
        self.ranks = ranks

    def exists(self, path: Path) -> bool:
        return path.exists() if self.ranks is None else bool(self.ranks.from_first({"found": path.exists()})["found"])

    def save(self, path: Path, checkpoint: Checkpoint) -> None:
        if self.ranks is None:
            write_checkpoint(path, checkpoint)
        else:
            self.ranks.on_first(lambda: write_checkpoint(path, checkpoint))

    def load(self, path: Path) -> Checkpoint:
        return read_checkpoint(path)


def write_checkpoint(path: Path, checkpoint: Checkpoint, rows: Mapping[str, RowBlocks] = NO_ROWS) -> None:
    """Write it under a temporary name, sync, rename. Equal tensors and data give equal bytes, in whatever order they came.
    `rows` take the place of the tensors of their names."""
    plain = json.loads(json.dumps(checkpoint.plain))  # keys are strings, as they will be when it is read
    tensors = {name: rows.get(name, tensor) for name, tensor in sorted(checkpoint.tensors.items())}
    write_atomically(path, in_blocks(tensors, {container.FACTS: json.dumps(plain, sort_keys=True)}))


def read_checkpoint(path: Path) -> Checkpoint:
    """What write_checkpoint wrote; every checksum is compared."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            names = sorted(file.keys())
            slices = {name: file.get_slice(name) for name in names}
            kinds = {name: (part.get_dtype(), list(part.get_shape())) for name, part in slices.items()}
            metadata = file.metadata() or {}
            sums = container.expected(metadata, kinds)
            tensors = {name: file.get_tensor(name) for name in names}
        for name, tensor in tensors.items():
            container.compare(name, container.checksum(_bytes_of(tensor)), sums)
        plain = json.loads(metadata[container.FACTS])
        if not isinstance(plain, dict):
            raise CheckpointError(f"{path} is no checkpoint of antembed (its facts are no object); start the run anew")
        return Checkpoint(tensors, plain)
    except (safetensors.SafetensorError, container.DamagedError, KeyError, json.JSONDecodeError, OSError) as error:
        raise CheckpointError(f"{path} is no checkpoint of antembed ({error}); start the run anew") from error


def in_blocks(tensors: Mapping[str, Tensor | RowBlocks], about: dict[str, str]) -> Iterator[Buffer]:
    """A safetensors file, block by block: the library's own writer needs two more copies of everything in memory."""
    kinds = {name: (KINDS[tensor.dtype], list(tensor.shape)) for name, tensor in tensors.items()}
    sums = "".join(container.checksum(_bytes_of(tensor)) for tensor in tensors.values())
    described = container.describe(about.get(container.FACTS, ""), kinds)
    header: JSON = {"__metadata__": {**about, container.KEY: described + sums}}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + math.prod(tensor.shape) * tensor.dtype.itemsize
        header[name] = {"dtype": kinds[name][0], "shape": kinds[name][1], "data_offsets": [start, end]}
    packed = json.dumps(header).encode()
    packed += b" " * (-len(packed) % 8)
    yield len(packed).to_bytes(8, "little")
    yield packed
    for tensor in tensors.values():
        yield from _bytes_of(tensor)


def _bytes_of(tensor: Tensor | RowBlocks) -> Iterator[Buffer]:
    for block in torch.atleast_1d(tensor).split(PIECE) if isinstance(tensor, Tensor) else tensor.blocks():
        if block.numel():
            flat = block.detach().cpu().contiguous()
            # A tensor of one element is contiguous whatever its strides are, but only a stride of 1 can be viewed as bytes.
            yield flat.as_strided((flat.numel(),), (1,)).view(torch.uint8).numpy().data
