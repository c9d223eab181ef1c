"""Tables on labelled text: every embedding at two sizes, and what knowledge of the words brings."""

import sys
from pathlib import Path
from statistics import mean

from antembed.files import JSON
from antembed.report.page import markdown
from antembed.sweep.front import save
from antembed.sweep.records import Records, by_setting, read_records
from experiments.markdown import options

LIMITS = (40, 100)  # times fewer parameters than the full table
DIMENSIONS = 256
NAMES = {
    "anchor": "anchored (ANT)",
    "full": "full table",
    "low-rank": "dense rank K, T free",
    "low-rank-nonnegative": "dense rank K, T ≥ 0",
    "mixture": "linear mixture of two",
    "softmax-mixture": "softmax mixture of two",
    "frequency": "frequent words",
    "tf-idf": "words by tf-idf",
    "hashed": "hashing",
    "group-lasso": "group lasso",
    "vvd": "VVD",
    "sparse-vd": "SparseVD",
    "sparse-vd-words": "SparseVD-Voc",
    "sparse": "ℓ1 on E, prox",
    "slimming": "slimming of E",
    "sparse-code": "sparse code",
}


def best_of(trials: Records, times: int) -> JSON | None:
    """The trial that is best on validation, of those with so many times fewer parameters than the full table (or full)."""
    fitting = [row for row in trials if row["embedding"] == "full" or row["parameters"] * times <= DIMENSIONS * row["words"]]
    return max(fitting, key=lambda row: row["validation"]["accuracy"], default=None)


def accuracy(runs: Records) -> str:
    """Mean of the test in per cent, and how far the seeds lie apart."""
    found = [100 * run["test"]["accuracy"] for run in runs]
    return f"{mean(found):.2f}" + (f" ± {(max(found) - min(found)) / 2:.2f}" if len(found) > 1 else "")


def embeddings(cnn: Records, means: Records) -> str:
    """Test accuracy of every embedding in both models and at both sizes, of the trial that is best on validation data."""
    models = ((cnn, "cnn"), (means, "mean"))
    rows = []
    for name, title in NAMES.items():
        cells = [reached(records, model, name, times) for records, model in models for times in LIMITS]
        if any(cells):
            rows.append([title, *(cell or "–" for cell in cells)])
    headings = [f"{model}, {times} × fewer" for _, model in models for times in LIMITS]
    return markdown(["table", *headings], sorted(rows, key=lambda row: row[1], reverse=True))


def reached(records: Records, model: str, name: str, times: int) -> str:
    """Accuracy over the seeds of the best trial that is so many times smaller; empty if none is."""
    mine = [row for row in records if row["model"] == model and row["embedding"] == name]
    best = best_of([row for row in mine if row["seed"] == 0], times)
    return accuracy([row for row in mine if row["trial"] == best["trial"]]) if best else ""


RELATIONS = {
    (): "no relations",
    ("wordnet",): "WordNet",
    ("cooccurrence",): "co-occurrence",
    ("wordnet", "cooccurrence"): "both",
}


def knowledge_of(config: JSON) -> str:
    """What a run knew of the words."""
    tables, anchors = config["tables"], config["anchors"]
    name = RELATIONS[tuple(anchors["relations"])] if tables["embedding"] == "anchor" else "full table"
    if anchors["unrelated_penalty"]:
        name += ", unrelated pairs apart"
    if anchors["orthogonality_penalty"]:
        name += ", orthogonal anchors"
    if anchors["anchor_init"] == "kmeans":
        name += ", anchors from " + ("pretrained vectors" if anchors["vectors"] else "co-occurrence")
    return name + ("; the network" if tables["model"] == "cnn" else "")


def knowledge(records: Records) -> str:
    """By what was known of the words: test accuracy over seeds."""
    kinds: dict[str, Records] = {}
    for row in records:
        kinds.setdefault(knowledge_of(row["config"]), []).append(row)
    rows = [
        [
            kind,
            f"{mean(run['free_entries'] for run in runs):,.0f}",
            f"{100 * mean(run['validation']['accuracy'] for run in runs):.2f}",
            accuracy(runs),
            f"{mean(run['parameters'] for run in runs) / 1000:,.1f}K",
            f"{mean(DIMENSIONS * run['words'] / run['parameters'] for run in runs):.0f} ×",
            str(len(runs)),
        ]
        for kind, runs in kinds.items()
    ]
    return markdown(["relations", "free entries", "validation, %", "test accuracy, %", "parameters", "fewer", "seeds"], rows)


