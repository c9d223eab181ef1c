"""Language models: streams, output layers, whole runs, text that is written."""

import json
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.command import call, refusal

import antembed as ant
from antembed.data.vocabulary import PADDING
from antembed.language import config as config_module
from antembed.language.config import LanguageConfig
from antembed.language.corpus import Corpus, corpus_of
from antembed.language.dataset import Streams, make_splits
from antembed.language.model import LSTM, LanguageModel, Transformer
from antembed.language.softmax import Full, Likelihood, Noise, NoiseContrast, Sampled, Thresholded, make_output, starting_biases
from antembed.language.task import Language
from antembed.layer.anchor import AnchorEmbedding
from antembed.layer.optim.rules import ProximalYogi
from antembed.train.estimator import NotFittedError
from antembed.train.options import from_options, with_options
from antembed.train.solver import make_solver

SMALL = (
    *("--embedding-dim", "16", "--anchors", "8", "--batch-size", "140", "--sequence-length", "14", "--epochs", "8"),
    *("--threads", "1", "--lr", "0.03"),
)

AWD = (
    "--model",
    "awd-lstm",
    "--optimizer",
    "sgd",
    "--lr",
    "15",
    "--schedule",
    "constant",
    "--average-after",
    "1",
)  # from epoch 3 on


def chain(n=10_000, V=30, seed=0):
    """A text in which each word is followed by one of three."""
    rng = np.random.default_rng(seed)
    follows = rng.integers(0, V, (V, 3))
    words, at = [], 0
    for pick in rng.integers(0, 3, n):
        at = int(follows[at, pick])
        words.append(f"w{at}")
    return words


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "chain.txt"
    words = chain()
    path.write_text("\n".join(" ".join(words[n : n + 20]) for n in range(0, len(words), 20)) + "\n")
    return path


@pytest.mark.parametrize(
    ("n", "length", "size", "first"), [(100, 7, 21, 0), (101, 7, 21, 3), (5, 10, 40, 0), (1000, 35, 140, 20)]
)
def test_streams_hold_every_word_once(n, length, size, first):
    streams = Streams(np.arange(n, dtype=np.int32), length, "cpu", first)
    pairs = [
        pair
        for inputs, _, targets in streams.batches(size)
        for pair in zip(inputs.reshape(-1).tolist(), targets.tolist(), strict=True)
    ]
    assert sorted(pairs) == [(i, i + 1) for i in range(n - 1)]
    batches = list(streams.batches(size))
    assert bool(batches[0][1])
    assert len(streams) == n - 1


def test_a_long_corpus_is_read_over_several_epochs_each_word_once():
    corpus = Corpus(None, *(np.arange(n, dtype=np.int32) for n in (1001, 50, 80)))
    splits = make_splits(corpus, with_options(LanguageConfig(), epoch_words=300, measured_words=60, sequence_length=7))
    assert len(splits.train) == 334
    assert (len(splits.validation), len(splits.test)) == (49, 60)
    seen = [
        [
            pair
            for x, _, y in splits.train.shuffled(0, epoch).batches(21)
            for pair in zip(x.reshape(-1).tolist(), y.tolist(), strict=True)
        ]
        for epoch in (1, 2, 3, 4)
    ]
    assert sorted(pair for epoch in seen[:3] for pair in epoch) == [(i, i + 1) for i in range(1000)]
    assert sorted(seen[3]) == sorted(seen[0])


def small_model(V=40, d=8, K=5, network=None, sparse=False):
    torch.manual_seed(0)
    table = AnchorEmbedding(V, d, 0, num_anchors=K, sparse=sparse)
    table.anchors.data.normal_()
    model = LanguageModel(table, network or LSTM(d, 0, 2, 0.0))
    model.bias.data.normal_()
    return model


@pytest.mark.parametrize("nonzeros", [0, 60])
def test_likelihoods_by_a_sparse_table_are_those_of_a_dense_one(nonzeros):
    model = small_model(V=500, d=40, K=30)
    weight = model.words.rows.weight.data
    weight[torch.rand(weight.shape) > nonzeros / weight.numel()] = 0
    model.bias.data[PADDING] = 50.0  # must not count
    states, targets = torch.randn(130, 40), torch.randint(1, 500, (130,))
    scores = model.words.logits(states, bias=model.bias).double()
    scores[:, PADDING] = -torch.inf
    wanted = scores.log_softmax(1)[torch.arange(130), targets]
    likelihood = Likelihood(model)
    assert likelihood.sparse is not None
    torch.testing.assert_close(likelihood(states, targets).double(), wanted, atol=2e-5, rtol=0)
    model.words.rows.weight.data.uniform_()
    assert Likelihood(model).sparse is None


