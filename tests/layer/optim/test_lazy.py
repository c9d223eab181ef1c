"""Exact lazy rows: the dense optimizer on the same data is the oracle. Same values, same zeros."""

import copy
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import antembed as ant
from antembed.layer.optim.lazy import LazyRows

V, K, d = 120, 7, 5
RULES = {
    "yogi": lambda groups, **more: ant.ProximalYogi(groups, lr=0.02, **more),
    "yogi, plain metric": lambda groups, **more: ant.ProximalYogi(groups, lr=0.02, metric="plain", **more),
    "sgd": lambda groups, **more: ant.optim.ProximalSGD(groups, lr=0.1, **more),
    "sgd with momentum": lambda groups, **more: ant.optim.ProximalSGD(groups, lr=0.005, momentum=0.9, **more),
    "yogi with decay": lambda groups, **more: ant.ProximalYogi(decaying(groups), lr=0.02, **more),
    "momentum and decay": lambda groups, **more: ant.optim.ProximalSGD(decaying(groups), lr=0.005, momentum=0.9, **more),
}
L1 = {"yogi": 1e-2, "yogi, plain metric": 0.3, "sgd": 3e-3, "sgd with momentum": 3e-3}
L1 |= {"yogi with decay": 1e-2, "momentum and decay": 3e-3}
FREE = ant.penalties.FreeEntries(torch.arange(0, V, 3), torch.arange(0, V, 3) % K, (V, K))


def decaying(groups):
    return [group | {"weight_decay": 0.3} for group in groups]


class Run:
    """One layer and its optimizer on a fixed stream of batches with a known target."""

    def __init__(self, rule, sparse, compiled=None, dtype=torch.float64, free=None):
        torch.manual_seed(1)
        self.rule, self.settings = rule, {"compiled": compiled}
        self.layer = ant.AnchorEmbedding(V, d, num_anchors=K, sparse=sparse, dtype=dtype)
        self.target = torch.randn(V, d, dtype=dtype)
        self.free = free
        self.optimizer = RULES[rule](self.layer.param_groups(l1_penalty=L1[rule], free=free), **self.settings)
        self.generator = torch.Generator().manual_seed(7)

    def steps(self, n):
        for _ in range(n):
            ids = torch.randint(0, V, (int(torch.randint(1, 9, (1,), generator=self.generator)),), generator=self.generator)
            self.optimizer.zero_grad()
            (self.layer(ids) - self.target[ids]).square().sum().backward()
            self.optimizer.step()

    def set(self, lr_factor=1.0, l1_factor=1.0):
        for group in self.optimizer.param_groups:
            group["lr"] *= lr_factor
            if group["prox"] is not None:
                group["prox"].strength *= l1_factor

    def reload(self):
        """Into a new layer and a new optimizer, by state_dict."""
        old = self.layer, self.optimizer
        fresh = Run(self.rule, self.layer.rows.sparse, free=self.free, dtype=self.target.dtype, **self.settings)
        fresh.layer.load_state_dict(old[0].state_dict())
        fresh.optimizer.load_state_dict(old[1].state_dict())
        self.layer, self.optimizer = fresh.layer, fresh.optimizer

    def whole_life(self):
        """500 steps with all that SPEC §2 names on the way."""
        self.steps(150)
        self.set(lr_factor=0.3)
        self.steps(100)
        self.layer.eval()
        with torch.no_grad():
            self.layer(torch.arange(V))
        self.layer.train()
        self.steps(50)
        self.set(l1_factor=0.1)  # a steep fall: owed rows must be paid at the old price
        self.steps(100)
        self.set(l1_factor=5.0)
        self.steps(50)
        self.reload()
        self.steps(50)
        return self.layer.transform.detach(), self.layer.anchors.detach()


@pytest.mark.parametrize("free", [None, FREE], ids=["all penalized", "free entries"])
@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "plain"])
@pytest.mark.parametrize("rule", RULES)
def test_lazy_equals_dense(rule, compiled, free):
    T, A = Run(rule, sparse=False, free=free).whole_life()
    lazy_T, lazy_A = Run(rule, sparse=True, compiled=compiled, free=free).whole_life()
    assert 0.03 < (T == 0).double().mean() < 0.97
    assert torch.equal(T == 0, lazy_T == 0)
    torch.testing.assert_close(lazy_T, T, atol=1e-12, rtol=0)
    torch.testing.assert_close(lazy_A, A, atol=1e-12, rtol=0)


