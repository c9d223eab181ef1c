"""Tables on recommendation: settings and fronts, baselines at equal budgets, what parts of a recipe bring, growth, streams."""

from functools import partial
from statistics import mean, median

from antembed.budget import parse_budget
from antembed.files import JSON
from antembed.layer.growth_rule import nbant_objective
from antembed.report.page import markdown
from antembed.sweep.records import Records, by_setting
from experiments.markdown import (
    FILES,
    PARAMETERS,
    TRAINING,
    average,
    command,
    count,
    grouped,
    newest,
    options,
    spread,
    spread_of,
    table,
)

# What decides the size of a table on the front.
FRONT_OPTIONS = {
    "anchor": ("anchors", "embedding_dim", "l0_penalty", "ridge", "ridge_per_rating"),
    "full": ("embedding_dim", "ridge", "ridge_per_rating"),
}
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


def error_of(runs: Records) -> float:
    return mean(run["test"]["mse"] for run in runs)


def used(run: JSON) -> str:
    return "/".join(str(K) for K in run["anchors"].values())


def recommend(records: Records) -> str:
    """One row a setting, smallest error first: the mean over its seeds, and how far they lie apart."""
    columns = {
        "tables": lambda runs: runs[0]["embedding"],
        "anchors in use": lambda runs: ", ".join(sorted({used(r) for r in runs if any(r["anchors"].values())})) or "–",
        "test MSE": spread_of("test.mse", 3),
        "parameters": PARAMETERS,
        "files": FILES,
        "training": TRAINING,
        "seeds": count,
        "command": lambda runs: f"`{command(runs[0]['config'])}`",
    }
    return table(sorted(by_setting(records), key=error_of), columns)


def front(records: Records) -> str:
    """The front by size, in parameters and in bytes: means over seeds, without rows within a fifth of the size before them."""
    rows, before = [], ("", 0.0)
    for runs in sorted(by_setting(records), key=lambda runs: (runs[0]["embedding"], mean(r["parameters"] for r in runs))):
        kind, parameters = runs[0]["embedding"], mean(r["parameters"] for r in runs)
        if before[0] != kind or parameters >= 1.2 * before[1]:
            before = kind, parameters
            rows.append(runs)
    columns = {
        "tables": lambda runs: runs[0]["embedding"],
        "test MSE": lambda runs: spread([r["test"]["mse"] for r in runs]) + (" ± 0.0000" if len(runs) == 1 else ""),
        "parameters": PARAMETERS,
        "fp32": FILES,
        "int8 packed": average("quantized.int8 packed.bytes", "{:.0f} kB", 1e-3),
        "training": TRAINING,
        "options": lambda runs: f"`{options(runs[0]['config'], FRONT_OPTIONS[runs[0]['embedding']])}`",
    }
    return table(rows, columns)


def ranking(records: Records) -> str:
    """The newest evaluation on held-out data, best first."""
    record = [record for record in records if record["evaluated_on"] == "the last fifth"][-1]
    rows = [
        [name, f"{r['ndcg@10']:.3f}", f"{r['recall@10']:.3f}", f"{r['bytes'] / 1000:.0f} kB" if "bytes" in r else "–"]
        for name, r in sorted(record["results"].items(), key=lambda pair: -pair[1]["ndcg@10"])
    ]
    return markdown(["lists by", "NDCG@10", "recall@10", "files"], rows)


def method(config: JSON) -> str:
    """The name of a run's method in NAMES."""
    name = str(config["tables"]["embedding"])
    if not config["tables"]["biases"]:
        name += ", no biases"
    return name + (", coordinate descent" if config["solver"]["name"] == "coordinate_descent" else "")


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
            errors.append(error_of(best))
            cells += [spread([r["test"]["mse"] for r in best]), PARAMETERS(best)]
        rows.append((min(errors), [title, *cells, str(len(trials))]))
    sizes = [each for budget in BUDGETS for each in (f"MSE, ≤ {budget // 1000}K", "parameters")]
    return markdown(["method", *sizes, "trials"], [row for _, row in sorted(rows)])


def ablation(records: Records) -> str:
    """One change at a time, at one budget: validation and test, means over seeds, by the option that was changed."""

    def change(record: JSON) -> str:
        name, value = next(iter(record["settings"].items()))
        return f"{name.replace('_', '-')}={value}"

    columns = {
        "part": lambda runs: change(runs[0]),
        "validation MSE": spread_of("validation.mse"),
        "test MSE": spread_of("test.mse"),
        "parameters": PARAMETERS,
        "seeds": count,
    }
    return table(grouped(records, change).values(), columns)


WAYS = {"recode": "recode", "prune": "prune", "prox": "prox, polished"}
WIDTHS = (2, 4, 6, 8, 16)  # of full tables that are shown


def size_of(budget: str) -> tuple[str, float]:
    if not budget:
        return "", 0.0
    wanted = parse_budget(budget, 1e6)
    return wanted.unit, wanted.amount


def sparsifiers(records: Records) -> str:
    """One row a way and budget: means over seeds, beside coordinate descent."""

    def key(record: JSON) -> tuple[str, str, str]:
        solver, config = record["config"]["solver"], record["config"]
        stochastic = solver["name"] == "stochastic"
        way = WAYS[solver["sparsity"]["sparsify"]] if stochastic else "coordinate descent (ratings only)"
        if record["embedding"] == "full":
            way = f"full tables, k={config['tables']['embedding_dim']}, packed"
        return solver["sparsity"]["budget"] if stochastic else solver["budget"], way, config["export"]["values"]

    shown = [r for r in records if r["embedding"] != "full" or r["config"]["tables"]["embedding_dim"] in WIDTHS]
    groups = grouped(shown, key)
    columns = {
        "way": lambda runs: key(runs[0])[1],
        "budget": lambda runs: ", ".join(part for part in key(runs[0])[::2] if part not in ("", "auto")),
        "test MSE": lambda runs: spread([r["test"]["mse"] for r in runs]) + (" ± 0.0000" if len(runs) == 1 else ""),
        "parameters": PARAMETERS,
        "files": FILES,
        "training": TRAINING,
        "seeds": count,
    }
    return table(sorted(groups.values(), key=lambda runs: (size_of(key(runs[0])[0]), error_of(runs))), columns)


