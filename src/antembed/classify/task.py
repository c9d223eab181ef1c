"""Train a text classifier: a network over a small table of words."""

from pathlib import Path
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F
from scipy import sparse
from torch import Tensor

from antembed.baselines.sparse_code import sparse_codes
from antembed.classify.config import NO_KNOWLEDGE, TextConfig, read_input
from antembed.classify.dataset import TextSplits, largest_class, make_splits
from antembed.classify.documents import Documents
from antembed.classify.model import EVALUATION_BATCH, MODELS, CnnPredictor, TextModel
from antembed.classify.predictor import TextPredictor, light_predictor
from antembed.data.download import find_data
from antembed.data.vector_files import read_vectors
from antembed.data.vocabulary import PADDING, Vocabulary
from antembed.files import JSON
from antembed.layer.anchor import AnchorEmbedding
from antembed.layer.anchors.initializers import INITIALIZERS, scores
from antembed.layer.anchors.regularizers import UnrelatedPairs, negative_pairs, orthogonality
from antembed.layer.embedding import Embedding
from antembed.layer.mixture import MixtureEmbedding
from antembed.train.options import with_options
from antembed.train.run_folder import RunFolder
from antembed.train.task import Batch, Metric, Metrics, Part, Regularizer, Task, Terms
from antembed.train.word_anchors import init_anchors_

PRETRAINING_EPOCHS = 3  # of the model whose surviving words are the anchors (group-lasso, vvd)
INIT_SCALE = 0.1  # root mean square of the vectors' numbers at the start, whatever the embedding
ANCHOR_LENGTH = 10.0  # at the start: a step of T moves a vector by as much, and T starts at some hundredths
SAMPLE = 4096  # words to measure the scale by
PAIRS = 256  # unrelated ones a step,
MANY = 64  # drawn among a batch's words if it has so many


class Text(Task[TextConfig, TextSplits, TextModel]):
    """A classifier of text: a network over a small table of words."""

    name: ClassVar[str] = "classify"
    Config = TextConfig
    metric: ClassVar[Metric] = Metric("error", "error rate", "accuracy", select_by="error")
    examples: ClassVar[str] = "documents"

    def load(self, config: TextConfig) -> TextSplits:
        documents, test = read_input(config.input, config.input.min_count, config.input.max_vocab)
        splits = self.split(config, documents, test)
        splits.files = tuple(str(find_data(name)) for name in (config.input.data, config.input.test) if name)
        return splits

    def split(self, config: TextConfig, documents: Documents, test: Documents | None = None) -> TextSplits:
        """The parts of documents in memory, and what the config wants to know of their words."""
        machine, device, dropped = config.machine, config.solver.train.device, config.tables.word_dropout
        splits = make_splits(documents, test, machine.seed, device=device, threads=machine.threads, word_dropout=dropped)
        _gather(config, splits)
        return splits

    def pretraining(self, config: TextConfig) -> TextConfig | None:
        """Anchors that survive in a model that is trained once, a mean-pooled one of the initializer's embedding."""
        name = config.anchors.anchor_init
        if name == "none" or not INITIALIZERS[name].trains:
            return None
        quick = {"model": "mean", "embedding": INITIALIZERS[name].trains, "budget": "", "orthogonality_penalty": 0.0}
        return with_options(config, **NO_KNOWLEDGE, **quick, epochs=PRETRAINING_EPOCHS)

    def use_pretrained(self, splits: TextSplits, model: TextModel) -> None:
        splits.scores = model.words.to_dense().norm(dim=1).detach().cpu().numpy()

    def build(self, config: TextConfig, splits: TextSplits) -> TextModel:
        torch.manual_seed(config.machine.seed)
        vocabulary = splits.vocabulary
        assert vocabulary is not None
        K = min(config.num_anchors(1)[0], len(vocabulary))
        anchors = splits.anchor_words(config.anchors.anchor_init, K, config.machine.seed)
        kind, options = config.tables.kind, _statistics(config, vocabulary)
        if "features" in kind.requires and splits.features is not None:
            common = torch.arange(2, K + 2)  # words are in the order of their counts, behind padding and unknown
            options["codes"] = sparse_codes(torch.from_numpy(splits.features), common)
        table = kind(len(vocabulary), config.tables.embedding_dim, PADDING, num_anchors=K, sparse=True, **options)
        init_table_(table, splits, anchors, config.machine.seed)
        model = MODELS[config.tables.model](table, len(splits.classes), dropout=config.tables.dropout)
        model.anchor_ids = anchors
        model.details = {"model": config.tables.model, "words": len(vocabulary)}
        return model.to(config.solver.train.device)

    def loss(self, model: TextModel, batch: Batch) -> Tensor:
        words, starts, labels = batch
        return F.cross_entropy(model(words, starts), labels)

    def terms(self, config: TextConfig, splits: TextSplits, model: TextModel) -> Terms:
        return Terms(self.regularizers(config, splits, model), splits.free_entries(model.words, model.anchor_ids))

    def regularizers(self, config: TextConfig, splits: TextSplits, model: TextModel) -> list[Regularizer]:
        own, found = config.anchors, list[Regularizer]()
        if own.unrelated_penalty:
            found.append(_unrelated(own.unrelated_penalty, splits, model.words, config.machine.seed))
        if own.orthogonality_penalty:
            found += [_orthogonal(own.orthogonality_penalty, A) for _, A in model.words.pairs]
        if ridge := config.solver.ridge(len(splits.train)):
            model.words.set_ridge(ridge, splits.lookups() * (1 - config.tables.word_dropout))
            found.append(lambda batch, step: model.words.ridge(batch[0], len(batch[-1])))
        return found

    @torch.no_grad()
    def evaluate(self, model: TextModel, splits: TextSplits, part: Part) -> Metrics:
        """Loss and accuracy over documents. A label of −1 is a class that was not trained: no loss, and wrong in any case."""
        total, right, known, n = 0.0, 0, 0, 0
        for words, starts, labels in splits.part(part).batches(EVALUATION_BATCH):
            outputs, seen = model.eval()(words, starts), labels >= 0
            total += float(F.cross_entropy(outputs[seen].double(), labels[seen], reduction="sum"))
            right += int((outputs.argmax(1) == labels).sum())
            known += int(seen.sum())
            n += len(labels)
        if known == 0:
            raise ValueError(f"nothing to evaluate: {n} documents, 0 of them of a known class")
        return {"loss": total / known, "accuracy": right / n, "error": 1 - right / n, "examples": n}

    def baselines(self, splits: TextSplits) -> dict[str, float]:
        return largest_class(splits)

    def facts(self, splits: TextSplits, model: TextModel) -> JSON:
        own: JSON = {"without_vector": splits.without_vector}
        return splits.about() | own | splits.anchor_facts(model.anchor_ids)

    def reopen(self, config: TextConfig, facts: JSON, folder: Path) -> TextSplits:
        return TextSplits(vocabulary=Vocabulary.read(folder / "vocabulary.parquet"), classes=facts["classes"])

    def predictor(self, folder: Path) -> TextPredictor:
        return light_predictor(folder) or CnnPredictor(folder)


