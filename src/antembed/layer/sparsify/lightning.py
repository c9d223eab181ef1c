"""A sparsifier as a callback of Lightning: `Trainer(callbacks=[SparsifyCallback(…)])`. Needs `pip install lightning`."""

from collections.abc import Callable, Mapping

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torch.optim import Optimizer

from antembed.files import JSON
from antembed.layer.sparsify.quadratic import Batch
from antembed.layer.sparsify.sparsifier import Sparsifier


class SparsifyCallback(Callback):
    """Calls the sparsifier's `step` after each training epoch, and keeps its state in Lightning's checkpoints.

        def make(module, optimizer):
            return ant.Recode(module, optimizer, budget="20x", events=12)

        Trainer(max_epochs=26, callbacks=[SparsifyCallback(make, loss_fn=lambda module, batch: module.loss(batch))])

    The optimizer is the first of `configure_optimizers`, one of antembed's (ProximalAdam, ProximalYogi, Proximal(…))."""

    def __init__(
        self, make: Callable[[LightningModule, Optimizer], Sparsifier], loss_fn: Callable[[LightningModule, Batch], Tensor]
    ):
        self.make, self.loss_fn = make, loss_fn
        self.sparsifier: Sparsifier | None = None
        self._saved: JSON | None = None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.sparsifier = self.make(pl_module, trainer.optimizers[0])  # raises if it is none that can freeze zeros
        if self._saved is not None:
            self.sparsifier.load_state_dict(self._saved)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert self.sparsifier is not None
        moved = (pl_module.transfer_batch_to_device(batch, pl_module.device, 0) for batch in trainer.train_dataloader or ())
        self.sparsifier.step(moved, lambda batch: self.loss_fn(pl_module, batch))

    def state_dict(self) -> JSON:
        return {} if self.sparsifier is None else self.sparsifier.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, object]) -> None:
        self._saved = dict(state_dict) or None
