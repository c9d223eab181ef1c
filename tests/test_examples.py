"""The programs in examples/ do what they say: tables 20 times smaller, within 1 % of the dense model's accuracy."""

import importlib.util
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parents[1] / "examples"


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(file.stem for file in FOLDER.glob("*.py")))
def test_twenty_times_fewer_parameters_within_one_per_cent(name):
    torch.set_num_threads(1)
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = module.main()
    assert found["dense parameters"] >= 20 * found["anchored parameters"]
    assert found["anchored"] >= 0.99 * found["dense"]
    assert found["dense"] > 0.6  # it has learned something
