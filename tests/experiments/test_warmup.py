"""`antembed warmup`: every command that it runs comes to its end."""

import pytest
from tests.command import call


@pytest.mark.slow
def test_all_kernels_are_compiled():
    said = call("warmup")
    assert "functions are compiled for this processor" in said