@pytest.mark.parametrize("rule", RULES)
def test_lazy_equals_dense_in_single_precision(rule):
    T, _ = Run(rule, sparse=False, dtype=torch.float32).whole_life()
    lazy_T, _ = Run(rule, sparse=True, dtype=torch.float32).whole_life()
    torch.testing.assert_close(lazy_T, T, atol=2e-4, rtol=0)  # 500 steps of rounding come to some 1e-5
    assert ((T == 0) != (lazy_T == 0)).double().mean() < 0.005  # what is within rounding of zero may be on either side


def test_shrinking_touched_rows_only_would_be_wrong(monkeypatch):
    """Without the deferred updates of idle rows the result would differ."""

    def density(sparse):
        run = Run("yogi", sparse=sparse)
        run.set(l1_factor=10)
        run.steps(300)
        return (run.layer.transform != 0).double().mean()

    def forget(self, step):
        self.now += 1
        self._drift[self.now] = self._clock[self.now] = 0.0

    monkeypatch.setattr(LazyRows, "_record", forget)
    careless, right = density(sparse=True), density(sparse=False)
    assert careless > right + 0.15


def test_a_penalty_that_changes_at_every_step_stays_exact():
    runs = []
    for sparse in (False, True):
        run = Run("yogi", sparse=sparse)
        for step in range(200):
            run.set(l1_factor=1.01 if step < 100 else 0.93)
            run.steps(1)
        runs.append(run.layer.transform.detach())
    torch.testing.assert_close(runs[0], runs[1], atol=1e-12, rtol=0)
    assert torch.equal(runs[0] == 0, runs[1] == 0)


def test_a_slowly_changing_penalty_never_flushes(monkeypatch):
    run = Run("yogi", sparse=True)
    run.steps(10)
    monkeypatch.setattr(LazyRows, "flush", lambda self: pytest.fail("flushed"))
    for _ in range(20):
        run.set(l1_factor=0.95)
        run.steps(1)


def test_reading_never_writes():
    """A forward pass in between changes nothing, to the last bit."""
    results = []
    for peek in (False, True):
        run = Run("yogi", sparse=True)
        for _ in range(60):
            run.steps(1)
            if peek:
                run.layer(torch.arange(V)).detach()
        results.append(run.layer.transform.detach())
    assert torch.equal(*results)


@pytest.mark.parametrize(
    "read",
    [
        lambda layer: layer.to_dense(),
        lambda layer: layer.transform @ layer.anchors,
        lambda layer: layer.state_dict()["rows.weight"] @ layer.anchors,
        lambda layer: layer.to_embedding().weight,
        lambda layer: layer.logits(torch.eye(d, dtype=torch.float64)).T,
        lambda layer: layer.eval().rows.weight @ layer.anchors,
        lambda layer: copy.deepcopy(layer).rows.weight @ layer.anchors,
        lambda layer: layer(torch.arange(V)),
        lambda layer: layer.double().rows.weight @ layer.anchors,
    ],
    ids=["to_dense", "transform", "state_dict", "to_embedding", "logits", "eval", "deepcopy", "forward", "move"],
)
def test_nobody_reads_a_stale_row(read):
    dense, lazy = Run("yogi", sparse=False), Run("yogi", sparse=True)
    dense.steps(40)
    lazy.steps(40)
    stale = lazy.layer.rows.weight @ lazy.layer.anchors
    assert (stale - dense.layer.to_dense()).abs().max() > 1e-4  # there is something to get wrong
    torch.testing.assert_close(read(lazy.layer), dense.layer.to_dense(), atol=1e-12, rtol=0)


def test_usage_counts_what_is_current():
    dense, lazy = Run("yogi", sparse=False), Run("yogi", sparse=True)
    dense.steps(100)
    lazy.steps(100)
    assert lazy.layer.usage() == dense.layer.usage()


def test_export_writes_what_is_current(tmp_path):
    lazy, twin = Run("yogi", sparse=True), Run("yogi", sparse=False)
    lazy.steps(100)
    twin.steps(100)
    vectors = ant.export(lazy.layer, tmp_path / "t.ant")[:]
    torch.testing.assert_close(torch.from_numpy(vectors).double(), twin.layer.to_dense().detach(), atol=1e-5, rtol=1e-5)


def test_a_copy_goes_its_own_way():
    run = Run("yogi", sparse=True)
    run.steps(20)
    twin = copy.deepcopy(run.layer)
    assert twin.rows.pending is None
    before = twin.transform.detach().clone()
    run.steps(20)
    assert torch.equal(twin.transform, before)


