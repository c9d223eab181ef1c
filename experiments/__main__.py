"""Our evidence, one command line: python -m experiments NAME …"""

import sys
from importlib import import_module

COMMANDS = {
    "bench": ("experiments.bench", "measure speed, memory or quality beside peers: bench NAME … --record results/FILE.jsonl"),
    "claims": ("experiments.claims", "run again what README and guides claim"),
    "figures": ("experiments.figures", "draw the figures of docs/ from results/"),
    "house": ("experiments.house", "show the plan of the source and its ceilings"),
    "recipe": ("experiments.recipe", "run an experiment that is written down: recipe FILE.toml …"),
    "sabotage": ("experiments.sabotage", "make the program worse on purpose and see which check notices"),
    "tables": ("experiments.tables", "fill the tables of README.md and docs/ from results/"),
}


def main() -> int:
    name, *words = sys.argv[1:] or [""]
    if name not in COMMANDS:
        lines = [f"  {each:8} {about}" for each, (_, about) in COMMANDS.items()]
        print("usage: python -m experiments NAME …\n", *lines, sep="\n", file=sys.stderr)
        return 0 if name in ("-h", "--help") else 2
    return int(import_module(COMMANDS[name][0]).main(words) or 0)


if __name__ == "__main__":
    raise SystemExit(main())
