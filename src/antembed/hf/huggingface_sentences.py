"""Sentence vectors of a model's folder: tokenizer, model and pooling as they are on disk."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedModel

from antembed.data.data_plain import DataError
from antembed.hf.checkpoint_folder import ModelFolder

LONGEST = 128  # tokens of a text
POOLINGS = ("mean", "cls")


def load_original(folder: ModelFolder) -> PreTrainedModel:
    """The model of the folder in fp32, whatever its files are called."""
    config = AutoConfig.from_pretrained(folder.inner)
    if config.is_encoder_decoder:
        raise DataError(f"{folder.root} is a {config.model_type}, which has no sentence vectors of its own; leave out --distil")
    state = {name: tensor for file in folder.files for name, tensor in load_file(file).items()}
    kind = type(AutoModel.from_config(config))
    model: PreTrainedModel = kind.from_pretrained(None, config=config, state_dict=state, dtype=torch.float32)
    return model.eval().requires_grad_(False)


def tokenize(folder: ModelFolder, texts: list[str]) -> list[list[int]]:
    """Ids of each text, special ones included, at most LONGEST or what the folder says."""
    own = folder.root / "sentence_bert_config.json"
    longest = json.loads(own.read_text()).get("max_seq_length", LONGEST) if own.is_file() else LONGEST
    longest = min(longest, LONGEST)
    file = folder.inner / "tokenizer.json"
    found: list[list[int]]
    if file.is_file():
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
    told = json.loads(file.read_text())
    chosen = [name.removeprefix("pooling_mode_").removesuffix("_tokens").removesuffix("_token")
              for name, on in told.items() if name.startswith("pooling_mode_") and on is True]  # fmt: skip
    if "pooling_mode" in told:
        chosen = [told["pooling_mode"]] if isinstance(told["pooling_mode"], str) else list(told["pooling_mode"])
    if len(chosen) != 1 or chosen[0] not in POOLINGS:
        raise DataError(f"{file} says {' and '.join(chosen) or 'nothing'}; --distil knows {' and '.join(POOLINGS)}")
    return chosen[0]


def sentence_vectors(model: nn.Module, batch: list[list[int]], pooling: str) -> Tensor:
    """(texts, d), of length 1."""
    longest = max(map(len, batch))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in batch])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in batch])
    hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
    pooled = hidden[:, 0] if pooling == "cls" else (hidden * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)
    return nn.functional.normalize(pooled)
