"""Labelled text → a classifier with a small table of words: the whole way, top to bottom."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy import sparse
from torch import Tensor

from antembed.anchors import UnrelatedPairs, negative_pairs, orthogonality
from antembed.data import Examples
from antembed.data.batches import permutation
from antembed.data.documents import Documents, read_documents
from antembed.data.text import DataError
from antembed.data.vocabulary import Vocabulary
from antembed.embedding import Embedding, FullEmbedding, param_groups
from antembed.files import write_atomically
from antembed.optim import OPTIMIZERS, FreeEntries
from antembed.pipelines import tiny
from antembed.pipelines.job import count_parameters
from antembed.pipelines.knowledge import Knowledge, gather
from antembed.pipelines.steps import learn, schedules
from antembed.pipelines.text import TextSettings, build_model
from antembed.serving import Table, export, load_table, serialize
from antembed.tasks.classify import TextModel, evaluate
from antembed.training import Engine, RunFolder, Tick, TorchEngine, load_checkpoint, save_checkpoint
from antembed.training.budget import Budget, parse_budget
from antembed.training.schedule import ramp

EVALUATION_BATCH = 512
HELD_BACK = 10  # one in so many documents for validation, and as many again for the test, if there is no file of them
PAIRS = 256  # unrelated ones a step,
MANY = 64  # drawn among a batch's words if it has so many
SELECTION_EPOCHS = 3  # of the bag that says which words are anchors (group-lasso, vvd)
FORMS = (("int8", "auto"), ("fp16", "auto"), ("int8", "packed"))
LARGE = 4_000_000  # numbers in a table from which int8 alone is tried out


@dataclass(frozen=True)
class TextJob:
    """Data and model of a run, ready to be trained or judged."""

    settings: TextSettings
    model: TextModel
    documents: dict[str, Documents]  # of each part
    parts: dict[str, Examples]  # train, validation, test: places of documents, and their classes
    known: Knowledge = field(default_factory=Knowledge)

    @property
    def tables(self) -> dict[str, Embedding]:
        return self.model.tables

    def batch(self, places: Tensor, part: str) -> tuple[Tensor, Tensor]:
        """The words of these documents one after the other, and where each begins."""
        taken = self.documents[part].take(places.cpu().numpy())
        device = self.settings.device
        return torch.from_numpy(taken.tokens).to(device), torch.from_numpy(taken.starts).to(device)

    def engine(self, optimizer: Any) -> Engine:
        engine = TorchEngine(self.model, optimizer, lambda _, batch: self.loss(batch, engine.step))
        return engine

    def loss(self, batch: tuple[Tensor, ...], step: int) -> Tensor:
        """Cross-entropy, and what the settings add to it: a KL, unrelated pairs that share anchors, anchors not orthogonal."""
        settings, table = self.settings, self.model.embedding
        places, labels = batch
        words, starts = self.batch(places, "train")
        if settings.word_dropout:
            words, starts = without_some(words, starts, settings.word_dropout)
        loss = F.cross_entropy(self.model(words, starts), labels.long())
        kl = table.divergence()
        if kl is not None:
            n = len(self.parts["train"])
            warm = ramp(round(settings.l1_ramp * settings.epochs * n / settings.batch_size))
            loss = loss + warm(step) / n * kl
        for T, A in table.pairs:
            if settings.negative:
                few = len(torch.unique(words)) < MANY  # the last batch may be short
                u, v = (ids.to(words.device) for ids in self.unrelated(PAIRS, step, None if few else words.cpu()))
                loss = loss + settings.negative / PAIRS * negative_pairs(T(u), T(v))
            if settings.orthogonal:
                loss = loss + settings.orthogonal * orthogonality(A, cosine=True)
        return loss

    @cached_property
    def unrelated(self) -> UnrelatedPairs:
        V, relations = self.model.embedding.num_embeddings, self.known.relations
        return UnrelatedPairs(sparse.csr_array((V, V)) if relations is None else relations, seed=self.settings.seed)

    def judge(self, part: str) -> dict[str, float] | None:
        """Loss and accuracy on one part of the data; None if there is no such part."""
        examples, model = self.parts[part], self.model.eval()
        if not len(examples):
            return None
        with torch.no_grad():
            batches = examples.batches(EVALUATION_BATCH)
            return evaluate((model(*self.batch(places, part)), labels.long()) for places, labels in batches)

    def judge_file(self, part: str, table: Table) -> dict[str, float] | None:
        """The same with the vectors of a file, whose numbers may be coarser."""
        kept, coarse = (
            self.model.embedding,
            FullEmbedding(table.num_embeddings, table.embedding_dim, device=self.settings.device),
        )
        coarse.rows.weight.data.copy_(torch.from_numpy(table[np.arange(table.num_embeddings)]))
        self.model.embedding = coarse
        try:
            return self.judge(part)
        finally:
            self.model.embedding = kept

    def validate(self) -> dict[str, float]:
        judged = self.judge("validation")
        assert judged is not None
        return judged

    def size(self, unit: str) -> float:
        """What a budget counts: parameters of the table, or bytes of its file."""
        table = self.model.embedding
        if unit == "parameters":
            return count_parameters(*table.factors())
        T, A, row_index = (
            None if part is None else part.detach().cpu().numpy() for part in (*table.factors(), table.row_index())
        )
        assert T is not None
        return len(serialize(T, A, row_index=row_index, values=self.settings.stored, encoding=self.settings.encoding))

    def budget(self) -> Budget:
        return parse_budget(self.settings.budget, full_bytes(self.settings, self.model.embedding.num_embeddings))


def full_bytes(settings: TextSettings, words: int) -> int:
    """Of a full table of this width, in fp32."""
    return 4 * words * settings.dimensions


def without_some(words: Tensor, starts: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Drop each word with this probability: documents are not learned by heart, and no word is relied on alone."""
    kept = torch.rand(len(words), device=words.device) >= share
    before = torch.cat([starts.new_zeros(1), kept.cumsum(0)])
    return words[kept], before[starts]


