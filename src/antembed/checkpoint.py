"""Model, optimizer and progress in one safetensors file: tensors as tensors, numbers as JSON in its header. No pickle."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import safetensors
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import Buffer

from antembed.files import JSON, write_atomically

PIECE = 1 << 18  # rows
CUDA = "random cuda/"  # and the number of a GPU: its random state
KINDS = {
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class CheckpointError(ValueError):
    """A checkpoint that cannot be read or does not fit."""


@dataclass(frozen=True)
class Checkpoint:
    """Tensors by name, and plain data."""

    tensors: dict[str, Tensor]
    plain: JSON = field(default_factory=dict)

    def part(self, prefix: str) -> dict[str, Tensor]:
        """The tensors whose names begin so, without that."""
        return {name.removeprefix(prefix): tensor for name, tensor in self.tensors.items() if name.startswith(prefix)}


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
    model.load_state_dict(checkpoint.part("model/"))
    if optimizer is not None:
        if "groups" not in checkpoint.plain:
            raise CheckpointError("the checkpoint holds no optimizer state, so training cannot continue from it")
        state: dict[int, JSON] = {int(index): dict(plain) for index, plain in checkpoint.plain["state"].items()}
        for name, tensor in checkpoint.part("optimizer/").items():
            index, key = name.split("/")
            state[int(index)][key] = tensor
        optimizer.load_state_dict({"state": state, "param_groups": checkpoint.plain["groups"]})
        torch.set_rng_state(checkpoint.tensors["random"])
        if torch.cuda.is_available():
            states = checkpoint.part(CUDA)
            devices = min(torch.cuda.device_count(), len(states))
            torch.cuda.set_rng_state_all([states[str(device)] for device in range(devices)])
    progress: JSON = checkpoint.plain["progress"]
    return progress


class Storage(Protocol):
    """Where checkpoints are kept: a file, or a folder to which several processes write (distributed/storage.py)."""

    def exists(self, path: Path) -> bool: ...

    def save(self, path: Path, checkpoint: Checkpoint) -> None: ...

    def load(self, path: Path) -> Checkpoint: ...


class FileStorage:
    """One file a checkpoint."""

    def exists(self, path: Path) -> bool:
        return path.exists()

    def save(self, path: Path, checkpoint: Checkpoint) -> None:
        write_checkpoint(path, checkpoint)

    def load(self, path: Path) -> Checkpoint:
        return read_checkpoint(path)


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write it under a temporary name, sync, rename."""
    write_atomically(path, in_pieces(checkpoint.tensors, {"antembed": json.dumps(checkpoint.plain)}))


def read_checkpoint(path: Path) -> Checkpoint:
    """What write_checkpoint wrote."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        return Checkpoint(tensors, json.loads(header["antembed"]))
    except (safetensors.SafetensorError, KeyError, FileNotFoundError) as error:
        raise CheckpointError(f"{path} is no checkpoint of antembed ({error}); start the run anew") from error


def in_pieces(tensors: dict[str, Tensor], about: dict[str, str]) -> Iterator[Buffer]:
    """A safetensors file, piece by piece: the library's own writer needs two more copies of everything in memory."""
    header: JSON = {"__metadata__": about}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": KINDS[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    packed = json.dumps(header).encode()
    packed += b" " * (-len(packed) % 8)
    yield len(packed).to_bytes(8, "little")
    yield packed
    for tensor in (tensor for tensor in tensors.values() if tensor.numel()):
        rows = tensor.detach().reshape(1) if tensor.dim() == 0 else tensor.detach()
        for start in range(0, len(rows), PIECE):
            yield rows[start : start + PIECE].cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