def test_likelihoods_of_words_that_share_rows_are_those_of_all_words():
    torch.manual_seed(0)
    model = LanguageModel(ant.baselines.HashEmbedding(500, 8, PADDING, num_anchors=30), LSTM(8, 0, 2, 0.0))
    model.bias.data.normal_(0, 5)
    model.bias.data[PADDING] = 50.0  # must not count
    states, targets = torch.randn(130, 8), torch.randint(1, 500, (130,))
    scores = model.words.logits(states, bias=model.bias).double()
    scores[:, PADDING] = -torch.inf
    wanted = scores.log_softmax(1)[torch.arange(130), targets]
    likelihood = Likelihood(model)
    assert len(likelihood.X) == 30
    torch.testing.assert_close(likelihood(states, targets).double(), wanted, atol=2e-5, rtol=0)


@pytest.mark.parametrize("make", [lambda: LSTM(8, 0, 2, 0.3), lambda: Transformer(8, 0, 2, 0.3, 2)])
def test_evaluation_is_that_of_one_long_stream(make):
    torch.manual_seed(0)
    model = small_model(network=make()).eval()
    words = np.random.default_rng(1).integers(1, 40, 6001).astype(np.int32)
    corpus = corpus_of({"train": ["a"] * 5})
    splits = make_splits(corpus, LanguageConfig())
    splits.test = Streams(words, 35)
    found = Language().evaluate(model, splits, "test")
    assert found["examples"] == 6000
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]))
    with torch.no_grad():  # one stream, without the help of batches
        model.state, total = None, 0.0
        for at in range(0, 6000, 300):
            states = model(torch.from_numpy(words[at : at + 300].astype(np.int64)).unsqueeze(1)).flatten(0, 1)
            scores = model.words.logits(states, bias=model.bias)
            scores[:, 0] = -torch.inf
            total += float(
                F.cross_entropy(scores, torch.from_numpy(words[at + 1 : at + 301].astype(np.int64)), reduction="sum")
            )
    assert found["loss"] == pytest.approx(total / 6000, rel=2e-3)


@pytest.mark.parametrize(
    ("loss", "kind"),
    [
        (Sampled, "unigram"),
        pytest.param(Sampled, "log-uniform", marks=pytest.mark.slow),
        pytest.param(NoiseContrast, "unigram", marks=pytest.mark.slow),
        (NoiseContrast, "log-uniform"),
    ],
)
def test_right_scores_have_no_gradient_on_average(loss, kind):
    """With few negatives, too: neither way is drawn away from the words' true probabilities."""
    model = small_model(V=12).train()
    p = torch.softmax(torch.randn(11), 0)
    with torch.no_grad():
        model.words.rows.weight.zero_()
        model.bias[1:] = p.log() + math.log(12)
    noise = Noise(np.arange(1, 13), kind, 8)
    output = NoiseContrast(noise, math.log(12)) if loss is NoiseContrast else Sampled(noise)

    def mean_gradient():
        total = torch.zeros(12)
        for _ in range(2_500):
            targets = 1 + torch.multinomial(p, 10, replacement=True)
            (found,) = torch.autograd.grad(output(model, torch.zeros(10, 8), targets), [model.bias])
            total += found / 2_500
        return float(total[1:].abs().max())

    assert mean_gradient() < 0.02
    with torch.no_grad():
        model.bias[1:] = 0  # wrong ones do
    assert mean_gradient() > 0.04


def test_noise_contrast_starts_with_probabilities():
    """Scores of words as likely as their counts say are normalized, so nothing but the model is left to learn."""
    counts = np.array([0, 900, 50, 30, 10, 5, 5])
    config = from_options(LanguageConfig, {"softmax": "nce", "negatives": 5})
    output = make_output(config, counts)
    assert float((starting_biases(counts) - output.log_total).exp().sum()) == pytest.approx(1.0)


