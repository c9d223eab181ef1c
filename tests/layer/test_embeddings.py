"""One contract for every embedding in the dict; a new one is picked up by itself."""

import copy

import numpy as np
import pytest
import torch

import antembed as ant
from antembed.baselines import EMBEDDINGS

V, d, K = 50, 6, 4


SHARED = ("frequency", "hashed", "tf-idf")  # objects have rows in common
DENSE = (
    *SHARED,
    "full",
    "group-lasso",
    "low-rank",
    "low-rank-nonnegative",
    "mixed",
    "sparse-code",
    "sparse-vd",
    "sparse-vd-words",
    "tensor-train",
    "vvd",
)


def build(name, **more):
    # In training, variational tables are noisy; test_variational.py looks at that.
    return EMBEDDINGS[name](V, d, num_anchors=K, **more).eval()


@pytest.fixture(params=EMBEDDINGS)
def name(request):
    return request.param


def test_the_attributes_are_true(name):
    kind = EMBEDDINGS[name]
    small, large = (sum(p.numel() for p in kind(V, d, num_anchors=n).parameters()) for n in (K, 3 * K))
    layer = build(name)
    assert isinstance(layer, kind)
    assert kind.uses_anchors == (small != large)
    assert kind.variational == (layer.divergence() is not None)
    assert not kind.anchored or layer.pairs
    if kind.requires & {"counts", "tf-idf"}:
        counts = torch.arange(V)  # the last is the most frequent
        assert not torch.equal(*(torch.as_tensor(build(name, counts=given).row_of) for given in (counts, None)))
    if kind.small_init is not None:
        larger, smaller = (build(name, std=std).to_dense().norm() for std in (1.0, kind.small_init))
        assert smaller < 0.3 * larger
    if kind.anchored:  # T scales the vectors, unless they are a softmax's
        before = layer.to_dense()
        with torch.no_grad():
            for table, _ in layer.pairs:
                table.weight.mul_(2)
        assert kind.softmax != torch.allclose(layer.to_dense(), 2 * before)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("shape", [(), (3,), (2, 5), (2, 1, 3), (0,), (4, 0)])
def test_any_shape_of_ids(name, shape, dtype):
    vectors = build(name)(torch.randint(0, V, shape, dtype=dtype))
    assert vectors.shape == (*shape, d)


def test_rows_are_those_of_the_dense_table(name):
    layer, ids = build(name), torch.randint(0, V, (30,))
    torch.testing.assert_close(layer(ids), layer.to_dense()[ids])
    torch.testing.assert_close(layer.to_embedding()(ids), layer(ids))


@pytest.mark.parametrize("sparse", [False, True])
def test_coordinates_are_those_of_the_vectors(name, sparse):
    layer = build(name, padding_idx=3, sparse=sparse, dtype=torch.float64)
    optimizer = ant.ProximalYogi(layer.param_groups(l1_penalty=1e-3))
    ids, W = torch.randint(0, V, (9,)), torch.randn(d, 4, dtype=torch.float64, requires_grad=True)
    layer(torch.tensor([3, 1])).sum().backward()
    optimizer.step()  # from here on rows may be lazy
    learned, results = [W, *(p for p in layer.parameters() if p.requires_grad)], []
    X, A = layer.coordinates(ids)
    assert A is None or len(A) < d
    for product in (X @ (W if A is None else A @ W), layer(ids) @ W):
        gradients = torch.autograd.grad(product.square().sum(), learned, allow_unused=True)
        results.append([product.detach(), *(None if g is None else g.to_dense() if g.is_sparse else g for g in gradients)])
    for ours, plain in zip(*results, strict=True):
        torch.testing.assert_close(ours, plain)


def test_distinct_ids_have_distinct_rows(name):
    """Unless rows are shared: then objects with the same row index, and no others, have the same vector."""
    layer = build(name)
    alike = torch.cdist(layer.to_dense(), layer.to_dense(), compute_mode="donot_use_mm_for_euclid_dist") == 0
    row_index = torch.arange(V) if layer.row_index() is None else layer.row_index()
    assert (layer.row_index() is None) == (name not in SHARED)
    assert torch.equal(alike, row_index[:, None] == row_index)


def test_gradients(name):
    layer = build(name, dtype=torch.float64)
    ids = torch.tensor([1, 4, 1])
    weights = list(layer.parameters())
    assert torch.autograd.gradcheck(lambda *_: layer(ids), weights)


