"""Methods side by side: the baselines at equal budgets, what parts of a recipe bring, what coarse numbers cost."""

from collections.abc import Sequence
from statistics import mean

from antembed.budget import parse_budget
from antembed.files import JSON
from antembed.report.page import markdown
from antembed.sweep.records import Records, by_setting

BUDGETS = (25_000, 50_000)  # parameters
NAMES = {
    "anchor": "anchored, stochastic steps",
    "anchor, coordinate descent": "anchored, coordinate descent",
    "full": "full tables of every width",
    "full, no biases": "full tables, no biases",
    "low-rank": "dense rank K, T free",
    "low-rank-nonnegative": "dense rank K, T ≥ 0",
    "mixed": "mixed dimensions",
    "hashed": "hashing",
    "sparse": "sparse CBOW, prox",
    "sparse-subgradient": "sparse CBOW, subgradient",
    "slimming": "slimming of E",
    "slimming-transform": "slimming of T",
}


def method(config: JSON) -> str:
    """The name of a run's method in NAMES."""
    name = str(config["tables"]["embedding"])
    if not config["tables"]["biases"]:
        name += ", no biases"
    return name + (", coordinate descent" if config["solver"]["name"] == "coordinate_descent" else "")


def spread(errors: Sequence[float], digits: int = 4) -> str:
    """Mean, and half of how far the seeds lie apart."""
    apart = f" ± {(max(errors) - min(errors)) / 2:.{digits}f}" if len(errors) > 1 else ""
    return f"{mean(errors):.{digits}f}{apart}"


def baselines(records: Records) -> str:
    """For each budget and method the trial with the lowest validation error that fits; means over its seeds, best first."""
    rows = []
    settings = by_setting(records)
    for budget in BUDGETS:
        found = []
        for name in NAMES:
            trials = [runs for runs in settings if method(runs[0]["config"]) == name]
            fitting = [runs for runs in trials if runs[0]["parameters"] <= budget]
            if not fitting:
                continue
            best = min(fitting, key=lambda runs: runs[0]["validation"]["mse"])
            found.append((mean(r["test"]["mse"] for r in best), name, best, len(trials)))
        for _, name, best, tried in sorted(found, key=lambda each: each[0]):
            int8 = [r["quantized"]["int8"] for r in best]
            rows.append(
                [
                    NAMES[name],
                    f"≤ {budget // 1000}K",
                    spread([r["test"]["mse"] for r in best]),
                    f"{mean(r['parameters'] for r in best) / 1000:.1f}K",
                    f"{mean(r['bytes'] for r in best) / 1000:.0f} kB",
                    f"{mean(file['bytes'] for file in int8) / 1000:.0f} kB",
                    spread([file["test_mse"] for file in int8]),
                    str(tried),
                    str(len(best)),
                ]
            )
    headings = ["method", "budget", "test MSE", "parameters", "fp32", "int8", "test MSE of int8", "trials", "seeds"]
    return markdown(headings, rows)


def ablation(records: Records) -> str:
    """One change at a time, at one budget: validation and test, means over seeds, by the option that was changed."""
    seen: dict[str, Records] = {}
    for record in records:
        name, value = next(iter(record["settings"].items()))
        seen.setdefault(f"{name.replace('_', '-')}={value}", []).append(record)
    rows = [
        [
            change,
            spread([r["validation"]["mse"] for r in runs]),
            spread([r["test"]["mse"] for r in runs]),
            f"{mean(r['parameters'] for r in runs) / 1000:.1f}K",
            str(len(runs)),
        ]
        for change, runs in seen.items()
    ]
    return markdown(["part", "validation MSE", "test MSE", "parameters", "seeds"], rows)


