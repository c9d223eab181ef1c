"""One of two gloo processes: python ddp_worker.py RANK FOLDER."""

import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import antembed as ant

V, d, K, STEPS, WORLD = 60, 4, 5, 25, 2


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = ant.AnchorEmbedding(V, d, num_anchors=K, sparse=True, dtype=torch.float64)
        self.head = nn.Linear(d, 1, dtype=torch.float64)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.words(ids).tanh()).squeeze(-1)


def batch(step: int, rank: int) -> torch.Tensor:
    return torch.randint(0, V, (6,), generator=torch.Generator().manual_seed(100 * step + rank))


def loss(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    return (model(ids) - torch.sin(ids.double())).square().mean()


def main(rank: int, folder: str) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=WORLD, timeout=timedelta(seconds=60)
    )
    torch.manual_seed(rank)  # DDP itself sends rank 0's parameters round
    model = DistributedDataParallel(Model())
    optimizer = ant.ProximalYogi(ant.param_groups(model, l1_penalty=1e-3), lr=0.02)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss(model, batch(step, rank)).backward()
        optimizer.step()
    save_file(model.module.state_dict(), f"{folder}/{rank}.safetensors")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
