"""Tables of docs/results/distributed.md: what processes that share a table send, how long a step takes, what they hold."""

from antembed.files import JSON
from antembed.report.page import markdown
from antembed.sweep.records import Records


def _last(records: Records, benchmark: str, *keys: str) -> list[JSON]:
    """The newest record of each setting, in their order."""
    found = {tuple(row[key] for key in keys): row for row in records if row.get("benchmark") == benchmark}
    return list(found.values())


def traffic(records: Records) -> str:
    """Bytes a step, by the interface's counters."""
    rows = [
        [
            f"{row['processes']}",
            {"anchored": f"T, K = {row['K']}", "full": f"full, d = {row['d']}"}[row["table"]],
            f"{row['distinct']:,} of {row['ids']:,}",
            f"{row['bytes_sent'] / 1e6:.2f} MB",
        ]
        for row in _last(records, "traffic of shared tables", "processes", "table")
    ]
    return markdown(["processes", "table", "distinct ids of a batch", "sent by a process, a step"], rows)


def links(records: Records) -> str:
    """Time of a step over a link of some speed."""
    rows = [
        [row["link"], row["table"], f"{row['bytes_sent'] / 1e6:.2f} MB", f"{row['ms_per_step']:.0f} ms"]
        for row in _last(records, "steps over a link", "link", "table")
    ]
    return markdown(["link", "table", "sent by a process, a step", "a step"], rows)


def memory(records: Records) -> str:
    """Of a process, and the checkpoint."""
    rows = [
        [
            f"{row['processes']}",
            f"{row['MiB_per_process']:,} MiB",
            f"{row['MiB_of_tables']:,} MiB",
            f"{row['MiB_while_saving']:,} MiB",
            f"{row['MiB_while_loading']:,} MiB",
            f"{row['seconds_to_save']:.1f} s",
            f"{row['seconds_to_load']:.1f} s",
            f"{row['bytes_on_disk'] / 1e9:.2f} GB",
        ]
        for row in _last(records, "memory of shared tables", "processes")
    ]
    headings = [
        "processes",
        "peak of a process",
        "without torch itself",
        "while saving",
        "while loading",
        "save",
        "load",
        "on disk",
    ]
    return markdown(headings, rows)


def data(records: Records) -> str:
    """What reading leaves in a process."""
    rows = [
        [
            f"{row['processes']}",
            f"{row['MiB_of_cache']:,} MiB",
            f"{row['MiB_per_process']:,} MiB",
            f"{row['fetched_per_process'] / 1e6:.0f}M",
        ]
        for row in _last(records, "data of shared tables", "processes")
    ]
    return markdown(["processes", "mapped, by all of them", "a process's own", "ratings that it fetches in an epoch"], rows)


def parsing(records: Records) -> str:
    """Who parses a file, and what it costs the others to map what is cached."""
    found = _last(records, "parsing ratings", "how")
    rows = [[row["how"], f"{row['processes']}", f"{row['seconds']:.1f} s"] for row in found]
    return markdown(["", "processes", "until all have their ids"], rows)


def torchrec(records: Records) -> str:
    """TorchRec with a prox now and then beside the exact optimizer."""
    names = {0: "ProximalSGD", 1: "TorchRec, a prox at every step"}
    rows = [
        [
            names.get(row["every"], f"TorchRec, a prox every {row['every']} steps"),
            f"{row['objective']:.1f}",
            f"{row['nonzeros']:,}",
            f"{row['other_zeros']:,}",
            f"{row['distance']:.2g}",
        ]
        for row in _last(records, "TorchRec with a prox", "every")
    ]
    return markdown(["", "objective", "non-zeros", "zero in one of the two T alone", "distance of the two T"], rows)


def ratings(records: Records) -> str:
    """Speed beside that of one process."""
    found = _last(records, "ratings of shared tables", "engine")
    return markdown(["engine", "ratings a second"], [[row["engine"], f"{row['ratings_a_second']:,}"] for row in found])


def cost(records: Records) -> str:
    """The model, beyond what was measured."""
    rows = [
        [
            f"{row['V']:.0e}".replace("e+0", "e").replace("e+", "e"),
            f"{row['processes']}",
            f"{row['zipf']}",
            f"{row['distinct']:,}",
            f"{row['MB_sent']['anchored']:.1f} / {row['MB_sent']['full']:.1f} MB",
            f"{row['ms_at_25_Gbit']['anchored']:.1f} / {row['ms_at_25_Gbit']['full']:.1f} ms",
            f"{row['GB_per_process']['anchored']:g} / {row['GB_per_process']['full']:g} GB",
        ]
        for row in _last(records, "cost model", "V", "zipf")
    ]
    return markdown(["V", "processes", "Zipf", "distinct ids", "sent a step", "at 25 Gbit/s", "memory of a process"], rows)


def checked(records: Records) -> str:
    """The model beside the counters."""
    rows = [
        [
            f"{row['processes']}",
            row["table"],
            f"{row['model'] / 1e6:.2f} MB",
            f"{row['measured'] / 1e6:.2f} MB",
            f"{row['ratio']}",
        ]
        for row in _last(records, "cost model, checked", "processes", "table")
    ]
    return markdown(["processes", "table", "model", "measured", "measured / model"], rows)
