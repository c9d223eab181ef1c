"""Tables that people have: GloVe and word2vec files, .npy, safetensors, folders of Hugging Face and of static models."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors

from antembed.compression.safetensors_map import read_safetensors
from antembed.data.text_file import DataError
from antembed.data.word_vectors import read_text
from antembed.files import JSON
from antembed.tables.static_model import MAX_LENGTH, Tokens

# MERGED The tokenizer of a static model (model2vec, WordLlama, sentence-transformers' StaticEmbedding), kept with its vectors.

TENSORS = ("embeddings.word_embeddings.weight", "embed_tokens.weight", "wte.weight", "shared.weight", "word_embeddings.weight")
STATIC = ("embeddings", "embedding.weight", "embeddings.weight")  # model2vec, WordLlama
WORD_FILES = ("words.txt", "vocab.txt", "vocabulary.txt")


@dataclass(frozen=True)
class Source:
    """Vectors, their words if they have any, and whether the rows are in the order of falling frequency."""

    vectors: np.ndarray  # (V, d), perhaps mapped
    words: list[str] | None = None
    by_frequency: bool = False
    about: str = ""
    notes: tuple[str, ...] = ()  # what the reader left out


def existing(path: str | Path) -> Path:
    """Raise unless there is such a file or folder."""
    if not (path := Path(path)).exists():
        raise DataError(f"{path} does not exist; give vectors (.npy, .safetensors, GloVe or word2vec) or a model's folder")
    return path


def read_source(path: str | Path, *, tensor: str = "", words: str | Path | None = None) -> Source:
    """The table in a file or folder; `tensor`: its name, where a file has several; `words`: a file with a word a line."""
    path = existing(path)
    if path.is_dir():
        found = _folder(path, tensor)
    elif path.suffix == ".npy":
        found = Source(_table(np.load(path, mmap_mode="r", allow_pickle=False), path), about=".npy")
    elif path.suffix == ".npz":
        found = _npz(path, tensor)
    elif path.suffix == ".safetensors":
        found = _safetensors(path, tensor)
    elif path.suffix == ".bin":
        found = _word2vec_binary(path)
    else:
        words_of_text, vectors, notes = read_text(path)
        found = Source(vectors, words_of_text, True, "text", notes)
    if tensor and found.about not in ("safetensors", "npz", "folder"):
        raise DataError(f"{path} has one table; leave out --tensor {tensor}")
    if words is None and found.words is None and path.is_file():
        words = next((path.parent / name for name in WORD_FILES if (path.parent / name).is_file()), None)
    if words is not None:
        known = Path(words).read_text(encoding="utf-8").removesuffix("\n").split("\n")
        if len(known) != len(found.vectors):
            raise DataError(f"{words} has {len(known):,} words for {len(found.vectors):,} vectors; give a line for each")
        found = Source(found.vectors, known, True, found.about, found.notes)
    return found


def _table(array: np.ndarray, path: Path) -> np.ndarray:
    if array.ndim != 2 or array.dtype.kind != "f":
        raise DataError(
            f"{path} holds an array of shape {array.shape} and type {array.dtype}; a table is (objects, width), floats"
        )
    return array


def _npz(path: Path, tensor: str) -> Source:
    with np.load(path, allow_pickle=False) as file:
        tables = [name for name in file.files if file[name].ndim == 2]
        return Source(_table(file[choose_table(path, tables, tensor)], path), about="npz")


def _safetensors(path: Path, tensor: str) -> Source:
    with safetensors.safe_open(path, framework="np") as file:
        tables = [name for name in file.keys() if len(file.get_slice(name).get_shape()) == 2]  # noqa: SIM118 (not a dict)
        wanted = choose_table(path, tables, tensor or find_embedding(tables))
        return Source(_tensor(file, wanted, path), about="safetensors")


def _tensor(file: safetensors.safe_open, name: str, path: Path) -> np.ndarray:
    if file.get_slice(name).get_dtype() == "BF16":  # which NumPy has not
        (found,) = [tensor for tensor in read_safetensors(path)[0] if tensor.name == name]
        return found.array(path)
    return _table(file.get_tensor(name), path)


def find_embedding(names: list[str]) -> str:
    """The table of words among the tensors of a model."""
    for ending in (*TENSORS, *STATIC):
        fitting = [name for name in names if name == ending or name.endswith(f".{ending}")]
        if len(fitting) == 1:
            return fitting[0]
    return ""


def choose_table(path: Path, tables: list[str], tensor: str) -> str:
    if tensor and tensor not in tables:
        raise DataError(f"{path} has no table {tensor!r}; it has: {', '.join(tables[:8]) or 'none'}")
    if not tensor and len(tables) != 1:
        raise DataError(f"{path} has {len(tables)} tables; say which with --tensor: {', '.join(tables[:8]) or 'none'}")
    return tensor or tables[0]


def inner_folder(root: Path) -> Path:
    """Where the first module of a sentence-transformers folder is; of others the folder itself."""
    modules = root / "modules.json"
    return root / json.loads(modules.read_text(encoding="utf-8"))[0]["path"] if modules.is_file() else root


def _folder(path: Path, tensor: str) -> Source:
    """A model: its input embedding, and the words of its tokenizer."""
    path = inner_folder(path)
    files = sorted(path.glob("*.safetensors"))
    if not files:
        arrays = sorted(path.glob("*.npy"))
        if len(arrays) == 1:
            return read_source(arrays[0], words=next((path / name for name in WORD_FILES if (path / name).is_file()), None))
        raise DataError(f"{path} has no .safetensors file; convert the model, or give one file of vectors")
    for file in files:
        with safetensors.safe_open(file, framework="np") as opened:
            tables = [name for name in opened.keys() if len(opened.get_slice(name).get_shape()) == 2]  # noqa: SIM118
            wanted = tensor if tensor in tables else "" if tensor else find_embedding(tables)
            if wanted:
                vectors = _tensor(opened, wanted, file)
                shared = "mapping" in opened.keys()  # noqa: SIM118  # model2vec: tokens share rows, which have no words then
                return Source(vectors, None if shared else _tokens(path, len(vectors)), False, "folder")
    raise DataError(f"{path} has no table of words that is known by its name; say which with --tensor")


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


def _word2vec_binary(path: Path) -> Source:
    """Mikolov's binary format: "V d\\n", then word, space, d floats."""
    data = path.read_bytes()
    head, _, _ = data.partition(b"\n")
    try:
        V, d = (int(part) for part in head.split())
    except ValueError as error:
        raise DataError(f"{path} is no word2vec file: it does not begin with how many vectors there are") from error
    words, vectors, at = [], np.empty((V, d), np.float32), len(head) + 1
    for row in range(V):
        end = data.find(b" ", at)
        if end < 0 or end + 1 + 4 * d > len(data):
            raise DataError(f"{path} ends after {row:,} of {V:,} vectors; download it again")
        words.append(data[at:end].lstrip(b"\n").decode("utf-8", "replace"))
        vectors[row] = np.frombuffer(data, np.float32, d, end + 1)
        at = end + 1 + 4 * d
    return Source(vectors, words, True, "word2vec")


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
    places, weights = (_named_tensor(path / "model.safetensors", name) for name in ("mapping", "weights"))
    return _checked(Tokens(tokenizer, bool(normalize), config.get("max_length", MAX_LENGTH), places, weights), rows, file)


def _json(file: Path) -> JSON:
    try:
        found: JSON = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{file} is no JSON ({error}); copy it again") from error
    return found


def _named_tensor(file: Path, name: str) -> np.ndarray | None:
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
