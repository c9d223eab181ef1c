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
    """For each method and budget the trial with the lowest validation error that fits; means over its seeds, best first."""
    rows = []
    settings = by_setting(records)
    for name, title in NAMES.items():
        trials = [runs for runs in settings if method(runs[0]["config"]) == name]
        cells, errors = [], []
        for budget in BUDGETS:
            fitting = [runs for runs in trials if runs[0]["parameters"] <= budget]
            if not fitting:
                cells += ["–", "–"]
                continue
            best = min(fitting, key=lambda runs: runs[0]["validation"]["mse"])
            errors.append(_error(best))
            cells += [spread([r["test"]["mse"] for r in best]), f"{mean(r['parameters'] for r in best) / 1000:.1f}K"]
        rows.append((min(errors), [title, *cells, str(len(trials))]))
    sizes = [each for budget in BUDGETS for each in (f"MSE, ≤ {budget // 1000}K", "parameters")]
    return markdown(["method", *sizes, "trials"], [row for _, row in sorted(rows)])


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


WAYS = {"recode": "recode", "prune": "prune", "prox": "prox, polished"}
WIDTHS = (2, 4, 6, 8, 16)  # of full tables that are shown


def sparsifiers(records: Records) -> str:
    """One row a way and budget: means over seeds, beside coordinate descent."""
    groups: dict[tuple[str, str, str], Records] = {}
    for record in records:
        if record["embedding"] == "full" and record["config"]["tables"]["embedding_dim"] not in WIDTHS:
            continue
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
    """One row a way and size, of the mean of the words: means over seeds, beside dense tables of rank K in packed int8."""
    groups: dict[tuple[str, str], Records] = {}
    for record in records:
        config, own = record["config"], record["config"]["solver"]["sparsity"]
        if config["tables"]["model"] == "cnn":  # stays with prox: in the records only
            continue
        way = WAYS[own["sparsify"]] if record["embedding"] == "anchor" else f"dense, rank {config['anchors']['anchors'][0]}"
        groups.setdefault((own["budget"], way), []).append(record)
    rows = [
        [
            way,
            budget or "int8 packed",
            spread([100 * run["test"]["accuracy"] for run in runs], 2),
            f"{mean(run['parameters'] for run in runs) / 1000:.1f}K",
            f"{mean(run['bytes'] for run in runs) / 1000:.0f} kB",
            str(len(runs)),
        ]
        for (budget, way), runs in sorted(groups.items(), key=lambda pair: (_size(pair[0][0]), pair[0][1]))
        if way not in ("dense, rank 1", "dense, rank 2", "dense, rank 3")
    ]
    return markdown(["way", "budget", "test accuracy, %", "parameters", "file", "seeds"], rows)


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


# Shapes that say what another row says: the same ratings in other units, and the easiest files.
LIKE_OTHERS = {"planted, -10 to 10", "planted, 1 to 1,000,000", "planted, 0 to 0.001", "noise", "constant", "5 words"}


def shapes(records: Records) -> str:
    """Files of many shapes without options, beside a plain method."""
    rows = []
    for record in records:
        if record["shape"] in LIKE_OTHERS:
            continue
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


PEERS = {
    "low rank, int8": "low rank, int8",
    "whole numbers": "bits a number",
    "PQ": "PQ (faiss)",
    "OPQ": "OPQ (faiss)",
    "RQ": "RQ (faiss)",
    "LSQ": "LSQ (faiss)",
}


def compress(records: Records) -> str:
    """The newest records of each table and ratio (benchmarks/compress.py): ours, and the best of the others."""
    found: dict[tuple[str, float], dict[tuple[str, bool], JSON]] = {}
    for r in records:
        found.setdefault((r["table"], r["wanted"]), {})[r["method"], r["frequency"]] = r
    rows = []
    for (table, wanted), methods in sorted(found.items()):
        ours = next(r for (name, _), r in methods.items() if name in ("transform", "sparse"))
        peers = {names: r for names, r in methods.items() if names[0] in PEERS}
        name, frequency = max(peers, key=lambda names: peers[names]["neighbours_kept"])
        rows.append([f"{table}, {wanted:.0f}x", ours["method"], *_kept(ours)])
        rows[-1] += [PEERS[name] + (", by frequency" if frequency else ""), *_kept(peers[name, frequency])]
    headings = ["vectors", "method", "times smaller", "error", "neighbours kept"]
    return markdown([*headings, "best other", "its times smaller", "its error", "it keeps"], rows)


def _kept(record: JSON) -> list[str]:
    return [f"{record['ratio']:.1f}", f"{record['relative_error']:.4f}", f"{record['neighbours_kept']:.1%}"]


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


NOT_SHOWN = ("kept", "fp16")  # look-ups that are in the records only


def serving(records: Records) -> str:
    """The newest look-ups (benchmarks/serving.py), each among the largest number of vectors that it was measured with."""
    newest = {(r["objects"], r["ids"], r["look-up"]): r for r in records if not any(map(r["look-up"].__contains__, NOT_SHOWN))}
    rows = []
    for name in dict.fromkeys(name for _, _, name in newest):
        objects = max(objects for objects, _, other in newest if other == name)
        drawn = [newest[objects, ids, name] for ids in ("Zipf", "uniform")]
        cells = [cell for r in drawn for cell in (f"{r['milliseconds']:.1f} ms", f"{r['times_nn_embedding']:.2f} ×")]
        rows.append([name, f"{drawn[0]['times_smaller']:.1f}", f"{objects:,}", *cells])
    headings = ["look-up", "times smaller", "vectors", "Zipf ids", "÷ nn.Embedding", "uniform ids", "÷ nn.Embedding"]
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
