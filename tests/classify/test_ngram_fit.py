"""Fitting a hashed n-gram classifier: kernels beside plain twins, the size asked for, planted objects found."""

from collections import Counter
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from antembed.budget import BudgetError
from antembed.classify.documents import documents_of
from antembed.classify.ngram_file import buckets_of, hash_words, load_hashed_ngrams, ngram_hashes, read_hashed_ngrams
from antembed.classify.ngram_fit import (
    NgramSettings,
    _counted_pairs,
    _sorted_pairs,
    curvatures,
    directions,
    fit_ngrams,
    fit_sweeps,
    incidence,
    likely_objects,
    logistic,
)
from antembed.classify.ngram_kernel import MANY, TINY, descend_codes, descend_dense, gather_codes, logistic_loss, score_rows
from antembed.classify.predictor import ngram_probabilities, softmax, top_ngrams, word_hashes


@pytest.fixture(scope="module")
def planted():
    """1 200 documents of noise words, in which one of 8 words, or one of 4 pairs of noise words, tells the class."""
    random = np.random.default_rng(0)
    texts, labels = [], []
    for n in range(1200):
        label = int(random.integers(4))
        words = [f"noise{i}" for i in random.integers(0, 300, 12)]
        if n % 2:
            words[3] = f"sign{label}{random.integers(2)}"
        else:
            words[5:7] = ["left", f"right{label}"]
            words[8:11] = [f"right{(label + 1) % 4}", f"right{(label + 2) % 4}", f"right{(label + 3) % 4}"]
        texts.append(" ".join(words))
        labels.append(label)
    documents = documents_of(texts, labels)
    return documents.take(np.arange(900)), documents.take(np.arange(900, 1200))


def problem(seed=0, V=30, n=80, C=3):
    random = np.random.default_rng(seed)
    has = random.integers(1, 4, (n, V)) * (random.random((n, V)) < 0.15)  # how often
    starts = np.concatenate([[0], np.cumsum((has > 0).sum(0))])
    documents = np.concatenate([np.flatnonzero(has[:, j]) for j in range(V)]).astype(np.int32)
    times = np.concatenate([has[has[:, j] > 0, j] for j in range(V)]).astype(np.float32)
    scales, Y, ridge = 1 / np.sqrt(has.sum(1) + 1), np.eye(C)[random.integers(0, C, n)], random.uniform(0.1, 1, V)
    return random, has, starts, (documents, times), scales, Y, ridge


ALONE = np.arange(31)  # every object is a block of its own


def plain_system(has, scales, Y, R, j):
    X = has * scales[:, None]
    P = softmax(X @ R)
    x = X[:, j]
    H = sum(x[i] ** 2 * (np.diag(P[i]) - np.outer(P[i], P[i])) for i in range(len(x))) + TINY * np.eye(Y.shape[1])
    return x @ (Y - P) + H @ R[j], H


def test_dense_steps_are_newtons():
    random, has, starts, documents, scales, Y, ridge = problem()
    order = random.permutation(30)
    R, S = np.zeros((30, 3)), np.zeros((80, 3))
    P = softmax(S)
    plain = R.copy()
    for _ in range(2):
        descend_dense((starts, *documents, scales, Y.argmax(1)), ridge, 0.7, order, ALONE, 0.8, R, S, P)
        for j in order:
            g, H = plain_system(has, scales, Y, plain, j)
            change = np.linalg.solve(1.7 * H + ridge[j] * np.eye(3), g) - plain[j]
            plain[j] += change * min(1, 0.8 / np.abs(change).max())
    assert np.abs(R - plain).max() < 1e-9
    assert np.abs(P - softmax((has * scales[:, None]) @ plain)).max() < 1e-9


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_objects_of_a_block_step_from_the_same_scores(threads, monkeypatch):
    monkeypatch.setattr("antembed.native.threads.PARALLEL_FROM", 1)
    monkeypatch.setattr("antembed.native.threads.PARALLEL_FROM", 1)
    random, has, starts, documents, scales, Y, ridge = problem()
    order, cuts = random.permutation(30), np.array([0, 7, 7, 20, 30])
    R, S = np.zeros((30, 3)), np.zeros((80, 3))
    P, plain = softmax(S), R.copy()
    descend_dense((starts, *documents, scales, Y.argmax(1)), ridge, 0.7, order, cuts, 0.8, R, S, P, threads)
    for block in (order[:7], order[7:20], order[20:]):
        before = plain.copy()
        for j in block:
            g, H = plain_system(has, scales, Y, before, j)
            change = np.linalg.solve(1.7 * H + ridge[j] * np.eye(3), g) - before[j]
            plain[j] += change * min(1, 0.8 / np.abs(change).max())
    assert np.abs(R - plain).max() < 1e-9
    assert np.abs(P - softmax((has * scales[:, None]) @ plain)).max() < 1e-9


