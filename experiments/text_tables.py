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


def text(records: Records, model: str) -> str:
    """For each size and method the trial with the best validation accuracy; test accuracy over its seeds, best first."""
    rows = []
    for times in LIMITS:
        found = []
        for name, title in NAMES.items():
            mine = [row for row in records if row["model"] == model and row["embedding"] == name]
            trials = [row for row in mine if row["seed"] == 0]
            if not trials:
                continue
            best = best_of(trials, times)
            if best is None:
                found.append((0.0, [f"≥ {times} ×", title, "–", "–", "no trial fits", "–", "–", str(len(trials))]))
                continue
            runs = [row for row in mine if row["trial"] == best["trial"]]
            size = mean(run["parameters"] for run in runs)
            found.append(
                (
                    mean(run["test"]["accuracy"] for run in runs),
                    [
                        "all" if name == "full" else f"≥ {times} ×",
                        title,
                        str(best["anchors"] or "–"),
                        accuracy(runs),
                        f"{size / 1000:,.1f}K",
                        f"{DIMENSIONS * best['words'] / size:.0f} ×",
                        f"{mean(run['quantized']['int8']['bytes'] for run in runs) / 1000:,.0f} kB",
                        f"{len(trials)}, {len(runs)}",
                    ],
                )
            )
        rows += [row for _, row in sorted(found, key=lambda pair: -pair[0])]
    headings = ["fewer", "table", "anchors", "test accuracy, %", "parameters", "times fewer", "int8 file", "trials, seeds"]
    return markdown(headings, rows)


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
    """Full tables made small after training, and anchored ones: bytes and accuracy of each form, smallest first."""
    kinds: dict[tuple[str, str, str], Records] = {}
    for row in records:
        kinds.setdefault((row["model"], row["embedding"], row["form"]), []).append(row)
    found = sorted((model, mean(row["bytes"] for row in rows), table, form) for (model, table, form), rows in kinds.items())
    rows = [
        [model, NAMES[table], form, f"{size / 1000:,.0f} kB", accuracy([{"test": row} for row in kinds[model, table, form]])]
        for model, size, table, form in found
    ]
    return markdown(["model", "table", "file", "bytes of the table", "test accuracy, %"], rows)


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


def front(records: Records) -> str:
    rows = [
        [name, f"{size / 1000:,.1f} kB", f"{right:.2f}"]
        for name, points in front_points(records).items()
        for size, right in points
    ]
    return markdown(["classifier", "file", "test accuracy, %"], rows)


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
    """One row a setting: means over seeds, the full table first, then by size."""
    full = max(mean(r["parameters"] for r in runs) for runs in by_setting(records))
    rows = []
    for runs in sorted(by_setting(records), key=lambda runs: -mean(r["parameters"] for r in runs)):
        first, own = runs[0], runs[0]["config"]
        known = own["anchors"]["anchor_init"] != "none"
        knowledge = f", {own['anchors']['anchor_init']}" + "".join(f", {name}" for name in own["anchors"]["relations"])
        sparsity = own["solver"]["sparsity"]
        events = f", {sparsity['sparsify']} in {sparsity['events']} events" if sparsity["sparsify"] != "prox" else ""
        softmax = "" if first["softmax"] == "sampled" else f", {first['softmax']} softmax"
        if first["softmax"] == "nce":
            softmax = f", NCE with {own['output']['negatives']:,} negatives"
        rows.append(
            [
                f"{first['model']}-{own['tables']['embedding_dim']}",
                first["embedding"] + (knowledge if known else "") + events + softmax,
                str(first["anchors"]) if first["anchors"] else "–",
                f"{mean(r['parameters'] for r in runs) / 1e6:.3f}M",
                f"{full / mean(r['parameters'] for r in runs):.1f}",
                f"{mean(r['validation']['perplexity'] for r in runs):.1f}",
                f"{mean(r['test']['perplexity'] for r in runs):.1f}",
                f"{mean(r['bytes'] for r in runs) / 1000:.0f} kB",
                str(first["epochs"]),
                str(len(runs)),
            ]
        )
    return markdown(
        [
            "network",
            "table",
            "anchors",
            "parameters",
            "times fewer",
            "validation",
            "test perplexity",
            "file",
            "epochs",
            "seeds",
        ],
        rows,
    )


if __name__ == "__main__":
    draw(read_records(sys.argv[1]), Path(sys.argv[2]))
