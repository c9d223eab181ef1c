"""Train a language model whose table of words, at both ends, is small; and use it: perplexity of texts, generated text."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from antembed.data.vocabulary import PADDING, UNKNOWN, Vocabulary
from antembed.files import JSON
from antembed.language.config import LanguageConfig, read_input
from antembed.language.corpus import END, words_of_text
from antembed.language.dataset import LanguageSplits, Streams, gather, make_splits
from antembed.language.model import CONTEXT, LSTM, AwdLSTM, LanguageModel, Network, Transformer
from antembed.language.softmax import Likelihood, make_output, starting_biases
from antembed.layer.anchor import AnchorEmbedding
from antembed.layer.embedding import Embedding
from antembed.tables.model_folder import check_files, read_description, read_weights
from antembed.tables.save import load_table
from antembed.train.config import TaskConfig
from antembed.train.model import StoredVectors
from antembed.train.task import Batch, Metric, Metrics, Part, Task, Terms
from antembed.train.word_anchors import init_anchors_

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
        anchors = splits.anchor_words(config.anchors.anchor_init, K, config.machine.seed)
        if isinstance(table, AnchorEmbedding):
            init_anchors_(table, splits, anchors, config.machine.seed)
        _rescale(table)
        adaptive = None
        if config.output.softmax == "adaptive":
            cutoffs = sorted({max(int(share * V), 1) for share in CUTOFFS})
            adaptive = nn.AdaptiveLogSoftmaxWithLoss(tables.embedding_dim, V, cutoffs)
        model = LanguageModel(table, make_network(config), word_dropout=tables.word_dropout, adaptive=adaptive)
        model.anchor_ids = anchors
        model.details = {"model": tables.model, "softmax": config.output.softmax, "words": V}
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

    def terms(self, config: LanguageConfig, splits: LanguageSplits, model: LanguageModel) -> Terms:
        rate = config.solver.optimizer.network_rate
        rates = [] if rate == 1 else [(model.bias, rate)]  # the network is in the optimizer group of the biases
        return Terms((), splits.free_entries(model.words, model.anchor_ids), rates=rates)

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
        tokens = {part: max(len(splits.streams(part).words) - 1, 0) for part in ("train", "validation", "test")}
        return {"tokens": tokens, **splits.anchor_facts(model.anchor_ids)}

    def reopen(self, config: LanguageConfig, facts: JSON, folder: Path) -> LanguageSplits:
        return LanguageSplits(vocabulary=Vocabulary.read(folder / "vocabulary.parquet"))

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
def _rescale(table: Embedding) -> None:
    """Vectors start at one scale, whatever the embedding; anchors have length 1, so that T moves them as far as it moves."""
    for _, anchors in table.pairs:
        anchors.div_(anchors.norm(dim=1, keepdim=True).clamp(min=1e-12))
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


class TextGenerator:
    """A finished run, an export or LanguageModel.save: words.ant, vocabulary.parquet and the network's weights."""

    def __init__(self, folder: str | Path):
        folder = Path(folder)
        about = read_description(folder)
        task = about["config"]["task"]
        if task != Language.name:
            raise ValueError(f"{folder} is a run of {task}, not of {Language.name}; it writes no text")
        check_files(folder, "words.ant", "vocabulary.parquet")
        config: TaskConfig = LanguageConfig.model_validate(about["config"])
        assert isinstance(config, LanguageConfig)
        if config.output.softmax == "adaptive":
            raise ValueError(f"{folder} has an adaptive softmax, a peer to compare with; train with another to use the model")
        self.vocabulary = Vocabulary.read(folder / "vocabulary.parquet")
        table = load_table(folder / "words.ant")
        if table.num_embeddings != len(self.vocabulary):
            raise ValueError(f"{folder}: {table.num_embeddings} vectors for {len(self.vocabulary)} words; export it anew")
        self.model = LanguageModel(cast(Embedding, StoredVectors(table)), make_network(config))
        self.model.use_file("words", table)
        weights = {name: torch.from_numpy(array) for name, array in read_weights(folder, ("words", "bias")).items()}
        self.model.network.load_state_dict(
            {name.removeprefix("network."): weight for name, weight in weights.items() if name != "bias"}
        )
        self.model.eval()

    def ids(self, text: str) -> np.ndarray:
        """The words of a text as ids; a newline is the end of a sentence, unknown words are <unk>."""
        return self.vocabulary.ids(words_of_text(text))

    def perplexity(self, text: str) -> float:
        """Of a text, its first word given."""
        words = self.ids(text)
        if len(words) < 2:
            raise ValueError(f"a text of {len(words)} words has no perplexity; give 2 or more")
        return Language().evaluate(self.model, LanguageSplits(test=Streams(words)), "test")["perplexity"]

    @torch.no_grad()
    def generate(
        self, prompt: str = "", *, words: int = 50, temperature: float = 1.0, top_k: int = 0, seed: int | None = None
    ) -> str:
        """The prompt, and so many words more. `temperature` 0: always the likeliest word; `top_k`: among so many, 0: all."""
        if temperature < 0 or top_k < 0 or words < 0:
            raise ValueError(f"words, temperature and top_k must be ≥ 0, got {words}, {temperature} and {top_k}")
        random = torch.Generator()
        random.manual_seed(seed) if seed is not None else random.seed()
        known = self.vocabulary.words
        start = self.ids(prompt)
        if not len(start):
            start = self.vocabulary.ids([END if END in known else known[min(2, len(known) - 1)]])
        self.model.state = None
        hidden = self.model(torch.from_numpy(start.astype(np.int64)).unsqueeze(1))[-1, 0]
        written = list(words_of_text(prompt))
        for _ in range(words):
            scores = self.model.words.logits(hidden, bias=self.model.bias)
            scores[[PADDING, UNKNOWN]] = -torch.inf
            word = _drawn(scores, temperature, top_k, random)
            written.append(known[word])
            hidden = self.model(torch.tensor([[word]]))[-1, 0]
        self.model.state = None
        return " ".join(written).replace(f" {END} ", "\n").replace(END, "\n").strip("\n")


def _drawn(scores: torch.Tensor, temperature: float, top_k: int, random: torch.Generator) -> int:
    scores = scores - scores.max()
    if scores.isnan().any():
        raise ValueError("the model's scores are not finite numbers; was its training loss finite?")
    if temperature == 0:
        return int(scores.argmax())
    if top_k:
        least = scores.topk(min(top_k, len(scores))).values[-1]
        scores = scores.masked_fill(scores < least, -torch.inf)
    return int(torch.multinomial(torch.softmax(scores / temperature, 0), 1, generator=random))