def test_loading_a_state_dict_settles_old_debts():
    run = Run("yogi", sparse=True)
    run.steps(30)
    saved = {name: tensor.clone() for name, tensor in run.layer.state_dict().items()}
    run.steps(30)
    run.layer.load_state_dict(saved)
    assert torch.equal(run.layer.transform, saved["rows.weight"])


def test_a_new_optimizer_takes_over_a_flushed_table():
    lazy, dense = Run("yogi", sparse=True), Run("yogi", sparse=False)
    for run in (lazy, dense):
        run.steps(30)
        run.optimizer = ant.optim.ProximalSGD(run.layer.param_groups(l1_penalty=1e-2), lr=0.05)
        run.steps(30)
    torch.testing.assert_close(lazy.layer.transform, dense.layer.transform, atol=1e-12, rtol=0)


def test_dense_and_sparse_gradients_of_one_table_mix():
    """Tied output: logits give T a dense gradient, look-ups a sparse one; and some steps have only the latter."""
    runs = []
    for sparse in (False, True):
        run = Run("yogi", sparse=sparse)
        for _ in range(10):
            run.steps(3)
            run.optimizer.zero_grad()
            hidden = run.layer(torch.arange(6))
            run.layer.logits(hidden).logsumexp(-1).mean().backward()
            run.optimizer.step()
        runs.append(run.layer.transform.detach())
    torch.testing.assert_close(runs[0], runs[1], atol=1e-12, rtol=0)


@pytest.mark.parametrize("rule", RULES)
def test_objects_are_added_in_mid_training(rule):
    runs = []
    for sparse in (False, True):
        run = Run(rule, sparse=sparse)
        run.steps(30)
        torch.manual_seed(5)
        run.layer.add_objects(4)
        run.optimizer.zero_grad()
        run.layer(torch.arange(V - 2, V + 4)).square().sum().backward()
        run.optimizer.step()
        run.steps(30)
        assert len(run.layer.transform) == V + 4
        runs.append(run.layer.transform.detach())
    torch.testing.assert_close(runs[0], runs[1], atol=1e-12, rtol=0)


def test_a_long_history_is_flushed_and_forgotten(monkeypatch):
    monkeypatch.setattr("antembed.layer.optim.lazy.FLUSH_EVERY", 16)
    lazy, dense = Run("yogi", sparse=True), Run("yogi", sparse=False)
    lazy.steps(100)
    dense.steps(100)
    assert lazy.layer.rows.pending.now < 16
    torch.testing.assert_close(lazy.layer.transform, dense.layer.transform, atol=1e-12, rtol=0)


def test_strong_decay_is_settled_before_it_underflows(monkeypatch):
    monkeypatch.setattr("antembed.layer.optim.lazy.SMALLEST_SCALE", 0.9)  # every few steps
    lazy, dense = Run("yogi with decay", sparse=True), Run("yogi with decay", sparse=False)
    lazy.steps(100)
    dense.steps(100)
    assert lazy.layer.rows.pending.now < 20
    torch.testing.assert_close(lazy.layer.transform, dense.layer.transform, atol=1e-12, rtol=0)


def test_history_outgrows_its_first_allocation():
    lazy, dense = Run("sgd with momentum", sparse=True), Run("sgd with momentum", sparse=False)
    lazy.steps(1200)
    dense.steps(1200)
    torch.testing.assert_close(lazy.layer.transform, dense.layer.transform, atol=1e-11, rtol=0)


@pytest.mark.parametrize("size", [4000, (50, 80)])
def test_equal_ids_read_once_give_the_same(size):
    """The grouped forward pass (large batches with repeats) against each id on its own."""
    results = []
    for grouped in (False, True):
        torch.manual_seed(2)
        layer = ant.AnchorEmbedding(500, d, padding_idx=3, num_anchors=K, sparse=True, dtype=torch.float64)
        optimizer = ant.ProximalYogi(layer.param_groups(l1_penalty=1e-4))
        shape = (size,) if isinstance(size, int) else size
        for step in range(6):
            ids = torch.randint(0, 500, shape, generator=torch.Generator().manual_seed(step))
            vectors = layer(ids) if grouped else layer.rows(ids) @ layer.anchors
            assert (layer.rows.groups(ids) is not None) == (step > 0)
            vectors.pow(3).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        results.append(torch.cat([layer.transform.flatten(), layer.anchors.flatten()]).detach())
    torch.testing.assert_close(*results, atol=1e-11, rtol=0)


