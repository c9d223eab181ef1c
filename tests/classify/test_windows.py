"""Filters over windows: compiled and by convolution."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from antembed import AnchorEmbedding, ProximalYogi, param_groups
from antembed.baselines import FullEmbedding
from antembed.classify.dataset import DocumentExamples, TextSplits
from antembed.classify.documents import documents_of
from antembed.classify.model import MeanPooled, TextCNN, TextModel
from antembed.classify.task import Text
from antembed.classify.windows_kernel import plain_windows, pooled_windows


def batch(lengths, V, seed=0):
    rng = np.random.default_rng(seed)
    starts = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))
    words = torch.from_numpy(rng.integers(1, V, int(starts[-1])).astype(np.int32))
    return words, starts


def both(lengths, k, widths, filters, seed):
    torch.manual_seed(seed)
    words, starts = batch(lengths, 12, seed)
    unique, places = torch.unique(words, return_inverse=True)
    found = []
    for route in (pooled_windows, plain_windows):
        torch.manual_seed(seed)
        X = torch.randn(len(unique), k, requires_grad=True)
        W = torch.randn(sum(widths) * filters, k, requires_grad=True)
        largest = route(X, W, places.int(), starts, widths)
        largest.square().sum().backward()
        found.append((largest.detach(), X.grad, W.grad))
    return found


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any),
    st.integers(1, 5),
    st.sampled_from([(1,), (3,), (2, 3), (3, 4, 5)]),
    st.integers(0, 10),
)
def test_two_routes_agree(lengths, k, widths, seed):
    ours, plain = both(lengths, k, widths, 3, seed)
    for a, b in zip(ours, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5 * max(10.0, float(b.abs().max())))


def test_threads_change_nothing():
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            results.append(both([60] * 64, 64, (3, 4, 5), 100, 1)[0][1:])
    finally:
        torch.set_num_threads(before)
    for a, b in zip(*results, strict=True):
        # The matrix product before is torch's: of two windows that are all but equal either may be the largest.
        assert (a - b).norm() < 1e-4 * b.norm()


def test_an_empty_document_has_windows_of_zeros():
    X, W = torch.randn(2, 3), torch.randn(4, 3)
    largest = pooled_windows(X, W, torch.tensor([0, 1], dtype=torch.int32), torch.tensor([0, 2, 2]), (2,))
    assert torch.equal(largest[1], torch.zeros(2))
    assert (largest[0] != 0).all()


def test_anchors_are_taken_into_the_filters_first():
    torch.manual_seed(0)
    layer = AnchorEmbedding(20, 16, 0, num_anchors=3)
    layer.rows.weight.data.mul_(10)
    model = TextCNN(layer, 4, filters=5).eval()
    words, starts = batch([7, 3, 9], 20)
    dense = FullEmbedding(20, 16, 0)
    dense.rows.weight.data = layer.to_dense().detach().clone()
    twin = TextCNN(dense, 4, filters=5).eval()
    twin.load_state_dict({k: v for k, v in model.state_dict().items() if not k.startswith("words.")}, strict=False)
    torch.testing.assert_close(model(words, starts), twin(words, starts), rtol=1e-4, atol=1e-5)
    assert layer.coordinates(torch.tensor([1]))[0].shape == (1, 3)
    assert AnchorEmbedding(20, 3, num_anchors=5).coordinates(torch.tensor([1]))[1] is None


def test_mean_pooling_is_a_mean_of_vectors():
    torch.manual_seed(0)
    layer = AnchorEmbedding(20, 16, 0, num_anchors=3)
    model = MeanPooled(layer, 4).eval()
    words, starts = batch([7, 0, 9], 20)
    E = layer.to_dense()
    means = torch.stack([E[words[:7].long()].mean(0), torch.zeros(16), E[words[7:].long()].mean(0)])
    torch.testing.assert_close(model(words, starts), model.head(means), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", [TextCNN, MeanPooled])
def test_lazy_rows_give_what_dense_steps_give(kind):
    outcomes = []
    for sparse in (True, False):
        torch.manual_seed(0)
        layer = AnchorEmbedding(30, 16, 0, num_anchors=3, sparse=sparse)
        model = kind(layer, 3, dropout=0.0)
        optimizer = ProximalYogi(param_groups(model, l1_penalty=1e-3), lr=0.01)
        for step in range(12):
            words, starts = batch([5, 8, 2, 6], 30, step)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(words, starts), torch.tensor([0, 1, 2, step % 3])).backward()
            optimizer.step()
        outcomes.append(layer.transform.detach().clone())
    torch.testing.assert_close(*outcomes, rtol=1e-4, atol=1e-5)
    assert (outcomes[0] == 0).any()


class Fixed(TextModel):
    """Scores that were decided beforehand, whatever the words are."""

    def __init__(self, scores):
        super().__init__(FullEmbedding(4, 2, 0))
        self.scores = scores

    def forward(self, words, starts):
        return self.scores[: len(starts) - 1]


def test_classes_that_were_never_trained_count_as_wrong():
    documents = documents_of(["a", "b", "a b"], ["x", "y", "z"], classes=["x", "y"])
    assert documents.labels.tolist() == [0, 1, -1]
    model = Fixed(torch.tensor([[2.0, 0.0], [0.0, 2.0], [2.0, 0.0]]))
    found = Text().evaluate(model, TextSplits(test=DocumentExamples(documents, np.arange(3))), "test")
    assert found["accuracy"] == pytest.approx(2 / 3)
    assert found["error"] == pytest.approx(1 / 3)
    assert found["loss"] == pytest.approx(float(np.log1p(np.exp(-2))))
    with pytest.raises(ValueError, match="1 documents, 0 of them of a known class"):
        Text().evaluate(model, TextSplits(test=DocumentExamples(documents, np.array([2]))), "test")
