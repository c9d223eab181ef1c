"""LoRA adapters beside an anchored table: trained, saved and merged as beside any other."""

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("peft", reason="peft is not installed: pip install peft")
import peft
from tests.hf.models import loaded, made
from transformers import AutoModelForCausalLM

import antembed as ant
import antembed.hf

pytestmark = pytest.mark.filterwarnings("ignore:Input and output embeddings are no longer tied")  # peft's


def test_adapters_beside_an_anchored_table(tmp_path):
    model = made("gpt2")
    ant.replace_embeddings(model, num_anchors=6, pattern="wte")
    model.save_pretrained(tmp_path / "base")
    adapted = peft.get_peft_model(
        model, peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM")
    )
    ids = torch.randint(5, 50, (2, 9))
    table = model.get_input_embeddings()
    before = {name: weight.clone() for name, weight in table.named_parameters()}
    optimizer = torch.optim.AdamW([weight for weight in adapted.parameters() if weight.requires_grad], lr=1e-2)
    losses = []
    for _ in range(5):
        loss = adapted(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    for name, weight in table.named_parameters():
        torch.testing.assert_close(weight, before[name])  # frozen, as all but the adapters
    adapted.save_pretrained(tmp_path / "adapter")
    again = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tmp_path / "base"), tmp_path / "adapter")
    adapted.eval(), again.eval()
    with torch.no_grad():
        wanted = adapted(ids).logits
        torch.testing.assert_close(again(ids).logits, wanted)
        merged = again.merge_and_unload()
        torch.testing.assert_close(merged(ids).logits, wanted, atol=1e-5, rtol=1e-4)
    assert isinstance(merged.get_input_embeddings(), ant.AnchorEmbedding)
    merged.save_pretrained(tmp_path / "merged")
    with torch.no_grad():
        torch.testing.assert_close(loaded(type(merged), tmp_path / "merged").eval()(ids).logits, merged(ids).logits)
