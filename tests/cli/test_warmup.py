"""`antembed warmup`: every command that it runs comes to its end."""

import pytest
from tests.command import call

from antembed.cli.first_steps import train_layers
from antembed.layer.lookup_kernel import gradients_chunk, look_up_chunk
from antembed.layer.optim.lazy_kernel import step_rows


def test_layers_of_a_loop_of_ones_own_are_compiled():
    train_layers()
    assert all(kernel.signatures for kernel in (look_up_chunk, gradients_chunk, step_rows))


@pytest.mark.slow
def test_all_kernels_are_compiled():
    said = call("warmup")
    assert "functions are compiled for this processor" in said
