"""A full table made small after its training, as people do it, beside an anchored one, by the bytes of the file.

    python benchmarks/text_quantized.py TRAIN.csv TEST.csv --model bag --trials results/text.jsonl --record FILE.jsonl

Both tables are trained with the settings that `text_baselines.py` found best on validation for them (--trials). The full one is
then written as fp16, as int8, in 4 bits, and by product quantisation with 32 to 2 codes a vector; every file is read back and
its vectors are tested. The words and the rest of the model are not counted for either.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from antembed.data.documents import Documents
from antembed.embedding import Embedding, quantize
from antembed.files import read_json_lines
from antembed.pipelines.classify import prepare, read, train
from antembed.pipelines.text import TextSettings
from antembed.reporting.text import best_of
from antembed.serving import Table, export
from antembed.training import RunFolder, load_checkpoint
from common import publish

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


def judged(settings: TextSettings, documents: tuple[Documents, Documents | None]) -> Iterator[dict[str, object]]:
    """Train a table, and test it in each form."""
    learned, test = documents
    with tempfile.TemporaryDirectory() as folder:
        train(settings, Path(folder) / "run", learned=learned, test=test)
        job = prepare(settings, learned, test)
        load_checkpoint(RunFolder(Path(folder) / "run").final, job.model)
        for form, write in FORMS[settings.embedding].items():
            table = write(job.model.embedding, Path(folder) / "table.ant")
            accuracy = job.judge_file("test", table)
            yield {"form": form, "bytes": table.size, "accuracy": accuracy and accuracy["accuracy"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train")
    parser.add_argument("test")
    parser.add_argument("--model", default="bag")
    parser.add_argument("--trials", default="results/text.jsonl")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--record")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    base = {"data": given.train, "test": given.test, "model": given.model, "threads": given.threads}
    documents = read(TextSettings(**base))
    for embedding in FORMS:
        rows = [row for row in read_json_lines(given.trials) if row["embedding"] == embedding and row["model"] == given.model]
        best = best_of([row for row in rows if row["seed"] == 0], 40)
        if best is None:
            raise SystemExit(f"{given.trials} has no trial of {embedding} with the model {given.model} that fits")
        for seed in range(given.seeds):
            told = {"embedding": embedding, "seed": seed, "epochs": best["epochs_at_most"]} | best["trial"]
            for row in judged(TextSettings(**base | told), documents):
                publish(given.record, {"model": given.model, "embedding": embedding, "seed": seed, **row})


if __name__ == "__main__":
    main()
