"""The programs in examples/ do what they say: tables 20 times smaller, within 1 % of the dense model's accuracy; or a TorchRec
model that is sparse, too."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

FOLDER = Path(__file__).parents[1] / "examples"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({file.stem for file in FOLDER.glob("*.py")} - {"torchrec_prox"}))
def test_twenty_times_fewer_parameters_within_one_per_cent(name):
    torch.set_num_threads(1)
    found = example(name).main()
    assert found["dense parameters"] >= 20 * found["anchored parameters"]
    assert found["anchored"] >= 0.99 * found["dense"]
    assert found["dense"] > 0.6  # it has learned something


@pytest.mark.filterwarnings("ignore")  # TorchRec's own
def test_torchrec_with_a_prox_now_and_then(monkeypatch):
    """A prox at every step is proximal SGD, to the same zeros; a rare one is not."""
    pytest.importorskip("torchrec", reason="TorchRec is not installed; examples/torchrec_prox.py says how")
    module = example("torchrec_prox")
    monkeypatch.setattr(module, "STEPS", 100)
    try:
        exact, each, rare, _ = module.main()
    finally:
        torch.distributed.destroy_process_group()
    assert each["other_zeros"] == 0 < exact["nonzeros"] < module.V * module.K
    assert each["nonzeros"] == exact["nonzeros"]
    assert each["distance"] < 1e-4 < rare["distance"]
