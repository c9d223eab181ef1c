import os
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

# The same examples everywhere, and as long as they take: a busy machine is no failure.
settings.register_profile("portable", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("portable")
# Two workers with two threads each would wait for each other on two cores.
THREADS = int(os.environ.get("ANTEMBED_TEST_THREADS", "1" if "PYTEST_XDIST_WORKER" in os.environ else "2"))


@pytest.fixture(autouse=True)
def _same_start(tmp_path_factory, monkeypatch):
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    monkeypatch.setenv("ANTEMBED_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def shared_data() -> Path:
    folder = os.environ.get("ANTEMBED_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("ANTEMBED_DATA names no folder with the real data sets")
    return Path(folder)