def test_with_many_classes_the_diagonal_is_enough():
    random, has, starts, documents, scales, Y, ridge = problem(4, C=MANY + 1)
    order, C = random.permutation(30), MANY + 1
    R, S = np.zeros((30, C)), np.zeros((80, C))
    P = softmax(S)
    plain, X = R.copy(), has * scales[:, None]
    losses = []
    for _ in range(3):
        descend_dense((starts, *documents, scales, Y.argmax(1)), ridge, 0.7, order, ALONE, 0.8, R, S, P)
        losses.append(-np.log(P[Y > 0]).sum() + 0.5 * (ridge[:, None] * R**2).sum())
        for j in order:
            H = X[:, j] ** 2 @ np.maximum(softmax(X @ plain), 0.25 * Y) + TINY
            best = (X[:, j] @ (Y - softmax(X @ plain)) + H * plain[j]) / (1.7 * H + ridge[j])
            change = best - plain[j]
            plain[j] += change * min(1, 0.8 / np.abs(change).max())
    assert np.abs(R - plain).max() < 1e-9
    assert losses == sorted(losses, reverse=True)


@pytest.mark.parametrize("frozen", [False, True])
def test_codes_are_the_best_there_are(frozen):
    random, has, starts, documents, scales, Y, ridge = problem(1)
    B, values, penalty = random.normal(size=(4, 3)), np.array([0.5, 1.0, 2.0]), 0.05
    anchors, levels, gains = random.integers(0, 4, 30), random.integers(0, 3, 30), np.zeros(30)
    R = B[anchors] * values[levels][:, None]
    plain, order = R.copy(), random.permutation(30)
    S = (has * scales[:, None]) @ R
    descend_codes(
        (starts, *documents, scales, Y.argmax(1)),
        ridge,
        0.7,
        order,
        ALONE,
        B,
        values,
        penalty,
        frozen,
        anchors,
        levels,
        gains,
        R,
        S,
        softmax(S),
    )
    for j in order:
        g, H = plain_system(has, scales, Y, plain, j)
        gain = {
            (k, q): g @ r - 0.5 * r @ (1.7 * H + ridge[j] * np.eye(3)) @ r
            for k in range(4)
            for q in range(3)
            for r in [B[k] * values[q]]
        }
        best = max(gain, key=gain.__getitem__)
        assert gains[j] == pytest.approx(gain[best] if gain[best] > (0 if frozen else penalty) else 0, abs=1e-9)
        if frozen:
            best = best if gain[best] > 0 else None  # stays as it was
        elif gain[best] <= penalty:
            best = (-1, -1)
        if best is not None:
            assert (anchors[j], levels[j]) == best
            plain[j] = B[best[0]] * values[best[1]] if best[0] >= 0 else 0
    assert np.abs(R - plain).max() < 1e-12
    assert np.abs(S - (has * scales[:, None]) @ plain).max() < 1e-9
    assert ((anchors < 0).any() and (anchors >= 0).any()) != frozen


def test_what_documents_have_of_each_anchor():
    random, has, starts, documents, scales, _, _ = problem(3)
    anchors, weights = random.integers(-1, 4, 30), random.random(30)
    for threads in (1, 2, 3):
        Z, squares = np.zeros((80, 4)), np.zeros((80, 4))
        gather_codes((starts, *documents, scales, anchors), anchors, weights, Z, squares, threads)
        X, mine = has * scales[:, None], [anchors == k for k in range(4)]
        assert np.allclose(Z, np.stack([X[:, k] @ weights[k] for k in mine], axis=1))
        assert np.allclose(squares, np.stack([X[:, k] ** 2 @ weights[k] ** 2 for k in mine], axis=1))


def test_anchors_are_fitted_to_the_minimum():
    random = np.random.default_rng(0)
    Z, Y, roots = random.random((200, 4)), np.eye(3)[random.integers(0, 3, 200)], random.random((4, 3, 3))
    penalty = roots @ roots.transpose(0, 2, 1) + 0.1 * np.eye(3)
    B, bias = logistic(Z, Y.argmax(1), penalty, np.zeros((4, 3)), np.zeros(3), steps=500)
    G = softmax(Z @ B + bias) - Y
    assert np.abs(Z.T @ G + np.stack([penalty[k] @ B[k] for k in range(4)])).max() < 0.01
    assert np.abs(G.sum(0)).max() < 0.01


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_loss_and_gradient_are_the_plain_ones_for_any_number_of_threads(kind):
    random = np.random.default_rng(1)
    Z, labels = random.random((205, 5)).astype(kind), random.integers(0, 3, 205)
    B, bias = random.normal(size=(5, 3)), random.normal(size=3)
    P, Y = softmax(Z @ B + bias), np.eye(3)[labels]
    loss, gradient, slope = logistic_loss(Z, labels, B, bias)
    assert np.isclose(loss, -np.log(P[Y > 0]).sum())
    assert np.allclose(gradient, Z.T @ (P - Y))
    assert np.allclose(slope, (P - Y).sum(0))
    S, own = np.empty((205, 3)), np.empty((205, 3))
    score_rows(Z, B, bias, S, own, 2)
    assert np.allclose(S, Z @ B + bias)
    assert np.allclose(own, P)
    for threads in (2, 3):
        again = logistic_loss(Z, labels, B, bias, threads)
        assert again[0] == loss
        assert np.array_equal(again[1], gradient)
        assert np.array_equal(again[2], slope)


