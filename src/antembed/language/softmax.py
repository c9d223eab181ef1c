"""Output layers of language models: the loss over all words (dense, or by a sparse T), over sampled ones, by noise contrast.

All take states (n, d) and targets (n,), and are means over the n words. Evaluation is always over all words.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from antembed.data.vocabulary import PADDING
from antembed.language.config import LanguageConfig
from antembed.language.model import LanguageModel
from antembed.language.softmax_kernel import Sparse, sparse_cross_entropy, sparse_log_totals
from antembed.layer.anchor import AnchorEmbedding
from antembed.layer.embedding import Embedding
from antembed.layer.row_table import IN_CACHE, log_total

SPARSE_TO = 0.15  # density of T up to which the sparse kernel is faster
SPARSE_SHARE = 0.12  # of the dense product's width: up to so many non-zeros a row the sparse one of evaluation is faster
IMPOSSIBLE = -1e30  # a bias whose exponential is 0, for kernels that know no infinity


class Output(ABC):
    """states (n, d), targets (n,) → the mean loss."""

    @abstractmethod
    def __call__(self, model: LanguageModel, states: Tensor, targets: Tensor) -> Tensor: ...


class Full(Output):
    """Over all words. Where the zeros of T are frozen and many, only what is not zero is multiplied, with the same result. Of
    a table that processes share, each adds up the words that it holds."""

    def __init__(self, threads: int):
        self.threads = threads

    def __call__(self, model: LanguageModel, states: Tensor, targets: Tensor) -> Tensor:
        table = model.words
        if any(rows.shared for rows in table.tables):
            return shared_cross_entropy(model, states, targets)
        if isinstance(table, AnchorEmbedding) and model.training and states.device.type == "cpu":
            known = None if table.rows.support is None else pattern(table.rows.support)
            if known is not None and known.density <= SPARSE_TO:
                X = states @ table.anchors.T
                loss: Tensor = SparseSoftmax.apply(X, table.transform, model.bias, targets, known, self.threads)
                return loss
        return F.cross_entropy(table.logits(states, bias=model.bias), targets)


def shared_cross_entropy(model: LanguageModel, states: Tensor, targets: Tensor) -> Tensor:
    """Of the targets' rows and one number a state (RowTable.log_totals); no process needs all rows."""
    rows, bias = model.words.tables[0], model.bias
    anchors = next((anchors for _, anchors in model.words.pairs), None)
    X = states if anchors is None else states @ anchors.T
    right = (X * rows(targets)).sum(1) + bias[targets]
    # To a full table padding is a word that never comes, and its vector learns that; a row of T stays zero (`logits`).
    return (rows.log_totals(X, bias, learn_padding=anchors is None) - right).mean()


class SparseSoftmax(torch.autograd.Function):
    """Cross-entropy of X·Tᵀ + bias with T held by its support; gradients outside it are zero."""

    @staticmethod
    def forward(ctx: Any, X: Tensor, T: Tensor, bias: Tensor, targets: Tensor, support: "Pattern", threads: int) -> Tensor:
        rows, n = (support.starts, support.columns, T.detach().reshape(-1)[support.flat].numpy()), len(targets)
        states = X.detach().contiguous().numpy()
        loss, *gradients = sparse_cross_entropy(states, rows, bias.detach().numpy(), targets.numpy(), threads)
        ctx.save_for_backward(*(torch.from_numpy(part) / n for part in gradients))
        ctx.flat, ctx.shape = support.flat, T.shape
        return X.new_tensor(loss / n)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        dX, dvalues, dbias = ctx.saved_tensors
        dT = torch.zeros(ctx.shape)
        dT.view(-1)[ctx.flat] = dvalues * outer[0]
        return dX * outer[0], dT, dbias * outer[0], None, None, None


@dataclass(frozen=True)
class Pattern:
    """Where a mask (V, K) is true, by rows."""

    mask: Tensor
    flat: Tensor  # (nnz,) in the flat mask
    starts: np.ndarray  # (V + 1,): where rows begin
    columns: np.ndarray  # (nnz,)

    @property
    def density(self) -> float:
        return len(self.columns) / max(self.mask.numel(), 1)


_patterns: dict[int, Pattern] = {}


def pattern(support: Tensor) -> Pattern:
    """That of a mask; the last one is kept, since a mask lasts for many steps."""
    known = _patterns.get(0)
    if known is None or known.mask is not support:
        flat = support.reshape(-1).nonzero()[:, 0]
        starts = torch.cat([torch.zeros(1, dtype=torch.int64), support.sum(1).cumsum(0)])
        narrow = torch.int16 if support.shape[1] < 1 << 15 else torch.int32
        columns = (flat % support.shape[1]).to(narrow)
        known = _patterns[0] = Pattern(support, flat, starts.numpy(), columns.numpy())
    return known


