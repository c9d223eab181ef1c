"""A language model in scikit-learn's manners: a corpus in, perplexity and text out. Thin over the task of that name."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar, Literal

from antembed.data.text_file import check_unicode
from antembed.files import JSON
from antembed.language.config import LanguageConfig
from antembed.language.corpus import SHARES, Corpus, corpus_of, read_corpus, words_of_text
from antembed.language.dataset import gather, make_splits
from antembed.language.generator import TextGenerator
from antembed.train.estimator import Estimator, NotFittedError, own_arguments, write_folder
from antembed.train.options import Options, from_options, to_options
from antembed.train.run import export, train
from antembed.train.run_folder import RunFolder
from antembed.train.solver import Callback, ignore

FILES = ("config.json", "vocabulary.parquet", "words.ant", "model.safetensors")


class LanguageModel(Estimator):
    """A language model with a small table of words at both ends.

        model = LanguageModel(budget="400k", anchors=500).fit("ptb")     # a folder, a file, or texts
        model.perplexity("the company said"), model.generate("the company", words=20)
        model.save("ptb-small"); LanguageModel.load("ptb-small")

    Options are those of `antembed train language`, by their names.
    """

    task: ClassVar[str] = "language"
    Config = LanguageConfig

    def __init__(
        self,
        *,
        budget: str | int | None = None,
        model: Literal["lstm", "awd-lstm", "transformer"] | None = None,
        embedding: str | None = None,
        embedding_dim: int | None = None,
        anchors: int | str | Sequence[int] | None = None,
        layers: int | None = None,
        hidden: int | None = None,
        heads: int | None = None,
        dropout: float | None = None,
        word_dropout: float | None = None,
        weight_dropout: float | None = None,
        activation_penalty: float | None = None,
        slowness_penalty: float | None = None,
        softmax: Literal["full", "sampled", "nce", "thresholded", "adaptive"] | None = None,
        negatives: int | None = None,
        noise: Literal["unigram", "log-uniform"] | None = None,
        count_smoothing: float | None = None,
        threshold: float | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        pieces: int | None = None,
        sequence_length: int | None = None,
        max_grad_norm: float | None = None,
        patience: int | None = None,
        average_after: int | None = None,
        device: str | None = None,
        engine: Literal["auto", "fused", "torch"] | None = None,
        optimizer: str | None = None,
        lr: float | None = None,
        network_rate: float | None = None,
        eps: float | None = None,
        beta2: float | None = None,
        schedule: Literal["halving", "cosine", "constant"] | None = None,
        halve_every: int | None = None,
        weight_decay: float | None = None,
        sparsify: str | None = None,
        events: int | None = None,
        l1_penalty: float | None = None,
        l1_warmup: float | None = None,
        prune: float | None = None,
        max_nonzeros: int | None = None,
        polish: float | None = None,
        anchor_penalty: float | None = None,
        l0_penalty: float | None = None,
        growth: Literal["plateau", "trend"] | None = None,
        initial_anchors: int | None = None,
        anchor_step: int | None = None,
        anchor_init: Literal["none", "frequency", "kmeans"] | None = None,
        relations: str | Sequence[str] | None = None,
        wordnet: str | None = None,
        min_count: int | None = None,
        max_vocab: int | None = None,
        epoch_words: int | None = None,
        measured_words: int | None = None,
        values: str | None = None,
        encoding: str | None = None,
        seed: int | None = None,
        threads: int | None = None,
    ):
        super().__init__(own_arguments(locals()))

    def usual(self, options: Options) -> JSON:
        return LanguageConfig.defaults(0, options)

    def fit(self, corpus: str | Path | Iterable[str], *, callback: Callback = ignore) -> "LanguageModel":
        """Learn from a folder or file, or from texts (one after the other, each ends a sentence); of a file and of texts a
        twentieth chooses the best epoch and another says in `result_` how good it is."""
        config = self._config(self.options)
        assert isinstance(config, LanguageConfig)
        splits = make_splits(_corpus(corpus, config), config)
        usual = LanguageConfig.defaults(splits.count, self.options, splits.objects)  # as on the command line
        config = from_options(LanguageConfig, self.defaults | usual | self.options)
        gather(config, splits)
        with TemporaryDirectory() as name:
            self.result_ = train(config, Path(name) / "run", splits=splits, callback=callback)
            export(Path(name) / "run", Path(name) / "out")
            self.config = config
            self._take(Path(name) / "out")
        return self

    def _take(self, folder: Path) -> None:
        self.model_ = TextGenerator(folder)
        self._files = {name: (folder / name).read_bytes() for name in FILES if (folder / name).is_file()}

    def _fitted(self) -> TextGenerator:
        if not hasattr(self, "model_"):
            raise NotFittedError("this language model has not been fitted; call fit(corpus), or load one")
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

    @classmethod
    def load(cls, folder: str | Path) -> "LanguageModel":
        """What `save` or `antembed export` wrote."""
        run = RunFolder(folder)
        if run.task().name != cls.task:
            raise ValueError(f"{run.path} is a run of {run.task().name}, not of {cls.task}")
        self = cls()
        self.config, _ = run.open()
        known = set(cls._names())
        self.options = {name: value for name, value in to_options(self.config).items() if name in known}
        with TemporaryDirectory() as name:
            if (run.path / FILES[-1]).is_file():
                self._take(run.path)
            else:  # a run
                export(run.path, Path(name) / "out")
                self._take(Path(name) / "out")
        if run.result_file.is_file():
            self.result_ = json.loads(run.result_file.read_text())
        return self


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
