"""T trained without its penalty: `usage` and `export` say so, once."""

import copy
import warnings

import pytest
import torch

import antembed as ant
from antembed.baselines import EMBEDDINGS

V, d, K = 60, 6, 4


def layer_of(**more):
    return ant.AnchorEmbedding(V, d, num_anchors=K, **more)


def train(layer, optimizer, steps=3):
    for _ in range(steps):
        optimizer.zero_grad()
        (layer(torch.arange(V)) + 1).square().sum().backward()
        optimizer.step()


def messages(run):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        run()
    assert all(warning.category is UserWarning for warning in found)
    return [str(warning.message) for warning in found]


@pytest.mark.parametrize(
    "make",
    [
        lambda layer: torch.optim.SGD(layer.parameters(), lr=1e-6),
        lambda layer: torch.optim.SGD(
            layer.param_groups(1e-3), lr=1e-6
        ),  # it keeps the groups' `prox`, and does nothing with it
        lambda layer: ant.optim.ProximalSGD(layer.parameters(), lr=1e-6),  # not the layer's groups
    ],
)
def test_usage_and_export_warn_once_of_a_dense_t(make, tmp_path):
    layer = layer_of(padding_idx=0)
    train(layer, make(layer))
    (text,) = messages(lambda: (layer.usage(), layer.usage(), ant.export(layer, tmp_path / "t.ant")))
    weights = (V - 1) * K
    assert text.startswith(f"no weight of T is zero ({weights} of {weights} are not); was a proximal optimizer used?")
    assert "antembed.ProximalYogi(antembed.param_groups(model, l1_penalty=…))" in text
    assert "antembed.optim.Proximal(torch.optim.…(" in text


def test_the_warning_points_to_the_call():
    layer = layer_of()
    train(layer, torch.optim.SGD(layer.parameters(), lr=1e-6))
    with pytest.warns(UserWarning, match="no weight of T is zero") as found:
        layer.usage()
    assert found[0].filename == __file__


def test_usage_warns_once_of_negative_weights():
    layer = layer_of()
    train(layer, torch.optim.AdamW(layer.parameters(), lr=0.1), steps=20)
    negative, least = int((layer.transform < 0).sum()), float(layer.transform.min().detach())
    texts = messages(lambda: (layer.usage(), layer.usage()))
    assert f"T has {negative} negative weights (smallest {least:.2g})" in texts[0]
    assert len(texts) == 2  # and none is zero


@pytest.mark.parametrize(
    "make",
    [
        lambda layer: ant.ProximalYogi(layer.param_groups(1e-3)),
        lambda layer: ant.optim.ProximalSGD(layer.param_groups(0.0), lr=1e-4),
        lambda layer: ant.optim.Proximal(torch.optim.AdamW(layer.param_groups(1e-3))),
        lambda layer: copy.deepcopy(ant.optim.Proximal(torch.optim.AdamW(layer.param_groups(1e-3)))),
    ],
)
def test_after_proximal_optimizers_they_do_not(make, tmp_path):
    layer = layer_of()
    train(layer, make(layer))
    assert messages(lambda: (layer.usage(), ant.export(layer, tmp_path / "t.ant"))) == []


@pytest.mark.parametrize("name", [name for name in EMBEDDINGS if name in ("full", "low-rank", "mixed", "hashed", "vvd")])
def test_tables_without_a_penalty_take_any_optimizer(name, tmp_path):
    layer = EMBEDDINGS[name](V, d, num_anchors=K)

    def run():
        train(layer, torch.optim.AdamW(layer.parameters()))
        layer.eval().usage()
        ant.export(layer, tmp_path / "t.ant")

    assert messages(run) == []


@pytest.mark.parametrize("anchors", [K, K + 3])
def test_export_warns_of_a_loaded_t_without_zeros(anchors, tmp_path):
    layer = layer_of()
    layer.load_state_dict(ant.AnchorEmbedding(V, d, num_anchors=anchors).state_dict())
    assert messages(layer.usage) == []  # nothing is known of its training
    (text,) = messages(lambda: ant.export(layer, tmp_path / "t.ant"))
    assert "no weight of T is zero" in text


@pytest.mark.parametrize("name", ["anchor", "mixture", "softmax-mixture"])
def test_a_proximal_run_is_quiet_before_anything_is_zero(name, tmp_path):
    layer = EMBEDDINGS[name](V, d, num_anchors=K)
    assert messages(layer.usage) == []
    train(layer, ant.ProximalYogi(layer.param_groups(0.0), lr=1e-6))
    assert all((table.weight > 0).all() for table in layer.tables)
    assert messages(lambda: (layer.usage(), ant.export(layer, tmp_path / "t.ant"))) == []
