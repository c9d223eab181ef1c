"""Threads that wait for each other do not hold the cores that others need: nothing here is timed."""

import os
import re
import subprocess
import sys

import pytest

from antembed.cli import SPINS, wait_briefly

SCRIPT = """
import sys
sys.argv = ["antembed", "--version"]
from antembed.cli import main
try:
    main()
except SystemExit:
    pass
assert "torch" not in sys.modules
import torch
"""


@pytest.mark.parametrize("name", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"])
def test_what_the_user_says_is_left_alone(name):
    environment = {name: "7"}
    wait_briefly(environment)
    assert environment == {name: "7"}


def test_openmp_is_told_before_torch_is_imported():
    said = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
    clean = {name: value for name, value in os.environ.items() if name not in said} | {"OMP_DISPLAY_ENV": "verbose"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=clean, capture_output=True, text=True, check=True)
    if "OPENMP DISPLAY ENVIRONMENT" not in done.stderr:
        pytest.skip("this torch has no OpenMP")
    assert re.search(r"OMP_WAIT_POLICY\s*=\s*'PASSIVE'", done.stderr)
    for spins in re.findall(r"GOMP_SPINCOUNT\s*=\s*'(\d+)'", done.stderr):
        assert spins == SPINS
