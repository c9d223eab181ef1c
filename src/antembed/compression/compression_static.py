"""The tokenizer of a static model (model2vec, WordLlama, sentence-transformers' StaticEmbedding), kept with its vectors."""

import json
import os
from pathlib import Path

import numpy as np
import safetensors

from antembed.compression.sources import STATIC, inner_folder
from antembed.data.data_plain import DataError
from antembed.files import JSON
from antembed.tables.serving_tokens import MAX_LENGTH, Tokens

NORMALIZES = "sentence_transformers.models.Normalize"


def is_static(path: Path) -> bool:
    """Whether a folder is a static model: a tokenizer, and a table by one of the names that such models use."""
    path = inner_folder(path)
    weights = path / "model.safetensors"
    if not (weights.is_file() and (path / "tokenizer.json").is_file()):
        return False
    with safetensors.safe_open(weights, framework="np") as file:
        return any(name in STATIC for name in file.keys())  # noqa: SIM118 (not a dict)


def read_tokens(path: str | os.PathLike[str], rows: int) -> Tokens:
    """The tokenizer of a static model's folder, with what its config says; or of one tokenizer.json. `rows`: of the table."""
    root = Path(path)
    path = inner_folder(root) if root.is_dir() else root
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise DataError(f"{file} does not exist; give a tokenizer.json, or a folder that has one")
    tokenizer = _json(file)
    if "model" not in tokenizer:
        raise DataError(f"{file} is no tokenizer.json: it has no model; save the tokenizer with `tokenizers`")
    if not path.is_dir():
        return _checked(Tokens(tokenizer), rows, file)
    config = _json(path / "config.json") if (path / "config.json").is_file() else {}
    modules = json.loads((root / "modules.json").read_text()) if (root / "modules.json").is_file() else []
    normalize = config.get("normalize", any(module.get("type") == NORMALIZES for module in modules))
    places, weights = (_tensor(path / "model.safetensors", name) for name in ("mapping", "weights"))
    return _checked(Tokens(tokenizer, bool(normalize), config.get("max_length", MAX_LENGTH), places, weights), rows, file)


def _json(file: Path) -> JSON:
    try:
        found: JSON = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{file} is no JSON ({error}); copy it again") from error
    return found


def _tensor(file: Path, name: str) -> np.ndarray | None:
    """A list of numbers beside the table: model2vec's after its vocabulary was quantized."""
    if not file.is_file():
        return None
    with safetensors.safe_open(file, framework="np") as opened:
        if name not in opened.keys() or len(opened.get_slice(name).get_shape()) != 1:  # noqa: SIM118
            return None
        found: np.ndarray = opened.get_tensor(name)
        return found


def _checked(tokens: Tokens, rows: int, file: Path) -> Tokens:
    vocabulary = tokens.tokenizer["model"].get("vocab") or {}
    ids = [len(vocabulary) - 1] if isinstance(vocabulary, list) else list(vocabulary.values())
    largest = max([*ids, *(token["id"] for token in tokens.tokenizer.get("added_tokens", []))], default=-1)
    known = rows if tokens.rows is None else len(tokens.rows)
    if largest >= known:
        raise DataError(f"{file} has a token {largest}, the table {known} rows; give the tokenizer it was made with")
    if tokens.rows is not None and tokens.rows.size and not 0 <= int(tokens.rows.min()) <= int(tokens.rows.max()) < rows:
        raise DataError(f"{file.parent}: tokens have the rows {tokens.rows.min()} to {tokens.rows.max()} of {rows}")
    if tokens.weights is not None and len(tokens.weights) != known:
        raise DataError(f"{file.parent} has {len(tokens.weights)} weights for {known} tokens; save the model again")
    return tokens