def read(settings: TextSettings) -> tuple[Documents, Documents | None]:
    """Documents to learn from, and to be tested by if there is a file of them."""
    columns: dict[str, Any] = {"text": settings.text, "label": settings.label, "length": settings.length}
    learned = read_documents(settings.data, **columns, min_count=settings.min_count, max_vocab=settings.max_vocab or None)
    if not settings.test:
        return learned, None
    return learned, read_documents(settings.test, **columns, vocabulary=learned.vocabulary, classes=learned.classes)


def prepare(settings: TextSettings, learned: Documents, test: Documents | None = None) -> TextJob:
    """Cut the documents into parts, gather what is known of the words, make the model."""
    labelled = np.flatnonzero(learned.labels >= 0)
    order = labelled[permutation(len(labelled), settings.seed)]
    n = len(order) // HELD_BACK
    if n < 1 or len(order) < 3 * n:
        raise DataError(f"{len(order)} documents with a class are too few, {HELD_BACK} are enough; is --label right?")
    if test is not None and not (test.labels >= 0).any():
        raise DataError(f"{settings.test}: of {len(test)} documents 0 are of a class that is trained; is --label right?")
    rows = {"validation": order[:n], "test": order[n : 2 * n], "train": order[2 * n :]}
    documents = dict.fromkeys(rows, learned)
    if test is not None:
        rows |= {"train": order[n:], "test": np.arange(len(test))}
        documents["test"] = test
    parts = {
        name: Examples((np.arange(len(held)), held.labels), rows[name], settings.device, settings.threads)
        for name, held in documents.items()
    }
    known = gather(settings, learned.take(rows["train"]), lambda choice: selection(settings, learned, test, choice))
    model = build_model(settings, len(learned.vocabulary), len(learned.classes), learned.vocabulary, known)
    return TextJob(settings, model, documents, parts, known)


def selection(settings: TextSettings, learned: Documents, test: Documents | None, choice: str) -> np.ndarray:
    """How much each word counts to a bag of words that is trained once, with words that drop out: lengths of its vectors."""
    others = {"model": "bag", "embedding": choice, "budget": "", "orthogonal": 0.0, "epochs": SELECTION_EPOCHS}
    quick = settings.without_knowledge(**others)
    with TemporaryDirectory() as folder:
        train(quick, Path(folder) / "run", learned=learned, test=test)
        model, _, _ = reopen_model(Path(folder) / "run")
    return model.embedding.to_dense().norm(dim=1).detach().cpu().numpy()


def train(
    settings: TextSettings,
    out: str | Path,
    *,
    resume: bool = False,
    learned: Documents | None = None,
    test: Documents | None = None,
    tell: Callable[[Tick], None] = lambda tick: None,
) -> dict[str, Any]:
    """Train, judge, export; → what was measured. `learned` and `test` are for callers that have them in memory."""
    if learned is None:
        learned, test = read(settings)
    job, folder = prepare(settings, learned, test), RunFolder(out)
    lr, l1 = (schedule(0) for schedule in schedules(settings, len(job.parts["train"])))
    optimizer = optimizer_for(job, lr, l1)
    begin(job, folder, resume)
    learn(job, optimizer, folder, best_by="error", patience=settings.patience, resume=resume, tell=tell)
    save_checkpoint(folder.final, job.model, None, {"epochs": settings.epochs})
    export(job.model.embedding, folder.path / "words.ant", values=settings.stored, encoding=settings.encoding)
    result = measure(job, folder)
    write_atomically(folder.result_file, json.dumps(result, indent=2).encode())
    return result


def optimizer_for(job: TextJob, lr: float, l1: float) -> Any:
    """With the entries of T that cost nothing."""
    settings, free = job.settings, job.known.free
    groups = param_groups(job.model, l1, settings.l2)
    if free is not None:
        (rows, _), *_ = job.model.embedding.pairs
        group = next(group for group in groups if group.get("table") is rows)
        group["prox"].free = FreeEntries(
            torch.from_numpy(free[0]), torch.from_numpy(free[1]), (rows.num_embeddings, rows.embedding_dim)
        )
    more = {"yogi": {"eps": settings.eps, "initial_second": settings.eps**2}, "adam": {"eps": settings.eps}}
    return OPTIMIZERS[settings.optimizer](groups, lr=lr, **more.get(settings.optimizer, {}))


