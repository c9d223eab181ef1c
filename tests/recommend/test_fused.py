"""The fused engine against its twin: the same parameters and optimizer state after the same batches."""

from unittest import mock

import numpy as np
import pytest
import torch

import antembed as ant
from antembed.baselines import EMBEDDINGS
from antembed.layer.optim.prox import NonNegative
from antembed.recommend import fused_kernel as kernel
from antembed.recommend.fused import HOLD, FusedEngine, Pace, unsupported_reason
from antembed.recommend.model import MatrixFactorization, half_squared_error
from antembed.train.engine import TorchEngine
from antembed.train.examples import Examples

USERS, ITEMS, N = 60, 35, 2500


def build(embedding="anchor", biases=True, dtype=torch.float64, l1=1e-3, free=(), decay=0.0, anchors=(5, 4)):
    torch.manual_seed(0)
    sizes = zip((USERS, ITEMS), anchors, strict=True)
    users, items = (EMBEDDINGS[embedding](V, 6, num_anchors=K, sparse=True, dtype=dtype) for V, K in sizes)
    model = MatrixFactorization(users, items, mean=3.0, biases=biases).to(dtype)
    groups = ant.param_groups(model, l1, weight_decay=decay)
    for group, (V, K) in zip((group for group in groups if group.get("prox")), free, strict=False):
        group["prox"].free = ant.penalties.FreeEntries(torch.arange(0, V, 2), torch.arange(0, V, 2) % K, (V, K))
    return model, ant.ProximalYogi(groups, lr=0.02)


def columns(dtype=torch.float64):
    g = torch.Generator().manual_seed(5)
    skewed = (torch.rand(N, generator=g).square() * USERS).long()
    items = torch.randint(0, ITEMS, (N,), generator=g)
    alike = (skewed % 3 == items % 3).to(dtype)
    return skewed, items, 0.3 * torch.randn(N, generator=g, dtype=dtype) + 2.5 + 1.5 * alike


def examples(columns):
    return Examples(tuple(column.numpy() for column in columns), np.arange(len(columns[0])))


def lr(step):
    return 0.02 if step < 200 else 0.01


def ramped(step):
    return 1e-3 * min(step / 100, 1.0)


def falling(step):
    return 1e-3 if step % 150 < 75 else 1e-4  # steep falls, which must be settled at the old penalty


def plain_engine(model, optimizer):
    return TorchEngine(optimizer, lambda batch, step: half_squared_error(model, batch))