def test_thresholded_gradients_are_near_the_full_ones():
    model = small_model().train()
    states, targets = torch.randn(50, 8), torch.randint(1, 40, (50,))
    found = [
        torch.autograd.grad(output(model, states, targets), [model.words.rows.weight])[0]
        for output in (Full(1), Thresholded(1e-3), Thresholded(0.0))
    ]
    assert float((found[1] - found[0]).norm() / found[0].norm()) < 0.02
    torch.testing.assert_close(found[2], found[0], rtol=1e-4, atol=1e-6)


def test_a_frozen_sparse_table_trains_as_the_dense_one():
    """Through the sparse kernel, and by torch: same losses, same weights."""
    ends = []
    for sparse_kernel in (True, False):
        model = small_model(V=300, K=20).train()
        optimizer = ProximalYogi(ant.param_groups(model, l1_penalty=0.0), lr=0.01)
        rows = model.words.rows
        keep = torch.rand(300, 20, generator=torch.Generator().manual_seed(1)) < 0.1
        optimizer.freeze_support(rows.weight, keep)
        if not sparse_kernel:
            rows.support = None
        torch.manual_seed(2)
        for _ in range(5):
            loss = Full(2)(model, torch.randn(70, 8), torch.randint(1, 300, (70,)))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        ends.append((loss.item(), rows.weight.detach().clone(), model.words.anchors.detach().clone()))
        assert not bool((rows.weight[~keep] != 0).any())
    assert ends[0][0] == pytest.approx(ends[1][0], rel=1e-5)
    for one, other in zip(ends[0][1:], ends[1][1:], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        ("--budget", "400", "--negatives", "20"),
        ("--softmax", "full", "--budget", "400"),
        ("--softmax", "nce", "--embedding", "low-rank"),
        ("--softmax", "adaptive", "--embedding", "full"),
        ("--model", "awd-lstm", "--embedding", "full", "--weight-dropout", "0.1"),
        pytest.param(
            ("--model", "transformer", "--heads", "2", "--noise", "log-uniform", "--lr", "0.005", "--optimizer", "adam"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_it_learns(file, tmp_path, options):
    result = json.loads(call("train", "language", file, *SMALL, *options, "--out", tmp_path / "r", "--json"))
    assert result["test"]["perplexity"] < 0.6 * result["baselines"]["words by their counts"]
    if "--budget" in options:
        assert result["parameters"] <= 400
    again = json.loads(call("evaluate", tmp_path / "r", "--json"))
    assert again["test"]["perplexity"] == pytest.approx(result["test"]["perplexity"], rel=1e-5)


@pytest.mark.parametrize(
    "options", [pytest.param(("--dropout", "0.3"), marks=pytest.mark.slow), ("--softmax", "full", "--budget", "400"), AWD]
)
def test_an_interrupted_run_ends_in_the_same_bytes(file, tmp_path, monkeypatch, options):
    from typer.testing import CliRunner

    from antembed.cli.app import app
    from antembed.train.stochastic import Stochastic

    words = [str(word) for word in ("train", "language", file, *SMALL, *options)]
    call(*words, "--out", tmp_path / "whole")
    train, done = Stochastic._train, []

    def stops(self, *arguments):
        if len(done) == 6:
            raise MemoryError
        done.append(arguments)
        return train(self, *arguments)

    monkeypatch.setattr(Stochastic, "_train", stops)
    with pytest.raises(MemoryError):
        CliRunner().invoke(app, [*words, "--out", str(tmp_path / "r")], catch_exceptions=False)
    monkeypatch.setattr(Stochastic, "_train", train)
    call(*words, "--out", tmp_path / "r", "--resume")
    for name in ("words.ant", "checkpoint/final.safetensors"):
        assert (tmp_path / "r" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_text_is_written_and_anchors_are_explained(file, tmp_path):
    call(
        "train", "language", file, *SMALL, "--anchor-init", "frequency", "--relations", "cooccurrence", "--out", tmp_path / "r"
    )
    text = call("generate", tmp_path / "r", "--prompt", "w1 w2", "--words", "12", "--seed", "1")
    assert text.split()[:2] == ["w1", "w2"]
    assert text == call("generate", tmp_path / "r", "--prompt", "w1 w2", "--words", "12", "--seed", "1")
    assert "anchor 0" in call("explain", tmp_path / "r")
    call("export", tmp_path / "r", tmp_path / "out")
    assert call("generate", tmp_path / "out", "--prompt", "w1 w2", "--words", "12", "--seed", "1") == text
    with pytest.raises(ValueError, match="not of language"):
        call("generate", _ngrams(tmp_path))


def _ngrams(tmp_path):
    documents = tmp_path / "d.csv"
    documents.write_text("text,label\n" + "\n".join(f"good {n},a\nbad {n},b" for n in range(40)))
    call("train", "classify-ngrams", documents, "--out", tmp_path / "n")
    return tmp_path / "n"


def test_in_python(file, tmp_path):
    model = ant.LanguageModel(
        epochs=4, embedding_dim=16, anchors=8, batch_size=140, options={"sequence_length": 14, "lr": 0.03}
    )
    with pytest.raises(NotFittedError, match="fit"):
        model.generate("w1")
    model.fit(file.read_text().splitlines())
    assert model.result_["test"]["perplexity"] < 20
    assert model.perplexity("w1 w2 w3") > 1
    assert model.generate("w1", words=3, temperature=0).split()[0] == "w1"
    model.save(tmp_path / "saved")
    again = ant.LanguageModel.load(tmp_path / "saved")
    assert again.generate("w1", words=9, seed=3, top_k=5) == model.generate("w1", words=9, seed=3, top_k=5)
    with pytest.raises(ValueError, match="5 words are too few"):
        model.fit(["only a few words"])


def test_scores_that_are_no_numbers_are_an_error():
    from antembed.language.task import _drawn

    random = torch.Generator()
    assert _drawn(torch.tensor([-torch.inf, 3.0, 1.0]), 1e-30, 0, random) == 1
    for wrong in (torch.nan, torch.inf):
        with pytest.raises(ValueError, match="scores are not finite numbers"):
            _drawn(torch.tensor([1.0, wrong]), 1.0, 0, random)


def test_without_options_long_corpora_become_small():
    usual = LanguageConfig.defaults
    assert usual(200_000, {}) == {}
    assert usual(10**6, {}) == {"sparsify": "recode", "events": 4, "budget": "20x"}
    assert usual(10**6, {"budget": "400k", "epochs": 4}) == {"sparsify": "recode", "events": 2}
    # Coding rows anew takes V·K² steps.
    assert usual(10**7, {}) == {"sparsify": "prune", "events": 4, "budget": "20x"}
    assert usual(10**6, {"budget": "1M", "anchors": (1000,)}) == {"sparsify": "prune", "events": 4}
    for budget, anchors in (("410k", "500"), ("200k", "270"), ("50k", "60"), ("15k", "10"), ("20x", "270"), ("400KB", "270")):
        found = usual(10**6, {"budget": budget}, 10_000)  # the anchors have their share of it
        assert found == {"sparsify": "recode", "events": 4, "anchors": anchors}
    assert usual(10**6, {"budget": "400k", "embedding_dim": 400}, 10_000)["anchors"] == "270"
    assert usual(10**6, {}, 40)["anchors"] == "10"
    assert usual(10**6, {"budget": "4M"}, 250_000) == {"sparsify": "prune", "events": 4, "anchors": "500"}
    assert usual(10**6, {"budget": "800k", "anchors": (100,)}, 250_000) == {"sparsify": "recode", "events": 4}
    for own in ({"l1_penalty": 1e-6}, {"embedding": "full"}, {"anchors": "auto"}, {"sparsify": "recode"}, {"epochs": 2}):
        assert usual(10**6, own) == {}


def test_without_options_long_corpora_become_small_in_python_too(file, monkeypatch):
    monkeypatch.setattr(config_module, "LONG", 1000)
    small = {"embedding_dim": 16, "anchors": 8, "batch_size": 140, "epochs": 3, "threads": 1}
    monkeypatch.setattr(config_module, "BUDGET", "300")
    model = ant.LanguageModel(**small, options={"sequence_length": 14}).fit(file)
    assert model.result_["parameters"] <= 300


def test_what_does_not_go_together(file, tmp_path):
    start = ("train", "language", file, "--out", tmp_path / "r")
    assert "shorter than a sequence of 35" in refusal(*start, "--batch-size", "20")
    assert "4 heads need a width that is a multiple of 8, not 20" in refusal(
        *start, "--model", "transformer", "--embedding-dim", "20"
    )
    assert "negatives is for --softmax sampled or nce, not full" in refusal(*start, "--softmax", "full", "--negatives", "5")
    assert "anchors must be words" in refusal(*start, "--relations", "wordnet")
    assert from_options(LanguageConfig, {"softmax": "full"}).row_sparse is False


def test_sampled_softmax_in_pieces_is_the_plain_one(monkeypatch):
    """Loss and all gradients, against torch's cross-entropy over the target and the negatives."""
    from antembed.language import softmax as output

    monkeypatch.setattr(output, "IN_CACHE", 40)
    generator = torch.Generator().manual_seed(0)
    negatives, targets = torch.tensor([2, 5, 6, 11]), torch.randint(1, 14, (23,), generator=generator)
    shapes = ((23, 3), (4, 3), (4,), (23,))
    given = [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]
    states, vectors, offsets, right = given
    scores = (states @ vectors.T + offsets).masked_fill(targets[:, None] == negatives, -torch.inf)
    plain = F.cross_entropy(torch.cat([right[:, None], scores], 1), torch.zeros_like(targets))
    ours = output.SampledSoftmax.apply(*given, negatives, targets)
    torch.testing.assert_close(ours, plain)
    for a, b in zip(torch.autograd.grad(2 * ours, given), torch.autograd.grad(2 * plain, given), strict=True):
        torch.testing.assert_close(a, b)


def test_averaging_needs_a_fixed_number_of_anchors():
    with pytest.raises(ValueError, match="averaging needs a fixed number of anchors"):
        from_options(LanguageConfig, {"data": "x", "anchors": "auto", "average_after": 2})


def test_a_short_corpus_is_not_worse_than_its_counts(tmp_path):
    """Words without any order, many of them rare or unseen in training: the usual training makes those too unlikely."""
    rng = np.random.default_rng(0)
    words = [f"w{n}" for n in np.minimum(rng.zipf(1.3, 3000), 5000)]
    (tmp_path / "a.txt").write_text("\n".join(" ".join(words[n : n + 10]) for n in range(0, 3000, 10)) + "\n")
    result = json.loads(call("train", "language", tmp_path / "a.txt", "--threads", 1, "--out", tmp_path / "r", "--json"))
    assert result["test"]["perplexity"] < 1.01 * result["baselines"]["words by their counts"]  # 1.05 with 2 layers, lr 5e-3


def test_only_short_corpora_without_options_have_a_smaller_network():
    usual, small = LanguageConfig.defaults, config_module.SMALL
    few = config_module.FEW_WORDS - 1
    assert usual(few, {"seed": 3, "threads": 1}) == small
    assert usual(few, {"budget": "20x"}, 1000) == small | {"dropout": 0.7, "anchors": "30", "sparsify": "recode", "events": 4}
    assert usual(few + 1, {}) == usual(0, {}) == usual(few, {"layers": 2}) == {}


def test_the_network_has_a_learning_rate_of_its_own(file):
    config = from_options(LanguageConfig, {"data": str(file), "network_rate": 0.1, "lr": 0.01, "epochs": 1})
    splits = Language().load(config)
    model = Language().build(config, splits)
    solver = make_solver(Language(), config, model, splits)
    rates = {id(weight): group.get("rate", 1.0) for group in solver.loop.optimizer.param_groups for weight in group["params"]}
    own = {name: rates[id(weight)] for name, weight in model.named_parameters()}
    assert {name for name, rate in own.items() if rate == 1} == {"words.rows.weight", "words.anchors"}
    assert all(rate == 0.1 for name, rate in own.items() if not name.startswith("words."))


def test_a_lone_surrogate_in_a_text_is_refused_with_its_row():
    texts = ["the cat sat on the mat"] * 40 + ["a \ud800 dog"]
    with pytest.raises(ValueError, match=r"text 40 has a lone surrogate, .* as character 3 of .*; read its source"):
        ant.LanguageModel(epochs=1).fit(texts)
