"""A trained language model at work, on the CPU: perplexity of texts, and text that it writes."""

from pathlib import Path
from typing import cast

import numpy as np
import torch

from antembed.data.vocabulary import PADDING, UNKNOWN, Vocabulary
from antembed.language.config import LanguageConfig
from antembed.language.corpus import END, words_of_text
from antembed.language.dataset import LanguageSplits, Streams
from antembed.language.model import LanguageModel
from antembed.language.task import Language, make_network
from antembed.layer.embedding import Embedding
from antembed.tables.model_folder import check_files, read_description, read_weights
from antembed.tables.save import load_table
from antembed.train.config import TaskConfig
from antembed.train.model import StoredVectors


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
        splits = LanguageSplits(test=Streams(words))
        return Language().evaluate(self.model, splits, "test")["perplexity"]

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
