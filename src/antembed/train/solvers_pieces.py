"""The torch engine with batches cut into pieces, which processes share: each reads its own pieces alone.

The cut does not depend on the number of processes, and random numbers (dropout, negatives) are drawn anew for each piece, by
the seed, the step and the piece: the result is the same with any number of processes, up to the order of sums.
"""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from antembed.layer.optim.clip import SHARED
from antembed.layer.optim.proximal import ProximalOptimizer
from antembed.layer.sharded.collectives import Ranks
from antembed.train.engine import set_rates
from antembed.train.examples import Pieces
from antembed.train.model import TaskModel
from antembed.train.solvers_schedule import Schedule
from antembed.train.task import Batch, Source


def draw_seed(seed: int, step: int, piece: int) -> int:
    """For the random numbers of a piece."""
    return int(np.random.SeedSequence((seed, step, piece)).generate_state(1, np.uint64)[0] >> np.uint64(1))


class PieceEngine:
    """Any model, any loss; every process goes over the same batches and fetches its pieces of each."""

    def __init__(
        self,
        optimizer: ProximalOptimizer,
        loss: Callable[[Batch, int], Tensor],
        model: TaskModel,
        pieces: int,
        seed: int,
        ranks: Ranks | None,
    ):
        self.optimizer, self.loss, self.model, self.pieces, self.seed, self.ranks = optimizer, loss, model, pieces, seed, ranks
        self.rank, self.size = (0, 1) if ranks is None else (ranks.rank, ranks.size)
        self.states: dict[int, object] = {}  # of each piece: what its next batch continues from

    def run(self, examples: Source, batch_size: int, first: int, lr: Schedule, l1: Schedule) -> Iterator[tuple[int, float]]:
        for step, batch in enumerate(examples.pieces(batch_size, self.pieces), first):
            set_rates(self.optimizer, lr(step), l1(step))
            total, count = self._backward(batch, step), sum(batch.sizes)
            self._average()
            self.optimizer.step()  # update, then prox
            self.optimizer.zero_grad()
            yield count, total * count

    def _backward(self, batch: Pieces, step: int) -> float:
        """Gradients of this process's pieces; → the mean loss of the whole batch."""
        total, pieces = 0.0, len(batch.sizes)
        for number in range(self.rank, -(-pieces // self.size) * self.size, self.size):
            mine = number < pieces
            share = batch.sizes[number] / sum(batch.sizes) if mine else 0.0
            self.model.state = self.states.get(number) if mine else None
            self._draw(step, 1 + number)  # also for words that are left out
            # Who has none left looks one up with the others, and learns nothing by it.
            loss = self.loss(batch.fetch(number if mine else 0), step)
            (loss * (share * self.size)).backward()  # the mean over processes is taken of all gradients
            if mine:
                self.states[number] = self.model.state
                total += loss.item() * share
        return total if self.ranks is None else float(self.ranks.sum(torch.tensor(total, dtype=torch.float64)))

    def _draw(self, step: int, piece: int) -> None:
        torch.manual_seed(draw_seed(self.seed, step, piece))

    def _average(self) -> None:
        """The mean over processes, of the gradients of what every process has; those of shared tables arrive so."""
        if self.ranks is None:
            return
        weights = [weight for group in self.optimizer.param_groups for weight in group["params"]]
        gradients = [weight.grad for weight in weights if weight.grad is not None and weight not in SHARED]
        if not gradients:
            return
        summed = self.ranks.sum(torch.cat([gradient.reshape(-1) for gradient in gradients])) / self.size
        for gradient, part in zip(gradients, summed.split([gradient.numel() for gradient in gradients]), strict=True):
            gradient.copy_(part.view(gradient.shape))
