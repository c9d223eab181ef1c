"""Text classifiers that need no torch, and what explains them: hashed n-grams, and the mean of the words' vectors."""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from antembed.classify.documents import Documents, documents_of, read_documents
from antembed.classify.ngram_file import HashedNgrams, buckets_of, hash_words, load_hashed_ngrams, ngram_hashes
from antembed.data.text_file import DataError
from antembed.data.vocabulary import UNKNOWN, Vocabulary
from antembed.files import JSON, write_atomically
from antembed.tables.model_folder import TOP_NGRAMS, RunError, check_files, read_description, read_json, read_weights
from antembed.tables.save import load_table
from antembed.tables.table import Table

PIECE = 4096  # documents at a time
NAMED = 3  # lines that a remark names
NGRAMS, WORDS = "classifier.ngrams", "words.ant"


class TextPredictor(ABC):
    """What every classifier of text can do; a subclass says the probabilities of documents."""

    classes: list[str]

    def __init__(self, classes: list[str], source: JSON):
        """`source`: the group "input" of the config: columns, and how many words are used."""
        self.classes, self.text, self.label = classes, source.get("text"), source.get("label")
        self.max_length = source.get("max_length")

    @abstractmethod
    def probabilities(self, documents: Documents) -> Iterator[np.ndarray]:
        """Of each class for each document, some documents at a time: (n, classes)."""

    @abstractmethod
    def knows(self, documents: Documents) -> np.ndarray:
        """Whether any word of each document is known: (n,) bool."""

    def reading(self) -> JSON:
        """How texts are read beside the columns."""
        return {"classes": self.classes, "length": self.max_length}

    def read_texts(self, texts: Iterable[str | None]) -> Documents:
        """Texts in memory, for `probabilities`."""
        return documents_of(texts, **self.reading())

    def read_file(self, path: str, text: Sequence[str] | None, label: str | None) -> tuple[Documents, str]:
        """A file, for `probabilities`, and what there is to say of it. If no column has the classes, there is no label."""
        more, text = self.reading(), text or self.text
        if label is not None:
            documents = read_documents(path, text=text, label=label, **more)
            return documents, documents.complaint
        try:
            documents = read_documents(path, text=text, label=self.label, **more)
            if (documents.labels >= 0).any():
                return documents, documents.complaint
        except DataError:
            if self.label is None:
                raise
        none = read_documents(path, text=text, label="", **more)
        return none, "no column has the classes of the run: there are no labels"

    def predict_texts(self, texts: Iterable[str | None]) -> Iterator[np.ndarray]:
        return self.probabilities(self.read_texts(texts))

    def remarks(self, documents: Documents) -> list[str]:
        """What there is to say of answers that say nothing of the text: one line for empty ones, one for unknown words."""
        empty = documents.lengths == 0
        strange = ~empty & ~self.knows(documents)
        lines = (
            (empty, "empty (no words): the answer is the model's for no words at all"),
            (strange, "without a word that the model knows: the answer is not about the text"),
        )
        return [f"{_lines(np.flatnonzero(which) + 1, len(which))} {said}" for which, said in lines if which.any()]


class NgramPredictor(TextPredictor):
    """By the hashes alone; each text has words of its own, since a hash needs no vocabulary."""

    def __init__(self, classifier: HashedNgrams, source: JSON):
        super().__init__(classifier.classes, source)
        self.classifier = classifier

    def probabilities(self, documents: Documents) -> Iterator[np.ndarray]:
        return ngram_probabilities(self.classifier, documents)

    def knows(self, documents: Documents) -> np.ndarray:
        return self.classifier.coded(word_hashes(documents, self.classifier.prefix), documents.starts)


class WordPredictor(TextPredictor):
    """By the vectors of a vocabulary's words; a subclass says what the network makes of them."""

    def __init__(self, folder: Path):
        check_files(folder, WORDS, "vocabulary.parquet")
        about = read_description(folder)
        super().__init__(about["data"]["classes"], about["config"]["input"])
        self.vocabulary = Vocabulary.read(folder / "vocabulary.parquet")
        self.table: Table = load_table(folder / WORDS)
        self.weights = read_weights(folder, ("words",))
        if len(self.table) != len(self.vocabulary):
            raise ValueError(
                f"{folder}: {WORDS} has {len(self.table)} rows, vocabulary.parquet {len(self.vocabulary)}; export them together"
            )

    def reading(self) -> JSON:
        return super().reading() | {"vocabulary": self.vocabulary}

    def knows(self, documents: Documents) -> np.ndarray:
        known = np.concatenate([[0], np.cumsum(documents.tokens != UNKNOWN)])
        return np.diff(known[documents.starts]) > 0


