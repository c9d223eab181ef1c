"""SparseEmbedding: a full table with an ℓ1 penalty on every entry, by a two-sided prox (sparse CBOW) or by a subgradient."""

from typing import ClassVar

from antembed.layer.full import PlainTable
from antembed.layer.optim.prox import L1, Prox, SubgradientL1
from antembed.layer.optim.proximal import Group


class SparseEmbedding(PlainTable):
    """ids (*batch) → vectors (*batch, d). The two-sided prox ends with exact zeros.

    It is not lazy: every step goes over the whole table.
    """

    penalty: ClassVar[type[Prox]] = L1

    def param_groups(self, l1_penalty: float) -> list[Group]:
        """One group, with the penalty l1_penalty·‖E‖₁."""
        return [{"params": [self.rows.weight], "prox": self.penalty(l1_penalty), "table": self.rows}]


class SubgradientSparseEmbedding(SparseEmbedding):
    """The same by a subgradient, which ends with small numbers: `prune` or `keep` set them to zero."""

    penalty = SubgradientL1
