"""What the files of an exported folder are for."""

from collections.abc import Mapping

from antembed.recommend.seen import POPULARITY, SEEN
from antembed.tables.model_folder import TOP_NGRAMS, WEIGHTS

PARTS = {
    SEEN: "seen",
    POPULARITY: "popularity",
    WEIGHTS: "weights",
    TOP_NGRAMS: "explanation",
    "vocabulary.parquet": "vocabulary",
    "config.json": "config",
}


def by_part(sizes: Mapping[str, int]) -> dict[str, int]:
    """Bytes of files by name → bytes of tables, labels, popularity, …"""
    found: dict[str, int] = {}
    for name, size in sizes.items():
        part = "labels" if ".labels." in name else PARTS.get(name, "tables")
        found[part] = found.get(part, 0) + size
    return found
