"""Tables of the README and of docs/ from records: python -m experiments.readme README.md docs/results/….md results."""

import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import mean

from antembed.files import JSON
from antembed.report.page import markdown
from antembed.sweep.records import Records, by_setting, read_records
from experiments import distributed_tables, growth_tables
from experiments import tables as comparisons
from experiments import text_tables as text
from experiments.default_tables import defaults
from experiments.markdown import command, options
from experiments.online_figure import online

# What decides the size of a table on the front.
FRONT_OPTIONS = {
    "anchor": ("anchors", "embedding_dim", "l0_penalty", "ridge", "ridge_per_rating"),
    "full": ("embedding_dim", "ridge", "ridge_per_rating"),
}


def recommend(records: Records) -> str:
    """One row a setting, smallest error first: the mean over its seeds, and how far they lie apart."""
    rows = []
    for runs in sorted(by_setting(records), key=lambda runs: mean(r["test"]["mse"] for r in runs)):
        errors = [r["test"]["mse"] for r in runs]
        anchors = sorted({"/".join(str(k) for k in r["anchors"].values()) for r in runs if any(r["anchors"].values())})
        rows.append(
            [
                runs[0]["embedding"],
                ", ".join(anchors) or "–",
                f"{mean(errors):.3f}" + (f" ± {(max(errors) - min(errors)) / 2:.3f}" if len(runs) > 1 else ""),
                f"{mean(r['parameters'] for r in runs) / 1000:.1f}K",
                f"{mean(r['bytes'] for r in runs) / 1000:.0f} kB",
                f"{mean(r['seconds'] for r in runs):.0f} s",
                str(len(runs)),
                f"`{command(runs[0]['config'])}`",
            ]
        )
    headings = ["tables", "anchors in use", "test MSE", "parameters", "files", "training", "seeds", "command"]
    return markdown(headings, rows)


def front(records: Records) -> str:
    """The front by size, in parameters and in bytes: means over seeds, without rows within a fifth of the size before them."""
    rows, before = [], ("", 0.0)
    for runs in sorted(by_setting(records), key=lambda runs: (runs[0]["embedding"], mean(r["parameters"] for r in runs))):
        kind, parameters = runs[0]["embedding"], mean(r["parameters"] for r in runs)
        if before[0] == kind and parameters < 1.2 * before[1]:
            continue
        before = kind, parameters
        errors, packed = [r["test"]["mse"] for r in runs], [r["quantized"]["int8 packed"]["bytes"] for r in runs]
        rows.append(
            [
                kind,
                f"{mean(errors):.4f} ± {(max(errors) - min(errors)) / 2:.4f}",
                f"{parameters / 1000:.1f}K",
                f"{mean(r['bytes'] for r in runs) / 1000:.0f} kB",
                f"{mean(packed) / 1000:.0f} kB",
                f"{mean(r['seconds'] for r in runs):.0f} s",
                f"`{options(runs[0]['config'], FRONT_OPTIONS[kind])}`",
            ]
        )
    return markdown(["tables", "test MSE", "parameters", "fp32", "int8 packed", "training", "options"], rows)


def layer_step(records: Records) -> str:
    """The newest training step of the layer beside its peers, by how ids are drawn."""
    records = [newest(records)[name] for name in ("training step", "training step, uniform ids")]
    rows = [[record["setting"], *race(row)] for record in records for row in record["rows"]]
    return markdown(["step", "peer", "antembed", "peer's", "peer ÷ antembed", "quartiles", "share of the limit"], rows)


def race(row: JSON) -> list[str]:
    """A row of experiments/race.py: peer, seconds of both, their ratio and its quartiles, share of the limit."""
    seconds = (f"{1e3 * row[whose]:.3g} ms" for whose in ("seconds", "peer_seconds"))
    share = f"{row['share_of_limit']:.0%}" if "share_of_limit" in row else "–"
    return [row["peer"], *seconds, f"{row['ratio']:.3g} ×", "{:.3g} – {:.3g}".format(*row["quartiles"]), share]


def factorization(records: Records) -> str:
    """Matrix factorization beside its peers: their time over ours on one thread and on two, alone and beside a busy process."""
    alone, busy = (newest(records)[f"matrix factorization{beside}"]["ratios"] for beside in ("", " beside 1 busy"))
    ours = [f"anchored, fused, {threads}" for threads in ("1 thread", "2 threads")]
    columns = [ratios[name] for ratios in (alone, busy) for name in ours]
    peers = [peer for peer in dict.fromkeys(peer for column in columns for peer in column) if all(map(_has(peer), columns))]
    rows = [[peer, *(f"{column[peer]:.3g} ×" for column in columns)] for peer in peers]
    return markdown(["peer", "÷ 1 thread", "÷ 2 threads", "÷ 1 thread, busy", "÷ 2 threads, busy"], rows)


def _has(peer: str) -> Callable[[JSON], bool]:
    return lambda column: peer in column


def words(records: Records) -> str:
    """The newest benchmark of the tokenizer."""
    record = newest(records)["words of text"]
    speeds = record["megabytes_a_second"]
    rows = [[peer, f"{speeds[peer]:.0f} MB/s", f"{ratio:.3g} ×"] for peer, ratio in record["ratios"].items()]
    return markdown([f"peer ({record['setting']})", "speed", "antembed, 2 threads ÷ peer"], rows)


