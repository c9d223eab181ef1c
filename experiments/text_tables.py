"""Tables on text: every embedding at two sizes, what knowledge of words brings, small files, language models, compression."""

from statistics import mean

from antembed.files import JSON
from antembed.report.page import markdown
from antembed.sweep.records import Records, by_setting
from experiments.markdown import FILES, PARAMETERS, average, count, grouped, newest, options, spread, spread_of, table
from experiments.recommendation_tables import WAYS, size_of

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
    return spread([100 * run["test"]["accuracy"] for run in runs], 2)


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
    columns = {
        "relations": lambda runs: knowledge_of(runs[0]["config"]),
        "free entries": average("free_entries", "{:,.0f}"),
        "validation, %": lambda runs: f"{100 * mean(run['validation']['accuracy'] for run in runs):.2f}",
        "test accuracy, %": accuracy,
        "parameters": average("parameters", "{:,.1f}K", 1e-3),
        "fewer": lambda runs: f"{mean(DIMENSIONS * run['words'] / run['parameters'] for run in runs):.0f} ×",
        "seeds": count,
    }
    return table(grouped(records, lambda record: knowledge_of(record["config"])).values(), columns)


def quantized(records: Records) -> str:
    """Full tables made small after training, and anchored ones: bytes and accuracy of each form in both models."""
    kinds: dict[tuple[str, str], dict[str, Records]] = {}
    for row in records:
        kinds.setdefault((row["embedding"], row["form"]), {}).setdefault(row["model"], []).append(row)
    found = []
    for (name, form), models in kinds.items():
        cells = []
        for model in ("cnn", "mean"):
            runs = models.get(model, [])
            cells += (
                [f"{mean(r['bytes'] for r in runs) / 1000:,.0f} kB", accuracy([{"test": r} for r in runs])]
                if runs
                else ["–", "–"]
            )
        size = mean(r["bytes"] for runs in models.values() for r in runs)
        found.append((size, [NAMES[name], form, *cells]))
    rows = [row for _, row in sorted(found)]
    return markdown(["table", "file", "cnn: bytes", "accuracy, %", "mean: bytes", "accuracy, %"], rows)


COMMANDS = {"cnn": "`train classify --model cnn`", "mean": "`train classify --model mean`", "ngrams": "`train classify-ngrams`"}


def large(records: Records) -> str:
    """A file of DBPedia's size, the newest run of each kind: memory and time."""
    columns = {
        "": lambda row: COMMANDS.get(row["model"], row["model"]),
        "peak memory": "{peak_gigabytes:.2f} GB",
        "takes": "{seconds:.0f} s",
        "speed": lambda row: f"{row['megabytes_a_second']:.1f} MB/s" if "megabytes_a_second" in row else "–",
    }
    return table(newest(records, "model"), columns)


def budgets(records: Records) -> str:
    """Runs that were given a budget beside those of which λ2 was set by hand, by the bytes of the packed int8 file."""

    def asked(row: JSON) -> str:
        sparsity = row["config"]["solver"]["sparsity"]
        names = ["budget"] if sparsity["budget"] else ["l1_penalty", "polish"] if sparsity["polish"] else ["l1_penalty"]
        return f"`{options(row['config'], names)}`"

    columns = {
        "asked for": asked,
        "int8, packed": lambda row: f"{row['quantized']['int8 packed']['bytes'] / 1000:.1f} kB",
        "parameters": "{parameters:,}",
        "validation, %": lambda row: f"{100 * row['validation']['accuracy']:.2f}",
        "test accuracy, %": lambda row: f"{100 * row['quantized']['int8 packed']['test_accuracy']:.2f}",
    }
    return table(sorted(records, key=lambda row: row["quantized"]["int8 packed"]["bytes"]), columns)


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


def after_training(records: Records) -> str:
    """A full table made small after training: perplexity with it, by method."""
    columns = {
        "after training": "{method}",
        "parameters": lambda row: "–" if row["method"].startswith("compress") else f"{row['parameters'] / 1e6:.3f}M",
        "relative error": "{relative_error:.4f}",
        "test perplexity": "{perplexity:.1f}",
    }
    return table(newest(records, "method"), columns)


