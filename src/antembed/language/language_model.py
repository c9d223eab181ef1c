"""A language model in scikit-learn's manners: a corpus in, perplexity and text out. Thin over the task of that name."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar, Literal

from antembed.data.text_file import check_unicode
from antembed.language.config import LanguageConfig
from antembed.language.corpus import SHARES, Corpus, corpus_of, read_corpus, words_of_text
from antembed.language.dataset import gather, make_splits
from antembed.language.task import TextGenerator
from antembed.tables.model_folder import WEIGHTS
from antembed.train.estimator import TableEstimator, write_folder
from antembed.train.run import export, train
from antembed.train.solver import Callback, ignore

FILES = ("config.json", "vocabulary.parquet", "words.ant", WEIGHTS)


@dataclass(kw_only=True, eq=False, repr=False)
class LanguageModel(TableEstimator):
    """A language model with a small table of words at both ends.

        model = LanguageModel(budget="400k", anchors=500).fit("ptb")     # a folder, a file, or texts
        model.perplexity("the company said"), model.generate("the company", words=20)
        model.save("ptb-small"); LanguageModel.load("ptb-small")

    All other options of `antembed train language` are given by name in `options`: LanguageModel(options={"lr": 0.01}).
    """

    tasks: ClassVar[tuple[str, ...]] = ("language",)
    Config = LanguageConfig

    model: Literal["lstm", "awd-lstm", "transformer"] | None = None
    layers: int | None = None
    dropout: float | None = None
    batch_size: int | None = None

    def fit(self, corpus: str | Path | Iterable[str], *, callback: Callback = ignore) -> "LanguageModel":
        """Learn from a folder or file, or from texts (one after the other, each ends a sentence); of a file and of texts a
        twentieth chooses the best epoch and another says in `result_` how good it is."""
        config = self._config(self.given)
        assert isinstance(config, LanguageConfig)
        splits = make_splits(_corpus(corpus, config), config)
        config = self._config(self.given, splits.count, splits.objects)
        assert isinstance(config, LanguageConfig)
        gather(config, splits)
        with TemporaryDirectory() as name:
            self.result_ = train(config, Path(name) / "run", splits=splits, callback=callback)
            self.config = config
            self._take(Path(name) / "run")
        return self

    def _take(self, folder: Path) -> None:
        with TemporaryDirectory() as name:
            if not (folder / WEIGHTS).is_file():  # a run
                export(folder, Path(name) / "out")
                folder = Path(name) / "out"
            self.model_ = TextGenerator(folder)
            self._files = {file: (folder / file).read_bytes() for file in FILES if (folder / file).is_file()}

    def _fitted(self) -> TextGenerator:
        self._check_fitted()
        return self.model_

    def perplexity(self, text: str) -> float:
        """Of a text, over all words; its first word is given."""
        return self._fitted().perplexity(text)

    def generate(
        self, prompt: str = "", *, words: int = 50, temperature: float = 1.0, top_k: int = 0, seed: int | None = None
    ) -> str:
        """The prompt and what follows; `temperature` 0: always the likeliest word, `top_k`: among so many, 0: all."""
        return self._fitted().generate(prompt, words=words, temperature=temperature, top_k=top_k, seed=seed)

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """What `antembed export` writes: `antembed generate` and LanguageModel.load take it."""
        self._fitted()
        write_folder(folder, self._files, overwrite)


def _corpus(corpus: str | Path | Iterable[str], config: LanguageConfig) -> Corpus:
    own = config.input
    if isinstance(corpus, str | Path):
        return read_corpus(corpus, min_count=own.min_count, max_vocab=own.max_vocab or None)
    texts = [str(text) for text in corpus]
    check_unicode(texts, "text")
    words = words_of_text("".join(f"{text}\n" for text in texts))
    if len(words) < 100:
        raise ValueError(f"{len(words)} words are too few to learn from; give 100 or more, or the path of a file or folder")
    first, second = int(len(words) * SHARES[0]), int(len(words) * sum(SHARES))
    parts = {"train": words[:first], "validation": words[first:second], "test": words[second:]}
    return corpus_of(parts, min_count=own.min_count, max_vocab=own.max_vocab or None)
