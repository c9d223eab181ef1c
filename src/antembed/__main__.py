"""python -m antembed."""

from antembed.cli import main

main()