def test_the_result_does_not_depend_on_threads():
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        torch.manual_seed(2)
        layer = ant.AnchorEmbedding(5000, 4, num_anchors=32, sparse=True)
        optimizer = ant.ProximalYogi(layer.param_groups(l1_penalty=1e-4))
        for step in range(4):
            ids = torch.randint(0, 5000, (8000,), generator=torch.Generator().manual_seed(step))
            layer.rows(ids).pow(3).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        results.append(layer.transform.detach())
    assert torch.equal(*results)


@pytest.mark.parametrize("parts", [((3,), (5,)), ((), (5,)), ((3,), (), (3,)), ((), ()), ((1, 2), (4,))])
def test_gradients_of_one_row_or_none_are_accumulated(parts):
    """Torch adds these in place: what it resizes must not be memory that NumPy has seen, least of all the caller's ids."""
    found = {}
    for sparse in (True, False):
        torch.manual_seed(0)
        layer = ant.AnchorEmbedding(8, 4, num_anchors=3, sparse=sparse, dtype=torch.float64)
        optimizer = ant.ProximalYogi(layer.param_groups(l1_penalty=1e-3), lr=0.1)
        for step in range(3):  # from the second step on rows are lazy
            optimizer.zero_grad()
            batches = [torch.tensor(part, dtype=torch.long) for part in ((0, 1, 2), *parts)[1 if step else 0 :]]
            for ids in batches:
                layer(ids).square().sum().backward()
            assert [tuple(ids.tolist()) for ids in batches[-len(parts) :]] == list(parts)
            optimizer.step()
        found[sparse] = layer.transform.detach()
    torch.testing.assert_close(found[True], found[False], atol=1e-12, rtol=0)


def test_padding_gets_no_gradient():
    for sparse in (False, True):
        layer = ant.AnchorEmbedding(9, d, padding_idx=4, num_anchors=K, sparse=sparse)
        optimizer = ant.ProximalYogi(layer.param_groups(l1_penalty=0.0))
        for _ in range(3):
            layer(torch.tensor([4, 1, 4])).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert layer(torch.tensor([4])).eq(0).all()


def test_ids_out_of_range_are_caught_before_lazy_rows_are_read():
    run = Run("yogi", sparse=True)
    run.steps(3)
    for ids in (torch.tensor([0, V]), torch.randint(0, V, (5000,)).index_fill(0, torch.tensor([77]), V)):
        with pytest.raises(IndexError, match=rf"id {V} is outside a table of {V} rows; grow it with layer.add_objects\(1\)"):
            run.layer(ids)
    with pytest.raises(IndexError, match="id -1 is negative"):
        run.layer(torch.tensor([-1]))


@pytest.mark.filterwarnings("ignore:ProximalYogi updates T")
def test_sparse_gradients_need_the_layers_groups():
    layer = ant.AnchorEmbedding(V, d, num_anchors=K, sparse=True)
    optimizer = ant.ProximalYogi(layer.parameters())
    layer(torch.tensor([1])).sum().backward()
    with pytest.raises(ValueError, match=r"layer\.param_groups"):
        optimizer.step()


def test_rules_that_cannot_be_lazy_are_dense_and_exact():
    for make in (
        lambda layer: ant.optim.ProximalAdam(layer.param_groups(l1_penalty=1e-3), lr=0.02),
        lambda layer: ant.ProximalYogi([{"params": [layer.rows.weight], "prox": ant.penalties.L1(1e-3), "table": layer.rows}]),
        lambda layer: ant.ProximalYogi(
            [{"params": [layer.rows.weight], "prox": ant.penalties.GroupL2(1e-3), "table": layer.rows}]
        ),
    ):
        results = []
        for sparse in (False, True):
            torch.manual_seed(1)
            layer = ant.AnchorEmbedding(V, d, num_anchors=K, sparse=sparse, dtype=torch.float64)
            optimizer = make(layer)
            for step in range(30):
                ids = torch.randint(0, V, (6,), generator=torch.Generator().manual_seed(step))
                layer(ids).square().sum().backward()
                optimizer.step()
                layer.zero_grad()
            results.append(layer.transform.detach())
        torch.testing.assert_close(*results, atol=1e-12, rtol=0)


