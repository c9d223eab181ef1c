"""AnchorEmbedding: E = T·A, every row of E a sparse, non-negative mix of K anchor vectors."""

import math
from collections.abc import Mapping
from typing import NoReturn, Self, TypedDict, cast

import torch
from torch import Tensor, nn
from torch.types import Device

from antembed.budget import Budget, parse_budget
from antembed.files import JSON
from antembed.layer.embedding import Embedding
from antembed.layer.factorize import anchors_for_table, factorize_within, nonnegative_factorize
from antembed.layer.lookup import LookUp, fits_compiled_pass
from antembed.layer.optim.prox import FreeEntries, NonNegativeL1, Prox
from antembed.layer.optim.proximal_optimizer import Group
from antembed.layer.row_table import MOSTLY_DISTINCT, RowTable, check_sizes, half_normal, new_rows

DEFAULT_ANCHORS = 16  # a guess; `--budget` and `--anchors auto` choose
READ_ONLY = (
    "weight is computed from T and A and cannot be set; AnchorEmbedding.from_pretrained(weight) factorizes a table, to_dense() "
    "gives a copy, and logits(hidden) is a tied output layer"
)


def checkpoint_error(state: Mapping[str, Tensor], prefix: str, V: int, d: int) -> str | None:
    """Why a layer of V objects and d dimensions cannot load its part of the checkpoint; None: nothing known here."""
    anchors, weight, dense = (state.get(prefix + name) for name in ("anchors", "rows.weight", "weight"))
    if anchors is None and weight is None and dense is not None:
        return (
            f"{prefix}weight: the checkpoint has a dense table of {tuple(dense.shape)}, as nn.Embedding has, this layer T and "
            f"A of {V} objects and {d} dimensions; factorize it with antembed.AnchorEmbedding.from_pretrained(weight, "
            "num_anchors=…), whose state_dict fits"
        )
    if anchors is None or weight is None:
        return None
    if anchors.shape[1] != d:
        return (
            f"{prefix}anchors: the checkpoint has {anchors.shape[1]} dimensions, this layer {d}; build the layer with "
            f"embedding_dim={anchors.shape[1]}"
        )
    if weight.shape[0] != V:
        more = weight.shape[0] - V
        remedy = f"grow it first with add_objects({more})" if more > 0 else "build a layer of that size"
        return f"{prefix}rows.weight: the checkpoint has {weight.shape[0]} objects, this layer {V}; {remedy}"
    if weight.shape[1] != anchors.shape[0]:
        return f"{prefix}: the checkpoint's T has {weight.shape[1]} columns but its A {anchors.shape[0]} rows; it is damaged"
    return None


def suited_anchors(num_anchors: int | None, allowed: Budget | None, V: int, d: int) -> int:
    """How many anchors a table gets: as asked for, or as many as suit its budget."""
    if num_anchors is not None:
        return num_anchors
    return DEFAULT_ANCHORS if allowed is None else anchors_for_table(allowed, V, d)


class AnchorOptions(TypedDict, total=False):
    """Keyword arguments of every AnchoredTable."""

    num_anchors: int
    sparse: bool
    device: Device
    dtype: torch.dtype | None