def quantized(records: Records) -> str:
    """Full tables made small after training, and anchored ones: bytes and accuracy of each form in both models."""
    kinds: dict[tuple[str, str], dict[str, Records]] = {}
    for row in records:
        kinds.setdefault((row["embedding"], row["form"]), {}).setdefault(row["model"], []).append(row)
    found = []
    for (table, form), models in kinds.items():
        cells = []
        for model in ("cnn", "mean"):
            runs = models.get(model, [])
            cells += (
                [f"{mean(r['bytes'] for r in runs) / 1000:,.0f} kB", accuracy([{"test": r} for r in runs])]
                if runs
                else ["–", "–"]
            )
        size = mean(r["bytes"] for runs in models.values() for r in runs)
        found.append((size, [NAMES[table], form, *cells]))
    rows = [row for _, row in sorted(found)]
    return markdown(["table", "file", "cnn: bytes", "accuracy, %", "mean: bytes", "accuracy, %"], rows)


COMMANDS = {
    "cnn": "`train classify --model cnn`",
    "mean": "`train classify --model mean`",
    "ngrams": "`train classify-ngrams`",
}


def large(records: Records) -> str:
    """A file of DBPedia's size, the newest run of each kind: memory and time."""
    newest = {row["model"]: row for row in records}
    rows = [
        [
            COMMANDS.get(name, name),
            f"{row['peak_gigabytes']:.2f} GB",
            f"{row['seconds']:.0f} s",
            f"{row['megabytes_a_second']:.1f} MB/s" if "megabytes_a_second" in row else "–",
        ]
        for name, row in newest.items()
    ]
    return markdown(["", "peak memory", "takes", "speed"], rows)


def budgets(records: Records) -> str:
    """Runs that were given a budget beside those of which λ2 was set by hand, by the bytes of the packed int8 file."""
    rows = []
    for row in sorted(records, key=lambda row: row["quantized"]["int8 packed"]["bytes"]):
        packed, sparsity = row["quantized"]["int8 packed"], row["config"]["solver"]["sparsity"]
        asked = ["budget"] if sparsity["budget"] else ["l1_penalty", "polish"] if sparsity["polish"] else ["l1_penalty"]
        rows.append(
            [
                f"`{options(row['config'], asked)}`",
                f"{packed['bytes'] / 1000:.1f} kB",
                f"{row['parameters']:,}",
                f"{100 * row['validation']['accuracy']:.2f}",
                f"{100 * packed['test_accuracy']:.2f}",
            ]
        )
    return markdown(["asked for", "int8, packed", "parameters", "validation, %", "test accuracy, %"], rows)


def step(records: Records) -> str:
    """The newest benchmark of a step: milliseconds, and how many times longer the peers take."""
    record = records[-1]
    rows = [
        [
            name,
            f"{milliseconds:,.0f} ms",
            *(f"{record['ratios'][name][peer]:.3g} ×" if name in record["ratios"] else "–" for peer in PEERS),
        ]
        for name, milliseconds in record["milliseconds"].items()
    ]
    return markdown([f"a step ({record['setting']})", "takes", *(f"{peer} ÷ this" for peer in PEERS)], rows)


PEERS = ("plain", "plain, dense Adam")
OURS = "antembed, hashed n-grams"
# fastText on the same files, measured outside this project (two threads, 8 epochs, d=10): bytes, per cent.
FASTTEXT = {
    "fastText, quantized": [(33e3, 88.4), (110e3, 88.5), (370e3, 89.7), (1.67e6, 90.2)],
    "fastText, words": [(4.0e6, 89.9)],
}


def front_points(records: Records) -> dict[str, list[tuple[float, float]]]:
    """By classifier: (bytes of the file, test accuracy in per cent), means over seeds, smallest first."""
    found: dict[str, dict[object, list[tuple[float, float]]]] = {}
    for row in records:
        if row["part"] != "test":
            continue
        if row["model"] == "ngrams":
            budget = row["config"]["solver"]["budget"]
            found.setdefault(OURS, {}).setdefault(budget, []).append((row["bytes"], 100 * row["accuracy"]))
            continue
        words = {1: "words", 2: "words and pairs"}[row["orders"]]
        key = (row["orders"], row["bits"], row["C"])
        if row["bits"] == 24:
            found.setdefault(f"ℓ1 regression, {words}", {})[key] = [(row["bytes"], 100 * row["accuracy"])]
        packed = found.setdefault(f"ℓ1 regression, {words}, hashed and packed as ours", {})
        packed[key] = [(row["bytes_packed"], 100 * row["accuracy_packed"])]
    return {
        name: sorted((mean(size for size, _ in runs), mean(right for _, right in runs)) for runs in kinds.values())
        for name, kinds in found.items()
    } | FASTTEXT


