"""antembed: small embedding tables. Every vector is a sparse, non-negative mix of a few anchor vectors (E = T·A)."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from antembed.extras import explained

__version__ = "0.1.0"

# Loaded on first use: `antembed.load_table` works where torch is not installed.
_HOMES = {
    "AnchorEmbedding": "embedding",
    "AnchorEmbeddingBag": "embedding",
    "FullEmbedding": "embedding",
    "GroupLassoEmbedding": "embedding",
    "HashEmbedding": "embedding",
    "LowRankEmbedding": "embedding",
    "MixedDimensionEmbedding": "embedding",
    "MixtureEmbedding": "embedding",
    "SlimmingTransform": "embedding",
    "SparseCodeEmbedding": "embedding",
    "SparseEmbedding": "embedding",
    "SparseVariationalEmbedding": "embedding",
    "SparsityController": "embedding",
    "TensorTrainEmbedding": "embedding",
    "VocabularyDropout": "embedding",
    "param_groups": "embedding",
    "replace_embeddings": "embedding",
    "compress": "compression",
    "HashedNgramClassifier": "estimators.classifier",
    "LanguageModel": "estimators.language",
    "Recommender": "estimators.recommender",
    "TextClassifier": "estimators.classifier",
    "FreeEntries": "optim",
    "GroupL2": "optim",
    "L1": "optim",
    "NonNegativeL1": "optim",
    "Proximal": "optim",
    "ProximalAdam": "optim",
    "ProximalSGD": "optim",
    "ProximalYogi": "optim",
    "SubgradientL1": "optim",
    "clip_grad_norm_": "optim",
    "Prune": "sparsify",
    "Recode": "sparsify",
    "KeyedVectors": "serving",
    "StaticModel": "serving",
    "Table": "serving",
    "TableError": "serving",
    "export": "serving",
    "load_hashed_ngrams": "serving",
    "load_table": "serving",
}
__all__ = [*_HOMES, "__version__"]

if TYPE_CHECKING:
    from antembed.compression import compress  # noqa: F401
    from antembed.embedding import (  # noqa: F401
        AnchorEmbedding,
        AnchorEmbeddingBag,
        FullEmbedding,
        GroupLassoEmbedding,
        HashEmbedding,
        LowRankEmbedding,
        MixedDimensionEmbedding,
        MixtureEmbedding,
        SlimmingTransform,
        SparseCodeEmbedding,
        SparseEmbedding,
        SparseVariationalEmbedding,
        SparsityController,
        TensorTrainEmbedding,
        VocabularyDropout,
        param_groups,
        replace_embeddings,
    )
    from antembed.estimators.classifier import HashedNgramClassifier, TextClassifier  # noqa: F401
    from antembed.estimators.language import LanguageModel  # noqa: F401
    from antembed.estimators.recommender import Recommender  # noqa: F401
    from antembed.optim import (  # noqa: F401
        L1,
        FreeEntries,
        GroupL2,
        NonNegativeL1,
        Proximal,
        ProximalAdam,
        ProximalSGD,
        ProximalYogi,
        SubgradientL1,
        clip_grad_norm_,
    )
    from antembed.serving import (  # noqa: F401
        KeyedVectors,
        StaticModel,
        Table,
        TableError,
        export,
        load_hashed_ngrams,
        load_table,
    )
    from antembed.sparsify import Prune, Recode  # noqa: F401


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'antembed' has no attribute {name!r}")
    try:
        value = getattr(import_module(f"antembed.{_HOMES[name]}"), name)
    except ImportError as error:
        extra = "cli" if _HOMES[name] == "compression" else "train"
        raise explained(error, f"antembed.{name}", extra) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