def train(engine, batch_size, l1, epochs=2, data=None):
    total, first = 0.0, 0
    for _ in range(epochs):
        total += sum(part for _, part in engine.run(examples(data or columns()), batch_size, first, lr, l1))
        first += -(-N // batch_size)
    return total


def assert_same(plain, fused, atol=1e-11):
    """Two models with their optimizers: the same values, zeros and state."""
    wanted, got = plain[0].state_dict(), fused[0].state_dict()
    for name in wanted:
        torch.testing.assert_close(got[name], wanted[name], atol=atol, rtol=0)
        assert torch.equal(got[name] == 0, wanted[name] == 0)
    saved, other = plain[1].state_dict(), fused[1].state_dict()
    for index, state in saved["state"].items():
        assert other["state"][index]["step"] == state["step"]
        for name in ("momentum", "second"):
            torch.testing.assert_close(other["state"][index][name], state[name], atol=atol, rtol=0)


@pytest.mark.parametrize("l1", [lambda step: 0.0, ramped, falling], ids=["no penalty", "ramp", "falls"])
@pytest.mark.parametrize("batch_size", [7, 300])
@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("embedding", ["anchor", "full"])
def test_fused_equals_torch(embedding, biases, batch_size, l1):
    plain, fused = build(embedding, biases), build(embedding, biases)
    expected = train(plain_engine(*plain), batch_size, l1)
    assert train(FusedEngine(*fused), batch_size, l1) == pytest.approx(expected)
    assert_same(plain, fused)
    if embedding == "anchor" and batch_size == 7:  # there is something to get wrong
        assert 0.02 < (plain[0].users.transform == 0).double().mean() < 0.98


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize(
    "more",
    [
        {"free": ((USERS, 5), (ITEMS, 4)), "l1": 1e-2},
        {"decay": 0.3},
        {"decay": 0.3, "embedding": "full"},
        {"embedding": "low-rank", "anchors": (9, 17)},
        {"embedding": "low-rank-nonnegative"},
    ],
    ids=["free entries", "decay", "decay of a full table", "T free, several registers", "T ≥ 0 without a penalty"],
)
def test_fused_equals_torch_in_all_it_can_do(more, threads):
    plain, fused = build(**more), build(**more)
    penalty = more.get("l1", 1e-3)
    weights = torch.rand(N, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 2
    data = (*columns(), weights)
    expected = train(plain_engine(*plain), 40, lambda step: penalty, data=data)
    assert train(FusedEngine(*fused, threads=threads), 40, lambda step: penalty, data=data) == pytest.approx(expected)
    assert_same(plain, fused)


@pytest.mark.parametrize("threads", [1, 2])
def test_pieces_of_an_epoch_make_no_difference(monkeypatch, threads):
    plain, fused = build(decay=0.2), build(decay=0.2)
    monkeypatch.setattr("antembed.train.examples.CHUNK", 200)
    train(plain_engine(*plain), 40, ramped)
    train(FusedEngine(*fused, threads=threads), 40, ramped)
    assert_same(plain, fused)


def test_an_epoch_that_nobody_wants_to_its_end(monkeypatch):
    monkeypatch.setattr("antembed.train.examples.CHUNK", 400)
    plain, fused = build(), build()
    engine = FusedEngine(*fused)
    epoch = engine.run(examples(columns()), 40, 0, lr, ramped)
    next(epoch)
    epoch.close()
    first = tuple(column[:400] for column in columns())
    for e in (engine, plain_engine(*plain)):
        if e is not engine:
            list(e.run(examples(first), 40, 0, lr, ramped))
        list(e.run(examples(columns()), 40, 10, lr, ramped))
    assert_same(plain, fused)


def test_a_failure_frees_those_who_wait_and_is_not_forgotten(monkeypatch):
    engine = FusedEngine(*build(), threads=2)
    train_table = kernel.train_table

    def fails_for_items(is_users, *rest):
        if not is_users:
            raise MemoryError("no room")
        train_table(is_users, *rest)

    monkeypatch.setattr(kernel, "train_table", fails_for_items)
    with pytest.raises(MemoryError):
        train(engine, 50, ramped)
    with pytest.raises(RuntimeError, match="broke off in the middle"):
        train(engine, 50, ramped)


def test_one_and_two_threads_give_the_same_bytes():
    results = []
    for threads in (1, 2):
        model, optimizer = build(dtype=torch.float32)
        list(FusedEngine(model, optimizer, threads).run(examples(columns(torch.float32)), 100, 0, lr, ramped))
        results.append(model.state_dict())
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])


def test_ids_may_be_narrow():
    wide, narrow = build(), build()
    users, items, ratings = columns()
    train(FusedEngine(*wide), 50, ramped)
    train(FusedEngine(*narrow), 50, ramped, data=(users.int(), items.int(), ratings))
    assert all(torch.equal(a, b) for a, b in zip(wide[0].parameters(), narrow[0].parameters(), strict=True))


def test_ids_out_of_range_are_refused():
    users, items, ratings = columns()
    users[17] = USERS
    with pytest.raises(IndexError, match=f"user {USERS} is not one of the {USERS} users"):
        train(FusedEngine(*build()), 50, ramped, data=(users, items, ratings))


def test_decay_that_would_underflow_is_refused():
    with pytest.raises(ValueError, match=r"lower lr·weight_decay"):
        train(FusedEngine(*build("full", decay=40.0)), 1, ramped)


def test_single_precision():
    plain, optimizer = build(dtype=torch.float32)
    fused, fused_optimizer = build(dtype=torch.float32)
    data = columns(torch.float32)
    list(plain_engine(plain, optimizer).run(examples(data), 50, 0, lr, ramped))
    list(FusedEngine(fused, fused_optimizer).run(examples(data), 50, 0, lr, ramped))
    for name, tensor in plain.state_dict().items():
        torch.testing.assert_close(fused.state_dict()[name], tensor, atol=2e-4, rtol=0)