def language(records: Records) -> str:
    """The full table first, then by size; of rows with the same table and size the one that is best on validation data."""
    full = max(mean(r["parameters"] for r in runs) for runs in by_setting(records))
    best: dict[tuple[str, ...], Records] = {}
    for runs in sorted(by_setting(records), key=lambda runs: -mean(r["validation"]["perplexity"] for r in runs)):
        config, size = runs[0]["config"], mean(r["parameters"] for r in runs)
        best[runs[0]["embedding"], softmax_of(runs[0]), str(config["tables"]["embedding_dim"]), f"{size / 1e6:.2f}"] = runs

    def name(runs: Records) -> str:
        own = runs[0]["config"]
        known = own["anchors"]["anchor_init"]
        knowledge = "".join(f", {each}" for each in (known, *own["anchors"]["relations"])) if known != "none" else ""
        sparsity = own["solver"]["sparsity"]
        events = f", {sparsity['sparsify']} in {sparsity['events']} events" if sparsity["sparsify"] != "prox" else ""
        return runs[0]["embedding"] + knowledge + events + softmax_of(runs[0])

    columns = {
        "table": name,
        "anchors": lambda runs: str(runs[0]["anchors"]) if runs[0]["anchors"] else "–",
        "parameters": average("parameters", "{:.3f}M", 1e-6),
        "times fewer": lambda runs: f"{full / mean(r['parameters'] for r in runs):.1f}",
        "validation": average("validation.perplexity", "{:.1f}"),
        "test perplexity": average("test.perplexity", "{:.1f}"),
        "file": FILES,
    }
    return table(sorted(best.values(), key=lambda runs: -mean(r["parameters"] for r in runs)), columns)


def softmax_of(run: JSON) -> str:
    if run["softmax"] == "nce":
        return f", NCE with {run['config']['output']['negatives']:,} negatives"
    return "" if run["softmax"] == "sampled" else f", {run['softmax']} softmax"


def sparsifiers(records: Records) -> str:
    """One row a way and size, of the mean of the words: means over seeds, beside dense tables of rank K in packed int8."""

    def key(record: JSON) -> tuple[str, str]:
        config, own = record["config"], record["config"]["solver"]["sparsity"]
        way = WAYS[own["sparsify"]] if record["embedding"] == "anchor" else f"dense, rank {config['anchors']['anchors'][0]}"
        return own["budget"], way

    shown = [
        record for record in records if record["config"]["tables"]["model"] != "cnn"
    ]  # stays with prox: in the records only
    groups = grouped(shown, key)
    columns = {
        "way": lambda runs: key(runs[0])[1],
        "budget": lambda runs: key(runs[0])[0] or "int8 packed",
        "test accuracy, %": spread_of("test.accuracy", 2, 100),
        "parameters": PARAMETERS,
        "file": FILES,
        "seeds": count,
    }
    order = sorted((each for each in groups if each[1] not in NARROW), key=lambda each: (size_of(each[0]), each[1]))
    return table([groups[each] for each in order], columns)


NARROW = ("dense, rank 1", "dense, rank 2", "dense, rank 3")  # in the records only
COMPRESSED = {
    "low rank, int8": "low rank, int8",
    "whole numbers": "bits a number",
    "PQ": "PQ (faiss)",
    "OPQ": "OPQ (faiss)",
    "RQ": "RQ (faiss)",
    "LSQ": "LSQ (faiss)",
}


def compress(records: Records) -> str:
    """The newest records of each table and ratio (experiments/bench/compress.py): ours, and the best of the others."""
    found: dict[tuple[str, float], dict[tuple[str, bool], JSON]] = {}
    for r in records:
        found.setdefault((r["table"], r["wanted"]), {})[r["method"], r["frequency"]] = r
    rows = []
    for (name, wanted), methods in sorted(found.items()):
        ours = max((r for (name, _), r in methods.items() if name in ("transform", "sparse")), key=lambda r: r["date"])
        peers = {names: r for names, r in methods.items() if names[0] in COMPRESSED}
        peer, frequency = max(peers, key=lambda names: peers[names]["neighbours_kept"])
        rows.append([f"{name}, {wanted:.0f}x", ours["method"], *_kept(ours)])
        rows[-1] += [COMPRESSED[peer] + (", by frequency" if frequency else ""), *_kept(peers[peer, frequency])]
    headings = ["vectors", "method", "times smaller", "error", "neighbours kept"]
    return markdown([*headings, "best other", "its times smaller", "its error", "it keeps"], rows)


def _kept(record: JSON) -> list[str]:
    return [f"{record['ratio']:.1f}", f"{record['relative_error']:.4f}", f"{record['neighbours_kept']:.1%}"]


def distilled(records: Records) -> str:
    """The newest record without and with distillation (experiments/bench/distil.py)."""
    columns = {
        "MiniLM on AG-News": "{distillation} distillation",
        "times smaller": "{ratio:.1f}",
        "Spearman of similarities": "{spearman:.4f}",
        "relative error": "{relative_error:.4f}",
        "neighbours kept": "{neighbours_kept:.1%}",
    }
    return table(newest(records, "distillation"), columns)
