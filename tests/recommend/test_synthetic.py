"""Planted data, and that ANT finds what was planted."""

import numpy as np
import pytest
import torch
from experiments.synthetic_stream import stream
from tests.synthetic_text import labelled_bags, labelled_documents, tokens

import antembed as ant
from antembed.recommend.synthetic import planted, ratings, zipf


def test_planted_is_what_it_says():
    p = planted(100, 16, anchors=6, per_object=2, seed=3)
    assert ((p.T > 0).sum(axis=1) == 2).all()
    np.testing.assert_allclose(p.A @ p.A.T, np.eye(6), atol=1e-12)
    assert np.linalg.matrix_rank(p.E) == 6
    assert p.popularity.sum() == pytest.approx(1)
    assert p.popularity[0] / p.popularity[9] == pytest.approx(10)
    assert planted(5, 3, anchors=8, seed=0).A.shape == (8, 3)
    np.testing.assert_array_equal(p.T, planted(100, 16, anchors=6, per_object=2, seed=3).T)
    np.testing.assert_array_equal(planted(7, seed=9, like=p).A, p.A)
    with pytest.raises(ValueError, match="between 1 and the 2 anchors, got 3"):
        planted(5, anchors=2, per_object=3)


def test_ratings_are_dot_products_plus_noise():
    users, items = planted(50, 8, anchors=4, seed=0), planted(30, 8, anchors=4, seed=1)
    r = ratings(users, items, 5000, mean=3.0, noise=0.1, seed=2)
    residual = r.values - 3.0 - (users.E[r.users] * items.E[r.items]).sum(axis=1)
    assert residual.std() == pytest.approx(0.1, rel=0.05)
    assert np.bincount(r.users)[0] > np.bincount(r.users, minlength=50)[40]
    with pytest.raises(ValueError, match="users have 8 dimensions, items 4"):
        ratings(users, planted(5, 4, anchors=2), 10)


def test_bags_are_about_their_label():
    words = planted(200, anchors=4, seed=0)
    bags = labelled_bags(words, 300, length=10, seed=1)
    assert len(bags.offsets) == 301
    per_anchor = np.array([words.T[bags.ids[a:b]].sum(axis=0) for a, b in zip(bags.offsets, bags.offsets[1:], strict=False)])
    assert (per_anchor.argmax(axis=1) == bags.labels).mean() > 0.95


def test_tokens_keep_their_topic():
    words = planted(200, anchors=4, per_object=1, seed=0)
    stream = tokens(words, 20_000, seed=1)
    topic = words.T[stream].argmax(axis=1)
    assert (topic[1:] == topic[:-1]).mean() == pytest.approx(0.9 + 0.1 / 4, abs=0.01)


def test_zipf_without_an_exponent_is_uniform():
    np.testing.assert_allclose(zipf(5, 0.0), 0.2)


@pytest.fixture(scope="module")
def recovered():
    """E* with K* = 6 learned with K = 12 from Zipf samples of its rows, at four prices of a non-zero."""
    answer = planted(200, 16, anchors=6, seed=0)
    E = torch.from_numpy(answer.E).float()
    steps, results = 1500, {}
    for l1 in (0.0, 3e-5, 1e-4, 1e-3):
        torch.manual_seed(0)
        layer = ant.AnchorEmbedding(200, 16, num_anchors=12, sparse=True)
        optimizer = ant.ProximalYogi(layer.param_groups(l1_penalty=l1), lr=0.02)
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
        rng = np.random.default_rng(0)
        for _ in range(steps):
            ids = torch.from_numpy(rng.choice(200, 64, p=answer.popularity))
            optimizer.zero_grad()
            ((layer(ids) - E[ids]).square().sum(1).mean() / 2).backward()
            optimizer.step()
            scheduler.step()
        results[l1] = layer
    return E, results


def test_ant_recovers_the_planted_table(recovered):
    E, layers = recovered
    layer = layers[1e-4]
    assert (layer.to_dense() - E).norm() / E.norm() < 0.05
    assert (layer.transform >= 0).all()
    assert layer.usage().nnz < 0.6 * layer.transform.numel()  # exact zeros, not small numbers


def test_nonzeros_shrink_as_the_price_grows(recovered):
    _, layers = recovered
    counts = [layer.usage().nnz for layer in layers.values()]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > 1.5 * counts[2] > 1.8 * counts[3]


def test_a_stream_has_the_same_ratings_in_any_pieces():
    whole = next(stream((500, 200), 3000, seed=4))
    pieces = list(stream((500, 200), 3000, seed=4, piece=700))
    assert [len(piece[0]) for piece in pieces] == [700, 700, 700, 700, 200]
    for column, parts in zip(whole, zip(*pieces, strict=True), strict=True):
        np.testing.assert_array_equal(column, np.concatenate(parts))
    with pytest.raises(ValueError, match="exponents in"):
        next(stream((500, 200), 10, exponents=(1.0, 0.5)))


def test_a_stream_has_the_planted_structure():
    """Each side has two of six tastes: the best tables of that rank leave the noise, and popularity falls as asked."""
    users, items, values = next(stream((60, 40), 400_000, noise=0.3, exponents=(0.5, 0.5)))
    mean = np.zeros((60, 40))
    count = np.zeros((60, 40))
    np.add.at(mean, (users, items), values)
    np.add.at(count, (users, items), 1)
    assert count.min() > 10
    mean /= count
    singular = np.linalg.svd(mean - 3.5, compute_uv=False)
    assert singular[5] > 10 * singular[6]
    assert np.var(values - mean[users, items]) == pytest.approx(0.09, rel=0.03)
    seen = np.sort(np.bincount(users))[::-1]
    assert seen[0] / seen[15] == pytest.approx(4, rel=0.2)


def test_labelled_documents_tell_their_class():
    found = labelled_documents(300, 3, words=60, length=20, class_share=0.5, seed=1)
    again = labelled_documents(300, 3, words=60, length=20, class_share=0.5, seed=1)
    assert np.array_equal(found.tokens, again.tokens)
    assert len(found) == 300
    assert found.starts[-1] == len(found.tokens)
    assert 2 <= found.tokens.min() <= found.tokens.max() < len(found.vocabulary)
    own = [np.mean((found[n] - 2) % 3 == found.labels[n]) for n in range(300) if len(found[n])]
    assert 0.6 < np.mean(own) < 0.75  # half of the words, and a third of the others
