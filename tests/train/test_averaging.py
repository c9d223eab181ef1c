"""NT-ASGD: when averaging begins, what the means are, that evaluation uses them and training does not."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from antembed.language.config import LanguageConfig
from antembed.layer.anchor import AnchorEmbedding
from antembed.train.callbacks import Averaging
from antembed.train.engine import Loop, constant


def make(after, model=None):
    config = LanguageConfig()
    own = config.solver
    steady = constant(0.1)
    model = model or nn.Linear(2, 1, bias=False)
    loop = Loop(config, own, model, torch.optim.SGD(model.parameters()), 10, "perplexity", steady, steady)
    return loop, Averaging(loop, after)


def tell(averaging, *errors):
    for epoch, error in enumerate(errors):
        averaging.end(epoch, {"validation": {"perplexity": error}}, SimpleNamespace())


@pytest.mark.parametrize(
    ("errors", "begins"),
    [((5, 4, 3, 2, 1), False), ((5, 4, 3, 4, 3.5), False), ((5, 3, 4, 3.5, 3.2), True), ((3, 4), False)],
)
def test_it_begins_when_nothing_is_better_than_long_before(errors, begins):
    """After 2: the error of this epoch against the best of all but the last two."""
    _, averaging = make(2)
    tell(averaging, *errors)
    assert bool(averaging.means) == begins


def test_the_mean_is_evaluated_and_the_last_is_trained():
    loop, averaging = make(1)
    weight = loop.model.weight
    tell(averaging, 3, 2, 4, 5)
    before = weight.detach().clone()
    with loop.averaged():
        assert torch.equal(weight, before)  # no step yet, so no mean of zeros
    values = torch.randn(5, 1, 2)
    for value in values:
        weight.data.copy_(value)
        averaging.step()
    with loop.averaged():
        torch.testing.assert_close(weight.data, values.mean(0))
    assert torch.equal(weight.data, values[-1])
    other_loop, other = make(1)
    other.load(averaging.state(), averaging.tensors())
    other_loop.model.weight.data.copy_(values[-1])
    with other_loop.averaged():
        torch.testing.assert_close(other_loop.model.weight.data, values.mean(0))
    averaging.finish(SimpleNamespace())
    torch.testing.assert_close(weight.data, values.mean(0))


def test_frozen_zeros_stay_zero():
    layer = AnchorEmbedding(6, 4, num_anchors=3)
    loop, averaging = make(1, layer)
    tell(averaging, 3, 2, 4, 5)
    support = torch.rand(6, 3) < 0.5
    for _ in range(3):
        layer.rows.weight.data = torch.rand(6, 3) * support
        averaging.step()
    with loop.averaged():
        assert torch.equal(layer.rows.weight != 0, support)