def test_sparse_and_dense_gradients_agree(name):
    layers = []
    for sparse in (False, True):
        torch.manual_seed(0)
        layer = build(name, sparse=sparse)
        layer(torch.tensor([[1, 4], [1, 7]])).square().sum().backward()
        gradients = [p.grad for p in layer.parameters() if p.grad is not None]  # codes that are fixed have none
        assert gradients
        layers.append([grad.to_dense() if grad.is_sparse else grad for grad in gradients])
    for dense, sparse in zip(*layers, strict=True):
        torch.testing.assert_close(dense, sparse, rtol=1e-5, atol=1e-5 * max(1.0, float(dense.abs().max())))


def test_lazy_training_equals_dense_training(name):
    results = []
    for sparse in (False, True):
        torch.manual_seed(0)
        layer = build(name, sparse=sparse, dtype=torch.float64)
        optimizer = ant.ProximalYogi(layer.param_groups(l1_penalty=1e-3))
        for step in range(40):
            ids = torch.randint(0, V, (5,), generator=torch.Generator().manual_seed(step))
            (layer(ids) - 0.3).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        results.append(layer.to_dense().detach())
    torch.testing.assert_close(*results, atol=1e-12, rtol=0)


@pytest.mark.parametrize("sparse", [False, True])
def test_padding_is_zero_and_stays_zero(name, sparse):
    layer = build(name, padding_idx=3, sparse=sparse)
    optimizer = ant.ProximalYogi(layer.param_groups(l1_penalty=1e-4))
    for _ in range(3):
        layer(torch.tensor([3, 1])).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert layer(torch.tensor([3])).eq(0).all()
    assert layer.to_dense()[3].eq(0).all()
    assert layer(torch.tensor([1])).ne(0).any()


def test_negative_padding_counts_from_the_end(name):
    assert build(name, padding_idx=-1).padding_idx == V - 1


def test_state_dict_round_trip(name):
    layer = build(name)
    other = build(name)
    other.load_state_dict(layer.state_dict())
    assert torch.equal(layer.to_dense(), other.to_dense())


def test_deepcopy(name):
    layer = build(name)
    twin = copy.deepcopy(layer)
    with torch.no_grad():
        for p in layer.parameters():
            p.add_(1)
    assert not torch.equal(layer.to_dense(), twin.to_dense())


def test_counted_is_stored(name, tmp_path):
    """usage() and the file say the same: bytes to the byte, and no more parameters than numbers in the file."""
    layer = build(name, padding_idx=0)
    sparsify(layer)
    usage = layer.usage()
    table = ant.export(layer, tmp_path / "t.ant")
    assert usage.bytes == table.size == (tmp_path / "t.ant").stat().st_size
    assert (usage.num_embeddings, usage.embedding_dim) == table.shape
    if name not in ("softmax-mixture", "tensor-train"):  # the first's file has one more column, the second's is dense
        assert usage.parameters == table.parameters


def sparsify(layer):
    with torch.no_grad():
        if layer.factors()[1] is not None:
            for table in layer.tables:
                table.weight[torch.rand_like(table.weight) < 0.6] = 0


def test_exported_numpy_and_compiled_equal_torch(name, tmp_path, monkeypatch):
    layer = build(name, padding_idx=2)
    sparsify(layer)
    table = ant.export(layer, tmp_path / "t.ant")
    E = layer.to_dense().detach().numpy()
    for least in (np.inf, 0):  # NumPy, and compiled where there are non-zeros to add up
        monkeypatch.setattr("antembed.tables.encodings.COMPILED_FROM", least)
        np.testing.assert_allclose(table[:], E, rtol=0, atol=1e-6 * max(1, np.abs(E).max()))


@pytest.mark.parametrize("lazy", [False, True])
def test_bad_ids(name, lazy):
    layer = build(name, sparse=lazy)
    if lazy:
        optimizer = ant.ProximalYogi(layer.param_groups(l1_penalty=1e-4))
        layer(torch.tensor([1])).sum().backward()
        optimizer.step()
    with pytest.raises(IndexError, match=rf"id 57 is outside a table of {V} rows; grow it with layer.add_objects\(8\)"):
        layer(torch.tensor([0, 57]))
    with pytest.raises(IndexError, match="id -2 is negative"):
        layer(torch.tensor([-2]))
    for bad in (torch.tensor([1.0]), torch.tensor([True])):
        with pytest.raises(TypeError, match=r"int32 or int64, got .*ids.long\(\)"):
            layer(bad)


@pytest.mark.parametrize(
    ("size", "text"), [((-1, 3), "num_embeddings must be ≥ 0, got -1"), ((3, 0), "embedding_dim must be ≥ 1, got 0")]
)
def test_bad_sizes(name, size, text):
    with pytest.raises(ValueError, match=text):
        EMBEDDINGS[name](*size, num_anchors=2)


