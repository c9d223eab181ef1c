"""Tune a compressed table on unlabelled texts: sentence vectors are to be those of the original model.

1. Rows are coded anew, at the same size: a row that occurs often in the texts gets more bits.
2. The anchors are trained by Adam on 1 − cosine of the sentence vectors.

Each step is kept only if the similarities of held-out texts follow the original's better than before.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedModel

from antembed.compression import compress
from antembed.compression.goal import TooFewBytesError, with_anchors
from antembed.compression.quality import Progress, quiet
from antembed.compression.texts import Distilled, check_texts, importance, rank_correlation, split
from antembed.data.text_file import DataError
from antembed.hf.checkpoint_folder import ModelFolder
from antembed.hf.transformers_models import own_name
from antembed.layer.replace import put_layer
from antembed.tables.entropy_rows import CodedRows
from antembed.tables.table import Table

LONGEST = 128  # tokens of a text
POOLINGS = ("mean", "cls")
TRAINED = 2000  # texts
BATCH, LEARNING_RATE = 16, 3e-4  # of Adam; usual ones, not searched
Texts = list[list[int]]  # the ids of each text


def load_original(folder: ModelFolder) -> PreTrainedModel:
    """The model of the folder in fp32, whatever its files are called."""
    config = AutoConfig.from_pretrained(folder.inner)
    if config.is_encoder_decoder:
        raise DataError(f"{folder.root} is a {config.model_type}, which has no sentence vectors of its own; leave out --distil")
    state = {name: tensor for file in folder.files for name, tensor in load_file(file).items()}
    kind = type(AutoModel.from_config(config))
    model: PreTrainedModel = kind.from_pretrained(None, config=config, state_dict=state, dtype=torch.float32)
    return model.eval().requires_grad_(False)


def tokenize(folder: ModelFolder, texts: list[str]) -> Texts:
    """Ids of each text, special ones included, at most LONGEST or what the folder says."""
    own = folder.root / "sentence_bert_config.json"
    longest = min(json.loads(own.read_text()).get("max_seq_length", LONGEST) if own.is_file() else LONGEST, LONGEST)
    found: Texts
    if (file := folder.inner / "tokenizer.json").is_file():
        tokenizer = Tokenizer.from_file(str(file))
        tokenizer.no_padding()
        tokenizer.enable_truncation(longest)
        found = [text.ids for text in tokenizer.encode_batch(texts)]
    else:
        found = AutoTokenizer.from_pretrained(folder.inner)(texts, truncation=True, max_length=longest)["input_ids"]
    largest, V = max(map(max, found)), folder.embedding.shape[0]
    if largest >= V:
        raise DataError(f"the tokenizer gives the id {largest}, the embedding has {V} rows; they do not belong together")
    return found


def pooling_of(root: Path) -> str:
    """How tokens become a sentence: "mean", or what 1_Pooling says."""
    file = root / "1_Pooling" / "config.json"
    if not file.is_file():
        return "mean"
    config = json.loads(file.read_text())
    chosen = [name.removeprefix("pooling_mode_").removesuffix("_tokens").removesuffix("_token")
              for name, on in config.items() if name.startswith("pooling_mode_") and on is True]  # fmt: skip
    if (mode := config.get("pooling_mode")) is not None:
        chosen = [mode] if isinstance(mode, str) else list(mode)
    if len(chosen) != 1 or chosen[0] not in POOLINGS:
        raise DataError(f"{file} says {' and '.join(chosen) or 'nothing'}; --distil knows {' and '.join(POOLINGS)}")
    return chosen[0]


def sentence_vectors(model: nn.Module, batch: Texts, pooling: str) -> Tensor:
    """(texts, d), of length 1."""
    ids = pad_sequence([torch.tensor(row) for row in batch], batch_first=True)
    mask = pad_sequence([torch.ones(len(row), dtype=torch.int64) for row in batch], batch_first=True)
    hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
    pooled = hidden[:, 0] if pooling == "cls" else (hidden * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)
    return nn.functional.normalize(pooled)


class Anchored(nn.Module):
    """The rows of some ids as they are in the table, with anchors that can be trained."""

    rows: Tensor
    index: Tensor

    def __init__(self, table: Table, ids: Texts):
        super().__init__()
        if table.anchors is None:
            raise DataError("this table has no anchors to be trained; leave out --distil")
        used = np.unique(np.concatenate([*ids, [0]]))
        index = torch.zeros(len(table), dtype=torch.int64)
        index[torch.from_numpy(used)] = torch.arange(len(used))
        self.register_buffer("index", index)
        self.register_buffer("rows", torch.from_numpy(table.rows(used)))
        self.anchors = nn.Parameter(torch.from_numpy(table.anchors.copy()))

    def forward(self, ids: Tensor) -> Tensor:
        return self.rows[self.index[ids]] @ self.anchors


def distil(folder: ModelFolder, table: Table, texts: list[str], *, seed: int = 0, progress: Progress = quiet) -> Distilled:
    """`table` is the compressed input embedding of the folder; → one of the same size that is better on held-out texts."""
    check_texts(texts)
    rest, held_out = split(tokenize(folder, texts), seed)
    held_out.sort(key=len)
    model, pooling = load_original(folder), pooling_of(folder.root)
    wanted = _all_vectors(model, held_out, pooling)
    name = own_name(model, folder.name)
    if name is None:
        raise DataError(f"a {type(model).__name__} has no layer {folder.name}; name its input embedding with --tensor")
    layer = model.get_submodule(name)

    def quality(candidate: Table) -> float:
        """Spearman's correlation of the cosines of all pairs of texts: with this table in the model, and as they should be."""
        with replaced(model, layer, Anchored(candidate, held_out)):
            return rank_correlation(_all_vectors(model, held_out, pooling).numpy(), wanted.numpy())

    found = Distilled(table, {"before": quality(table)})
    with suppress(TooFewBytesError):  # so small only sparse codes are
        weighted = compress(
            folder.vectors(),
            budget=f"{table.size}B",
            method="transform",
            split_norms=table.rows.norms is not None if isinstance(table.rows, CodedRows) else None,
            importance=importance(rest, len(table)),
            seed=seed,
            progress=progress,
        )
        found.consider("rows by frequency", weighted, quality(weighted))
    trained = with_anchors(found.table, _trained(model, layer, found.table, rest[:TRAINED], pooling, progress))
    found.consider("anchors trained", trained, quality(trained))
    return found


