"""The folder of a model: config.json, tables, labels or vocabulary, and the network's other weights.

A run, `Recommender.save`, `TextClassifier.save` and `antembed export` all write it:

    recommend          users.ant, items.ant, users.labels.safetensors, items.labels.safetensors, popularity.safetensors;
                       seen.safetensors (an export: if asked for), ratings.safetensors (never in an export)
    classify           words.ant, vocabulary.parquet, model.safetensors (a run: checkpoint/final.safetensors)
    classify-ngrams    classifier.ngrams, ngrams.json (which n-grams speak for each class; may be left out)
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import safetensors

from antembed.files import JSON, write_atomically
from antembed.tables.container import DamagedError, pack_arrays, read_arrays

VERSION = 2  # of config.json, as in train/config.py, which needs pydantic
WEIGHTS = "model.safetensors"
SEEN, RATINGS, POPULARITY = "seen.safetensors", "ratings.safetensors", "popularity.safetensors"
TOP_NGRAMS = "ngrams.json"
CHECKPOINT = "checkpoint/final.safetensors"
IN_CHECKPOINT = "model/"  # what the names of the model's tensors begin with there


class RunError(ValueError):
    """A run folder that is not what was asked for."""


def read_description(folder: Path) -> JSON:
    """config.json as it is: version, config, and what is remembered of the data."""
    file = folder / "config.json"
    if not file.is_file():
        raise RunError(f"{folder} is no run: it has no config.json")
    full = read_json(file)
    if full.get("version") != VERSION:
        found = f"version {full['version']}" if "version" in full else "no version"
        raise RunError(f"{folder}/config.json has {found}, this antembed reads version {VERSION}; train the run anew")
    if not is_description(full):
        raise RunError(f"{folder}/config.json is no description of a model by antembed; train the run anew")
    return full


def source_of(folder: Path) -> str:
    """The file of ratings that a run was trained on; empty for a model that stands alone."""
    source = read_description(folder)["config"].get("input")
    return str(source.get("data", "")) if isinstance(source, dict) else ""


def is_description(full: JSON) -> bool:
    """Whether a config.json is ours, of any version."""
    config = full.get("config")
    named = isinstance(config, dict) and isinstance(config.get("task"), str)
    return named and isinstance(full.get("version"), int) and isinstance(full.get("data"), dict)


def check_own(folder: Path) -> None:
    """Raise if the folder has a config.json that we did not write, and would write over."""
    file = folder / "config.json"
    if file.exists() and not (file.is_file() and is_description(read_json(file))):
        raise RunError(f"{file} was not written by antembed, and is left alone; choose another folder")


def read_json(file: Path) -> JSON:
    """A file of ours that holds an object."""
    try:
        full = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise RunError(f"{file} is damaged: it is no JSON ({error}); copy it again, or train the run anew") from error
    if not isinstance(full, dict):
        raise RunError(f"{file} is damaged: it holds no JSON object; copy it again, or train the run anew")
    return full


def write_description(folder: Path, config: JSON, facts: JSON, files: Sequence[str] = ()) -> None:
    """Write config.json. `files`: the tables that go with it, by their names."""
    full = {"version": VERSION, "config": config, "data": facts, "files": list(files)}
    write_atomically(folder / "config.json", json.dumps(full, indent=2).encode())


def check_files(folder: Path, *names: str) -> None:
    """Raise if a file is missing that a finished model has."""
    for name in names:
        if not (folder / name).is_file():
            raise RunError(f"{folder} has no {name}: the run is not finished; continue it with --resume, or export it anew")


def write_weights(folder: Path, weights: Mapping[str, np.ndarray]) -> None:
    """What a model has beside its tables."""
    write_atomically(folder / WEIGHTS, pack_arrays(weights))


def read_weights(folder: Path, tables: tuple[str, ...]) -> dict[str, np.ndarray]:
    """What a model has beside these tables: from model.safetensors, or from the checkpoint of a run."""
    path, prefix = folder / WEIGHTS, ""
    if not path.is_file():
        check_files(folder, CHECKPOINT)
        path, prefix = folder / CHECKPOINT, IN_CHECKPOINT
    found = read_checked(path, prefix, tuple(f"{prefix}{table}." for table in tables))
    return {name.removeprefix(prefix): array for name, array in found.items()}


def read_checked(path: Path, prefix: str = "", without: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
    """Arrays of a safetensors file of ours."""
    try:
        return read_arrays(str(path), prefix, without)
    except (safetensors.SafetensorError, DamagedError, TypeError, KeyError) as error:
        raise RunError(f"{path} is damaged ({error}), {path.stat().st_size} bytes; copy it again or export it anew") from error


# What the files of an exported folder are for; others are tables and labels.
PARTS = {SEEN: "seen", POPULARITY: "popularity", WEIGHTS: "weights", TOP_NGRAMS: "explanation"}
PARTS |= {"vocabulary.parquet": "vocabulary", "config.json": "config"}


def by_part(sizes: Mapping[str, int]) -> dict[str, int]:
    """Bytes of files by name → bytes of tables, labels, popularity, …"""
    found: dict[str, int] = {}
    for name, size in sizes.items():
        part = "labels" if ".labels." in name else PARTS.get(name, "tables")
        found[part] = found.get(part, 0) + size
    return found