def _gather(config: TextConfig, splits: TextSplits) -> None:
    """What the config wants to know of the words; co-occurrences are those of the training documents."""
    own = config.anchors
    assert splits.train.documents is not None
    if own.vectors:
        found = read_vectors(own.vectors, splits.train.documents.vocabulary.words)
        splits.features, splits.without_vector = found.vectors, found.missing
    if own.relations or config.wants_features:
        train = splits.train.documents.take(splits.train.rows)
        text = (train.tokens, train.starts)
        splits.gather(text, own.relations, own.wordnet, config.machine.seed, config.wants_features and not own.vectors)


def _statistics(config: TextConfig, vocabulary: Vocabulary) -> JSON:
    """How much each word counts, for embeddings that give more to some words than to others."""
    for name, kind in (("counts", "frequency"), ("tf-idf", "tf-idf")):
        if name in config.tables.kind.requires:
            return {"counts": torch.from_numpy(scores(vocabulary, kind))}
    return {}


def _orthogonal(weight: float, anchors: Tensor) -> Regularizer:
    """Anchors that point the same way."""
    return lambda batch, step: weight * orthogonality(anchors, cosine=True)


def _unrelated(weight: float, splits: TextSplits, table: Embedding, seed: int) -> Regularizer:
    """Unrelated words that share anchors."""
    V = table.num_embeddings
    draw = UnrelatedPairs(sparse.csr_array((V, V)) if splits.relations is None else splits.relations, seed=seed)
    ((rows, _),) = table.pairs

    def penalty(batch: Batch, step: int) -> Tensor:
        words = batch[0]
        few = len(torch.unique(words)) < MANY  # the last batch may be short
        u, v = (ids.to(words.device) for ids in draw(PAIRS, step, None if few else words.cpu()))
        return weight / PAIRS * negative_pairs(rows(u), rows(v))

    return penalty


@torch.no_grad()
def init_table_(table: Embedding, splits: TextSplits, anchors: np.ndarray | None, seed: int) -> None:
    """Start the vectors at one scale, whatever the embedding; anchors that are words at those words."""
    if isinstance(table, AnchorEmbedding):
        init_anchors_(table, splits, anchors, seed)
    free = [pair for pair in table.pairs if pair[0].weight.requires_grad]
    for rows, anchors_ in free:
        # What anchors have in common is in every vector, whatever T is.
        if isinstance(table, MixtureEmbedding) and len(anchors_) > 1:
            anchors_.sub_(anchors_.mean(0))
        # A share of K moves by a K-th of its weight.
        longer = ANCHOR_LENGTH * (len(anchors_) ** 0.5 if table.softmax else 1.0) / float(anchors_.norm(dim=1).mean())
        anchors_.mul_(longer)
        rows.weight.div_(longer)
    vectors = table(torch.arange(1, min(table.num_embeddings, SAMPLE)))
    scale = INIT_SCALE / max(float(vectors.square().mean().sqrt()), 1e-12)
    for rows, anchors_ in table.pairs:
        (rows.weight if free else anchors_).mul_(scale)
    if not table.pairs:
        table.tables[0].weight.mul_(scale)


def open_predictor(run: str | Path) -> TextPredictor:
    """A finished run, or an export of one, as a classifier."""
    task = RunFolder(run).task()
    if not isinstance(task, Predicts):
        raise ValueError(f"a run of {task.name} predicts no classes")
    return task.predictor(RunFolder(run).path)


@runtime_checkable
class Predicts(Protocol):
    """A task whose finished runs are classifiers."""

    def predictor(self, folder: Path) -> TextPredictor: ...