def _batches(ids: Texts) -> list[Texts]:
    return [ids[start : start + BATCH] for start in range(0, len(ids), BATCH)]


@torch.no_grad()
def _all_vectors(model: nn.Module, ids: Texts, pooling: str) -> Tensor:
    return torch.cat([sentence_vectors(model, batch, pooling) for batch in _batches(ids)])


@contextmanager
def replaced(model: nn.Module, layer: nn.Module, student: nn.Module) -> Iterator[None]:
    """The model with the student in the place of the layer."""
    put_layer(model, layer, student, None)
    try:
        yield
    finally:
        put_layer(model, student, layer, None)


def _trained(model: nn.Module, layer: nn.Module, table: Table, ids: Texts, pooling: str, progress: Progress) -> np.ndarray:
    """The anchors after one pass over the texts."""
    student = Anchored(table, ids)
    optimizer = torch.optim.Adam([student.anchors], lr=LEARNING_RATE)
    batches = _batches(ids)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, len(batches))
    for step, batch in enumerate(batches):
        progress("training the anchors", step, len(batches))
        with torch.no_grad():
            wanted = sentence_vectors(model, batch, pooling)
        with replaced(model, layer, student):
            loss = (1 - (sentence_vectors(model, batch, pooling) * wanted).sum(1)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    progress("training the anchors", len(batches), len(batches))
    return student.anchors.detach().numpy()