def test_noise_is_what_leaving_objects_out_costs_on_average():
    random, has, _, _, scales, Y, _ = problem(2, V=6, n=20)
    R, kept = 0.05 * random.normal(size=(6, 3)), 0.4

    def loss(weights):
        return -(Y * np.log(softmax((has * scales[:, None] * weights) @ R))).sum()

    masks = np.array(list(product((0, 1), repeat=6)))
    chances = kept ** masks.sum(1) * (1 - kept) ** (6 - masks.sum(1))
    # Every document has the same mask here: their losses add up, so the average is the same as with masks of their own.
    cost = sum(chance * loss(mask / kept) for mask, chance in zip(masks, chances, strict=True)) - loss(np.ones(6))
    P, squares = softmax((has * scales[:, None]) @ R), (has * scales[:, None]) ** 2
    H = curvatures(squares, P)
    assert np.abs(H[3] + TINY * np.eye(3) - plain_system(has, scales, Y, R, 3)[1]).max() < 1e-12
    noise = (1 - kept) / kept
    assert cost == pytest.approx(0.5 * noise * sum(R[j] @ H[j] @ R[j] for j in range(6)), rel=0.05)


def test_directions_are_found():
    random = np.random.default_rng(0)
    true = np.array([[2.0, -1, -1], [-1, -1, 2], [0, 1, -1]])
    R = true[random.integers(0, 3, 300)] * random.uniform(0.5, 2, (300, 1)) + 0.01 * random.normal(size=(300, 3)) + 7
    found = directions(R, np.ones(300), 3)
    cosines = (found / np.linalg.norm(found, axis=1)[:, None]) @ (true / np.linalg.norm(true, axis=1)[:, None]).T
    assert np.sort(cosines.max(0)).min() > 0.999
    assert not directions(np.ones((5, 3)), np.ones(5), 2).any()


def test_incidence_is_who_has_what(planted):
    train, _ = planted
    data = incidence(train, NgramSettings(prefix=0), 16)
    hashes, owners = ngram_hashes(word_hashes(train), train.starts, 2)
    pairs = set(zip(buckets_of(hashes, 16).tolist(), owners.tolist(), strict=True))
    found = list(zip(np.repeat(data.buckets, np.diff(data.starts)).tolist(), data.documents.tolist(), strict=True))
    assert len(found) == len(set(found))
    seen = Counter(bucket for bucket, _ in pairs)
    assert set(found) == {(bucket, document) for bucket, document in pairs if seen[bucket] > 1}
    assert np.diff(data.starts).min() == 2
    assert (data.times == 1).all()
    times = Counter(zip(buckets_of(hashes, 16).tolist(), owners.tolist(), strict=True))
    counted = incidence(train, NgramSettings(repeats=True, prefix=0), 16)
    assert counted.times.tolist() == [times[pair] for pair in found]
    assert counted.times.max() > 1


@pytest.mark.parametrize("orders", [1, 2, 4])
@pytest.mark.parametrize(("least", "enough"), [(1, np.inf), (2, np.inf), (2, 300), (2, 40)])
@pytest.mark.parametrize(("threads", "prefix"), [(1, 0), (3, 0), (1, 2), (3, 2)])
def test_counting_is_sorting(planted, monkeypatch, orders, least, enough, threads, prefix):
    train, _ = planted
    monkeypatch.setattr("antembed.native.threads.usable_cpus", lambda: threads)
    hashes = hash_words(train.vocabulary.words, prefix)
    counted, ordered = (make(train, hashes, orders, 14, least, enough) for make in (_counted_pairs, _sorted_pairs))
    for one, other in zip(counted, ordered, strict=True):
        np.testing.assert_array_equal(one, other)