def instructions(records: Records) -> str:
    """The newest counts of callgrind, of each kernel."""
    newest_counts: JSON = {}
    for record in records:
        newest_counts |= record["kernels"]
    rows = [
        [name, what.removeprefix("instructions "), f"{count:,.1f}"]
        for name, counts in newest_counts.items()
        for what, count in counts.items()
    ]
    return markdown(["kernel", "unit", "instructions"], rows)


def step_profile(records: Records) -> str:
    """The newest record, one row a part."""
    return markdown(["part", "ms"], [[part, f"{ms:.3g}"] for part, ms in records[-1]["milliseconds"].items()])


def startup(records: Records) -> str:
    """The newest record of each kind."""
    rows = [
        [name, what, f"{seconds:.2f} s"]
        for name, record in newest(records).items()
        for what, seconds in record["processor_seconds"].items()
    ]
    return markdown(["what", "command", "processor time"], rows)


TRIED = {"mutations": "mutations", "inputs": "inputs", "killed": "kills", "tables": "tables"}  # field of a record → a word


def load(record: JSON) -> str:
    """What a record of long use and hard conditions has tried."""
    parts = [part for part in record.values() if isinstance(part, dict)]
    counts = {
        "look-ups": sum(found["look_ups"] for found in record.get("look-ups", {}).values()),
        "runs": sum(part.get("runs", 0) + len(part.get("ends", ())) for part in parts),
    }
    return ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)


def attacks(records: Records) -> str:
    """The newest record of each attack (on a reader, on commands), how much it tried, how often a promise was broken."""
    found = {
        (record["attack"], record.get("reader", ""), ", ".join(record.get("by_command", ())), "look-ups" in record): record
        for record in records
        if "attack" in record
    }
    rows = []
    for (attack, reader, *_), record in found.items():
        tried = next((f"{record[field]:,} {word}" for field, word in TRIED.items() if field in record), "")
        if attack == "load":
            tried = load(record)
        seconds = f"{record['seconds']:,} s" if "seconds" in record else ""
        rows.append(
            [", ".join(filter(None, (attack, reader))), tried, seconds, str(record["failures"]), f"`{record['command']}`"]
        )
    return markdown(["attack", "tried", "lasted", "failures", "command"], rows)


def scale(records: Records) -> str:
    """The newest record of each benchmark that is about size, one row a measurement."""
    rows = []
    for name, record in newest(records).items():
        speeds = record.get("million_ratings_a_second", {})
        if name == "growth of the cost":
            rows += [[name, f"{what}; {record['setting']}", f"{speed:.2f}M ratings/s"] for what, speed in speeds.items()]
        elif name == "one epoch in Amazon's shape":
            share = sum(record["nnz"].values()) / sum(record["entries"].values())
            speed = f"{record['seconds']['epoch']:.0f} s, {speeds:.2f}M ratings/s"
            size = f"{record['peak_gigabytes']} GB, nnz {share:.0%}"
            rows.append([name, f"{record['ratings']:,} ratings; {record['setting']}", f"{speed}, {size}"])
        elif name == "from CSV to an exported model":
            rows += [[name, f"reading: {what}", f"{seconds} s"] for what, seconds in record["reading_seconds"].items()]
            rows.append([name, "an epoch", f"{record['epoch_seconds']} s"])
            rows.append([name, f"the whole command: {record['setting']}", f"{record['whole_command_seconds']} s"])
    return markdown(["what", "setting", "measured"], rows)


def descent(records: Records) -> str:
    """The newest race of coordinate descent with alternating least squares, of each kind of data."""
    rows = []
    for name, record in newest(records).items():
        if "most_gigabytes" in record:  # memory, ours alone
            continue
        clock, lists = record["seconds"]["clock"], record.get("ndcg@10", {})
        what, size = name.removeprefix("coordinate descent, "), f"{record['users']:,} × {record['items']:,}"
        rows.append(
            [
                f"{what}: {size}, {record['pairs']:,} pairs",
                f"{record['d']}, {record['anchors']}",
                *(f"{clock[part]:.3g} s" for part in ("sweep", "iteration of ALS")),
                *(f"{clock[part]:.3g} ×" for part in ("sweep / iteration", "start / sweep")),
                ", ".join(f"{whose} {value:.4f}" for whose, value in lists.items()) or "–",
            ]
        )
    header = ["data", "width, anchors", "a sweep", "an iteration of ALS", "sweep ÷ iteration", "start ÷ sweep", "NDCG@10"]
    return markdown(header, rows)


def ranking(records: Records) -> str:
    """The newest evaluation on held-out data, best first."""
    record = [record for record in records if record["evaluated_on"] == "the last fifth"][-1]
    rows = [
        [name, f"{r['ndcg@10']:.3f}", f"{r['recall@10']:.3f}", f"{r['bytes'] / 1000:.0f} kB" if "bytes" in r else "–"]
        for name, r in sorted(record["results"].items(), key=lambda pair: -pair[1]["ndcg@10"])
    ]
    return markdown(["lists by", "NDCG@10", "recall@10", "files"], rows)