class MeanPredictor(WordPredictor):
    """The mean of the words' vectors, one linear layer: scores of words are summed over each document."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        classes = len(self.classes)
        for name, shape in (("head.weight", (classes, self.table.embedding_dim)), ("head.bias", (classes,))):
            found = self.weights[name].shape if name in self.weights else "none"
            if found != shape:
                raise ValueError(f"{folder}: {name} should have the shape {shape}, there is {found}; export the run anew")

    def probabilities(self, documents: Documents) -> Iterator[np.ndarray]:
        W, b = self.weights["head.weight"], self.weights["head.bias"]
        for first in range(0, len(documents), PIECE):
            starts = documents.starts[first : first + PIECE + 1]
            words, inverse = np.unique(documents.tokens[starts[0] : starts[-1]], return_inverse=True)
            scores = (self.table[words] @ W.T)[inverse]
            lengths = np.diff(starts)
            there = lengths > 0  # reduceat gives an empty document the next one's first word
            means = np.zeros((len(lengths), len(b)), np.float32)
            if there.any():
                means[there] = np.add.reduceat(scores, (starts[:-1] - starts[0])[there]) / lengths[there, None]
            yield softmax(means + b)


def light_predictor(folder: str | Path) -> TextPredictor | None:
    """The classifier in a folder; None if its network needs torch, or if it is none."""
    folder = Path(folder)
    config = read_description(folder)["config"]
    if config["task"] == "classify-ngrams":
        check_files(folder, NGRAMS)
        return NgramPredictor(load_hashed_ngrams(folder / NGRAMS), config["input"])
    mean = config["task"] == "classify" and config["tables"]["model"] == "mean"
    return MeanPredictor(folder) if mean else None


def softmax(scores: np.ndarray) -> np.ndarray:
    """Along the last axis."""
    powers = np.exp(scores - scores.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def word_hashes(documents: Documents, prefix: int = 0) -> np.ndarray:
    """The hash of each word of the documents (total,), and of its prefix (total, 2). Words of the vocabulary are hashed once.
    Words that the vocabulary lacks are all "<unk>": read texts with a vocabulary of their own, as the classifier needs none."""
    return vocabulary_hashes(tuple(documents.vocabulary.words), prefix)[documents.tokens]


@lru_cache(maxsize=4)
def vocabulary_hashes(words: tuple[str, ...], prefix: int) -> np.ndarray:
    """What hash_words gives. A search asks some dozen times for those of the same 50 000 words, .1 s each."""
    return hash_words(words, prefix)


def ngram_probabilities(classifier: HashedNgrams, documents: Documents) -> Iterator[np.ndarray]:
    """Of each class for each document, some documents at a time: (n, classes)."""
    hashes = word_hashes(documents, classifier.prefix)
    for first in range(0, len(documents), PIECE):
        starts = documents.starts[first : first + PIECE + 1]
        yield softmax(classifier.scores(hashes[starts[0] : starts[-1]], starts - starts[0]))


def _lines(numbers: np.ndarray, of: int) -> str:
    """Which lines, the first few of them: "line 3 is", "2 of 9 lines (3 and 7) are"."""
    if len(numbers) == 1:
        return f"line {numbers[0]} is"
    named = ", ".join(map(str, numbers[:NAMED])) + (", …" if len(numbers) > NAMED else "")
    return f"{len(numbers):,} of {of:,} lines ({named}) are"


# Explanations: which n-grams speak for which class, of a classifier (kept as text when it is fitted) and of one text.

KEPT = 50  # n-grams of each class
Occurrences = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def top_ngrams(classifier: HashedNgrams, documents: Documents, kept: int = KEPT) -> JSON:
    """The n-grams with the highest score for each class, less its mean over classes, and how often the documents have them.
    Equal scores are in the order of these counts. A bucket that several n-grams share is shown by the most frequent one."""
    scores = classifier.object_scores()
    counts = np.zeros(len(scores), np.int64)
    for objects, *_ in _occurrences(classifier, documents):
        counts += np.bincount(objects, minlength=len(counts))
    best = [np.lexsort((-counts, -column))[:kept] for column in scores.T]
    best = [rows[(scores[rows, c] > 0) & (counts[rows] > 0)] for c, rows in enumerate(best)]
    texts = _texts(classifier, documents, np.unique(np.concatenate(best)))
    classes = [
        {"class": name, "ngrams": [[texts[row], round(float(scores[row, c]), 4), int(counts[row])] for row in rows.tolist()]}
        for c, (name, rows) in enumerate(zip(classifier.classes, best, strict=True))
    ]
    return {"classes": classes}


def _occurrences(classifier: HashedNgrams, documents: Documents) -> Iterator[Occurrences]:
    """N-grams of the documents that have a code, a piece at a time: object, hash, first token, words (0: a prefix)."""
    hashes = word_hashes(documents, classifier.prefix)
    row_of = np.full(1 << classifier.bits, -1, np.int32)
    row_of[classifier.objects] = np.arange(len(classifier.objects), dtype=np.int32)
    for at in range(0, len(documents), PIECE):
        starts = documents.starts[at : at + PIECE + 1]
        found, _ = ngram_hashes(hashes[starts[0] : starts[-1]], starts - starts[0], classifier.orders)
        owners = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        # In the order of ngram_hashes: all words, then all runs of two, …, then prefixes
        begins = [np.arange(len(owners)), *(np.flatnonzero(owners[:-n] == owners[n:]) for n in range(1, classifier.orders))]
        lengths = np.repeat(np.arange(1, len(begins) + 1), [len(some) for some in begins])
        if classifier.prefix:
            begins.append(np.flatnonzero(hashes[starts[0] : starts[-1], 1]))
            lengths = np.concatenate([lengths, np.zeros(len(begins[-1]), lengths.dtype)])
        objects = row_of[buckets_of(found, classifier.bits)]
        coded = objects >= 0
        yield objects[coded], found[coded], np.concatenate(begins)[coded] + starts[0], lengths[coded]


def _texts(classifier: HashedNgrams, documents: Documents, wanted: np.ndarray) -> dict[int, str]:
    """The most frequent n-gram of each of these objects; of equally frequent ones, the first in the documents."""
    is_wanted = np.zeros(len(classifier.objects), bool)
    is_wanted[wanted] = True
    seen: dict[tuple[int, int], list[int]] = {}  # (object, hash) → occurrences, first token, words
    for occurrences in _occurrences(classifier, documents):
        objects, hashes, begins, lengths = (part[is_wanted[occurrences[0]]] for part in occurrences)
        _, firsts, counts = np.unique(hashes, return_index=True, return_counts=True)
        for first, count in zip(firsts.tolist(), counts.tolist(), strict=True):
            entry = seen.setdefault((int(objects[first]), int(hashes[first])), [0, int(begins[first]), int(lengths[first])])
            entry[0] += count
    words, texts = documents.vocabulary.words, dict[int, str]()
    for (row, _), (_, begin, length) in sorted(seen.items(), key=lambda item: (-item[1][0], item[1][1])):
        run = " ".join(words[token] for token in documents.tokens[begin : begin + length])
        texts.setdefault(row, run or f"{words[documents.tokens[begin]][: classifier.prefix]}…")
    return texts


def write_top(folder: Path, top: JSON) -> None:
    """Write ngrams.json. It is for people: predictions do not need it."""
    write_atomically(folder / TOP_NGRAMS, json.dumps(top, ensure_ascii=False).encode())


def explain_run(folder: Path, top: int, items: Path | None) -> tuple[JSON, list[str]]:
    """The n-grams that speak most for each class, of a run or an export; and the same as lines."""
    file = folder / TOP_NGRAMS
    if items is not None:
        raise RunError(f"{items} describes items, and {folder} is a model of text; leave out --items")
    check_files(folder, NGRAMS)
    if top > KEPT:
        raise ValueError(f"--top {top}: a run keeps the {KEPT} n-grams that speak most for each class; ask for up to {KEPT}")
    if not file.is_file():
        raise RunError(f"{folder} has no {TOP_NGRAMS}: it was trained before n-grams were kept; train it anew, or give --text")
    kept = read_json(file)
    try:
        ngrams = {
            str(one["class"]): [(str(text), float(score), int(n)) for text, score, n in one["ngrams"][:top]]
            for one in kept["classes"]
        }
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{file} is damaged ({type(error).__name__}: {error}); copy it again, or train the run anew") from error
    lines = [line for name, some in ngrams.items() for line in (name, _line([(text, score) for text, score, _ in some]))]
    return {"classes": [{"class": name, "ngrams": [list(one) for one in some]} for name, some in ngrams.items()]}, lines


def explain_text(predictor: TextPredictor | None, text: str, top: int) -> tuple[JSON, list[str]]:
    """The probability of each class, and the n-grams of the text that speak for it, likeliest class first; and as lines."""
    if not isinstance(predictor, NgramPredictor):
        raise ValueError("--text explains a classifier of hashed n-grams, and this is another model; leave out --text")
    documents = predictor.read_texts([text])
    (chances,) = next(predictor.probabilities(documents))
    words = [documents.vocabulary.words[token] for token in documents.tokens]
    parts = [(ngram, scores - scores.mean()) for ngram, scores in predictor.classifier.explain(words)]
    classes, lines = list[JSON](), list[str]()
    for c in np.argsort(-chances, kind="stable").tolist():
        ranked = sorted(((ngram, float(scores[c])) for ngram, scores in parts if scores[c] > 0), key=lambda pair: -pair[1])
        classes.append({"class": predictor.classes[c], "probability": float(chances[c]), "ngrams": ranked[:top]})
        lines += [f"{predictor.classes[c]} {chances[c]:.4f}", _line(ranked[:top])]
    return {"classes": classes}, lines + predictor.remarks(documents)


def _line(ngrams: list[tuple[str, float]]) -> str:
    return "    " + (" · ".join(f"{text} {score:+.2f}" for text, score in ngrams) or "no n-gram speaks for it")
