"""Tables to compress: files of vectors, folders of Hugging Face models and of static models with their tokenizers."""

import json
import os
from pathlib import Path

from antembed.data.safetensors_map import Tensor, read_safetensors
from antembed.data.text_file import DataError
from antembed.data.vector_files import STATIC, Source, check_table, find_embedding, read_vector_file, with_words
from antembed.files import JSON
from antembed.tables.static_model import MAX_LENGTH, Tokens

NORMALIZES = "sentence_transformers.models.Normalize"


def existing(path: str | Path) -> Path:
    """Raise unless there is such a file or folder."""
    if not (path := Path(path)).exists():
        raise DataError(f"{path} does not exist; give vectors (.npy, .safetensors, GloVe or word2vec) or a model's folder")
    return path


def read_source(path: str | Path, *, tensor: str = "", words: str | Path | None = None) -> Source:
    """The table in a file or folder; `tensor`: its name, where a file has several; `words`: a file with a word a line."""
    if not existing(path).is_dir():
        return read_vector_file(Path(path), tensor=tensor, words=words)
    found = _read_folder(Path(path), tensor)
    return found if words is None else with_words(found, Path(words))


def inner_folder(root: Path) -> Path:
    """Where the first module of a sentence-transformers folder is; of others the folder itself."""
    modules = root / "modules.json"
    return root / json.loads(modules.read_text(encoding="utf-8"))[0]["path"] if modules.is_file() else root


def _read_folder(path: Path, tensor: str) -> Source:
    """A model: its input embedding, and the words of its tokenizer; or a single array."""
    path = inner_folder(path)
    files, arrays = sorted(path.glob("*.safetensors")), sorted(path.glob("*.npy"))
    if not files and len(arrays) == 1:
        return read_vector_file(arrays[0])
    if not files:
        raise DataError(f"{path} has no .safetensors file; convert the model, or give one file of vectors")
    for file in files:
        tensors = _tensors(file)
        tables = [name for name, each in tensors.items() if len(each.shape) == 2]
        if wanted := (tensor if tensor in tables else "") if tensor else find_embedding(tables):
            vectors = check_table(tensors[wanted].array(file), file)
            shared = "mapping" in tensors  # model2vec: tokens share rows, which have no words then
            return Source(vectors, None if shared else _tokens(path, len(vectors)))
    raise DataError(f"{path} has no table of words that is known by its name; say which with --tensor")


def _tensors(file: Path) -> dict[str, Tensor]:
    return {tensor.name: tensor for tensor in read_safetensors(file)[0]}


def _tokens(path: Path, rows: int) -> list[str] | None:
    """The tokens of tokenizer.json in the order of their ids, if there is one for each row."""
    file = path / "tokenizer.json"
    if not file.is_file():
        return None
    vocabulary = json.loads(file.read_text(encoding="utf-8")).get("model", {}).get("vocab", {})
    if isinstance(vocabulary, list):  # unigram: pairs
        vocabulary = {word: number for number, (word, _) in enumerate(vocabulary)}
    words = [""] * rows
    for word, number in vocabulary.items():
        if 0 <= number < rows:
            words[number] = word
    named = [word or f"<row {n}>" for n, word in enumerate(words)]
    return named if len(set(named)) == rows else None


def is_static(path: Path) -> bool:
    """Whether a folder is a static model: a tokenizer, and a table by one of the names that such models use."""
    path = inner_folder(path)
    weights = path / "model.safetensors"
    if not (weights.is_file() and (path / "tokenizer.json").is_file()):
        return False
    return any(name in STATIC for name in _tensors(weights))


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
    weights = path / "model.safetensors"
    tensors = _tensors(weights) if weights.is_file() else {}
    # Lists of numbers beside the table: model2vec's after its vocabulary was quantized.
    lists = (tensors.get(name) for name in ("mapping", "weights"))
    own = (each.array(weights) if each is not None and len(each.shape) == 1 else None for each in lists)
    return _checked(Tokens(tokenizer, bool(normalize), config.get("max_length", MAX_LENGTH), *own), rows, file)


def _json(file: Path) -> JSON:
    try:
        found: JSON = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{file} is no JSON ({error}); copy it again") from error
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
