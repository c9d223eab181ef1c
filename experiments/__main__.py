"""Measurements and documents, by name: python -m experiments NAME …"""

import sys
from importlib import import_module

COMMANDS = {
    "house": ("experiments.house", "the plan of the source, with the ceilings of house.toml"),
}


def main() -> int:
    name, *words = sys.argv[1:] or ["--help"]
    if name not in COMMANDS:
        lines = [f"  {each:12} {about}" for each, (_, about) in COMMANDS.items()]
        print(
            "usage: python -m experiments NAME …\n",
            *lines,
            sep="\n",
            file=sys.stdout if name in ("-h", "--help") else sys.stderr,
        )
        return 0 if name in ("-h", "--help") else 2
    return int(import_module(COMMANDS[name][0]).main(words) or 0)


if __name__ == "__main__":
    raise SystemExit(main())