def test_the_same_seed_gives_the_same_bytes():
    results = []
    for _ in range(2):
        model, optimizer = build(dtype=torch.float32)
        list(FusedEngine(model, optimizer).run(examples(columns(torch.float32)), 300, 0, lr, ramped))
        results.append(model.state_dict())
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])


def test_the_model_goes_on_with_torch_afterwards():
    mixed, optimizer = build()
    plain, plain_optimizer = build()
    train(FusedEngine(mixed, optimizer), 50, ramped, epochs=1)
    train(plain_engine(plain, plain_optimizer), 50, ramped, epochs=1)
    for model, its in ((mixed, optimizer), (plain, plain_optimizer)):
        list(plain_engine(model, its).run(examples(columns()), 50, 50, lr, ramped))
    for name, tensor in plain.state_dict().items():
        torch.testing.assert_close(mixed.state_dict()[name], tensor, atol=1e-11, rtol=0)


def test_it_says_what_it_cannot_do():
    model, optimizer = build()
    assert unsupported_reason(model, optimizer) is None
    assert "Yogi" in unsupported_reason(model, ant.optim.ProximalSGD(ant.param_groups(model, l1_penalty=0)))
    assert "diagonal" in unsupported_reason(model, ant.ProximalYogi(ant.param_groups(model, l1_penalty=0), metric="plain"))
    clipping = ant.ProximalYogi(ant.param_groups(model, l1_penalty=0), max_grad_norm=1.0)
    assert "does not clip gradients (max_grad_norm)" in unsupported_reason(model, clipping)
    mixture, optimizer = build("mixture")
    assert "anchored, low-rank and full" in unsupported_reason(mixture, optimizer)
    assert "matrix factorisation" in unsupported_reason(torch.nn.Linear(1, 1), optimizer)
    for change, reason in (
        ({"betas": (0.8, 0.999)}, "betas"),
        ({"metric": "plain"}, "diagonal"),
        ({"weight_decay": 0.3}, "one setting"),
        ({"prox": NonNegative(0.0)}, "one setting"),
        ({"prox": ant.penalties.L1(1e-3)}, "non-negative"),
    ):
        model, optimizer = build()
        optimizer.param_groups[0].update(change)
        assert reason in unsupported_reason(model, optimizer)
    model, optimizer = build()
    model.users.anchors.requires_grad_(False)
    assert "all of a model's parameters" in unsupported_reason(model, optimizer)
    with pytest.raises(ValueError, match="use the torch engine"):
        FusedEngine(mixture, optimizer)


def chunks_alone(pace, chunks, one, two):
    """How many of so many chunks were done alone, where a batch takes `one` second alone and `two` together."""
    alone = 0
    for _ in range(chunks):
        alone += pace.alone
        pace.took(pace.alone, one if pace.alone else two)
    return alone


def test_the_faster_number_of_threads_is_taken():
    """Both are tried; the slower one ever less often, until the machine changes."""
    pace = Pace()
    assert chunks_alone(pace, 1000, one=1.7, two=1.0) <= 1000 // HOLD + 5  # an idle machine
    busy = chunks_alone(pace, 1000, one=1.0, two=1.9)
    assert busy >= 1000 - HOLD - 10 - 1000 // HOLD
    assert chunks_alone(pace, 1000, one=1.7, two=1.0) <= HOLD + 10 + 1000 // HOLD  # idle again


def test_changing_the_number_of_threads_on_the_way_changes_no_byte():
    class Fickle(Pace):
        def took(self, alone, seconds):
            self.alone = not self.alone

    found = []
    for pace in (Pace(), Fickle()):
        model, optimizer = build()
        engine = FusedEngine(model, optimizer, threads=2)
        engine.pace = pace
        with mock.patch("antembed.train.examples.chunk_size", lambda size: 4 * size):
            train(engine, 64, ramped)
        found.append(torch.cat([p.detach().reshape(-1) for p in model.parameters()]))
    assert torch.equal(*found)
