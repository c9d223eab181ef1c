"""Commands that answer from finished runs, exports and tables: recommend, similar, predict, generate, neighbours.

Only convolutional networks compute with torch."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from antembed.cli import show
from antembed.cli.common import AsJson, folder_of

if TYPE_CHECKING:
    from antembed.classify.predictor import TextPredictor
    from antembed.recommend.predictor import RatingTables


def recommend(
    run: Annotated[Path, folder_of("a run, of an export, or of Recommender.save")],
    users: Annotated[list[str], typer.Argument(help="Users, by their labels.")],
    k: Annotated[int, typer.Option("-k", "--items", min=1, help="How many items for each user.")] = 10,
    seen: Annotated[bool, typer.Option("--seen", help="Include items that the user has rated.")] = False,
    as_json: AsJson = False,
) -> None:
    """Recommend items that a user has not rated yet.

    Example:  antembed recommend runs/ml-1m 42

    Example:  antembed recommend runs/ml-1m 42 4711 --items 5 --seen
    """
    from antembed.recommend.predictor import LightTables
    from antembed.tables.model_folder import source_of

    tables: LightTables | RatingTables = LightTables.load(run)  # without polars, where the folder allows it
    if not seen and tables.seen is None and source_of(run):  # a stream: what users have rated is in its file
        from antembed.recommend.recommender import Recommender

        recommender = Recommender.load(run)
        recommender.remember_training_data()
        tables = recommender.tables
    columns, remarks = tables.recommend_columns(users, k, filter_seen=not seen)
    for line in remarks:
        show.say(line)
    show.listing(columns, as_json)


def similar(
    run: Annotated[Path, folder_of("a run, of an export, or of Recommender.save")],
    item: Annotated[str, typer.Argument(help="An item, by its label.")],
    k: Annotated[int, typer.Option("-k", "--items", min=1, help="How many.")] = 10,
    as_json: AsJson = False,
) -> None:
    """List the items that are most like this one.

    Example:  antembed similar runs/ml-1m 260

    Example:  antembed similar runs/ml-1m 260 --items 5 --json
    """
    from antembed.recommend.predictor import LightTables

    show.listing(LightTables.load(run).similar_columns(item, k), as_json)


def _predictor(run: Path) -> "TextPredictor":
    from antembed.classify.predictor import light_predictor

    if (light := light_predictor(run)) is not None:
        return light
    from antembed.classify.task import open_predictor

    return open_predictor(run)


def predict(
    run: Annotated[Path, folder_of("a run, of an export, or of TextClassifier.save")],
    file: Annotated[str, typer.Argument(help="Text: CSV, TSV, JSON lines or Parquet; - for lines of standard input.")],
    text: Annotated[str | None, typer.Option(help="Columns of text, by name or number from 1, such as A,B.")] = None,
    label: Annotated[str | None, typer.Option(help="Column of the class; found if it has the run's classes.")] = None,
    as_json: AsJson = False,
) -> None:
    """Classify texts: a line each, the class and its probability.

    Example:  echo 'stocks fell again' | antembed predict runs/news -

    Example:  antembed predict runs/news new.csv --text title,body --json
    """
    predictor = _predictor(run)
    if file == "-":
        documents, complaint = predictor.read_texts(line.rstrip("\n") for line in sys.stdin), ""
    else:
        columns = tuple(part.strip() for part in (text or "").split(",") if part.strip())
        documents, complaint = predictor.read_file(file, columns or None, label)
    if complaint:
        show.say(complaint)
    for batch in predictor.probabilities(documents):
        for row in batch:
            best = int(row.argmax())
            if as_json:
                probabilities = dict(zip(predictor.classes, (round(float(p), 6) for p in row), strict=True))
                typer.echo(json.dumps({"class": predictor.classes[best], "probabilities": probabilities}))
            else:
                typer.echo(f"{show.printable(predictor.classes[best])}\t{row[best]:.4f}")
    for line in predictor.remarks(documents):
        show.say(line)


def generate(
    run: Annotated[Path, folder_of("a run of `train language`, of an export, or of LanguageModel.save")],
    prompt: Annotated[str, typer.Option(help="The beginning of the text.")] = "",
    words: Annotated[int, typer.Option(min=1, help="How many words to generate.")] = 50,
    temperature: Annotated[
        float, typer.Option(min=0.0, help="0: always the most likely word; 1: sample by the model's probabilities.")
    ] = 1.0,
    top_k: Annotated[int, typer.Option(min=0, help="Sample from so many most likely words; 0: from all.")] = 0,
    seed: Annotated[int | None, typer.Option(help="Same seed, same text.")] = None,
    as_json: AsJson = False,
) -> None:
    """Generate text with a language model.

    Example:  antembed generate runs/ptb --prompt "the company"

    Example:  antembed generate runs/ptb --words 30 --temperature 0.8 --top-k 40 --seed 1
    """
    from antembed.language.task import TextGenerator

    model = TextGenerator(run)
    if unknown := sorted({word for word in prompt.split() if word not in set(model.vocabulary.words)}):
        show.say(f"{len(unknown)} words of the prompt are unknown, and taken as <unk>: {', '.join(unknown[:5])}")
    text = model.generate(prompt, words=words, temperature=temperature, top_k=top_k, seed=seed)
    show.print_result({"text": text}, text.split("\n"), as_json)


def neighbours(
    file: Annotated[Path, typer.Argument(help="A file with words, as `antembed compress` writes it.")],
    words: Annotated[list[str], typer.Argument(help="Words.")],
    k: Annotated[int, typer.Option("-k", min=1, help="How many for each.")] = 10,
    as_json: AsJson = False,
) -> None:
    """List the words that are nearest to these.

    Example:  antembed neighbours glove.ant stock

    Example:  antembed neighbours glove.ant stock bond -k 5 --json
    """
    from antembed.tables.save import load_table

    table = load_table(file)
    if table.words is None:
        raise ValueError(f"{file} has no words; compress vectors with their words, or with --words FILE")
    unknown = [word for word in words if word not in table]
    asked = ", ".join(map(repr, unknown))
    have = f"{asked}: none of the {len(table):,} words; are they written as there, in lower case for example?"
    if len(unknown) == len(words):
        raise ValueError(have)
    if unknown:
        show.note(have)
    for word in words:
        near = [] if word in unknown else table.most_similar(word, k)
        if as_json:
            show.print_json({"word": word, "neighbours": near})
        elif near:
            show.answer(f"{word}: " + ", ".join(f"{name} {cosine:.3f}" for name, cosine in near))
