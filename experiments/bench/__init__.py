"""Measurements: python -m experiments bench NAME …; each module has its usage in its first lines."""

import sys
from importlib import import_module
from pathlib import Path

NAMES = sorted(file.stem for file in Path(__file__).parent.glob("*.py") if file.stem != "__init__")


def main(words: list[str]) -> int:
    if not words or words[0] not in NAMES:
        print(f"usage: python -m experiments bench NAME …\n\n{', '.join(NAMES)}", file=sys.stderr)
        return 2
    import_module(f"experiments.bench.{words[0]}").main(words[1:])
    return 0
