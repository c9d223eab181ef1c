"""Recode and Prune on a table with a known sparse answer, through a loop of one's own."""

import copy
import json

import pytest
import torch

import antembed as ant
from antembed.layer.sparsify.quadratic import examples_in, mean_loss, normalize_anchors, observe, tables_of

V, K, d, TRUE = 200, 8, 10, 2


@pytest.fixture(autouse=True)
def _one_thread(_same_start):
    torch.set_num_threads(1)


class Problem:
    """Regression of vectors that are mixes of two of K anchors: TRUE non-zeros a row are enough."""

    def __init__(self, kind="recode", rule="adam", sparse=False, budget="", seed=0, **options):
        torch.manual_seed(seed)
        anchors = torch.linalg.qr(torch.randn(d, K))[0].T
        T = torch.zeros(V, K)
        T.scatter_(1, torch.rand(V, K).argsort(1)[:, :TRUE], 0.5 + torch.rand(V, TRUE))
        self.answer = T @ anchors
        self.layer = ant.AnchorEmbedding(V, d, num_anchors=K, sparse=sparse)
        with torch.no_grad():
            self.layer.anchors.normal_(std=0.5)
            self.layer.rows.weight.normal_(std=0.3).abs_()
        rules = {"adam": ant.optim.ProximalAdam, "yogi": ant.ProximalYogi, "sgd": ant.optim.ProximalSGD}
        self.optimizer = rules[rule](self.layer.param_groups(0.0), lr={"adam": 0.05, "yogi": 0.05, "sgd": 0.5}[rule])
        self.budget = budget or str(V * TRUE + K * d)
        makers = {"recode": ant.Recode, "prune": ant.Prune}
        self.sparsifier = makers[kind](self.layer, self.optimizer, budget=self.budget, events=8, **options)
        self.epoch = 0

    def loss(self, ids):
        noise = 0.05 * torch.randn(len(ids), d, generator=torch.Generator().manual_seed(int(ids[0])))
        return (self.layer(ids) - self.answer[ids] - noise).square().sum(1).mean()

    def batches(self):
        order = torch.randperm(10 * V, generator=torch.Generator().manual_seed(self.epoch)) % V
        return order.split(50)

    def train(self, epochs):
        records = []
        for _ in range(epochs):
            self.epoch += 1
            for ids in self.batches():
                self.optimizer.zero_grad()
                self.loss(ids).backward()
                self.optimizer.step()
            records.append(self.sparsifier.step(self.batches(), self.loss))
        return records

    def error(self):
        with torch.no_grad():
            return float((self.layer.to_dense() - self.answer).square().sum(1).mean())


@pytest.mark.parametrize(
    ("kind", "rule"), [("recode", "adam"), ("recode", "yogi"), ("recode", "sgd"), ("prune", "adam"), ("prune", "yogi")]
)
def test_the_budget_is_met_and_most_of_the_answer_found(kind, rule):
    problem = Problem(kind, rule, sparse=rule != "adam")
    records = problem.train(24)
    used = problem.layer.usage()
    assert [record is None for record in records] == [True] * 4 + [False] * 8 + [True] * 12
    assert 0.9 * int(problem.budget) <= used.parameters <= int(problem.budget)  # tuning makes a few more zero
    assert problem.error() < (0.12 if rule != "sgd" else 0.35)  # of a mean square of 2.2
    assert problem.sparsifier.done


def test_a_budget_of_bytes_is_met():
    problem = Problem(budget="1500B")
    problem.train(20)
    assert 0.9 * 1500 <= problem.layer.usage().bytes <= 1500


