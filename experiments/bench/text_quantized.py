"""A full table made small after its training, as people do it, beside an anchored one, by the bytes of the file.

    python -m experiments bench text_quantized TRAIN.csv TEST.csv --model mean --trials results/text.jsonl --record FILE.jsonl

Both tables are trained with the settings that `text_baselines.py` found best on validation for them (--trials). The full one is
then written as fp16, as int8, in 4 bits, and by product quantization with 32 to 2 codes a vector; every file is read back and
its vectors are tested. The words and the rest of the model are not counted for either.
"""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from antembed.baselines.product_quantized import quantize
from antembed.classify.config import TextConfig, read_input
from antembed.classify.documents import Documents
from antembed.classify.model import TextModel
from antembed.classify.task import Text
from antembed.files import JSON
from antembed.layer.embedding import Embedding
from antembed.sweep.records import read_records
from antembed.tables.save import export
from antembed.tables.table import Table
from antembed.train.options import from_options
from antembed.train.run import load_model, train
from experiments.race import parse, publish
from experiments.text_tables import best_of

Form = Callable[[Embedding, Path], Table]
PLAIN: dict[str, Form] = {
    "fp32": lambda table, path: export(table, path),
    "fp16": lambda table, path: export(table, path, values="fp16"),
    "int8": lambda table, path: export(table, path, values="int8"),
}
FORMS: dict[str, dict[str, Form]] = {
    "full": PLAIN
    | {"4 bits": lambda table, path: quantize(table, parts=table.embedding_dim, bits=4).export(path, values="fp16")}
    | {
        f"product, {n} codes": lambda table, path, n=n: quantize(table, parts=n).export(path, values="fp16")
        for n in (32, 16, 8, 4, 2)
    },
    "anchor": PLAIN | {"int8 packed": lambda table, path: export(table, path, values="int8", encoding="packed")},
}


def evaluated(config: TextConfig, documents: tuple[Documents, Documents | None]) -> Iterator[JSON]:
    """Train a table, and test it in each form."""
    task = Text()
    splits = task.split(config, *documents)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        train(config, folder / "run", splits=splits)
        model = load_model(folder / "run")
        assert isinstance(model, TextModel)
        for form, write in FORMS[config.tables.embedding].items():
            table = write(model.words, folder / "words.ant")
            metrics = task.evaluate(model.from_files(folder), splits, "test")
            yield {"form": form, "bytes": table.size, "accuracy": metrics["accuracy"]}


def main(words: list[str]) -> None:
    given = parse(words, __doc__, "train", "test", model="mean", trials="results/text.jsonl", seeds=3, threads=1)
    torch.set_num_threads(given.threads)
    base = {"data": given.train, "test": given.test, "model": given.model, "threads": given.threads}
    documents = read_input(from_options(TextConfig, base).input)
    for embedding in FORMS:
        rows = [row for row in read_records(given.trials) if row["embedding"] == embedding and row["model"] == given.model]
        best = best_of([row for row in rows if row["seed"] == 0], 40)
        if best is None:
            raise SystemExit(f"{given.trials} has no trial of {embedding} with the model {given.model} that fits")
        for seed in range(given.seeds):
            options = {"embedding": embedding, "seed": seed, "epochs": best["epochs_at_most"]} | best["trial"]
            config = from_options(TextConfig, base | options)
            about = {"model": given.model, "embedding": embedding, "seed": seed, "config": config.model_dump(mode="json")}
            for row in evaluated(config, documents):
                publish(given.record, about | row)
