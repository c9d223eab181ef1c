"""Model and optimizer in one safetensors file: tensors as tensors, numbers as JSON in its header. No pickle."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from antembed.files import write_atomically

if TYPE_CHECKING:
    from typing_extensions import Buffer

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


def save_checkpoint(
    path: Path,
    model: nn.Module,
    optimizer: Optimizer | None,
    progress: dict[str, Any],
    extra: dict[str, Tensor] | None = None,
) -> None:
    """Write all that is needed to go on: parameters, optimizer state, random state, `progress` (plain data), and `extra`."""
    tensors = {f"model/{name}": tensor for name, tensor in model.state_dict().items()}
    tensors |= {f"extra/{name}": tensor for name, tensor in (extra or {}).items()}
    tensors["random"] = torch.get_rng_state()
    if torch.cuda.is_available():
        tensors |= {f"{CUDA}{device}": state for device, state in enumerate(torch.cuda.get_rng_state_all())}
    packed: dict[str, Any] = {"progress": progress}
    if optimizer is not None:
        saved = optimizer.state_dict()
        packed["groups"] = saved["param_groups"]
        packed["state"] = {}
        for index, state in saved["state"].items():
            tensors |= {f"optimizer/{index}/{k}": v for k, v in state.items() if isinstance(v, Tensor)}
            packed["state"][str(index)] = {k: v for k, v in state.items() if not isinstance(v, Tensor)}
    write_atomically(path, in_pieces(tensors, {"antembed": json.dumps(packed)}))


def in_pieces(tensors: dict[str, Tensor], about: dict[str, str]) -> "Iterator[Buffer]":
    """A safetensors file, piece by piece: the library's own writer needs two more copies of everything in memory."""
    header: dict[str, Any] = {"__metadata__": about}
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


def save_tensors(path: Path, tensors: dict[str, Tensor], progress: dict[str, Any]) -> None:
    """Write tensors, and `progress` (plain data)."""
    write_atomically(path, in_pieces(tensors, {"antembed": json.dumps({"progress": progress})}))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What save_tensors wrote."""
    tensors, packed = _open(path)
    return tensors, packed["progress"]


def _open(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        return tensors, json.loads(about["antembed"])
    except (safetensors.SafetensorError, KeyError, FileNotFoundError) as error:
        raise CheckpointError(f"{path} is no checkpoint of antembed ({error}); start the run anew") from error


def load_extra(path: Path) -> dict[str, Tensor]:
    """The `extra` tensors of a checkpoint."""
    return {name.removeprefix("extra/"): tensor for name, tensor in _open(path)[0].items() if name.startswith("extra/")}


def load_checkpoint(path: Path, model: nn.Module, optimizer: Optimizer | None = None) -> dict[str, Any]:
    """Put a checkpoint into a model (and an optimizer) of the same make; → its `progress`."""
    tensors, packed = _open(path)
    model.load_state_dict({k.removeprefix("model/"): v for k, v in tensors.items() if k.startswith("model/")})
    if optimizer is not None:
        if "groups" not in packed:
            raise CheckpointError(f"{path} holds no optimizer state, so training cannot go on from it")
        state: dict[int, dict[str, Any]] = {int(index): dict(plain) for index, plain in packed["state"].items()}
        for name, tensor in tensors.items():
            if name.startswith("optimizer/"):
                _, index, key = name.split("/")
                state[int(index)][key] = tensor
        optimizer.load_state_dict({"state": state, "param_groups": packed["groups"]})
        torch.set_rng_state(tensors["random"])
        if torch.cuda.is_available():
            devices = min(torch.cuda.device_count(), sum(name.startswith(CUDA) for name in tensors))
            torch.cuda.set_rng_state_all([tensors[f"{CUDA}{device}"] for device in range(devices)])
    return packed["progress"]
