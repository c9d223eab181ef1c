"""The table of the README: what comes out without any option, and two results beside what others have published."""

from collections.abc import Iterable
from pathlib import PurePosixPath
from statistics import mean

from antembed.files import JSON
from antembed.recommend.task import Ratings
from antembed.report.page import markdown
from antembed.sweep.records import Records
from experiments.figures import points
from experiments.text_tables import FASTTEXT

# Data sets in the order of the table, by the name of their folder or of their file.
DATA_SETS = {"ml-1m": "MovieLens 1M", "amazon-sports": "Amazon Sports", "yelp": "Yelp", "ag-news": "AG-News"}
# task → what is learned, and the command
TRAINED = {
    "recommend": ("ratings", "train recommend"),
    "recommend-events": ("events", "train recommend"),
    "classify": ("text", "train classify"),
    "classify-ngrams": ("text", "train classify"),
}
METRICS = {"mse": "MSE", "ndcg@10": "NDCG@10", "accuracy": "accuracy"}
HEADINGS = ["data", "command", "test", "beside it", "files", "time"]
SMALL = "10KB"  # the file of n-grams that is shown


def defaults(records: Records, front: Records, ngrams: Records) -> str:
    """A row for each data set that was trained without options, means over seeds; then a published result each."""
    rows = [default_row(name, runs) for name, runs in by_data(records)]
    return markdown(HEADINGS, [*rows, paper_row(front), ngram_row(ngrams)])


def by_data(records: Records) -> Iterable[tuple[str, Records]]:
    """The runs of each data set, of each seed the newest, in the order of DATA_SETS."""
    found: dict[str, dict[int, JSON]] = {}
    for record in records:
        found.setdefault(data_name(record), {})[record["seed"]] = record
    order = [*DATA_SETS, *sorted(found.keys() - DATA_SETS.keys())]
    return [(name, list(found[name].values())) for name in order if name in found]


def data_name(record: JSON) -> str:
    """The file's name without its ending, if it is that of a data set; else the name of its folder."""
    path = PurePosixPath(record["config"]["input"]["data"])
    return path.stem if path.stem in DATA_SETS or not path.parent.name else path.parent.name


def default_row(name: str, runs: Records) -> list[str]:
    first = runs[0]
    what, command = TRAINED[first["task"]]
    metric = first["metric"]
    reached = [run["test"][metric] for run in runs]
    beside = {name: mean(run["baselines"][name] for run in runs) for name in first.get("baselines") or {}}
    size = mean(run["bytes"] for run in runs)
    smaller = f", {mean(run['dense_bytes'] for run in runs) / size:.0f} × smaller" if "dense_bytes" in first else ""
    return [
        f"{DATA_SETS.get(name, name)}, {what}",
        f"`antembed {command}`",
        f"{METRICS.get(metric, metric)} **{shown(metric, mean(reached))}**" + spread(metric, reached),
        ", ".join(f"{name} {shown(metric, value)}" for name, value in beside.items()) or "–",
        kilobytes(size) + smaller,
        f"{mean(float(run['wall_seconds']) for run in runs):.0f} s",
    ]


def paper_row(front: Records) -> list[str]:
    """The smallest anchored tables that are better than the paper's full ones, on the paper's split."""
    (full, error), (anchored, worse) = Ratings.published["paper: full"][0], Ratings.published["paper: ANT"][1]
    parameters, reached = next(point for point in points(front, "parameters")["anchor"] if point[1] < error)
    files, seconds = (
        next(size for size, mse in points(front, name)["anchor"] if mse == reached) for name in ("bytes", "seconds")
    )
    return [
        "MovieLens 1M, ratings, 90/10",
        "[`--solver coordinate_descent`](docs/results/recommendation.md)",
        f"MSE **{reached:.4f}**, {parameters / 1000:.1f}K parameters",
        f"the paper's full tables {error} ({full / 1000:.1f}K), anchored {worse} ({anchored / 1000:.1f}K)",
        kilobytes(files),
        f"{seconds:.0f} s",
    ]


def ngram_row(ngrams: Records) -> list[str]:
    """Hashed n-grams in a small file, beside fastText's smallest."""
    runs = [run for run in ngrams if run["config"]["solver"]["budget"] == SMALL]
    size, accuracy = FASTTEXT["fastText, quantized"][0]
    return [
        "AG-News, text",
        f"`antembed train classify-ngrams --budget {SMALL}`",
        f"accuracy **{shown('accuracy', mean(run['test']['accuracy'] for run in runs))}**",
        f"fastText, quantized to {kilobytes(size)}: {shown('accuracy', accuracy / 100)}",
        kilobytes(mean(run["bytes"] for run in runs)),
        f"{mean(run['wall_seconds'] for run in runs):.0f} s",
    ]


def shown(metric: str, value: float) -> str:
    return f"{100 * value:.1f} %" if metric == "accuracy" else f"{value:.4f}"


def spread(metric: str, values: list[float]) -> str:
    """Half of how far the seeds lie apart."""
    half = (max(values) - min(values)) / 2
    return f" ± {shown(metric, half)}" if len(values) > 1 else ""


def kilobytes(size: float) -> str:
    return f"{size / 1000:,.0f} kB"