FILE_SIZES = (10e3, 25e3, 50e3, 110e3, 370e3, 4e6)


def front(records: Records) -> str:
    """The best test accuracy of each classifier in files of at most so many bytes."""
    classifiers = {name: points for name, points in front_points(records).items() if name != "fastText, words"}
    rows = []
    for limit in FILE_SIZES:
        best = (max((right for size, right in points if size <= 1.01 * limit), default=0.0) for points in classifiers.values())
        rows.append([f"{limit / 1000:,.0f} kB", *(f"{right:.2f}" if right else "–" for right in best)])
    return markdown(["file up to", *classifiers], rows)


def draw(records: Records, out: Path) -> None:
    """The same as a picture."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for name, points in front_points(records).items():
        ours = name == OURS
        axes.plot(*zip(*points, strict=True), marker="o", label=name, linewidth=2.5 if ours else 1, alpha=1 if ours else 0.7)
    axes.set_xscale("log")
    axes.set_xlabel("bytes of the file, all that is needed to predict")
    axes.set_ylabel("test accuracy, %")
    axes.set_ylim(bottom=86)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    save(figure, out)


def after_training(records: Records) -> str:
    """A full table made small after training: perplexity with it, by method."""
    rows = []
    for record in {record["method"]: record for record in records}.values():
        coded = record["method"].startswith("compress")
        size = "–" if coded else f"{record['parameters'] / 1e6:.3f}M"
        rows.append([record["method"], size, f"{record['relative_error']:.4f}", f"{record['perplexity']:.1f}"])
    return markdown(["after training", "parameters", "relative error", "test perplexity"], rows)


def language(records: Records) -> str:
    """The full table first, then by size; of rows with the same table and size the one that is best on validation data."""
    full = max(mean(r["parameters"] for r in runs) for runs in by_setting(records))
    best: dict[tuple[str, ...], Records] = {}
    for runs in sorted(by_setting(records), key=lambda runs: -mean(r["validation"]["perplexity"] for r in runs)):
        config, size = runs[0]["config"], mean(r["parameters"] for r in runs)
        best[runs[0]["embedding"], softmax_of(runs[0]), str(config["tables"]["embedding_dim"]), f"{size / 1e6:.2f}"] = runs
    rows = []
    for runs in sorted(best.values(), key=lambda runs: -mean(r["parameters"] for r in runs)):
        first, own = runs[0], runs[0]["config"]
        known = own["anchors"]["anchor_init"] != "none"
        knowledge = f", {own['anchors']['anchor_init']}" + "".join(f", {name}" for name in own["anchors"]["relations"])
        sparsity = own["solver"]["sparsity"]
        events = f", {sparsity['sparsify']} in {sparsity['events']} events" if sparsity["sparsify"] != "prox" else ""
        rows.append(
            [
                first["embedding"] + (knowledge if known else "") + events + softmax_of(first),
                str(first["anchors"]) if first["anchors"] else "–",
                f"{mean(r['parameters'] for r in runs) / 1e6:.3f}M",
                f"{full / mean(r['parameters'] for r in runs):.1f}",
                f"{mean(r['validation']['perplexity'] for r in runs):.1f}",
                f"{mean(r['test']['perplexity'] for r in runs):.1f}",
                f"{mean(r['bytes'] for r in runs) / 1000:.0f} kB",
            ]
        )
    headings = ["table", "anchors", "parameters", "times fewer", "validation", "test perplexity", "file"]
    return markdown(headings, rows)


def softmax_of(run: JSON) -> str:
    if run["softmax"] == "nce":
        return f", NCE with {run['config']['output']['negatives']:,} negatives"
    return "" if run["softmax"] == "sampled" else f", {run['softmax']} softmax"


if __name__ == "__main__":
    draw(read_records(sys.argv[1]), Path(sys.argv[2]))