def test_two_optimizers_take_turns():
    runs = []
    for sparse in (False, True):
        run = Run("yogi", sparse=sparse)
        pair = [run.optimizer, ant.optim.ProximalSGD(run.layer.param_groups(l1_penalty=1e-2), lr=0.05)]
        for turn in range(20):
            run.optimizer = pair[turn % 2]
            run.steps(1)
        runs.append(run.layer.transform.detach())
    torch.testing.assert_close(*runs, atol=1e-12, rtol=0)


def test_an_optimizer_can_be_copied_with_its_layer():
    run = Run("yogi", sparse=True)
    run.steps(20)
    run.layer, run.optimizer = copy.deepcopy((run.layer, run.optimizer))
    run.steps(20)
    twin = Run("yogi", sparse=False)
    twin.steps(40)
    torch.testing.assert_close(run.layer.transform, twin.layer.transform, atol=1e-12, rtol=0)


def test_evaluation_lets_go_of_the_optimizer_and_training_takes_it_up_again():
    run, twin = Run("yogi", sparse=True), Run("yogi", sparse=False)
    run.steps(20)
    run.layer.eval()
    assert run.layer.rows.pending is None
    ids = torch.arange(10)
    torch.testing.assert_close(torch.compile(run.layer, fullgraph=True, backend="aot_eager")(ids), run.layer(ids))
    run.layer.train()
    run.steps(20)
    assert run.layer.rows.pending is not None
    twin.steps(40)
    torch.testing.assert_close(run.layer.transform, twin.layer.transform, atol=1e-12, rtol=0)


def test_loading_by_assignment():
    run = Run("yogi", sparse=True)
    run.steps(20)
    other = {name: torch.rand_like(tensor) for name, tensor in run.layer.state_dict().items()}
    run.steps(5)
    run.layer.load_state_dict(other, assign=True)
    torch.testing.assert_close(run.layer(torch.tensor([3])), other["rows.weight"][[3]] @ other["anchors"])


def test_autocast_and_second_derivatives_of_grouped_reads():
    layer = ant.AnchorEmbedding(500, 8, num_anchors=K, sparse=True)
    optimizer = ant.ProximalYogi(layer.param_groups(l1_penalty=1e-4))
    ids = torch.randint(0, 500, (4000,))
    for _ in range(3):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            layer(ids).float().square().mean().backward()
        optimizer.step()
    assert layer.rows.groups(ids) is not None
    loss = layer(ids).pow(3).sum()
    (first,) = torch.autograd.grad(loss, layer.anchors, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), layer.anchors)
    dense = layer.transform.detach()[ids]
    A = layer.anchors.detach().requires_grad_()
    (first,) = torch.autograd.grad((dense @ A).pow(3).sum(), A, create_graph=True)
    (expected,) = torch.autograd.grad(first.sum(), A)
    torch.testing.assert_close(second, expected, rtol=1e-3, atol=1e-5)


def test_forward_from_several_threads():
    """Evaluation servers do that; the scratch of grouping is shared."""
    layer = ant.AnchorEmbedding(5000, d, num_anchors=K, sparse=True)
    optimizer = ant.ProximalYogi(layer.param_groups(l1_penalty=1e-4))
    layer(torch.tensor([1])).sum().backward()
    optimizer.step()
    ids = [torch.randint(0, 5000, (40_000,)) for _ in range(8)]
    with torch.no_grad(), ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda batch: layer(batch).detach(), ids))
    E = layer.to_dense().detach()
    for batch, vectors in zip(ids, found, strict=True):
        torch.testing.assert_close(vectors, E[batch])


FORKED = """
import os, torch, antembed as ant
layer = ant.AnchorEmbedding(5000, 4, num_anchors=32, sparse=True)
optimizer = ant.ProximalYogi(layer.param_groups(l1_penalty=1e-4))
def step():
    layer(torch.randint(0, 5000, (8000,))).pow(3).sum().backward()  # 8000 × 32 numbers: enough for the thread pool
    optimizer.step()
torch.set_num_threads(2)
step(), step()
child = os.fork()
torch.set_num_threads(1)  # torch's own threads do not survive a fork; ours must
if child == 0:
    from antembed.native.threads import parallel_for
    done = []
    parallel_for(lambda a, b: done.append((a, b)), 1000, 1000, 2)
    os._exit(0 if sorted(done) == [(0, 500), (500, 1000)] else 1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(os.name != "posix", reason="fork is a POSIX call")
def test_the_thread_pool_works_in_a_forked_child():
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORKED], check=True, timeout=120)
