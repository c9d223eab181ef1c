"""T trained without its penalty: who says so, when, and who does not."""

import copy
import gc
import pickle
import warnings

import pytest
import torch
from torch import nn

import antembed as ant
from antembed.baselines import EMBEDDINGS
from antembed.layer import optimizer_check as watch

V, d, K = 60, 6, 4
UNPENALIZED = "updates T of AnchorEmbedding without its penalty: no weight becomes zero"


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


@pytest.mark.parametrize("make", [torch.optim.AdamW, torch.optim.SGD, torch.optim.SparseAdam])
def test_an_optimizer_without_a_prox_is_reported_once(make):
    layer = layer_of(sparse=make is torch.optim.SparseAdam)
    groups = [layer.rows.weight] if layer.rows.sparse else layer.parameters()
    optimizer = make(groups, lr=1e-3)
    (text,) = messages(lambda: train(layer, optimizer))
    assert f"{make.__name__} {UNPENALIZED}" in text
    assert "antembed.ProximalYogi(antembed.param_groups(model, l1_penalty=…))" in text
    assert f"antembed.optim.Proximal(torch.optim.{make.__name__}(" in text


def test_the_warning_points_to_the_step():
    layer = layer_of()
    with pytest.warns(UserWarning, match=UNPENALIZED) as found:
        train(layer, torch.optim.AdamW(layer.parameters()), steps=1)
    assert found[0].filename == __file__


def test_the_layers_groups_alone_are_not_enough():
    """AdamW keeps the groups' `prox`, and does nothing with it."""
    layer = layer_of()
    (text,) = messages(lambda: train(layer, torch.optim.AdamW(layer.param_groups(1e-3))))
    assert "AdamW updates T" in text


def test_a_proximal_optimizer_without_the_groups_is_reported():
    layer = layer_of()
    (text,) = messages(lambda: train(layer, ant.ProximalYogi(layer.parameters())))
    assert text.endswith("give it the layer's groups, antembed.ProximalYogi(antembed.param_groups(model, l1_penalty=…))")


@pytest.mark.parametrize(
    "make",
    [
        lambda layer: ant.ProximalYogi(layer.param_groups(1e-3)),
        lambda layer: ant.optim.ProximalSGD(layer.param_groups(0.0), lr=1e-4),
        lambda layer: ant.optim.Proximal(torch.optim.AdamW(layer.param_groups(1e-3))),
        lambda layer: copy.deepcopy(ant.optim.Proximal(torch.optim.AdamW(layer.param_groups(1e-3)))),
        lambda layer: torch.optim.AdamW([layer.anchors]),  # T is not in it
    ],
)
def test_proximal_optimizers_are_not(make):
    layer = layer_of()
    assert messages(lambda: train(layer, make(layer))) == []


@pytest.mark.parametrize("name", [name for name in EMBEDDINGS if name in ("full", "low-rank", "mixed", "hashed", "vvd")])
def test_tables_without_a_penalty_take_any_optimizer(name, tmp_path):
    layer = EMBEDDINGS[name](V, d, num_anchors=K)

    def run():
        train(layer, torch.optim.AdamW(layer.parameters()))
        layer.eval().usage()
        ant.export(layer, tmp_path / "t.ant")

    assert messages(run) == []


@pytest.mark.parametrize("twin", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
def test_copies_of_a_layer_are_known_too(twin):
    layer = twin(layer_of())
    (text,) = messages(lambda: train(layer, torch.optim.AdamW(layer.parameters())))
    assert UNPENALIZED in text


def test_groups_that_are_added_later_are_seen():
    layer, other = layer_of(), nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(other.parameters())
    optimizer.step()
    optimizer.add_param_group({"params": layer.parameters()})
    assert len(messages(lambda: train(layer, optimizer))) == 1


def test_layers_and_optimizers_are_not_kept_alive():
    layer = layer_of()
    optimizer = ant.ProximalYogi(layer.param_groups(1e-3))
    train(layer, optimizer)
    layers, checked = len(watch._layers), len(watch._checked)
    del layer, optimizer
    gc.collect()
    assert len(watch._layers) < layers
    assert len(watch._checked) < checked


def test_a_layer_that_could_not_be_built_is_no_obstacle():
    with pytest.raises(ValueError, match="num_embeddings must be ≥ 0, got -1") as failed:
        ant.AnchorEmbedding(-1, d)
    layer = layer_of()
    train(layer, ant.ProximalYogi(layer.param_groups(1e-3)))
    assert failed.value  # its traceback still holds the half-built layer


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop])
@pytest.mark.parametrize("wrapped", [False, True])
def test_row_sparse_gradients_and_an_optimizer_that_takes_none(make, wrapped):
    layer = layer_of(sparse=True)
    optimizer = make(layer.param_groups(1e-3))
    optimizer = ant.optim.Proximal(optimizer) if wrapped else optimizer
    for _ in range(2):
        with pytest.raises(
            RuntimeError, match=rf"{make.__name__} takes no row-sparse .*antembed\.ProximalYogi\(.*sparse=False"
        ):
            train(layer, optimizer)


def test_a_full_table_with_row_sparse_gradients():
    layer = ant.baselines.FullEmbedding(V, d, sparse=True)
    with pytest.raises(RuntimeError, match=r"Adam takes no row-sparse gradients, but FullEmbedding\(sparse=True\) has them"):
        train(layer, torch.optim.Adam(layer.parameters()))


@pytest.mark.filterwarnings("ignore:.*updates T")
def test_usage_and_export_warn_once_of_a_dense_t(tmp_path):
    layer = layer_of(padding_idx=0)
    train(layer, torch.optim.SGD(layer.parameters(), lr=1e-6))
    (text,) = messages(lambda: (layer.usage(), layer.usage(), ant.export(layer, tmp_path / "t.ant")))
    weights = (V - 1) * K
    assert text.startswith(f"no weight of T is zero ({weights} of {weights} are not); was a proximal optimizer used?")
    assert "antembed.ProximalYogi(antembed.param_groups(model, l1_penalty=…))" in text


@pytest.mark.filterwarnings("ignore:.*updates T")
def test_usage_warns_once_of_negative_weights():
    layer = layer_of()
    train(layer, torch.optim.AdamW(layer.parameters(), lr=0.1), steps=20)
    negative, least = int((layer.transform < 0).sum()), float(layer.transform.min().detach())
    texts = messages(lambda: (layer.usage(), layer.usage()))
    assert f"T has {negative} negative weights (smallest {least:.2g})" in texts[0]
    assert len(texts) == 2  # and none is zero


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


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, inside the compiler
def test_a_compiled_step_is_left_alone():
    layer = layer_of()
    optimizer = torch.optim.SGD([layer.anchors], lr=0.1)
    layer(torch.arange(V)).sum().backward()
    expected = (layer.anchors - 0.1 * layer.anchors.grad).detach()
    torch.compile(optimizer.step, backend="eager")()
    torch.testing.assert_close(layer.anchors.detach(), expected)