def sizes(records: Records) -> str:
    """The front in bytes: each setting's files in fp32, fp16, int8 and packed, and the error of what is read back."""
    rows = []
    settings = by_setting(records)
    for runs in sorted(settings, key=lambda runs: (runs[0]["embedding"], mean(r["parameters"] for r in runs))):
        first, files = runs[0], [r["quantized"] for r in runs]
        width = f", k={first['config']['tables']['embedding_dim']}" if first["embedding"] == "full" else ""
        rows.append(
            [
                first["embedding"] + width,
                f"{mean(r['parameters'] for r in runs) / 1000:.1f}K",
                f"{mean(r['test']['mse'] for r in runs):.4f}",
                f"{mean(r['bytes'] for r in runs) / 1000:.0f} kB",
                *(f"{mean(f[kind]['bytes'] for f in files) / 1000:.0f} kB" for kind in ("fp16", "int8", "int8 packed")),
                f"{mean(f['int8']['test_mse'] for f in files):.4f}",
            ]
        )
    return markdown(["tables", "parameters", "test MSE", "fp32", "fp16", "int8", "int8 packed", "test MSE of int8"], rows)


WAYS = {"recode": "recode", "prune": "prune", "prox": "prox, polished"}


def sparsifiers(records: Records) -> str:
    """One row a way and budget: means over seeds, beside coordinate descent."""
    groups: dict[tuple[str, str, str], Records] = {}
    for record in records:
        solver = record["config"]["solver"]
        way = WAYS[solver["sparsity"]["sparsify"]] if solver["name"] == "stochastic" else "coordinate descent (ratings only)"
        if record["embedding"] == "full":
            way = f"full tables, k={record['config']['tables']['embedding_dim']}, packed"
        budget = solver["sparsity"]["budget"] if solver["name"] == "stochastic" else solver["budget"]
        groups.setdefault((budget, way, record["config"]["export"]["values"]), []).append(record)
    rows = []
    for (budget, way, values), runs in sorted(groups.items(), key=lambda pair: (_size(pair[0][0]), _error(pair[1]))):
        errors = [run["test"]["mse"] for run in runs]
        rows.append(
            [
                way,
                ", ".join(part for part in (budget, "" if values == "auto" else values) if part),
                f"{mean(errors):.4f} ± {(max(errors) - min(errors)) / 2:.4f}",
                f"{mean(run['parameters'] for run in runs) / 1000:.1f}K",
                f"{mean(run['bytes'] for run in runs) / 1000:.0f} kB",
                f"{mean(run['seconds'] for run in runs):.0f} s",
                str(len(runs)),
            ]
        )
    return markdown(["way", "budget", "test MSE", "parameters", "files", "training", "seeds"], rows)


def text_sparsifiers(records: Records) -> str:
    """One row a network, way and size: means over seeds, beside dense tables of rank K in packed int8."""
    groups: dict[tuple[str, str, str], Records] = {}
    for record in records:
        config, own = record["config"], record["config"]["solver"]["sparsity"]
        way = WAYS[own["sparsify"]] if record["embedding"] == "anchor" else f"dense, rank {config['anchors']['anchors'][0]}"
        groups.setdefault((config["tables"]["model"], own["budget"], way), []).append(record)
    rows = [
        [
            model,
            way,
            budget or "int8 packed",
            spread([100 * run["test"]["accuracy"] for run in runs], 2),
            f"{mean(run['parameters'] for run in runs) / 1000:.1f}K",
            f"{mean(run['bytes'] for run in runs) / 1000:.0f} kB",
            str(len(runs)),
        ]
        for (model, budget, way), runs in sorted(groups.items(), key=lambda pair: (pair[0][0], _size(pair[0][1]), pair[0][2]))
    ]
    return markdown(["network", "way", "budget", "test accuracy", "parameters", "file", "seeds"], rows)


def penalties(records: Records) -> str:
    """Other ways to zeros in one loop: means over seeds, best first."""
    ways: dict[str, Records] = {}
    for record in records:
        ways.setdefault(record["penalty"], []).append(record)
    rows = [
        [
            way,
            spread([run["validation"] for run in runs]),
            spread([run["test"] for run in runs]),
            f"{mean(run['parameters'] for run in runs) / 1000:.1f}K",
            f"{mean(run['seconds'] for run in runs):.0f} s",
            str(len(runs)),
        ]
        for way, runs in sorted(ways.items(), key=lambda pair: mean(run["test"] for run in pair[1]))
    ]
    return markdown(["way", "validation MSE", "test MSE", "parameters", "training", "seeds"], rows)