def test_sizes_are_whole_numbers(name):
    with pytest.raises(TypeError, match=r"num_embeddings is an integer, got 9\.0"):
        EMBEDDINGS[name](9.0, 4, num_anchors=2)
    with pytest.raises(TypeError, match=r"padding_idx is an integer, got 1\.5"):
        EMBEDDINGS[name](9, 4, 1.5, num_anchors=2)


@pytest.mark.parametrize("padding", [9, -10, -99])
def test_padding_outside(name, padding):
    with pytest.raises(ValueError, match=f"padding_idx {padding} is outside a table of 9 rows; give one of -9 to 8"):
        EMBEDDINGS[name](9, 4, padding, num_anchors=3)
    assert EMBEDDINGS[name](9, 4, -9, num_anchors=3).padding_idx == 0


def test_an_empty_table_has_no_ids(name):
    layer = EMBEDDINGS[name](0, 4, num_anchors=3)
    with pytest.raises(IndexError, match=r"id 0 is outside a table of 0 rows; grow it with layer\.add_objects\(1\)"):
        layer(torch.tensor([0]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_refused(name, dtype):
    with pytest.raises(ValueError, match="autocast"):
        build(name, dtype=dtype)


def test_device_and_dtype(name):
    layer = build(name, device="meta", dtype=torch.float64)
    assert all(p.device.type == "meta" and p.dtype == torch.float64 for p in layer.parameters())


def test_autocast(name):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        vectors = build(name)(torch.tensor([1, 2]))
    assert vectors.isfinite().all()


def test_forward_compiles_whole(name):
    layer = build(name, padding_idx=1)
    ids = torch.randint(0, V, (4, 3))
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(ids), layer(ids))
    compiled(ids).sum().backward()


def test_repr_names_the_sizes(name):
    assert f"{V}, {d}" in repr(build(name))


def test_pruning_drops_what_hardly_counts(name):
    """Where weights have a penalty; a table that is meant to be dense stays dense."""
    layer = build(name)
    dense = name in DENSE
    before = layer.to_dense().detach().clone()
    zeros = sum(int((t.weight == 0).sum()) for t in layer.tables)  # codes have some
    assert layer.prune(0.0) == 0
    pruned = layer.prune(0.1)
    assert (pruned == 0) == dense
    assert torch.equal(layer.to_dense(), before) == dense
    assert pruned == sum(int((t.weight == 0).sum()) for t in layer.tables) - zeros
    for table, norms in () if dense else layer.lengths():
        parts = (table.weight.abs() * norms).detach()
        assert parts[parts > 0].min() >= 0.05 * parts.mean()


OWN_WAY = {"group-lasso", "vvd", "sparse-vd", "sparse-vd-words"}  # whole rows go, or the noisiest weights


def test_keeping_the_largest(name):
    layer = build(name, padding_idx=3)
    parts = torch.cat([(table.weight.abs() * norms).flatten() for table, norms in layer.lengths()]).detach()
    count = int(parts.count_nonzero())
    assert layer.keep(count) == 0
    dropped = layer.keep(20)
    left = torch.cat([(table.weight.abs() * norms).flatten() for table, norms in layer.lengths()]).detach()
    kept = layer.usage().nnz if name in OWN_WAY else int(left.count_nonzero())
    assert 20 - d < kept <= 20
    assert dropped > 0
    if name not in OWN_WAY:
        assert (kept, dropped) == (20, count - 20)
        assert torch.equal(left.sort(descending=True).values[:20], parts.sort(descending=True).values[:20])
    if name != "softmax-mixture":  # whose weights of zero still have the common share
        assert layer.usage().nnz == kept
    assert layer.keep(0) == kept
    with pytest.raises(ValueError, match="weights to keep must be ≥ 0, got -1"):
        layer.keep(-1)


def test_objects_can_be_added(name):
    layer = build(name)
    before = layer.to_dense().detach().clone()
    layer.add_objects(3)
    assert layer.num_embeddings == V + 3
    torch.testing.assert_close(layer.to_dense()[:V], before, atol=1e-6, rtol=0)  # a product of another shape
    assert layer(torch.tensor([V + 2])).ne(0).any()
    with pytest.raises(ValueError, match="≥ 0, got -1"):
        layer.add_objects(-1)


def test_low_rank_from_a_trained_table_is_the_best_of_its_rank():
    E = torch.randn(40, 3) @ torch.randn(3, d)
    assert ant.baselines.LowRankEmbedding.from_pretrained(E, num_anchors=3).reconstruction_error < 1e-5
    layer = ant.baselines.LowRankEmbedding.from_pretrained(E + 0.1 * torch.randn(40, d), num_anchors=2)
    assert 0.05 < layer.reconstruction_error < 0.9
    assert (layer.transform < 0).any()
