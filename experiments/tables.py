"""Fills the tables of README.md and docs/ from results/: the rows between <!-- results: NAME --> and <!-- end -->.

python -m experiments tables [PAGE.md …]
"""

import re
from collections.abc import Callable
from pathlib import Path

from antembed.sweep.records import Records, read_records
from experiments import recommendation_tables as recommendation
from experiments import speed_tables as speed
from experiments import text_tables as text
from experiments.default_tables import defaults

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

# name of the table → the file of its records (or several, as A,B), and how it is made
TABLES: dict[str, tuple[str, Callable[..., str]]] = {
    "recommend": ("recommend.jsonl", recommendation.recommend),
    "front": ("front.jsonl", recommendation.front),
    "ranking": ("ranking.jsonl", recommendation.ranking),
    "baselines": ("baselines.jsonl", recommendation.baselines),
    "sparsifiers": ("sparsify.jsonl", recommendation.sparsifiers),
    "penalties": ("penalties.jsonl", recommendation.penalties),
    "text-sparsifiers": ("text-sparsify.jsonl", text.sparsifiers),
    "shapes": ("shapes.jsonl", recommendation.shapes),
    "ablation": ("ablation.jsonl", recommendation.ablation),
    "online": ("online.jsonl", recommendation.online),
    "planted": ("growth.jsonl", recommendation.planted_growth),
    "objective-paper": ("anchors-paper.jsonl", recommendation.objective_paper),
    "objective-fine": ("anchors-fine.jsonl", recommendation.objective_fine),
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
    "compress": ("compress.jsonl", text.compress),
    "distil": ("distil.jsonl", text.distilled),
    "serving": ("serving.jsonl", speed.serving),
    "planted-ratings": ("planted.jsonl", recommendation.planted_ratings),
    "step": ("bench.jsonl", speed.layer_step),
    "factorization": ("bench.jsonl", speed.factorization),
    "instructions": ("instructions.jsonl", speed.instructions),
    "step-profile": ("step-profile.jsonl", speed.step_profile),
    "startup": ("startup.jsonl", speed.startup),
    "first-use": ("startup.jsonl", speed.first_use),
    "attacks": ("reliability.jsonl", speed.attacks),
    "descent": ("descent.jsonl", speed.descent),
    "scale": ("bench.jsonl", speed.scale),
    **{name: ("distributed.jsonl", made) for name, made in speed.DISTRIBUTED.items()},
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


def main(words: list[str]) -> None:
    for page in map(Path, words) if words else PAGES:
        page.write_text(fill(page.read_text(), ROOT / "results"))
