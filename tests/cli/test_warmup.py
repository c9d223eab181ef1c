"""`antembed warmup`: every command that it runs comes to its end."""

import pytest
from tests.command import call

from antembed.cli.first_steps import train_layers
from antembed.layer.lookup_kernel import bag_gradients, gradients_piece, look_up_piece, sum_bags


def test_layers_of_a_loop_of_ones_own_are_compiled():
    train_layers()
    assert all(kernel.signatures for kernel in (look_up_piece, gradients_piece, sum_bags, bag_gradients))


@pytest.mark.slow
def test_all_kernels_are_compiled():
    said = call("warmup")
    assert "functions are compiled for this processor" in said
