import os
from pathlib import Path

import pytest
import torch


@pytest.fixture(autouse=True)
def _same_start(tmp_path_factory, monkeypatch):
    torch.set_num_threads(2)
    torch.manual_seed(0)
    monkeypatch.setenv("ANTEMBED_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def shared_data() -> Path:
    folder = os.environ.get("ANTEMBED_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("ANTEMBED_DATA names no folder with the real data sets")
    return Path(folder)