def shapes(records: Records) -> str:
    """Files of many shapes without options, beside a plain method."""
    rows = []
    for record in records:
        metric = {"ratings": "MSE", "events": "NDCG@10", "text": "accuracy"}[record["kind"]]
        rows.append(
            [
                record["shape"],
                f"{metric} {record['ours']:.4g}",
                f"{record['beside']} {record['other']:.4g}",
                f"{record['bytes'] / 1000:.1f} kB",
                f"{record['examples']:,}",
            ]
        )
    return markdown(["data", "without options", "beside it", "files", "test examples"], rows)


def _size(budget: str) -> tuple[str, float]:
    if not budget:
        return "", 0.0
    wanted = parse_budget(budget, 1e6)
    return wanted.unit, wanted.amount


def _error(runs: Records) -> float:
    return mean(run["test"]["mse"] for run in runs)


COMPRESSORS = {
    "transform": "**antembed, transform**",
    "sparse": "**antembed, sparse**",
    "auto": "**antembed**",
    "whole numbers": "bits a number",
    "low rank, int8": "low rank, int8",
    "PQ": "PQ (faiss)",
    "OPQ": "OPQ (faiss)",
    "RQ": "RQ (faiss)",
    "LSQ": "LSQ (faiss)",
}


def compress(records: Records) -> str:
    """The newest record of each table, ratio and method (benchmarks/compress.py)."""
    newest = {(r["table"], r["wanted"], r["frequency"], r["method"]): r for r in records}
    order = list(COMPRESSORS)
    rows = []
    for key in sorted(newest, key=lambda k: (k[0], k[1], order.index(k[3]), k[2])):
        table, wanted, frequency, name = key
        r = newest[key]
        rows.append(
            [
                f"{table}, {wanted:.0f}x",
                COMPRESSORS[name] + (", by frequency" if frequency else ""),
                f"{r['ratio']:.1f}",
                f"{r['relative_error']:.4f}",
                f"{r['neighbours_kept']:.1%}",
                f"{r['neighbours_kept_first_20000']:.1%}",
            ]
        )
    headings = ["table", "method", "times smaller", "relative error", "neighbours kept", "among the first 20 000"]
    return markdown(headings, rows)


def distilled(records: Records) -> str:
    """The newest record without and with distillation (benchmarks/distil.py)."""
    newest = {r["distillation"]: r for r in records}
    rows = [
        [
            f"{name} distillation",
            f"{r['ratio']:.1f}",
            f"{r['spearman']:.4f}",
            f"{r['relative_error']:.4f}",
            f"{r['neighbours_kept']:.1%}",
        ]
        for name, r in newest.items()
    ]
    headings = ["MiniLM on AG-News", "times smaller", "Spearman of similarities", "relative error", "neighbours kept"]
    return markdown(headings, rows)


def serving(records: Records) -> str:
    """The newest look-ups (benchmarks/serving.py), by how many objects there are and how ids are drawn."""
    newest = {(r["objects"], r["ids"], r["look-up"]): r for r in records}
    rows = [
        [
            f"{objects:,}",
            ids,
            name,
            f"{r['milliseconds']:.1f} ms",
            f"{r['times_nn_embedding']:.2f} ×",
            f"{r['least_milliseconds']:.1f} ms",
            f"{r['least_times_nn_embedding']:.2f} ×",
            f"{r['times_smaller']:.1f}",
        ]
        for (objects, ids, name), r in newest.items()
    ]
    headings = ["vectors", "ids", "look-up", "median", "of nn.Embedding's", "least", "of nn.Embedding's", "times smaller"]
    return markdown(headings, rows)


def planted(records: Records) -> str:
    """The newest of each way and seed (benchmarks/planted_ratings.py)."""
    newest = {(r["planted"], r["seed"]): r for r in records}
    rows = []
    for way in dict.fromkeys(way for way, _ in newest):
        some = [r for (name, _), r in newest.items() if name == way]
        anchors = ", ".join(f"{r['anchors']['users']}/{r['anchors']['items']}" for r in some)
        errors, noise = [r["test_mse"] for r in some], some[0]["noise"]
        mean = sum(errors) / len(errors)
        counts = ", ".join(f"{r['parameters']:,}" for r in some)
        rows.append([way, f"{mean:.5f}", f"{mean / noise - 1:+.1%}", anchors, counts, str(len(some))])
    return markdown(["way", "test MSE", "over the noise", "anchors", "parameters", "seeds"], rows)
