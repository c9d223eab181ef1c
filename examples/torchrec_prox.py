"""A TorchRec model with an anchored table, by TorchRec's own sharding and optimizer and a prox now and then. Approximate.

    pip install --no-deps torchrec==1.8.0 fbgemm-gpu-cpu==1.8.0 && pip install tensordict pyre-extensions
    python examples/torchrec_prox.py
    torchrun --nproc-per-node 2 examples/torchrec_prox.py

T is an EmbeddingCollection (V, K), A a Linear(K, d) without bias: TorchRec moves K numbers a row, not d. Its optimizer updates
rows inside the backward pass and knows no prox, so every `every` steps each process makes up for it in the rows that it holds:

    T ← max(T − every·lr·λ, 0)

With every = 1 that is proximal SGD, at the cost of all rows at every step. With more, weights are negative in between, and the
end is another one. antembed's own layer (ShardedAnchorEmbedding with ProximalSGD or ProximalYogi) has no such gap.
"""

import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torchrec import EmbeddingCollection, EmbeddingConfig, KeyedJaggedTensor
from torchrec.distributed import DistributedModelParallel, ModuleSharder
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
from torchrec.distributed.types import ShardingType
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

import antembed as ant

V, K, d, B, STEPS = 500, 8, 16, 250, 1000
LR, LR_ANCHORS, PENALTY = 0.01, 5e-4, 0.1


class Anchored(nn.Module):
    """ids (B,) → vectors (B, d): T[ids]·A."""

    def __init__(self, T: Tensor, A: Tensor):
        super().__init__()
        table = EmbeddingConfig(name="T", embedding_dim=T.shape[1], num_embeddings=T.shape[0], feature_names=["id"])
        self.rows = EmbeddingCollection(tables=[table])
        self.anchors = nn.Linear(*A.shape, bias=False)
        with torch.no_grad():
            self.rows.embeddings["T"].weight.copy_(T)
            self.anchors.weight.copy_(A.T)

    def forward(self, ids: Tensor) -> Tensor:
        found = self.rows(KeyedJaggedTensor(["id"], ids, lengths=torch.ones(len(ids), dtype=torch.long)))
        vectors: Tensor = self.anchors(found["id"].values())
        return vectors


def sharded(model: Anchored) -> nn.Module:
    """Rows of T over the processes, updated by SGD in the backward pass."""
    apply_optimizer_in_backward(torch.optim.SGD, model.rows.parameters(), {"lr": LR})
    rows = {"T": ParameterConstraints(sharding_types=[ShardingType.ROW_WISE.value])}
    planner = EmbeddingShardingPlanner(topology=Topology(dist.get_world_size(), "cpu"), constraints=rows)
    sharders: list[ModuleSharder[nn.Module]] = [EmbeddingCollectionSharder()]
    plan = planner.collective_plan(model, sharders, dist.group.WORLD)
    return DistributedModelParallel(model, device=torch.device("cpu"), plan=plan, sharders=sharders)


def local_rows(model: nn.Module) -> list[Tensor]:
    """The rows of T that this process holds, as TorchRec's kernel has them."""
    (rows,) = (value for name, value in model.state_dict().items() if name.endswith("embeddings.T.weight"))
    return [shard.tensor for shard in rows.local_shards()]


@torch.no_grad()
def prox_(rows: list[Tensor], amount: float) -> None:
    for some in rows:
        some.sub_(amount).clamp_(min=0)


