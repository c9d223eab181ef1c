"""A model folder with its input embedding compressed: all other tensors and files stay as they are."""

import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from antembed.compression.sources import inner_folder
from antembed.data.safetensors_map import Tensor, read_safetensors, safetensors_chunks
from antembed.data.text_file import DataError
from antembed.data.vector_files import choose_table, find_embedding
from antembed.files import JSON, TEMPORARY, is_temporary, locked, sync_folder, write_atomically
from antembed.tables.table import Table

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
# Copies of the weights in other formats, which would be read, or carried along, instead of the small one.
OTHER_WEIGHTS = ("pytorch_model*", "tf_model*", "flax_model*", "rust_model*", "*.onnx", "*.gguf", "*.bin", "*.h5", "*.msgpack")
OTHER_FOLDERS = ("onnx", "openvino", ".git", ".cache")


@dataclass(frozen=True)
class ModelFolder:
    """A model on disk, and the table in it that is to be compressed."""

    root: Path  # the folder
    inner: Path  # where config.json and the weights are, below it
    config: JSON
    files: list[Path]  # the weights
    name: str  # of the embedding, as of a layer
    embedding: Tensor
    file: Path  # the embedding's

    def vectors(self) -> np.ndarray:
        return self.embedding.array(self.file)


def read_model_folder(path: str | Path, tensor: str = "") -> ModelFolder:
    """A folder of Hugging Face (config.json and safetensors) or of sentence-transformers (modules.json)."""
    root = Path(path)
    inner = inner_folder(root)
    if not (inner / "config.json").is_file():
        raise DataError(f"{inner} has no config.json, so it is no model of Hugging Face; write its table alone, to NAME.ant")
    config = json.loads((inner / "config.json").read_text(encoding="utf-8"))
    if "quantization_config" in config:
        method = config["quantization_config"].get("quant_method", "?")
        raise DataError(f"{root} is quantized already ({method}); compress the original")
    files = _weights(inner)
    found = {tensor.name: (tensor, file) for file in files for tensor in read_safetensors(file)[0]}
    tables = [name for name, (tensor, _) in found.items() if len(tensor.shape) == 2]
    name = choose_table(root, tables, tensor or find_embedding(tables))
    if not name.endswith(".weight"):
        raise DataError(f"{name} is no layer's weight; say with --tensor which one is the input embedding: NAME.weight")
    return ModelFolder(root, inner, config, files, name.removesuffix(".weight"), *found[name])


def _weights(folder: Path) -> list[Path]:
    if (folder / INDEX).is_file():
        shards = json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"].values()
        files = [folder / name for name in sorted(set(shards))]
        if lost := [file.name for file in files if not file.is_file()]:
            raise DataError(f"{folder / INDEX} names {lost[0]}, which is not there ({len(lost)} missing); download it again")
        return files
    files = [folder / WEIGHTS] if (folder / WEIGHTS).is_file() else sorted(folder.glob("*.safetensors"))
    if len(files) != 1:
        names = ", ".join(file.name for file in files) or "none"
        raise DataError(f"{folder} has {len(files)} .safetensors files and no {INDEX}: {names}; keep one, or convert the model")
    return files


def write_model_folder(model: ModelFolder, out: Path, table: Table, *, overwrite: bool = False) -> list[str]:
    """Write the folder with the table in the place of the embedding, completely or not at all; → what was left out."""
    check_out(model, out, overwrite)
    out.parent.mkdir(parents=True, exist_ok=True)
    with locked(out.with_name(f".{out.name}.lock"), out):
        for left in out.parent.iterdir():
            if is_temporary(left) and left.name.startswith(f".{out.name}.") and left.is_dir():
                shutil.rmtree(left)  # of a process that was killed
        return _write(model, out, table)