def begin(job: TextJob, folder: RunFolder, resume: bool) -> None:
    """Make the folder of the run, or find it."""
    learned, anchors = job.documents["train"], job.known.anchors
    about = {
        "task": "classify",
        "classes": learned.classes,
        "words": len(learned.vocabulary),
        "documents": {name: len(part) for name, part in job.parts.items()},
        "anchor_words": None if anchors is None else [learned.vocabulary.words[word] for word in anchors],
        "free_entries": 0 if job.known.free is None else len(job.known.free[0]),
        "without_vector": job.known.without_vector,
    }
    folder.create(json.loads(json.dumps(asdict(job.settings) | about)), resume)
    learned.vocabulary.write(folder.path / "vocabulary.parquet")


def measure(job: TextJob, folder: RunFolder) -> dict[str, Any]:
    """What a run has come to: accuracy of the model, size of the files."""
    model, rows, settings = job.model.eval(), folder.rows(), job.settings
    usage, file = model.embedding.usage(), load_table(folder.path / "words.ant")
    return {
        "task": "classify",
        "model": settings.model,
        "embedding": settings.embedding,
        "anchors": usage.anchors_in_use,
        "metric": "accuracy",
        "validation": job.judge("validation"),
        "test": job.judge("test") if settings.stored == "fp32" else job.judge_file("test", file),
        "words": len(job.documents["train"].vocabulary),
        "parameters": usage.parameters,
        "other_parameters": model.rest(),
        "nnz": usage.nnz,
        "bytes": file.size,
        "encoding": file.encoding,
        "smaller_files": smaller_files(job),
        "free_entries": 0 if job.known.free is None else len(job.known.free[0]),
        "seconds": round(sum(row["seconds"] for row in rows), 3),
        "epochs": rows[-1]["epoch"] if rows else 0,
        "seed": settings.seed,
    }


def smaller_files(job: TextJob) -> dict[str, dict[str, float]]:
    """What coarser numbers and tighter packing make of the table: bytes on disk, and the accuracy of what is read back."""
    found, numbers = {}, job.model.embedding.factors()[0].numel()
    for values, encoding in FORMS if numbers < LARGE else FORMS[:1]:
        with TemporaryDirectory() as name:
            table = export(job.model.embedding, Path(name) / "words.ant", values=values, encoding=encoding)
        judged = job.judge_file("test", table)
        if judged is not None:
            found[values if encoding == "auto" else f"{values} {encoding}"] = {
                "bytes": table.size,
                "test_accuracy": judged["accuracy"],
            }
    return found


def settings_of(folder: RunFolder) -> tuple[TextSettings, dict[str, Any]]:
    """A run's settings, and what it remembers of its data."""
    told = folder.config()
    if told.get("task") != "classify":
        raise ValueError(f"{folder.path} is a run of {told.get('task')}, not of classify")
    own = {field.name for field in fields(TextSettings)}
    config: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in told.items() if name in own
    }
    return TextSettings(**config), {name: value for name, value in told.items() if name not in own}


def reopen_model(run: str | Path) -> tuple[TextModel, Vocabulary, dict[str, Any]]:
    """A run's model, its words, and what it remembers of its data, which are not needed."""
    folder = RunFolder(run)
    settings, remembered = settings_of(folder)
    if settings.model == "tiny":
        raise ValueError(f"{folder.path} is a tiny classifier: {tiny.FILE} is all of it, and there is no table of words")
    folder.must_be_finished()
    vocabulary = Vocabulary.read(folder.path / "vocabulary.parquet")
    model = build_model(settings, len(vocabulary), len(remembered["classes"]), vocabulary)
    load_checkpoint(folder.final, model)
    return model.eval(), vocabulary, remembered


def reopen(run: str | Path, data: str | None = None) -> tuple[TextJob, RunFolder]:
    """A run with its data, as it was when it was judged. `data`: where they are now, if they have moved."""
    folder = RunFolder(run)
    settings, remembered = settings_of(folder)
    folder.must_be_finished()
    wanted = data or settings.data
    if not Path(wanted).is_file():
        raise ValueError(f"the run was trained on {wanted or 'texts in memory'}, no file; say where it is with --data")
    learned, test = read(replace(settings, data=wanted))
    if len(learned.vocabulary) != remembered["words"] or learned.classes != remembered["classes"]:
        raise ValueError(
            f"{wanted} is not what the run was trained on: {len(learned.vocabulary)} words and {len(learned.classes)} classes "
            f"here, {remembered['words']} and {len(remembered['classes'])} there; give the right file with --data"
        )
    job = prepare(settings.without_knowledge(), learned, test)
    load_checkpoint(folder.final, job.model)
    return job, folder


def again(run: str | Path, data: str | None = None) -> dict[str, Any]:
    """Judge a finished run again."""
    folder = RunFolder(run)
    settings, _ = settings_of(folder)
    if settings.model == "tiny":
        return tiny.reopen(replace(settings, data=data or settings.data), folder)
    return measure(*reopen(run, data))