class MixOfAnchors(Embedding):
    """E = T·A, or a sum of several: every T and A starts half-normal, and every T has the ℓ1 penalty."""

    anchored = True
    uses_anchors = True

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialize T and A anew, as at construction. An optimizer keeps its moments: make a new one."""
        for table, A in self.pairs:
            table.reset_to(half_normal(*table.weight.shape, device=A.device, dtype=A.dtype))
            A.copy_(half_normal(*A.shape, device=A.device, dtype=A.dtype))

    def penalty(self, l1_penalty: float) -> Prox | None:
        return NonNegativeL1(l1_penalty)

    def new_rows(self, table: RowTable, n: int) -> Tensor:
        """n more rows as if they had been drawn with the others."""
        return table.new_normal(n).abs_().mul_(math.sqrt(2 / max(table.num_embeddings + n, 1)))


class AnchoredTable(MixOfAnchors):
    """E = T·A: T (V, K) in an inner nn.Embedding, A (K, d) as one parameter."""

    reconstruction_error: float | None = None  # ‖E − T·A‖/‖E‖ of from_pretrained

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        num_anchors: int = DEFAULT_ANCHORS,
        sparse: bool = False,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        check_sizes(num_embeddings, embedding_dim, num_anchors, dtype)
        self.rows = new_rows(num_embeddings, num_anchors, padding_idx, sparse, device, dtype)
        self.anchors = nn.Parameter(half_normal(num_anchors, embedding_dim, device=device, dtype=dtype))

    def forward(self, ids: Tensor) -> Tensor:
        return self.vectors(ids)

    @property
    def pairs(self) -> list[tuple[RowTable, Tensor]]:
        return [(self.rows, self.anchors)]

    @property
    def embedding_dim(self) -> int:
        return self.anchors.shape[1]

    @property
    def num_anchors(self) -> int:
        return self.anchors.shape[0]

    @property
    def weight(self) -> Tensor:
        """E (V, d) = to_dense(), where code for nn.Embedding reads it: computed anew at each access, not a parameter.

        Setting it raises. Instead of `lm_head.weight = layer.weight`, which would not be tied, call `layer.logits(hidden)`."""
        return self.to_dense()

    @weight.setter
    def weight(self, value: object) -> NoReturn:
        raise AttributeError(READ_ONLY)

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        if name == "weight":  # nn.Module asks no property before it registers a parameter
            raise AttributeError(READ_ONLY)
        super().register_parameter(name, param)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        self.reconstruction_error = None

    def fit_to(
        self, weight: Tensor, allowed: Budget | None, *, l1_penalty: float = 0.0, iterations: int = 50, seed: int = 0
    ) -> None:
        """Factorize weight (V, d) into T and A, of at most the size `allowed`."""
        K = self.num_anchors
        if allowed is None:
            T, A, error = nonnegative_factorize(weight, K, l1_penalty=l1_penalty, iterations=iterations, seed=seed)
        else:
            T, A, error = factorize_within(weight, allowed, K, seed=seed)
        self.rows.reset_to(T)
        self.anchors.data.copy_(A)
        self.reconstruction_error = error

    @property
    def transform(self) -> Tensor:
        """T (V, K), up to date."""
        return self.rows.full_tensor()

    def param_groups(self, l1_penalty: float = 0.0, *, free: FreeEntries | None = None) -> list[Group]:
        """Optimizer groups: T with its penalty (if any; `free` entries have none), and A without one."""
        groups = super().param_groups(l1_penalty)
        if free is not None:
            if not isinstance(prox := groups[0]["prox"], NonNegativeL1):
                raise ValueError(
                    f"{len(free)} free entries were given, but {type(self).__name__} supports 0; use AnchorEmbedding"
                )
            prox.free = self.rows.own_entries(free)
        return groups

    def vectors(self, ids: Tensor) -> Tensor:
        """ids (*batch) → T[ids]·A: (*batch, d)."""
        compiled = fits_compiled_pass(self.rows.weight, self.anchors)
        groups = self.rows.groups(ids, 1.0 if compiled else MOSTLY_DISTINCT)
        if groups is None:
            return self.rows(ids) @ self.anchors
        if compiled:
            vectors = LookUp.apply(self.rows.weight, self.anchors, groups, self.padding_idx, self.rows.pending)
        else:  # ids repeat within a batch: multiply each distinct row once
            vectors = (self.rows(torch.from_numpy(groups.unique)) @ self.anchors)[torch.from_numpy(groups.group)]
        return vectors.view(*ids.shape, self.embedding_dim)

    def coordinates(self, ids: Tensor) -> tuple[Tensor, Tensor | None]:
        return (self.rows(ids), self.anchors) if self.num_anchors < self.embedding_dim else (self.vectors(ids), None)

    def factors(self) -> tuple[Tensor, Tensor]:
        """T (V, K) and A (K, d) with E = T·A, for `export`."""
        return self.transform, self.anchors

    def logits(self, hidden: Tensor, ids: Tensor | None = None, *, bias: Tensor | None = None) -> Tensor:
        """Scores of a tied output layer, hidden (*batch, d) → E·h + bias: (*batch, V), or (*batch, n) of the objects `ids`
        (n,); multiplied in the cheaper order."""
        self.check_hidden(hidden)
        V, K, d, n = self.num_embeddings, self.num_anchors, self.embedding_dim, hidden.numel() // self.embedding_dim
        m = V if ids is None else len(ids)
        T = self.transform if ids is None else self.rows(ids)
        if n * (K * d + m * K) <= m * K * d + n * m * d:
            scores = (hidden @ self.anchors.T) @ T.T
        else:
            scores = hidden @ (T @ self.anchors).T
        if self.padding_idx is not None and ids is None:  # its vector is zero, and it gets no gradient
            scores = scores.index_fill(-1, torch.tensor(self.padding_idx, device=scores.device), 0.0)
        return scores if bias is None else scores + (bias if ids is None else bias[ids])

    def extra_repr(self) -> str:
        text = f"{super().extra_repr()}, num_anchors={self.num_anchors}"
        if self.padding_idx is not None:
            text += f", padding_idx={self.padding_idx}"
        return text + (", sparse=True" if self.rows.sparse else "")

    def _load_from_state_dict(self, state_dict: JSON, prefix: str, *args: object) -> None:
        """A checkpoint with another number of anchors resizes the layer; one of another width or height is an error."""
        if (error := checkpoint_error(state_dict, prefix, len(self.rows.weight), self.embedding_dim)) is not None:
            cast(list[str], args[4]).append(error)
            return
        anchors, weight = state_dict.get(prefix + "anchors"), state_dict.get(prefix + "rows.weight")
        if anchors is not None and weight is not None and anchors.shape[0] != self.num_anchors:
            penalized = self.rows.penalized
            self.rows.replace(self.rows.weight.data.new_empty(weight.shape))
            self.rows.penalized = penalized  # nothing is known of the training of what is loaded
            self.anchors.data, self.anchors.grad = self.anchors.data.new_empty(anchors.shape), None
        super()._load_from_state_dict(state_dict, prefix, *args)


class AnchorEmbedding(AnchoredTable):
    """A drop-in replacement for nn.Embedding: ids (*batch) → vectors (*batch, d), where vector i is T[i]·A.

    With sparse=True, T gets row-sparse gradients; ProximalYogi and ProximalSGD then give the same result as with dense ones, at
    the cost of the touched rows. (torch.nn.utils.clip_grad_norm_ fails on them: use `max_grad_norm` of the optimizer.) Take
    the optimizer's groups from `param_groups`: they carry the penalty on T. `weight` is read-only; see docs/layer.md.

        layer = AnchorEmbedding(1_000_000, 64, num_anchors=20, sparse=True)
        optimizer = ProximalYogi(layer.param_groups(l1_penalty=2e-6), lr=0.01)
    """

    @classmethod
    def from_pretrained(
        cls,
        weight: Tensor | nn.Embedding,
        *,
        num_anchors: int | None = None,
        budget: str | None = None,
        l1_penalty: float = 0.0,
        iterations: int = 50,
        seed: int = 0,
        padding_idx: int | None = None,
        sparse: bool = False,
    ) -> Self:
        """Factorize a trained table, weight (V, d) ≈ T·A with T ≥ 0. The relative error is in `reconstruction_error`. With a
        `budget` ("20x", "400k" parameters or "2MB") T is sparse, and as many anchors are taken as suit it."""
        weight = torch.as_tensor(weight.weight if isinstance(weight, nn.Embedding) else weight).detach()
        if weight.dim() != 2:
            raise ValueError(f"a table has two dimensions (objects, width), this has {weight.dim()}")
        if not weight.is_floating_point() or not weight.isfinite().all():
            raise ValueError(f"a table of finite real numbers is needed, this is {weight.dtype} or has inf or nan in it")
        V, d = weight.shape
        if not weight.numel():
            raise ValueError(f"a table of {V} × {d} has no vectors to factorize; AnchorEmbedding({V}, …) makes an empty layer")
        allowed = None if budget is None else parse_budget(budget, 4.0 * weight.numel())
        if allowed is not None and l1_penalty:
            raise ValueError(f"a budget of {budget} and an l1_penalty of {l1_penalty} both say how sparse T is; choose one")
        K = suited_anchors(num_anchors, allowed, V, d)
        layer = cls(V, d, padding_idx, num_anchors=K, sparse=sparse, device=weight.device, dtype=weight.dtype)
        layer.fit_to(weight, allowed, l1_penalty=l1_penalty, iterations=iterations, seed=seed)
        return layer
