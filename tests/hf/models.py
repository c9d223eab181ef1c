"""Tiny models of Hugging Face, made from configs."""

import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    T5Config,
    T5ForConditionalGeneration,
)

V, D = 600, 16
WORDS = "word_embeddings|wte|shared|embed_tokens"


def bert(**options):
    small = {
        "hidden_size": D,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": D,
        "max_position_embeddings": 32,
    }
    return BertForMaskedLM(BertConfig(vocab_size=V, **small | options))


def gpt2(**options):
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=V, n_embd=D, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0, n_positions=32, **options)
    )


def t5(**options):
    small = {"d_model": D, "d_kv": 8, "d_ff": D, "num_layers": 1, "num_heads": 2, "decoder_start_token_id": 0}
    return T5ForConditionalGeneration(T5Config(vocab_size=V, **small | options))


MODELS = {"bert": bert, "gpt2": gpt2, "t5": t5}


def made(name, **options):
    """A model with weights that differ much from each other, as trained ones do."""
    torch.manual_seed(0)
    model = MODELS[name](**options).eval()
    with torch.no_grad():
        model.get_input_embeddings().weight.normal_()
    return model


@torch.no_grad()
def logits(model):
    ids = torch.arange(1, 13).reshape(2, 6) * 7 % V
    more = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    return model(input_ids=ids, **more).logits


def loaded(kind, folder, **options):
    """The model of a folder, of which nothing was missing."""
    model, report = kind.from_pretrained(folder, output_loading_info=True, **options)
    assert not any(report.values()), report
    return model
