"""`antembed warmup`: every command that it runs comes to its end."""

import pytest
from tests.command import call

from antembed.experiments.warmup import train_layers
from antembed.kernels.anchored import gradients_piece, look_up_piece
from antembed.kernels.bags import bag_gradients, sum_bags


def test_layers_of_a_loop_of_ones_own_are_compiled():
    train_layers()
    assert all(kernel.signatures for kernel in (look_up_piece, gradients_piece, sum_bags, bag_gradients))


@pytest.mark.slow
def test_all_kernels_are_compiled():
    said = call("warmup")
    assert "functions are compiled for this processor" in said
