"""A corpus → a language model whose table of words, at both ends, is small."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from antembed.data.vocabulary import PADDING, Vocabulary
from antembed.files import JSON
from antembed.language.config import LanguageConfig, read_input
from antembed.language.dataset import LanguageSplits, anchor_words, free_pairs, gather, make_splits
from antembed.language.model import CONTEXT, LSTM, AwdLSTM, LanguageModel, Network, Transformer
from antembed.language.softmax import Likelihood, make_output, starting_biases
from antembed.layer.anchor import AnchorEmbedding
from antembed.layer.anchors.init_weights import init_weights
from antembed.layer.embedding import Embedding
from antembed.layer.optim.prox import FreeEntries
from antembed.train.options import with_options
from antembed.train.task import Batch, Metric, Metrics, Part, Task

PTB_WORDS = 929_588  # of PTB's training part, but for the first
INIT_SCALE = 0.05  # root mean square of the vectors' numbers at the start
STREAMS, WARM = 16, CONTEXT  # evaluation: streams side by side, each warmed up by so many words before its own
CUTOFFS = (0.1, 0.3)  # of adaptive softmax, as shares of the vocabulary


class Language(Task[LanguageConfig, LanguageSplits, LanguageModel]):
    """A language model with a small table of words at both ends."""

    name: ClassVar[str] = "language"
    Config = LanguageConfig
    metric: ClassVar[Metric] = Metric("perplexity", "perplexity")
    examples: ClassVar[str] = "words"
    published: ClassVar[dict[str, Sequence[tuple[float, float]]]] = {
        "paper: full": [(2.0e6, 77.1)],
        "paper: ANT": [(0.65e6, 77.7), (0.41e6, 79.4), (0.27e6, 84.5), (0.05e6, 106.6)],
    }

    def load(self, config: LanguageConfig) -> LanguageSplits:
        splits = make_splits(read_input(config.input), config)
        gather(config, splits)
        return splits

    def build(self, config: LanguageConfig, splits: LanguageSplits) -> LanguageModel:
        torch.manual_seed(config.machine.seed)
        words = splits.vocabulary
        assert words is not None
        tables, V = config.tables, len(words)
        K = min(config.num_anchors(1)[0], V)
        options: JSON = {"counts": torch.from_numpy(np.array(words.counts))} if "counts" in tables.kind.requires else {}
        table = tables.kind(V, tables.embedding_dim, PADDING, num_anchors=K, sparse=config.row_sparse, **options)
        anchors = anchor_words(config, splits, K)
        if isinstance(table, AnchorEmbedding):
            _init_anchors(table, splits, anchors, config.machine.seed)
        _rescale(table)
        adaptive = None
        if config.output.softmax == "adaptive":
            cutoffs = sorted({max(int(share * V), 1) for share in CUTOFFS})
            adaptive = nn.AdaptiveLogSoftmaxWithLoss(tables.embedding_dim, V, cutoffs)
        model = LanguageModel(table, make_network(config), word_dropout=tables.word_dropout, adaptive=adaptive)
        model.anchor_ids = anchors
        model.bias.data.copy_(starting_biases(words.counts, config.output.count_smoothing))
        model.output = make_output(config, words.counts)
        return model.to(config.solver.train.device)

    def loss(self, model: LanguageModel, batch: Batch) -> Tensor:
        words, begin, targets = batch
        states = model(words, bool(begin))
        assert model.output is not None
        total = model.output(model, states.flatten(0, 1), targets)
        penalty = model.network.penalty()
        return total if penalty is None else total + penalty

    def rates(self, config: LanguageConfig, splits: LanguageSplits, model: LanguageModel) -> list[tuple[Tensor, float]]:
        rate = config.solver.optimizer.network_rate
        return [] if rate == 1 else [(model.bias, rate)]  # the network is in the optimizer group of the biases

    def free_entries(self, splits: LanguageSplits, model: LanguageModel) -> dict[str, FreeEntries]:
        free = free_pairs(splits, model.anchor_ids)
        if free is None:
            return {}
        ((rows, _),) = model.words.pairs
        words, anchors = map(torch.from_numpy, free)
        return {"words": FreeEntries(words, anchors, (rows.num_embeddings, rows.embedding_dim))}

    @torch.no_grad()
    def evaluate(self, model: LanguageModel, splits: LanguageSplits, part: Part) -> Metrics:
        """Perplexity over every word of the part but its first, among all words. Streams are read side by side; each is warmed
        up by the words before it, which are not counted, so that its state is that of one long stream."""
        source = splits.streams(part)
        words, n = np.asarray(source.words), len(source)
        if n < 1:
            raise ValueError(f"nothing to evaluate: the {part} part has {len(words)} words")
        model.eval()
        kept, total, likelihood = model.state, 0.0, Likelihood(model)
        model.state = None
        for block, counted in _evaluation_blocks(words, source.length):
            ids = torch.from_numpy(block).to(source.device)
            states = model(ids[:-1], begin=counted is None)
            if counted is None:  # the words before
                continue
            targets, mask = ids[1:].reshape(-1), torch.from_numpy(counted.reshape(-1)).to(source.device)
            total -= float(likelihood(states.flatten(0, 1)[mask], targets[mask]).double().sum())
        model.state = kept
        loss = total / n
        return {"loss": loss, "perplexity": math.exp(min(loss, 700)), "bits": loss / math.log(2), "examples": n}

    def baselines(self, splits: LanguageSplits) -> dict[str, float]:
        """The perplexity of words by their counts."""
        words, test = splits.vocabulary, np.asarray(splits.test.words)
        if words is None or len(test) < 2:
            return {}
        counts = np.asarray(words.counts, np.float64) + 1
        counts[PADDING] = 0
        logs = np.log(np.maximum(counts, 1e-300) / counts.sum())
        return {"words by their counts": float(np.exp(-logs[test[1:]].mean()))}

    def facts(self, splits: LanguageSplits, model: LanguageModel) -> JSON:
        words = splits.vocabulary
        assert words is not None
        named = None if model.anchor_ids is None else [words.words[word] for word in model.anchor_ids]
        free = free_pairs(splits, model.anchor_ids)
        return {
            "words": len(words),
            "tokens": {part: max(len(splits.streams(part).words) - 1, 0) for part in ("train", "validation", "test")},
            "anchor_words": named,
            "free_entries": 0 if free is None else len(free[0]),
            "examples": splits.count,
            "sha256": splits.digest,
        }

    def details(self, config: LanguageConfig, splits: LanguageSplits, model: LanguageModel) -> JSON:
        return {"model": config.tables.model, "softmax": config.output.softmax, "words": model.words.num_embeddings}

    def reopen(self, config: LanguageConfig, facts: JSON, folder: Path) -> LanguageSplits:
        return LanguageSplits(vocabulary=Vocabulary.read(folder / "vocabulary.parquet"))

    def for_evaluation(self, config: LanguageConfig) -> LanguageConfig:
        return with_options(config, anchor_init="none", relations=(), wordnet="")

    def is_published(self, splits: LanguageSplits) -> bool:
        return splits.vocabulary is not None and len(splits.train) == PTB_WORDS


def make_network(config: LanguageConfig) -> Network:
    """What is between the two ends."""
    own = config.tables
    d, hidden, layers, dropout = own.embedding_dim, own.hidden, own.layers, own.dropout
    if own.model == "transformer":
        return Transformer(d, hidden, layers, dropout, own.heads)
    if own.model == "awd-lstm":
        return AwdLSTM(d, hidden, layers, dropout, own.weight_dropout, own.activation_penalty, own.slowness_penalty)
    return LSTM(d, hidden, layers, dropout)


@torch.no_grad()
def _init_anchors(table: AnchorEmbedding, splits: LanguageSplits, anchors: np.ndarray | None, seed: int) -> None:
    """Anchors that are words at those words; else of both signs, since parallel anchors stay so."""
    if anchors is None:
        table.anchors.normal_(std=table.embedding_dim**-0.5)
        return
    V, K = table.num_embeddings, table.num_anchors
    related = free_pairs(splits, anchors)
    about: JSON = {"anchors": anchors, "features": splits.features, "related": related}
    about["rows"] = table.rows.own(torch.arange(V)).numpy()
    T, A = init_weights(V, K, table.embedding_dim, small=0.1, padding=PADDING, seed=seed, **about)
    table.rows.weight.copy_(T)
    table.anchors.copy_(A)


@torch.no_grad()
def _rescale(table: Embedding) -> None:
    """Vectors start at one scale, whatever the embedding; anchors have length 1, so that T moves them as far as it moves."""
    for _, anchors in table.pairs:
        lengths = anchors.norm(dim=1, keepdim=True).clamp(min=1e-12)
        anchors.div_(lengths)
    vectors = table(torch.arange(1, min(table.num_embeddings, 4096)))
    scale = INIT_SCALE / max(float(vectors.square().mean().sqrt()), 1e-12)
    for rows in [rows for rows, _ in table.pairs] or table.tables[:1]:
        rows.weight.mul_(scale)


def _evaluation_blocks(words: np.ndarray, length: int) -> "list[tuple[np.ndarray, np.ndarray | None]]":
    """Blocks (L + 1, B) of words, and which of their targets are counted; None: words before the streams, for the state."""
    n = len(words) - 1
    B = max(min(STREAMS, n // (4 * WARM)), 1)
    span = -(-n // B)
    begins = np.minimum(np.arange(B) * span, n)
    ends = np.minimum(begins + span, n)
    warm = begins[:, None] + np.arange(-WARM, 1)[None, :]
    blocks: list[tuple[np.ndarray, np.ndarray | None]] = []
    if B > 1:
        blocks.append((words[np.maximum(warm, 0)].T.astype(np.int64), None))
    for at in range(0, span, max(length, WARM)):
        step = min(max(length, WARM), span - at)
        rows = begins[:, None] + at + np.arange(step + 1)[None, :]
        counted = (rows[:, :-1] < ends[:, None]).T
        blocks.append((words[np.minimum(rows, n)].T.astype(np.int64), counted))
    return blocks
