"""Commands that use finished runs: recommend, similar, predict."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from antembed.cli.common import AsJson

RecommenderArgument = Annotated[Path, typer.Argument(help="Folder of a run, or of Recommender.save.")]


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
    from antembed.estimators.recommender import Recommender

    recommender = Recommender.load(run)
    if not seen and not recommender.knows_ratings:
        recommender.remember_training_data()
    show.listing(recommender.recommend(users, k, filter_seen=not seen), as_json)


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
    from antembed.estimators.recommender import Recommender

    show.listing(Recommender.load(run).similar_items(item, k), as_json)


def predict(
    run: Annotated[Path, typer.Argument(help="Folder of a run, or of TextClassifier.save.")],
    file: Annotated[str, typer.Argument(help="Text: CSV, TSV, JSON lines or Parquet; - for lines of standard input.")],
    text: Annotated[str | None, typer.Option(help="Columns of text, by name or number from 1, as A,B.")] = None,
    label: Annotated[str | None, typer.Option(help="Column of the class; found if it has the run's classes.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say which class each text is of: a line each, the class and its probability.

    Example:  echo 'stocks fell again' | antembed predict runs/news -
    """
    from antembed.cli import show
    from antembed.runs import open_predictor

    predictor = open_predictor(run)
    if file == "-":
        found = predictor.predict_texts(line.rstrip("\n") for line in sys.stdin)
    else:
        columns = tuple(part.strip() for part in (text or "").split(",") if part.strip())
        found, complaint = predictor.predict_file(file, columns or None, label)
        if complaint:
            show.err.print(complaint, highlight=False)
    for piece in found:
        for row in piece:
            best = int(row.argmax())
            if as_json:
                chances = dict(zip(predictor.classes, (round(float(p), 6) for p in row), strict=True))
                typer.echo(json.dumps({"class": predictor.classes[best], "probabilities": chances}))
            else:
                typer.echo(f"{predictor.classes[best]}\t{row[best]:.4f}")