class Thresholded(Output):
    """Over all words, but gradients of scores (a word's probability, less 1 at the target) below `threshold` are dropped before
    they are multiplied with states and rows: most words are all but impossible."""

    def __init__(self, threshold: float):
        self.threshold = threshold

    def __call__(self, model: LanguageModel, states: Tensor, targets: Tensor) -> Tensor:
        scores = model.words.logits(states, bias=model.bias)
        loss: Tensor = ThresholdedLoss.apply(scores, targets, self.threshold)
        return loss


class ThresholdedLoss(torch.autograd.Function):
    """Cross-entropy whose gradient has only entries of at least `threshold`."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, targets: Tensor, threshold: float) -> Tensor:
        logs = F.log_softmax(scores, -1)
        ctx.save_for_backward(logs, targets)
        ctx.threshold = threshold
        return F.nll_loss(logs, targets)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        logs, targets = ctx.saved_tensors
        gradient = logs.exp()
        gradient[torch.arange(len(targets)), targets] -= 1
        gradient = torch.where(gradient.abs() >= ctx.threshold, gradient, 0.0) / len(targets)
        return gradient * outer[0], None, None


class Noise:
    """Negative words: drawn by their counts (to the power ¾) or by their rank; each is used once. There are
    `draws` draws on average, by a Poisson distribution: so each word is among them independently of all others."""

    def __init__(self, counts: np.ndarray, kind: str, draws: int):
        ranks = np.arange(len(counts))  # words are in the order of their counts
        weights = np.asarray(counts, np.float64) ** 0.75 if kind == "unigram" else np.log1p(1 / (ranks + 1.0))
        weights[PADDING] = 0.0
        weights[1:] = np.maximum(weights[1:], weights[1:][weights[1:] > 0].min(initial=1.0))
        share = weights / weights.sum()
        self.cumulated = torch.from_numpy(np.cumsum(share))
        self.draws = draws
        drawn = -np.expm1(draws * np.log1p(-share))  # P(drawn at least once)
        self.log_expected = torch.from_numpy(np.log(drawn + 1e-300)).float()

    def draw(self) -> Tensor:
        """Different words, sorted: (m,)."""
        n = max(int(torch.poisson(torch.tensor(float(self.draws)))), 1)
        spots = torch.rand(n, dtype=torch.float64) * float(self.cumulated[-1])
        return torch.searchsorted(self.cumulated, spots).clamp(1, len(self.cumulated) - 1).unique()


class Sampled(Output):
    """Softmax over the target and shared negatives, each score less the logarithm of how likely its word is among them: right
    scores have no gradient on average, however few negatives there are."""

    def __init__(self, noise: Noise):
        self.noise = noise

    def __call__(self, model: LanguageModel, states: Tensor, targets: Tensor) -> Tensor:
        negatives = self.noise.draw().to(states.device)
        right, vectors = self.of_targets(model, states, targets, negatives)
        expected = self.noise.log_expected.to(states.device)
        loss: Tensor = SampledSoftmax.apply(
            states, vectors, model.bias[negatives] - expected[negatives], right - expected[targets], negatives, targets
        )
        return loss

    def of_targets(self, model: LanguageModel, states: Tensor, targets: Tensor, negatives: Tensor) -> tuple[Tensor, Tensor]:
        """The targets' scores (n,), and the vectors of the negatives (m, d). Each row is looked up once."""
        ids, where = torch.cat([negatives, targets]).unique(return_inverse=True)
        vectors = model.words(ids)
        right = (states * vectors[where[len(negatives) :]]).sum(-1) + model.bias[targets]
        return right, vectors[where[: len(negatives)]]


class SampledSoftmax(torch.autograd.Function):
    """Mean of log(e^right + Σ e^(states·vectorsᵀ + offsets)) − right, a negative that is the target left out (negatives are
    sorted). Scores and their gradients are made some states at a time: those of all states would be the largest arrays."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, vectors: Tensor, offsets: Tensor, right: Tensor, negatives: Tensor, targets: Tensor
    ) -> Tensor:
        n = len(states)
        at = torch.searchsorted(negatives, targets.contiguous()).clamp(max=len(negatives) - 1)
        hit = negatives[at] == targets
        total = torch.empty_like(right)
        dstates, dvectors, doffsets = torch.empty_like(states), torch.zeros_like(vectors), torch.zeros_like(offsets)
        for first in range(0, n, max(IN_CACHE // len(vectors), 1)):
            some = slice(first, first + max(IN_CACHE // len(vectors), 1))
            scores = torch.addmm(offsets, states[some], vectors.T)
            rows = hit[some].nonzero()[:, 0]
            scores[rows, at[some][rows]] = -torch.inf
            total[some] = torch.logaddexp(scores.logsumexp(1), right[some])
            shares = scores.sub_(total[some].unsqueeze(1)).exp_()
            torch.mm(shares, vectors, out=dstates[some])
            dvectors.addmm_(shares.T, states[some])
            doffsets += shares.sum(0)
        ctx.save_for_backward(dstates / n, dvectors / n, doffsets / n, torch.expm1(right - total) / n)
        return (total - right).mean()

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        return (*(gradient * outer[0] for gradient in ctx.saved_tensors), None, None)


class NoiseContrast(Sampled):
    """NCE: is a word the next one, or noise? Scores less `log_total` are taken as logarithms of probabilities, which they are
    at first, when words are as likely as their counts say. A target that is also drawn as noise is both."""

    def __init__(self, noise: Noise, log_total: float):
        super().__init__(noise)
        self.log_total = log_total

    def __call__(self, model: LanguageModel, states: Tensor, targets: Tensor) -> Tensor:
        negatives = self.noise.draw().to(states.device)
        right, vectors = self.of_targets(model, states, targets, negatives)
        wrong = states @ vectors.T + model.bias[negatives]
        expected = self.noise.log_expected.to(states.device)
        right = right - self.log_total - expected[targets]
        wrong = wrong - self.log_total - expected[negatives]
        return (F.softplus(-right) + F.softplus(wrong).sum(1)).mean()


class Adaptive(Output):
    """torch's adaptive softmax, a table of its own: what people take instead."""

    def __call__(self, model: LanguageModel, states: Tensor, targets: Tensor) -> Tensor:
        assert model.adaptive is not None
        loss: Tensor = model.adaptive(states, targets).loss
        return loss