def _write(model: ModelFolder, out: Path, table: Table) -> list[str]:
    temporary = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}.", suffix=TEMPORARY))
    try:
        left_out = _copy_others(model, temporary)
        inner = temporary / model.inner.relative_to(model.root)
        dropped = _write_weights(model, inner, table.to_bytes())
        about = {"quant_method": "antembed", "coded": {model.name: len(table.to_bytes())}, "tied": dropped}
        config = model.config | {"quantization_config": about}
        write_atomically(inner / "config.json", (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode())
        os.chmod(temporary, os.stat(model.root).st_mode & 0o777 | 0o700)  # mkdtemp makes a private one
        _move(temporary, out)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return left_out


def check_out(model: ModelFolder, out: Path, overwrite: bool) -> None:
    """Raise if the folder cannot be written there; before the work, not after it."""
    source, target = model.root.resolve(), out.resolve()
    if target == source or source in target.parents or target in source.parents:
        raise DataError(f"{out} and {model.root} are one in the other; write the small model to a folder of its own")
    if out.exists() and not overwrite:
        raise DataError(f"{out} exists; choose another name, or say --overwrite")
    if out.exists() and not (out.is_dir() and (_is_ours(model, out) or not any(out.iterdir()))):
        raise DataError(f"{out} is no model's folder that antembed wrote, which alone --overwrite replaces; give another name")
    if out.exists() and (strangers := _files_of(out) - _files_of(model.root) - {model.inner.relative_to(model.root) / WEIGHTS}):
        raise DataError(f"{out} has {min(strangers)}, which is not of the model, and would be lost; choose another name")


def _is_ours(model: ModelFolder, out: Path) -> bool:
    """Whether the folder is one of `write_model_folder`."""
    try:
        config = json.loads((out / model.inner.relative_to(model.root) / "config.json").read_bytes())
        return bool(config["quantization_config"]["quant_method"] == "antembed")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _files_of(folder: Path) -> set[Path]:
    return {file.relative_to(folder) for file in folder.rglob("*") if not file.is_dir()}


def _copy_others(model: ModelFolder, to: Path) -> list[str]:
    """All but the weights, flushed to disk."""
    left_out = []
    for file in sorted(model.root.rglob("*")):
        short = file.relative_to(model.root)
        if any(part in OTHER_FOLDERS for part in short.parts):
            left_out += [str(short)] if short.name in OTHER_FOLDERS else []
        elif file.is_dir():
            (to / short).mkdir(parents=True, exist_ok=True)
        elif file not in model.files and file.parent == model.inner and any(short.match(pattern) for pattern in OTHER_WEIGHTS):
            left_out.append(str(short))
        elif file not in (*model.files, model.inner / INDEX, model.inner / "config.json"):
            (to / short.parent).mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, to / short)
            with (to / short).open("rb") as opened:
                os.fsync(opened.fileno())
    return left_out


def _write_weights(model: ModelFolder, to: Path, coded: bytes) -> list[str]:
    """→ the names of layers that had the embedding's weight a second time, which are tied to it now."""
    key, old = f"{model.name}.weight", model.embedding
    weight_map: dict[str, str] = {}
    dropped: list[str] = []
    total, ties = 0, model.config.get("tie_word_embeddings", True)
    for file in model.files:
        tensors, about = read_safetensors(file)
        others = [tensor for tensor in tensors if tensor.name != key]
        # A second copy of the embedding, of a tied head or of the decoder.
        alike = [tensor for tensor in others if ties and (tensor.shape, tensor.dtype) == (old.shape, old.dtype)]
        same = {tensor.name for tensor in alike if np.array_equal(tensor.data, old.data)}
        dropped += sorted(name.removesuffix(".weight") for name in same)
        kept = [tensor for tensor in others if tensor.name not in same]
        if file == model.file:
            kept.append(Tensor(key, old.dtype, [0], old.data[:0]))
            kept.append(Tensor(f"{model.name}.coded", "U8", [len(coded)], np.frombuffer(coded, np.uint8)))
        name = file.name if len(model.files) > 1 else WEIGHTS
        weight_map |= {tensor.name: name for tensor in kept}
        total += sum(len(tensor.data) for tensor in kept)
        write_atomically(to / name, safetensors_chunks(kept, about))
    if len(model.files) > 1:
        index = json.loads((model.inner / INDEX).read_text(encoding="utf-8"))
        index["metadata"] = index.get("metadata", {}) | {"total_size": total}
        index["weight_map"] = weight_map
        write_atomically(to / INDEX, (json.dumps(index, indent=2) + "\n").encode())
    return dropped


def _move(temporary: Path, out: Path) -> None:
    """The new folder takes the name; an old one goes only when the new one is there."""
    aside = temporary.with_name(f"{temporary.name.removesuffix(TEMPORARY)}.old{TEMPORARY}")
    if out.exists():
        os.rename(out, aside)
    os.rename(temporary, out)
    sync_folder(out.parent)
    shutil.rmtree(aside, ignore_errors=True)


def folder_size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