def penalties(records: Records) -> str:
    """Other ways to zeros in one loop: means over seeds, best first."""
    columns = {
        "way": lambda runs: runs[0]["penalty"],
        "validation MSE": spread_of("validation"),
        "test MSE": spread_of("test"),
        "parameters": PARAMETERS,
        "training": TRAINING,
        "seeds": count,
    }
    ways = grouped(records, lambda record: record["penalty"]).values()
    return table(sorted(ways, key=lambda runs: mean(run["test"] for run in runs)), columns)


# Shapes that say what another row says: the same ratings in other units, and the easiest files.
LIKE_OTHERS = {"planted, -10 to 10", "planted, 1 to 1,000,000", "planted, 0 to 0.001", "noise", "constant", "5 words"}
METRICS = {"ratings": "MSE", "events": "NDCG@10", "text": "accuracy"}


def shapes(records: Records) -> str:
    """Files of many shapes without options, beside a plain method."""
    columns = {
        "data": "{shape}",
        "without options": lambda record: f"{METRICS[record['kind']]} {record['ours']:.4g}",
        "beside it": "{beside} {other:.4g}",
        "files": lambda record: f"{record['bytes'] / 1000:.1f} kB",
        "test examples": "{examples:,}",
    }
    return table([record for record in records if record["shape"] not in LIKE_OTHERS], columns)


def planted_ratings(records: Records) -> str:
    """The newest of each way and seed (experiments/bench/planted_ratings.py)."""

    def over_noise(runs: Records) -> str:
        return f"{mean(r['test_mse'] for r in runs) / runs[0]['noise'] - 1:+.1%}"

    columns = {
        "way": lambda runs: runs[0]["planted"],
        "test MSE": average("test_mse", "{:.5f}"),
        "over the noise": over_noise,
        "anchors": lambda runs: ", ".join(map(used, runs)),
        "parameters": lambda runs: ", ".join(f"{r['parameters']:,}" for r in runs),
        "seeds": count,
    }
    return table(grouped(newest(records, "planted", "seed"), lambda record: record["planted"]).values(), columns)


def online(records: Records) -> str:
    """The newest run: streams and many passes, and the memory of a longer stream."""
    results = records[-1]["results"]
    offline = next(r["test"]["mse"] for name, r in results.items() if name.startswith("all"))
    columns = {
        "learned as": "{name}",
        "test MSE": "{test[mse]:.4f}",
        "worse by": lambda r: f"{r['test']['mse'] / offline - 1:+.1%}" if r["test"]["mse"] != offline else "–",
        "parameters": lambda r: f"{r['parameters'] / 1000:.1f}K",
        "anchors": used,
        "training": "{seconds:.0f} s",
    }
    return table([{"name": name, **r} for name, r in results.items()], columns)


def planted_growth(records: Records) -> str:
    """By policy and planted number: cases that end there, within one, and within 2 % of the best of a sweep over all K."""
    columns = {
        "policy": lambda runs: runs[0]["policy"],
        "planted": lambda runs: str(runs[0]["planted"]),
        "cases": count,
        "exact": lambda runs: str(sum(run["off"] == 0 for run in runs)),
        "within ±1": lambda runs: str(sum(run["off"] <= 1 for run in runs)),
        "objective within 2 %": lambda runs: str(sum(run["over_sweep"] <= 0.02 for run in runs)),
        "median over the sweep": lambda runs: f"{median(run['over_sweep'] for run in runs):+.1%}",
        "worst": lambda runs: f"{max(run['over_sweep'] for run in runs):+.1%}",
    }
    cases = grouped(records, lambda record: (record["policy"], record["planted"]))
    return table([runs for _, runs in sorted(cases.items())], columns)


def objective(records: Records, anchor_penalty: float, l0_penalty: float) -> str:
    """Eq. 5 on validation data by the number of anchors asked for, lowest first; means over seeds."""

    def asked_for(record: JSON) -> str:
        asked = record["config"]["anchors"]["anchors"]
        if isinstance(asked, str):
            return "nbANT"
        return "/".join(map(str, asked * len(record["anchors"]) if len(asked) == 1 else asked))  # one number is for all tables

    def eq5(runs: Records) -> float:
        return mean(
            nbant_objective(
                r["validation"]["loss"], sum(r["nnz"].values()), sum(r["anchors"].values()), anchor_penalty, l0_penalty
            )
            for r in runs
        )

    columns = {
        "anchors asked for": lambda runs: asked_for(runs[0]),
        "eq. 5": lambda runs: f"{eq5(runs):.4f}",
        "validation MSE": average("validation.mse", "{:.4f}"),
        "non-zeros": lambda runs: f"{mean(sum(run['nnz'].values()) for run in runs):,.0f}",
        "anchors in use": lambda runs: ", ".join(sorted(set(map(used, runs)))),
        "training": average("seconds", "{:.1f} s"),
        "seeds": count,
    }
    return table(sorted(grouped(records, asked_for).values(), key=eq5), columns)


objective_paper = partial(objective, anchor_penalty=0.01, l0_penalty=1e-4)
objective_fine = partial(objective, anchor_penalty=1e-3, l0_penalty=1e-6)