def test_words_that_were_never_seen_count_by_their_beginnings():
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, 600)
    endings = random.permutation(600)  # each once: no test document has a word of a training document
    documents = documents_of([f"{['alpha', 'omega'][c]}{n} a{n % 7}" for c, n in zip(labels, endings, strict=True)], labels)
    train, test = documents.take(np.arange(400)), documents.take(np.arange(400, 600))
    accuracies = []
    for prefix in (5, 0):
        classifier = fit_ngrams(train, NgramSettings(size="1KB", ridge=0.5, prefix=prefix))
        (chances,) = ngram_probabilities(classifier, test)
        accuracies.append((chances.argmax(1) == test.labels).mean())
        assert read_hashed_ngrams(classifier.to_bytes(), "memory").prefix == prefix
    assert accuracies[0] == 1
    assert accuracies[1] < 0.7
    found, *_ = top_ngrams(fit_ngrams(train, NgramSettings(size="1KB", ridge=0.5)), train)["classes"]
    assert found["ngrams"][0][0] == "alpha…"


def test_of_many_objects_the_most_frequent_are_taken(planted):
    train, _ = planted
    everything, some = incidence(train, NgramSettings(), 16), incidence(train, NgramSettings(), 16, enough=100)
    counts = np.diff(everything.starts)
    rarest = np.sort(counts)[-100]
    assert rarest > 2
    np.testing.assert_array_equal(some.buckets, everything.buckets[counts >= rarest])
    assert len(some.buckets) >= 100
    assert len(incidence(train, NgramSettings(), 16, enough=10**9).buckets) == len(counts)


def test_planted_objects_are_found_and_the_size_is_kept(planted, tmp_path):
    train, test = planted
    settings = NgramSettings(size="450", anchors=8, ridge=0.5, values=(1.0, 2.0), bits=16, prefix=0)
    with pytest.raises(BudgetError, match="'450' is no size of a file"):
        fit_ngrams(train, settings)
    settings = NgramSettings(size="450B", anchors=8, ridge=0.5, values=(1.0, 2.0), bits=16, prefix=0)
    kept = [(fit.kept, len(fit.classifier().to_bytes())) for fit in fit_sweeps(train, settings)]
    model = fit_ngrams(train, settings)
    words = [f"sign{label}{i}" for label in range(4) for i in range(2)]
    hashes, _ = ngram_hashes(hash_words(words), np.arange(9), 1)
    assert np.isin(buckets_of(hashes, 16), model.objects).all()
    pairs = hash_words([word for label in range(4) for word in ("left", f"right{label}")])
    hashes, _ = ngram_hashes(pairs, np.arange(0, 9, 2), 2)
    assert np.isin(buckets_of(hashes[8:], 16), model.objects).all()
    size = model.save(tmp_path / "b.ngrams")
    assert size <= 450  # less is enough here: no other object is worth the penalty
    scores = load_hashed_ngrams(tmp_path / "b.ngrams").scores(word_hashes(test), test.starts)
    assert (scores.argmax(1) == test.labels).mean() > 0.97
    assert len(kept) == 6  # from 827 to 130 objects in as many sweeps as halvings, one more, and the end
    assert len(list(fit_sweeps(train, replace(settings, size="20KB")))) == 3  # all fit: two sweeps, and the end
    assert [n for n, _ in kept] == sorted((n for n, _ in kept), reverse=True)  # fewer and fewer
    assert kept[-1] == (len(model.objects), size)
    assert fit_ngrams(train, settings).to_bytes() == model.to_bytes()


@pytest.mark.parametrize("size", [600, 900])
def test_size_asked_for_is_size_got(planted, size):
    got = len(fit_ngrams(planted[0], NgramSettings(size=f"{size}B", ramp=3)).to_bytes())
    assert 0.95 * size < got <= size


def test_too_small_a_size_is_refused(planted):
    with pytest.raises(BudgetError, match=r"a file without objects has \d+ bytes, 100 are allowed; allow more"):
        fit_ngrams(planted[0], NgramSettings(size="100B", ramp=1))


def test_documents_without_label_are_left_out(planted):
    train, _ = planted
    settings = NgramSettings(size="1KB", ramp=2, bits=14)
    labels = train.labels.copy()
    labels[::2] = -1
    half = type(train)(train.tokens, train.starts, labels, train.vocabulary, train.classes)
    assert fit_ngrams(half, settings).to_bytes() == fit_ngrams(train.take(np.flatnonzero(labels >= 0)), settings).to_bytes()
    none = type(train)(train.tokens, train.starts, np.full_like(labels, -1), train.vocabulary, train.classes)
    with pytest.raises(ValueError, match="0 documents of 4 classes"):
        fit_ngrams(none, settings)


def test_more_room_holds_more_objects():
    assert likely_objects(1e4, 4.0, 18) < likely_objects(2e4, 4.0, 18) < likely_objects(2e4, 4.0, 17)
    assert likely_objects(-5, 4.0, 18) == 1
