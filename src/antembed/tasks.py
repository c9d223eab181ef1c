"""The table of tasks: one line makes a task known to `train`, `evaluate`, sweeps and opened run folders."""

from pathlib import Path
from pkgutil import resolve_name

from antembed.classify.config import NgramConfig, TextConfig
from antembed.classify.predictor import explain_text, light_predictor
from antembed.files import JSON
from antembed.language.config import LanguageConfig
from antembed.recommend.config import EventsConfig, RatingsConfig
from antembed.tables.model_folder import RunError, read_description
from antembed.train.registry import TASKS

TASKS.add(RatingsConfig)
TASKS.add(EventsConfig)
TASKS.add(TextConfig)
TASKS.add(NgramConfig)
TASKS.add(LanguageConfig)


def explain(folder: Path, top: int, items: Path | None, text: str | None = None) -> tuple[JSON, list[str]]:
    """What the anchors (or n-grams) of a run or an export stand for: as data, and as lines. `items`: a file that describes the
    items; `text`: which of its n-grams speak for which class."""
    task = read_description(folder)["config"]["task"]
    if text is not None:
        return explain_text(light_predictor(folder), text, top)
    explains = TASKS.configs[task].explains if task in TASKS else ""
    if not explains:
        raise RunError(f"a run of {task} has nothing that explains its anchors")
    found: tuple[JSON, list[str]] = resolve_name(explains)(folder, top, items)
    return found
