"""ℓ1 on every entry of a full table, by a two-sided prox (sparse CBOW) or by a subgradient; slimming, the subgradient and then
`keep`, which prunes to a number of non-zeros: of E itself, or of T in E = T·A."""

from typing import ClassVar

from antembed.baselines.low_rank import LowRankEmbedding
from antembed.layer.full import PlainTable
from antembed.layer.optim.prox import L1, Prox, SubgradientL1


class SparseEmbedding(PlainTable):
    """ids (*batch) → vectors (*batch, d), with the penalty l1_penalty·‖E‖₁. The two-sided prox ends with exact zeros.

    It is not lazy: every step goes over all of the table."""

    prox: ClassVar[type[Prox]] = L1

    def penalty(self, l1_penalty: float) -> Prox:
        return self.prox(l1_penalty)


class SubgradientSparseEmbedding(SparseEmbedding):
    """The same by a subgradient, which ends with small numbers: `prune` or `keep` set them to zero."""

    prox = SubgradientL1


class SlimmingEmbedding(SubgradientSparseEmbedding):
    """Slimming of E. The layer is SubgradientSparseEmbedding; a run prunes it by `keep` instead of `prune`."""


class SlimmingTransform(LowRankEmbedding):
    """Slimming of T: ids (*batch) → vectors (*batch, d) = T[ids]·A with T of both signs, initialized like LowRankEmbedding."""

    def penalty(self, l1_penalty: float) -> Prox:
        return SubgradientL1(l1_penalty)