def test_anchors_of_length_one_are_the_same_vectors_and_the_same_step():
    problem, other = Problem(), Problem()
    for each in (problem, other):
        each.train(2)
    normalize_anchors(tables_of(problem.layer)[0], problem.optimizer.state)
    torch.testing.assert_close(problem.layer.anchors.norm(dim=1), torch.ones(K))
    torch.testing.assert_close(problem.layer.to_dense(), other.layer.to_dense(), atol=1e-6, rtol=1e-5)
    scale = other.layer.anchors.norm(dim=1).detach()
    for each in (problem, other):
        each.optimizer.zero_grad()
        each.loss(torch.arange(50)).backward()
        each.optimizer.step()
    # Adam's steps are of one length in each coordinate, so what was rescaled moves as if it had always been so.
    moved = problem.optimizer.state[problem.layer.rows.weight]
    before = other.optimizer.state[other.layer.rows.weight]
    torch.testing.assert_close(moved["momentum"] * scale, before["momentum"], atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(moved["second"] * scale**2, before["second"], atol=1e-9, rtol=1e-3)


def test_one_pass_sums_gradients_and_their_squares():
    problem = Problem(sparse=True)
    problem.train(1)
    batches, (one,) = problem.batches(), problem.sparsifier.tables
    seen = observe(problem.layer, [one], batches, problem.loss)
    G, P, h = torch.zeros(V, K), torch.zeros(K, K), torch.zeros(V)
    for ids in batches:
        problem.layer.zero_grad()
        (problem.loss(ids) * len(ids)).backward()
        gradient = problem.layer.rows.weight.grad.to_dense()
        G += gradient
        P += gradient.T @ gradient
        h += gradient.square().sum(1)
    table = seen.tables[0]
    torch.testing.assert_close(table.G, G, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(table.h, h, atol=1e-3, rtol=1e-4)
    torch.testing.assert_close(table.P.float(), P / P.trace(), atol=1e-5, rtol=1e-3)
    assert (seen.examples, seen.batches) == (10 * V, 40)
    assert problem.layer.training  # as before


def test_the_scale_is_learned_from_what_an_event_does():
    """A loss in which many rows move at once curves more than any single row says: the sum of ten objects per example."""
    torch.manual_seed(0)
    layer = ant.AnchorEmbedding(V, d, num_anchors=K)
    optimizer = ant.optim.ProximalAdam(layer.param_groups(0.0), lr=0.01)
    bags, wanted = torch.randint(0, V, (600, 10)), torch.randn(600, d)

    def loss(rows):
        return (layer(bags[rows]).sum(1) - wanted[rows]).square().sum(1).mean()

    sparsifier = ant.Recode(layer, optimizer, budget="700", events=4, warmup=1)
    batches, records = torch.arange(600).split(60), []
    for _ in range(6):
        for rows in batches:
            optimizer.zero_grad()
            loss(rows).backward()
            optimizer.step()
        records.append(sparsifier.step(batches, loss))
    events = [record for record in records if record]
    assert len(events) == 4
    for event in events:
        assert event["loss"] <= event["loss_before"] + 0.1 * sparsifier.gain + 1e-9 or event["undone"]
    predicted, risen = events[-1]["predicted"], events[-1]["risen"]
    assert abs(predicted - risen) < 0.5 * max(abs(risen), 0.05 * events[-1]["loss_before"])


def test_an_event_that_costs_too_much_is_undone():
    problem = Problem(max_loss=0.0, budget="160")  # hardly more than the anchors
    before = problem.train(4)[-1]
    assert before is None
    with pytest.warns(UserWarning, match="the budget of 160 parameters is not met: the size is"):
        problem.train(8)
    assert problem.sparsifier.undone > 0
    assert problem.error() < 0.3  # what a few weights a table would not reach
    assert problem.layer.usage().parameters > 160


def test_state_goes_on_to_the_same_weights():
    whole = Problem()
    whole.train(20)
    first = Problem()
    first.train(9)
    again = Problem()
    again.layer.load_state_dict(first.layer.state_dict())
    again.optimizer.load_state_dict(copy.deepcopy(first.optimizer.state_dict()))
    again.sparsifier.load_state_dict(json.loads(json.dumps(first.sparsifier.state_dict())))
    again.epoch = 9
    again.train(11)
    assert torch.equal(whole.layer.transform, again.layer.transform)


def test_bags_tied_outputs_and_padding():
    """Gradients come from T itself, whichever way it is read."""
    torch.manual_seed(0)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.words = ant.AnchorEmbedding(60, d, padding_idx=0, num_anchors=8)
            self.bag = ant.AnchorEmbeddingBag(40, d, num_anchors=8)

        def forward(self, bags, ids):
            return self.words.logits(self.bag(bags) + self.words(ids))

    model = Model()
    optimizer = ant.optim.ProximalAdam(ant.param_groups(model, 0.0), lr=0.02)
    bags, ids, wanted = torch.randint(0, 40, (200, 5)), torch.randint(1, 60, (200,)), torch.randint(0, 60, (200,))
    data = list(zip(bags.split(50), ids.split(50), wanted.split(50), strict=True))

    def loss(batch):
        return torch.nn.functional.cross_entropy(model(batch[0], batch[1]), batch[2])

    sparsifier = ant.Recode(model, optimizer, budget="300", events=3, warmup=2)
    assert len(sparsifier.tables) == 2
    for _ in range(6):
        for batch in data:
            optimizer.zero_grad()
            loss(batch).backward()
            optimizer.step()
        sparsifier.step(data, loss)
    assert sum(layer.usage().parameters for layer in (model.words, model.bag)) <= 300
    assert not model.words.transform[0].any()


def test_ridges_are_part_of_the_event():
    """Recode adds what `ridge` adds to the loss: vectors with a large one shrink."""
    problem = Problem(warmup=0, max_loss=100.0)
    counts = torch.full((V,), 10.0)
    problem.layer.set_ridge(1e4, counts)
    assert float(problem.layer.ridge(torch.arange(10)).detach()) > 100
    assert mean_loss(problem.layer, problem.sparsifier.tables, [torch.arange(10)], problem.layer.ridge) == 0  # the loss alone
    before = float(problem.layer.to_dense().detach().norm())
    problem.sparsifier.step(problem.batches(), lambda ids: problem.loss(ids) + problem.layer.ridge(ids))
    assert float(problem.layer.to_dense().detach().norm()) < 0.45 * before  # a third: the damping holds the rest


def test_what_cannot_be_done_is_said():
    problem = Problem()
    problem.train(4)
    with pytest.raises(ValueError, match=r"step\(loader, loss_fn\); Prune needs none"):
        problem.sparsifier.step()
    with pytest.raises(ValueError, match="0 batches to learn the loss from"):
        problem.sparsifier.step([], problem.loss)
    with pytest.raises(ValueError, match="0 layers have a T to make sparse"):
        ant.Recode(torch.nn.Linear(2, 2), problem.optimizer, budget="10x")
    with pytest.raises(ValueError, match="events must be ≥ 1 and warmup ≥ 0, got 0 and None"):
        ant.Recode(problem.layer, problem.optimizer, budget="10x", events=0)
    pruned = Problem("prune", "sgd", warmup=0)
    with pytest.raises(ValueError, match="ProximalSGD has not for this table; use Recode"):
        pruned.train(1)
    assert examples_in({"x": torch.zeros(3, 2), "y": [torch.zeros(3)]}) == 3