def newest(records: Records) -> dict[str, JSON]:
    """The last record of each benchmark."""
    return {record["benchmark"]: record for record in records}


# name of the table → the file of its records (or several, as A,B), and how it is made
TABLES: dict[str, tuple[str, Callable[..., str]]] = {
    "recommend": ("recommend.jsonl", recommend),
    "front": ("front.jsonl", front),
    "ranking": ("ranking.jsonl", ranking),
    "baselines": ("baselines.jsonl", comparisons.baselines),
    "sparsifiers": ("sparsify.jsonl", comparisons.sparsifiers),
    "penalties": ("penalties.jsonl", comparisons.penalties),
    "text-sparsifiers": ("text-sparsify.jsonl", comparisons.text_sparsifiers),
    "shapes": ("shapes.jsonl", comparisons.shapes),
    "ablation": ("ablation.jsonl", comparisons.ablation),
    "online": ("online.jsonl", online),
    "planted": ("growth.jsonl", growth_tables.planted),
    "objective-paper": ("anchors-paper.jsonl", partial(growth_tables.objective, anchor_penalty=0.01, l0_penalty=1e-4)),
    "objective-fine": ("anchors-fine.jsonl", partial(growth_tables.objective, anchor_penalty=1e-3, l0_penalty=1e-6)),
    "text-step": ("text-step.jsonl", text.step),
    "text-embeddings": ("text-cnn.jsonl,text.jsonl", text.embeddings),
    "text-knowledge": ("text-knowledge.jsonl", text.knowledge),
    "text-paper": ("text-paper.jsonl", text.knowledge),
    "text-quantized": ("text-quantized.jsonl", text.quantized),
    "text-large": ("large-text.jsonl", text.large),
    "text-budgets": ("budgets.jsonl", text.budgets),
    "text-front": ("ngrams.jsonl", text.front),
    "language": ("language.jsonl", text.language),
    "language-softmax": ("language-softmax.jsonl", text.language),
    "language-wide": ("language-wide.jsonl", text.language),
    "language-awd": ("language-awd.jsonl", text.language),
    "text8": ("text8.jsonl", text.language),
    "after-training": ("after-training.jsonl", text.after_training),
    "compress": ("compress.jsonl", comparisons.compress),
    "distil": ("distil.jsonl", comparisons.distilled),
    "serving": ("serving.jsonl", comparisons.serving),
    "planted-ratings": ("planted.jsonl", comparisons.planted),
    "step": ("bench.jsonl", layer_step),
    "factorization": ("bench.jsonl", factorization),
    "words": ("bench.jsonl", words),
    "instructions": ("instructions.jsonl", instructions),
    "step-profile": ("step-profile.jsonl", step_profile),
    "startup": ("startup.jsonl", startup),
    "attacks": ("reliability.jsonl", attacks),
    "descent": ("descent.jsonl", descent),
    "scale": ("bench.jsonl", scale),
    "distributed-traffic": ("distributed.jsonl", distributed_tables.traffic),
    "distributed-links": ("distributed.jsonl", distributed_tables.links),
    "distributed-memory": ("distributed.jsonl", distributed_tables.memory),
    "distributed-data": ("distributed.jsonl", distributed_tables.data),
    "distributed-parsing": ("distributed.jsonl", distributed_tables.parsing),
    "distributed-torchrec": ("distributed.jsonl", distributed_tables.torchrec),
    "distributed-ratings": ("distributed.jsonl", distributed_tables.ratings),
    "distributed-checked": ("distributed.jsonl", distributed_tables.checked),
    "distributed-cost": ("distributed.jsonl", distributed_tables.cost),
    "defaults": ("defaults.jsonl,front.jsonl,ngram-files.jsonl", defaults),
}


def fill(text: str, results: Path) -> str:
    """Put each table between its markers in the text, <!-- results: NAME --> and <!-- end -->."""
    for name in re.findall(r"<!-- results: ([\w-]+) -->", text):
        if name not in TABLES:
            raise ValueError(f"there is no table {name!r}; there are: {', '.join(TABLES)}")
        files, table = TABLES[name]
        before, start, rest = text.partition(f"<!-- results: {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        if not end:
            raise ValueError(f"the table {name!r} has no end: the text lacks <!-- end --> behind its marker")
        records = [read_records(results / file) for file in files.split(",")]
        text = f"{before}{start}{table(*records)}\n\n{measured_at(records)}\n{end}{after}"
    return text


def measured_at(files: list[Records]) -> str:
    """The commits that the records of a table come from."""
    rows = sorted((row for records in files for row in records if row.get("commit")), key=lambda row: str(row["date"]))
    first, last = (f"`{row['commit'][:7]}` ({row['date'][:10]})" for row in (rows[0], rows[-1]))
    return f"Measured at {first}." if first == last else f"Measured at commits from {first} to {last}."


if __name__ == "__main__":
    *pages, records = map(Path, sys.argv[1:])
    for page in pages:
        page.write_text(fill(page.read_text(), records))
