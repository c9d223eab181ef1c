"""What AnchorEmbedding can do beyond the contract."""

import pytest
import torch
from torch import nn

import antembed as ant


def layer_of(V=40, d=6, K=5, **more):
    return ant.AnchorEmbedding(V, d, num_anchors=K, **more)


def test_initialisation_is_half_normal():
    layer = ant.AnchorEmbedding(20_000, 50, num_anchors=30)
    T, A = layer.transform, layer.anchors
    assert (T > 0).all()
    assert (A > 0).all()
    assert T.square().mean().item() == pytest.approx(2 / 20_000, rel=0.02)
    assert A.square().mean().item() == pytest.approx(2 / 30, rel=0.1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, inside the compiler
def test_forward_compiles_with_inductor():
    """The real compiler, once: the contract uses a quicker back end for the rest."""
    layer, ids = layer_of(), torch.randint(0, 40, (4, 3))
    torch.testing.assert_close(torch.compile(layer, fullgraph=True)(ids), layer(ids))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, inside torch.export
def test_a_model_is_exported_by_torch_with_any_batch():
    model = nn.Sequential(layer_of(padding_idx=3), nn.Linear(6, 2)).eval()
    some = torch.export.Dim("batch"), torch.export.Dim("length")
    exported = torch.export.export(model, (torch.randint(0, 40, (4, 3)),), dynamic_shapes=({0: some[0], 1: some[1]},)).module()
    ids = torch.tensor([[3, 5], [7, 9], [0, 39]])
    torch.testing.assert_close(exported(ids), model(ids))


@pytest.mark.parametrize("n", [1, 2000])
def test_logits_are_the_tied_output_in_either_order(n):
    layer = layer_of(V=300, d=4, K=9)
    hidden, bias = torch.randn(n, 4), torch.randn(300)
    expected = hidden @ layer.to_dense().T + bias
    torch.testing.assert_close(layer.logits(hidden, bias=bias), expected, atol=1e-5, rtol=1e-5)


def test_logits_leave_padding_at_zero():
    layer = layer_of(padding_idx=2)
    optimizer = ant.ProximalYogi(layer.param_groups(l1_penalty=0.0))
    for _ in range(5):
        optimizer.zero_grad()
        layer.logits(torch.randn(3, 6)).logsumexp(-1).sum().backward()
        optimizer.step()
    assert layer.transform[2].eq(0).all()


def test_logits_of_the_wrong_width():
    with pytest.raises(ValueError, match="hidden has 7 dimensions, this layer 6"):
        layer_of().logits(torch.randn(2, 7))


@pytest.mark.parametrize("K", [0, -3])
def test_a_table_needs_an_anchor(K):
    with pytest.raises(ValueError, match=f"num_anchors must be ≥ 1, got {K}"):
        layer_of(K=K)


@pytest.mark.parametrize("K", [2, 9])
def test_a_state_dict_with_another_number_of_anchors_resizes_the_layer(K):
    saved = layer_of(K=K)
    model = nn.Sequential(layer_of(K=5))
    weight = model[0].rows.weight
    model.load_state_dict(nn.Sequential(saved).state_dict())
    assert model[0].num_anchors == K
    assert model[0].rows.weight is weight  # an optimizer keeps its hold
    assert torch.equal(model[0].to_dense(), saved.to_dense())
    model[0](torch.tensor([1])).sum().backward()


def test_an_optimizer_says_that_its_layer_was_resized():
    layer = layer_of(K=5)
    optimizer = ant.ProximalYogi(layer.param_groups(l1_penalty=1e-4))
    layer(torch.tensor([1])).sum().backward()
    optimizer.step()
    layer.load_state_dict(layer_of(K=7).state_dict())
    layer(torch.tensor([1])).sum().backward()
    with pytest.raises(ValueError, match=r"\(40, 5\), which is now \(40, 7\)"):
        optimizer.step()


def test_a_checkpoint_of_another_width():
    with pytest.raises(
        RuntimeError, match="the checkpoint has 8 dimensions, this layer 6; build the layer with embedding_dim=8"
    ):
        layer_of().load_state_dict(layer_of(d=8).state_dict())


def test_a_checkpoint_of_another_height():
    with pytest.raises(RuntimeError, match=r"has 45 objects, this layer 40; grow it first with add_objects\(5\)"):
        layer_of().load_state_dict(layer_of(V=45).state_dict())
    with pytest.raises(RuntimeError, match="has 30 objects, this layer 40; build a layer of that size"):
        layer_of().load_state_dict(layer_of(V=30).state_dict())


def test_a_checkpoint_whose_parts_do_not_fit():
    state = layer_of().state_dict()
    state["anchors"] = torch.zeros(9, 6)
    with pytest.raises(RuntimeError, match="5 columns but its A 9 rows; it is damaged"):
        layer_of().load_state_dict(state)


def test_add_objects():
    layer = layer_of()
    layer.add_objects(40)
    T = layer.transform
    assert T[40:].square().mean().item() == pytest.approx(2 / 80, rel=0.3)  # as if drawn with the whole table


def test_usage_counts_as_the_paper_does():
    layer = layer_of(V=4, d=3, K=3, padding_idx=0)
    with torch.no_grad():
        layer.rows.weight.copy_(torch.tensor([[0, 0, 0], [1, 0, 0], [0, 0, 2], [3, 0, 1.0]]))
    usage = layer.usage()
    assert (usage.nnz, usage.anchors, usage.anchors_in_use, usage.parameters) == (4, 3, 2, 4 + 2 * 3)


def test_from_pretrained_recovers_a_table_of_that_form():
    answer = ant_planted()
    layer = ant.AnchorEmbedding.from_pretrained(answer, num_anchors=6, iterations=200)
    assert layer.reconstruction_error < 0.02
    error = (layer.to_dense() - answer).norm() / answer.norm()
    assert layer.reconstruction_error == pytest.approx(error.item(), rel=1e-3)
    assert (layer.transform >= 0).all()


def ant_planted():
    from antembed.recommend.synthetic import planted

    return torch.from_numpy(planted(500, 16, anchors=6, seed=1).E).float()


def test_from_pretrained_fits_better_with_more_anchors():
    weight = torch.randn(200, 10)
    errors = [ant.AnchorEmbedding.from_pretrained(weight, num_anchors=K).reconstruction_error for K in (2, 8, 20)]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 0.15  # K = 2·d would be enough for any table


def test_from_pretrained_with_a_penalty_is_sparse():
    weight = torch.randn(200, 10)
    plain, sparse = (ant.AnchorEmbedding.from_pretrained(weight, num_anchors=20, l1_penalty=l1) for l1 in (0.0, 0.5))
    assert sparse.usage().nnz < 0.6 * plain.usage().nnz


def test_from_pretrained_edges():
    assert ant.AnchorEmbedding.from_pretrained(torch.zeros(5, 3), num_anchors=2).reconstruction_error == 0
    same = ant.AnchorEmbedding.from_pretrained(torch.ones(5, 3), num_anchors=4)
    torch.testing.assert_close(same.to_dense(), torch.ones(5, 3))
    padded = ant.AnchorEmbedding.from_pretrained(torch.randn(9, 3), num_anchors=4, padding_idx=2)
    assert padded.to_dense()[2].eq(0).all()
    with pytest.raises(ValueError, match="two dimensions"):
        ant.AnchorEmbedding.from_pretrained(torch.randn(5))
    for bad in (torch.ones(3, 2, dtype=torch.long), torch.full((3, 2), float("nan"))):
        with pytest.raises(ValueError, match="finite real numbers"):
            ant.AnchorEmbedding.from_pretrained(bad)
    assert ant.AnchorEmbedding.from_pretrained(nn.Embedding(9, 3), num_anchors=2).num_embeddings == 9


def test_param_groups_of_a_model_hold_every_parameter_once():
    model = nn.ModuleDict(
        {
            "words": layer_of(sparse=True),
            "bag": ant.AnchorEmbeddingBag(9, 3),
            "mixed": ant.baselines.MixtureEmbedding(9, 3),
            "full": ant.baselines.FullEmbedding(9, 3),
            "head": nn.Linear(6, 2),
        }
    )
    groups = ant.param_groups(model, l1_penalty=1e-3)
    ids = [id(p) for group in groups for p in group["params"]]
    assert sorted(ids) == sorted(id(p) for p in model.parameters())
    assert sum(group.get("prox") is not None for group in groups) == 4
    ant.ProximalYogi(groups)


def test_reductions_of_appendix_i():
    """Fixed T: vocabulary selection. One free entry a row and a huge λ2: compositional codes, one anchor an object."""
    layer = layer_of(V=6, d=3, K=2)
    with torch.no_grad():
        layer.rows.weight.zero_()
        layer.rows.weight[0, 0] = layer.rows.weight[1, 1] = 1.0
    layer.rows.weight.requires_grad_(False)
    torch.testing.assert_close(layer(torch.arange(6)), torch.cat([layer.anchors, torch.zeros(4, 3)]))

    codes = torch.arange(6) % 2
    layer = layer_of(V=6, d=3, K=2, sparse=True)
    free = ant.penalties.FreeEntries(torch.arange(6), codes, (6, 2))
    optimizer = ant.ProximalYogi(layer.param_groups(l1_penalty=1e6, free=free), lr=0.05)
    target = torch.randn(2, 3).abs()[codes]
    for _ in range(500):
        optimizer.zero_grad()
        (layer(torch.arange(6)) - target).square().sum().backward()
        optimizer.step()
    assert torch.equal(layer.transform != 0, nn.functional.one_hot(codes, 2).bool())
    torch.testing.assert_close(layer.to_dense().detach(), target, atol=0.05, rtol=0.05)
