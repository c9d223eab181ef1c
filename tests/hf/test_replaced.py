"""Hugging Face models whose embeddings were replaced: saved and loaded, tied, resized, trained."""

import copy
import logging

import pytest
import torch

pytest.importorskip("transformers")
from tests.hf.models import MODELS, WORDS, V, loaded, logits, made
from transformers import AutoModel, BertModel, Trainer, TrainingArguments
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

import antembed as ant
import antembed.hf


def replaced(name, **options):
    model = made(name, **options)
    ant.replace_embeddings(model, num_anchors=6, pattern=WORDS)
    return model


@pytest.mark.parametrize("name", MODELS)
def test_what_is_saved_is_loaded(name, tmp_path):
    model = replaced(name)
    model.save_pretrained(tmp_path)
    again = loaded(type(model), tmp_path)
    assert isinstance(again.get_input_embeddings(), ant.AnchorEmbedding)
    assert torch.equal(logits(again), logits(model))
    again.save_pretrained(tmp_path / "again")
    assert torch.equal(logits(loaded(type(model), tmp_path / "again")), logits(model))


@pytest.mark.filterwarnings("ignore:within .* bytes, vectors are off")  # these are noise
def test_a_budget_for_bert_leaves_its_two_token_types(tmp_path):
    model = made("bert")
    assert list(ant.replace_embeddings(model, budget="8x")) == ["bert.embeddings.word_embeddings"]
    model.save_pretrained(tmp_path)
    assert torch.equal(logits(loaded(type(model), tmp_path)), logits(model))


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_half_precision_is_loaded_too(name, tmp_path):
    model = replaced(name)
    model.save_pretrained(tmp_path)
    again = loaded(type(model), tmp_path, dtype=torch.bfloat16)
    assert again.get_input_embeddings().anchors.dtype == torch.float32
    assert logits(again).dtype == torch.bfloat16
    torch.testing.assert_close(logits(again).float(), logits(model), atol=0.1, rtol=0.1)


def test_a_config_that_models_share_stays_as_it_was(tmp_path):
    model = made("bert")
    plain = type(model)(model.config).eval()
    ant.replace_embeddings(model, num_anchors=6, pattern=WORDS)
    plain.save_pretrained(tmp_path)
    assert torch.equal(logits(loaded(type(plain), tmp_path)), logits(plain))
    assert all(part.config is model.config for part in model.modules() if hasattr(part, "config"))


@pytest.mark.parametrize("name", MODELS)
def test_heads_stay_tied(name, tmp_path):
    model = replaced(name)
    model.save_pretrained(tmp_path)
    for each in (model, loaded(type(model), tmp_path), copy.deepcopy(model)):
        before = logits(each)
        each.tie_weights()
        assert torch.equal(logits(each), before)
        with torch.no_grad():
            each.get_input_embeddings().anchors.mul_(2)
        assert each.get_output_embeddings().weight.allclose(each.get_input_embeddings().to_dense())
        assert sum(key.endswith("anchors") for key, _ in each.named_parameters()) == 1


@pytest.mark.parametrize("name", MODELS)
def test_tables_grow(name, tmp_path):
    model = replaced(name)
    before = logits(model)
    assert model.resize_token_embeddings(V + 5).num_embeddings == V + 5
    assert model.config.vocab_size == V + 5
    torch.testing.assert_close(logits(model)[..., :V], before, rtol=1e-4, atol=1e-4)
    mean = model.get_input_embeddings().to_dense()[:V].mean(0)
    torch.testing.assert_close(model.get_input_embeddings().to_dense()[V], mean)
    model.save_pretrained(tmp_path)
    assert torch.equal(logits(loaded(type(model), tmp_path)), logits(model))
    with pytest.raises(ValueError, match=f"{V + 5} rows cannot shrink to 10"):
        model.resize_token_embeddings(10)


def test_an_untied_head_grows_too():
    model = replaced("gpt2", tie_word_embeddings=False)
    model.resize_token_embeddings(pad_to_multiple_of=64)
    assert logits(model).shape[-1] == 640


@pytest.mark.parametrize("name", MODELS)
def test_it_becomes_plain_again(name, tmp_path):
    model = replaced(name)
    before = logits(model)
    plain = model.dequantize()
    close = {"rtol": 1e-4, "atol": 1e-4}  # T·(A·h) and (T·A)·h, through all layers
    torch.testing.assert_close(logits(plain), before, **close)
    plain.save_pretrained(tmp_path)
    again = loaded(type(plain), tmp_path)
    torch.testing.assert_close(logits(again), before, **close)
    assert again.get_output_embeddings().weight is again.get_input_embeddings().weight
    assert type(again.get_input_embeddings()) is torch.nn.Embedding


def test_the_base_model_is_loaded_from_a_model_with_a_head(tmp_path):
    model = replaced("bert")
    model.save_pretrained(tmp_path)
    base = AutoModel.from_pretrained(tmp_path, add_pooling_layer=False)
    assert isinstance(base, BertModel)
    ids = torch.arange(1, 9).unsqueeze(0)
    assert torch.equal(base(ids).last_hidden_state, model.bert(ids).last_hidden_state)


def test_without_the_import_it_is_an_error(tmp_path, monkeypatch):
    model = replaced("gpt2")
    model.save_pretrained(tmp_path)
    monkeypatch.delitem(AUTO_QUANTIZATION_CONFIG_MAPPING, "antembed")  # as if antembed.hf had not been imported
    with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
        type(model).from_pretrained(tmp_path)


@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_it_generates(name):
    model = replaced(name)
    ids = torch.arange(1, 9).unsqueeze(0)
    found = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=4, do_sample=False, pad_token_id=0)
    plain = copy.deepcopy(model).dequantize()
    same = plain.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=4, do_sample=False, pad_token_id=0)
    assert torch.equal(found, same)


def test_the_trainer_trains_with_our_penalty_and_resumes(tmp_path, caplog, monkeypatch):
    """The optimizer is ours: it has the penalty, and clips gradients as the Trainer asks."""
    pytest.importorskip("accelerate")
    model = replaced("bert")
    rows = [{"input_ids": torch.arange(n, n + 6), "labels": torch.arange(n, n + 6)} for n in range(1, 33)]
    options = {"max_steps": 6, "save_steps": 3, "max_grad_norm": 0.5, "report_to": [], "use_cpu": True, "disable_tqdm": True}
    arguments = TrainingArguments(tmp_path, **options)

    def trainer(model):
        optimizer = ant.optim.ProximalAdam(ant.param_groups(model, l1_penalty=0.5), lr=0.01)
        schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
        return Trainer(model, arguments, train_dataset=rows, optimizers=(optimizer, schedule))

    dense = int(model.get_input_embeddings().transform.count_nonzero())
    trainer(model).train()
    assert model.get_input_embeddings().transform.count_nonzero() < dense
    saved = loaded(type(model), tmp_path / "checkpoint-6").eval()
    assert torch.equal(logits(saved), logits(model.eval()))
    other = replaced("bert")
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    trainer(other).train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert "unexpected keys" not in caplog.text
    torch.testing.assert_close(logits(other.eval()), logits(model))


def test_layers_that_do_more_are_refused():
    class Scaled(torch.nn.Embedding):
        def forward(self, ids):
            return 3 * super().forward(ids)

    with pytest.raises(ValueError, match=r"0 is a Scaled, which does more than an nn\.Embedding"):
        ant.replace_embeddings(torch.nn.Sequential(Scaled(5, 2)))