def starting_biases(counts: np.ndarray, smoothing: float = 0.5) -> Tensor:
    """Words start as likely as they are: (V,), 0 on average."""
    logs = (torch.from_numpy(np.array(counts, np.float32)) + smoothing).log()
    return logs - logs.mean()


def make_output(config: LanguageConfig, counts: np.ndarray | None) -> Output:
    own, threads = config.output, config.machine.threads
    if own.softmax in ("sampled", "nce"):
        assert counts is not None
        noise = Noise(counts, own.noise, own.negatives)
        if own.softmax == "sampled":
            return Sampled(noise)
        return NoiseContrast(noise, float(starting_biases(counts, own.count_smoothing).logsumexp(0)))
    if own.softmax == "adaptive":
        return Adaptive()
    return Full(threads) if own.softmax == "full" else Thresholded(own.threshold)


class Likelihood:
    """states (n, d), targets (n,) → log p of each target among all words but padding (n,), by the model as it is now. Of a
    sparse T only what is not zero is multiplied; of a table that processes share, each takes the words that it holds."""

    @torch.no_grad()
    def __init__(self, model: LanguageModel):
        self.adaptive, self.words = model.adaptive, model.words
        if self.adaptive is not None:
            return
        words = self.words
        self.shared = words.tables[0] if words.tables and words.tables[0].shared else None
        self.sparse = rows_if_sparse(words)
        padding = torch.tensor(PADDING, device=model.bias.device)
        self.bias = model.bias.index_fill(0, padding, -torch.inf if self.sparse is None else IMPOSSIBLE)
        if self.shared is None and self.sparse is None:
            first, self.row_of, self.totals = distinct_rows(words, self.bias)
            self.X, self.A = words.coordinates(first)
        else:
            self.A = next((anchors for _, anchors in words.pairs), None)

    @torch.no_grad()
    def __call__(self, states: Tensor, targets: Tensor) -> Tensor:
        if self.adaptive is not None:
            found: Tensor = self.adaptive(states, targets).output
            return found
        states = states if self.A is None else states @ self.A.T
        rows = self.X[self.row_of[targets]] if self.shared is None and self.sparse is None else self.words.tables[0](targets)
        right = (states * rows).sum(1) + self.bias[targets]
        if self.sparse is not None:
            totals = sparse_log_totals(states.numpy(), self.sparse, self.bias.numpy(), torch.get_num_threads())
            return right - torch.from_numpy(totals)
        if self.shared is not None:
            return right - self.shared.log_total(states, self.bias)
        return right - log_total(self.X, states, self.totals)


def distinct_rows(words: Embedding, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Where words share rows: a word of each row (n,), the row of every word (V,), and log Σ exp(bias) over the words of a row
    (n,). Σ exp(score + bias) over rows is that over words, and only n rows are multiplied."""
    V = words.num_embeddings
    if (shared := words.row_index()) is None:
        every = torch.arange(V, device=bias.device)
        return every, every, bias
    rows, of = shared.unique(return_inverse=True)
    first = torch.full_like(rows, V).scatter_reduce(0, of, torch.arange(V, device=of.device), "amin")
    largest = bias.new_full((len(rows),), torch.finfo(bias.dtype).min).scatter_reduce(0, of, bias, "amax")  # padding has −∞
    return first, of, torch.zeros_like(largest).index_add(0, of, (bias - largest[of]).exp()).log() + largest


def rows_if_sparse(words: Embedding) -> Sparse | None:
    """T by its non-zeros, where that is the faster way to the scores of all words; else None."""
    if not isinstance(words, AnchorEmbedding) or words.rows.shared:
        return None
    weight = words.rows.weight
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        return None
    width = min(words.num_anchors, words.embedding_dim)  # of the dense product
    if words.rows.count_nonzeros() > SPARSE_SHARE * width * words.num_embeddings:
        return None
    T = words.rows.nonzeros()
    starts = np.concatenate([[0], np.cumsum(T.counts, dtype=np.int64)])
    return starts, T.columns, T.values
