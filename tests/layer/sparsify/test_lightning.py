"""Recode as a callback of Lightning."""

import warnings

import pytest
import torch

import antembed as ant

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    lightning = pytest.importorskip("lightning.pytorch")
    from antembed.layer.sparsify.lightning import SparsifyCallback


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = ant.AnchorEmbedding(80, 6, num_anchors=5)
        self.head = torch.nn.Linear(6, 3)

    def loss(self, batch):
        return torch.nn.functional.cross_entropy(self.head(self.layer(batch[0])), batch[1])

    def training_step(self, batch, number):
        return self.loss(batch)

    def configure_optimizers(self):
        return self.rule(ant.param_groups(self, l1_penalty=0.0))

    @staticmethod
    def rule(groups):
        return ant.optim.ProximalAdam(groups, lr=0.02)


class Plain(Module):
    @staticmethod
    def rule(groups):
        return torch.optim.SGD([weight for group in groups for weight in group["params"]], lr=0.02)


def fit(module, tmp_path, callback):
    random = torch.Generator().manual_seed(1)
    words = torch.randint(0, 80, (200,), generator=random)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(words, words % 3), batch_size=50)
    trainer = lightning.Trainer(
        max_epochs=8, callbacks=[callback], logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, accelerator="cpu", default_root_dir=tmp_path,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Lightning's: workers, versions
        trainer.fit(module, loader)


def callback():
    def make(module, optimizer):
        return ant.Recode(module, optimizer, budget="200", events=4)

    return SparsifyCallback(make, loss_fn=lambda module, batch: module.loss(batch))


def test_the_budget_is_met(tmp_path):
    module, sparsify = Module(), callback()
    fit(module, tmp_path, sparsify)
    assert module.layer.usage().parameters <= 200
    assert sparsify.sparsifier.done
    other = callback()
    other.load_state_dict(sparsify.state_dict())
    fit(Module(), tmp_path, other)
    assert other.sparsifier.calls == 16  # it went on from where the first had ended


def test_another_optimizer_is_refused(tmp_path):
    with pytest.raises(TypeError, match=r"SGD cannot freeze zeros; use ProximalAdam"):
        fit(Plain(), tmp_path, callback())
