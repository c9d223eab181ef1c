"""Tables of speed, size and memory: beside peers, by instructions, at scale, and among processes that share a table."""

from collections.abc import Callable
from functools import partial
from typing import Any

from antembed.files import JSON
from antembed.report.page import markdown
from antembed.sweep.records import Records
from experiments.markdown import newest, table


def by_name(records: Records) -> dict[str, JSON]:
    """The last record of each benchmark."""
    return {record["benchmark"]: record for record in records}


def layer_step(records: Records) -> str:
    """The newest training step of the layer beside its peers, by how ids are drawn."""
    found = [by_name(records)[name] for name in ("training step", "training step, uniform ids")]
    columns = {
        "step": "{setting}",
        "peer": "{peer}",
        "antembed": lambda row: f"{1e3 * row['seconds']:.3g} ms",
        "peer's": lambda row: f"{1e3 * row['peer_seconds']:.3g} ms",
        "peer ÷ antembed": "{ratio:.3g} ×",
        "quartiles": "{quartiles[0]:.3g} – {quartiles[1]:.3g}",
        "share of the limit": lambda row: f"{row['share_of_limit']:.0%}" if "share_of_limit" in row else "–",
    }
    return table([row | {"setting": record["setting"]} for record in found for row in record["rows"]], columns)


def factorization(records: Records) -> str:
    """Matrix factorization beside its peers: their time over ours on one thread and on two, alone and beside a busy process."""
    alone, busy = (by_name(records)[f"matrix factorization{beside}"]["ratios"] for beside in ("", " beside 1 busy"))
    ratios = [found[f"anchored, fused, {threads}"] for found in (alone, busy) for threads in ("1 thread", "2 threads")]
    peers = [peer for peer in dict.fromkeys(peer for each in ratios for peer in each) if all(peer in each for each in ratios)]
    rows = [[peer, *(f"{each[peer]:.3g} ×" for each in ratios)] for peer in peers]
    return markdown(["peer", "÷ 1 thread", "÷ 2 threads", "÷ 1 thread, busy", "÷ 2 threads, busy"], rows)


def instructions(records: Records) -> str:
    """The newest counts of callgrind, of each kernel."""
    counts: JSON = {}
    for record in records:
        counts |= record["kernels"]
    rows = [
        [name, what.removeprefix("instructions "), f"{count:,.1f}"]
        for name, found in counts.items()
        for what, count in found.items()
    ]
    return markdown(["kernel", "unit", "instructions"], rows)


def step_profile(records: Records) -> str:
    """The newest record, one row a part."""
    return markdown(["part", "ms"], [[part, f"{ms:.3g}"] for part, ms in records[-1]["milliseconds"].items()])


def startup(records: Records) -> str:
    """The newest record of commands that compute little."""
    found = by_name(records)["start-up"]["processor_seconds"]
    return markdown(["command", "processor time"], [[what, f"{seconds:.2f} s"] for what, seconds in found.items()])


def first_use(records: Records) -> str:
    """The newest record of what an empty folder of machine code costs."""
    found = by_name(records)["first use"]["seconds"]
    uses = [what.removesuffix(", first") for what in found if what.endswith(", first")]
    rows = [[use, f"{found[f'{use}, first']:.1f} s", f"{found[f'{use}, compilation']:.1f} s"] for use in uses]
    return markdown(["first use of", "in all", "of that, compilation"], rows)


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
    for name, record in by_name(records).items():
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
            rows.append([name, f"the command: {record['setting']}", f"{record['whole_command_seconds']} s"])
    return markdown(["what", "setting", "measured"], rows)


def descent(records: Records) -> str:
    """The newest race of coordinate descent with alternating least squares, of each kind of data."""
    rows = []
    for name, record in by_name(records).items():
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


NOT_SHOWN = ("kept", "fp16")  # look-ups that are in the records only


def serving(records: Records) -> str:
    """The newest look-ups (bench/serving.py), each among the largest number of vectors that it was measured with."""
    found = {(r["objects"], r["ids"], r["look-up"]): r for r in records if not any(map(r["look-up"].__contains__, NOT_SHOWN))}
    rows = []
    for name in dict.fromkeys(name for _, _, name in found):
        objects = max(objects for objects, _, other in found if other == name)
        drawn = [found[objects, ids, name] for ids in ("Zipf", "uniform")]
        cells = [cell for r in drawn for cell in (f"{r['milliseconds']:.1f} ms", f"{r['times_nn_embedding']:.2f} ×")]
        rows.append([name, f"{drawn[0]['times_smaller']:.1f}", f"{objects:,}", *cells])
    headings = ["look-up", "times smaller", "vectors", "Zipf ids", "÷ nn.Embedding", "uniform ids", "÷ nn.Embedding"]
    return markdown(headings, rows)


