"""Commands that use finished runs and exports: recommend, similar, predict. Only convolutional networks compute with torch."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from antembed.cli.common import AsJson
from antembed.cli.terminal import printable

if TYPE_CHECKING:
    from antembed.classify.predictor import TextPredictor
    from antembed.recommend.predictor import LightTables, RatingTables

RecommenderArgument = Annotated[Path, typer.Argument(help="Folder of a run, of an export, or of Recommender.save.")]


def recommend(
    run: RecommenderArgument,
    users: Annotated[list[str], typer.Argument(help="Users, by their labels.")],
    k: Annotated[int, typer.Option("-k", "--items", min=1, help="How many items for each.")] = 10,
    seen: Annotated[bool, typer.Option("--seen", help="Also items that the user has rated.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say what users would like best among what they have not rated yet.

    Example:  antembed recommend runs/ml-1m 42 4711 --items 5
    """
    from antembed.cli import show
    from antembed.tables.model_folder import source_of

    tables = _tables(run)
    if not seen and tables.seen is None and source_of(run):
        tables = _with_seen(run)
    columns, remarks = tables.recommend_columns(users, k, filter_seen=not seen)
    for line in remarks:
        show.say(line)
    show.listing(columns, as_json)


def _tables(run: Path) -> "LightTables | RatingTables":
    """Without polars, where the folder allows it."""
    from antembed.recommend.predictor import LightTables

    light = LightTables.load(run)
    if light is not None:
        return light
    from antembed.recommend.predictor import RatingTables

    return RatingTables.load(run)


def _with_seen(run: Path) -> "RatingTables":
    """What users have rated, from the file that a run was trained on, if the run does not hold it (a stream)."""
    from antembed.recommend.recommender import Recommender

    recommender = Recommender.load(run)
    recommender.remember_training_data()
    return recommender.tables


def similar(
    run: RecommenderArgument,
    item: Annotated[str, typer.Argument(help="An item, by its label.")],
    k: Annotated[int, typer.Option("-k", "--items", min=1, help="How many.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Say which items are most like this one.

    Example:  antembed similar runs/ml-1m 260 --items 5
    """
    from antembed.cli import show

    show.listing(_tables(run).similar_columns(item, k), as_json)


def _predictor(run: Path) -> "TextPredictor":
    from antembed.classify.predictor import light_predictor

    light = light_predictor(run)
    if light is not None:
        return light
    from antembed.classify.task import open_predictor

    return open_predictor(run)


def predict(
    run: Annotated[Path, typer.Argument(help="Folder of a run, of an export, or of TextClassifier.save.")],
    file: Annotated[str, typer.Argument(help="Text: CSV, TSV, JSON lines or Parquet; - for lines of standard input.")],
    text: Annotated[str | None, typer.Option(help="Columns of text, by name or number from 1, as A,B.")] = None,
    label: Annotated[str | None, typer.Option(help="Column of the class; found if it has the run's classes.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say which class each text is of: a line each, the class and its probability.

    Example:  echo 'stocks fell again' | antembed predict runs/news -
    """
    from antembed.cli import show

    predictor = _predictor(run)
    if file == "-":
        documents, complaint = predictor.read_texts(line.rstrip("\n") for line in sys.stdin), ""
    else:
        columns = tuple(part.strip() for part in (text or "").split(",") if part.strip())
        documents, complaint = predictor.read_file(file, columns or None, label)
    if complaint:
        show.say(complaint)
    for piece in predictor.probabilities(documents):
        for row in piece:
            best = int(row.argmax())
            if as_json:
                chances = dict(zip(predictor.classes, (round(float(p), 6) for p in row), strict=True))
                typer.echo(json.dumps({"class": predictor.classes[best], "probabilities": chances}))
            else:
                typer.echo(f"{printable(predictor.classes[best])}\t{row[best]:.4f}")
    for line in predictor.remarks(documents):
        show.say(line)


def generate(
    run: Annotated[Path, typer.Argument(help="Folder of a run of `train language`, of an export, or of LanguageModel.save.")],
    prompt: Annotated[str, typer.Option(help="How the text begins.")] = "",
    words: Annotated[int, typer.Option(min=1, help="How many more.")] = 50,
    temperature: Annotated[float, typer.Option(min=0.0, help="0: always the likeliest word; 1: as likely as they are.")] = 1.0,
    top_k: Annotated[int, typer.Option(min=0, help="Among so many words; 0: all.")] = 0,
    seed: Annotated[int | None, typer.Option(help="Same seed, same text.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write text by a language model.

    Example:  antembed generate runs/ptb --prompt "the company" --words 30 --temperature 0.8
    """
    from antembed.cli import show
    from antembed.language.generator import TextGenerator

    model = TextGenerator(run)
    if unknown := sorted({word for word in prompt.split() if word not in set(model.vocabulary.words)}):
        show.say(f"{len(unknown)} words of the prompt are unknown, and taken as <unk>: {', '.join(unknown[:5])}")
    text = model.generate(prompt, words=words, temperature=temperature, top_k=top_k, seed=seed)
    if as_json:
        show.print_json({"text": text})
        return
    for line in text.split("\n"):
        typer.echo(printable(line))