class Planted:
    """Vectors T*·A* of a sparse T*, met with noise. The loss is ½·Σ over all V objects, estimated by a batch."""

    def __init__(self) -> None:
        random = torch.Generator().manual_seed(0)
        T = torch.rand(V, K, generator=random) * (torch.rand(V, K, generator=random) < 0.3)
        self.E = T @ torch.randn(K, d, generator=random)
        self.start = torch.rand(V, K, generator=random) * 0.3, torch.randn(K, d, generator=random)

    def batch(self, step: int, rank: int = 0, n: int = 1) -> tuple[Tensor, Tensor]:
        """ids and vectors, those of this process."""
        random = torch.Generator().manual_seed(1 + step)
        ids = torch.randint(0, V, (B,), generator=random)
        vectors = self.E[ids] + 0.1 * torch.randn(B, d, generator=random)
        return ids[rank::n].contiguous(), vectors[rank::n]  # TorchRec does not look at strides

    def objective(self, T: Tensor, A: Tensor) -> float:
        return float((T @ A - self.E).square().sum() / 2 + PENALTY * T.abs().sum())


def loss(found: Tensor, wanted: Tensor) -> Tensor:
    return (found - wanted).square().sum() * (V / B / 2)


def train_exact(problem: Planted) -> tuple[Tensor, Tensor]:
    """By antembed, in each process alone: the prox at every step, also for rows without a gradient."""
    layer = ant.AnchorEmbedding(V, d, num_anchors=K, sparse=True)
    with torch.no_grad():
        layer.rows.weight.copy_(problem.start[0])
        layer.anchors.copy_(problem.start[1])
    T, A = layer.param_groups(l1_penalty=PENALTY)
    optimizer = ant.optim.ProximalSGD([T | {"lr": LR}, A | {"lr": LR_ANCHORS}])
    for step in range(STEPS):
        ids, wanted = problem.batch(step)
        optimizer.zero_grad()
        loss(layer(ids), wanted).backward()
        optimizer.step()
    return layer.transform.detach(), layer.anchors.detach()


def train_torchrec(problem: Planted, every: int) -> tuple[Tensor, Tensor]:
    """By TorchRec, all processes together, with a prox every so many steps."""
    rank, n = dist.get_rank(), dist.get_world_size()
    model = sharded(Anchored(*problem.start))
    anchors = [weight for name, weight in model.named_parameters() if "anchors" in name]
    optimizer, held = torch.optim.SGD(anchors, lr=LR_ANCHORS), local_rows(model)
    for step in range(STEPS):
        ids, wanted = problem.batch(step, rank, n)
        optimizer.zero_grad()
        (n * loss(model(ids), wanted)).backward()  # both kinds of gradients are averaged over processes; T is updated here
        optimizer.step()
        if (step + 1) % every == 0:
            prox_(held, every * LR * PENALTY)
    parts: list[list[Tensor]] = [[] for _ in range(n)]
    dist.all_gather_object(parts, [rows.clone() for rows in held])
    return torch.cat([rows for part in parts for rows in part]), anchors[0].detach().T


def main() -> list[dict[str, float]]:
    """Objective, non-zeros and distance to the exact T, for each distance of two proxes."""
    if not dist.is_initialized():
        store = None if "RANK" in os.environ else dist.HashStore()
        dist.init_process_group("gloo", **({} if store is None else {"store": store, "rank": 0, "world_size": 1}))
    problem = Planted()
    T, A = train_exact(problem)
    found = [
        {"every": 0, "objective": problem.objective(T, A), "nonzeros": int((T != 0).sum()), "other_zeros": 0, "distance": 0}
    ]
    for every in (1, 10, 100):
        other, anchors = train_torchrec(problem, every)
        row = {"every": every, "objective": problem.objective(other, anchors), "nonzeros": int((other != 0).sum())}
        row |= {"other_zeros": int(((other == 0) != (T == 0)).sum()), "distance": float((other - T).norm() / T.norm())}
        found.append(row)
    return found


if __name__ == "__main__":
    rows = main()
    if dist.get_rank() == 0:
        for row in rows:
            name = f"TorchRec, prox every {row['every']}" if row["every"] else "exact"
            print(
                f"{name:24} objective {row['objective']:9.3f}  non-zeros {row['nonzeros']:6}  "
                f"zero in one alone {row['other_zeros']:5}  distance {row['distance']:.2e}"
            )
    dist.destroy_process_group()