# Processes that share a table


def shared(name: str, keys: tuple[str, ...], columns: dict[str, Any], records: Records) -> str:
    """The newest record of each setting of a benchmark."""
    return table(newest([row for row in records if row.get("benchmark") == name], *keys), columns)


def megabytes(name: str) -> Callable[[JSON], str]:
    return lambda row: f"{row[name] / 1e6:.2f} MB"


def kind_of_table(row: JSON) -> str:
    return {"anchored": f"T, K = {row['K']}", "full": f"full, d = {row['d']}"}[row["table"]]


def torchrec_name(row: JSON) -> str:
    names = {0: "ProximalSGD", 1: "TorchRec, a prox at every step"}
    return names.get(row["every"], f"TorchRec, a prox every {row['every']} steps")


SENT = "sent by a process, a step"
# Name of a table → benchmark, the fields that tell settings apart, and columns.
SHARED: dict[str, tuple[str, tuple[str, ...], dict[str, Any]]] = {
    "traffic": (
        "traffic of shared tables",
        ("processes", "table"),
        {
            "processes": "{processes}",
            "table": kind_of_table,
            "distinct ids of a batch": "{distinct:,} of {ids:,}",
            SENT: megabytes("bytes_sent"),
        },
    ),
    "links": (
        "steps over a link",
        ("link", "table"),
        {"link": "{link}", "table": "{table}", SENT: megabytes("bytes_sent"), "a step": "{ms_per_step:.0f} ms"},
    ),
    "memory": (
        "memory of shared tables",
        ("processes",),
        {
            "processes": "{processes}",
            "peak of a process": "{MiB_per_process:,} MiB",
            "without torch itself": "{MiB_of_tables:,} MiB",
            "while saving": "{MiB_while_saving:,} MiB",
            "while loading": "{MiB_while_loading:,} MiB",
            "save": "{seconds_to_save:.1f} s",
            "load": "{seconds_to_load:.1f} s",
            "on disk": lambda row: f"{row['bytes_on_disk'] / 1e9:.2f} GB",
        },
    ),
    "data": (
        "data of shared tables",
        ("processes",),
        {
            "processes": "{processes}",
            "mapped, by all of them": "{MiB_of_cache:,} MiB",
            "a process's own": "{MiB_per_process:,} MiB",
            "ratings that it fetches in an epoch": lambda row: f"{row['fetched_per_process'] / 1e6:.0f}M",
        },
    ),
    "parsing": (
        "parsing ratings",
        ("how",),
        {"": "{how}", "processes": "{processes}", "until all have their ids": "{seconds:.1f} s"},
    ),
    "torchrec": (
        "TorchRec with a prox",
        ("every",),
        {
            "": torchrec_name,
            "objective": "{objective:.1f}",
            "non-zeros": "{nonzeros:,}",
            "zero in one of the two T alone": "{other_zeros:,}",
            "distance of the two T": "{distance:.2g}",
        },
    ),
    "ratings": ("ratings of shared tables", ("engine",), {"engine": "{engine}", "ratings a second": "{ratings_a_second:,}"}),
    "cost": (
        "cost model",
        ("V", "zipf"),
        {
            "V": lambda row: f"{row['V']:.0e}".replace("e+0", "e").replace("e+", "e"),
            "processes": "{processes}",
            "Zipf": "{zipf}",
            "distinct ids": "{distinct:,}",
            "sent a step": "{MB_sent[anchored]:.1f} / {MB_sent[full]:.1f} MB",
            "at 25 Gbit/s": "{ms_at_25_Gbit[anchored]:.1f} / {ms_at_25_Gbit[full]:.1f} ms",
            "memory of a process": "{GB_per_process[anchored]:g} / {GB_per_process[full]:g} GB",
        },
    ),
    "checked": (
        "cost model, checked",
        ("processes", "table"),
        {
            "processes": "{processes}",
            "table": "{table}",
            "model": megabytes("model"),
            "measured": megabytes("measured"),
            "measured / model": "{ratio}",
        },
    ),
}
DISTRIBUTED = {f"distributed-{name}": partial(shared, *about) for name, about in SHARED.items()}
