"""antembed: small embedding tables. Every vector is a sparse, non-negative mix of a few anchor vectors (E = T·A)."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from antembed.extras import explained

__version__ = "0.1.0"

# Loaded on first use: `antembed.load_table` works where torch is not installed.
_HOMES = {
    "AnchorEmbedding": "layer.anchor",
    "AnchorEmbeddingBag": "layer.bag",
    "FullEmbedding": "baselines",
    "GroupLassoEmbedding": "baselines",
    "HashEmbedding": "baselines",
    "LowRankEmbedding": "baselines",
    "MixedDimensionEmbedding": "baselines",
    "MixtureEmbedding": "layer.mixture",
    "SlimmingTransform": "baselines",
    "SparseCodeEmbedding": "baselines",
    "SparseEmbedding": "baselines",
    "SparseVariationalEmbedding": "baselines",
    "SparsityController": "layer.sparsity_controller",
    "TensorTrainEmbedding": "baselines",
    "VocabularyDropout": "baselines",
    "param_groups": "layer.embedding",
    "replace_embeddings": "layer.replace",
    "compress": "compression",
    "HashedNgramClassifier": "classify.classifier",
    "LanguageModel": "language.language_model",
    "Recommender": "recommend.recommender",
    "TextClassifier": "classify.classifier",
    "FreeEntries": "layer.optim",
    "GroupL2": "layer.optim",
    "L1": "layer.optim",
    "NonNegativeL1": "layer.optim",
    "Proximal": "layer.optim",
    "ProximalAdam": "layer.optim",
    "ProximalSGD": "layer.optim",
    "ProximalYogi": "layer.optim",
    "SubgradientL1": "layer.optim",
    "clip_grad_norm_": "layer.optim",
    "Prune": "layer.sparsify.prune",
    "Recode": "layer.sparsify.recode",
    "KeyedVectors": "tables.keyed_vectors",
    "StaticModel": "tables.static_model",
    "Table": "tables.table",
    "TableError": "tables.container",
    "export": "tables.save",
    "load_hashed_ngrams": "classify.ngram_file",
    "load_table": "tables.save",
}
__all__ = [*_HOMES, "__version__"]

if TYPE_CHECKING:
    from antembed.baselines.group_lasso import (  # noqa: F401
        GroupLassoEmbedding,
    )
    from antembed.baselines.hashed import (  # noqa: F401
        HashEmbedding,
    )
    from antembed.baselines.low_rank import (  # noqa: F401
        LowRankEmbedding,
    )
    from antembed.baselines.mixed_dimension import (  # noqa: F401
        MixedDimensionEmbedding,
    )
    from antembed.baselines.slimming import (  # noqa: F401
        SlimmingTransform,
    )
    from antembed.baselines.sparse import (  # noqa: F401
        SparseEmbedding,
    )
    from antembed.baselines.sparse_code import (  # noqa: F401
        SparseCodeEmbedding,
    )
    from antembed.baselines.tensor_train import (  # noqa: F401
        TensorTrainEmbedding,
    )
    from antembed.baselines.variational import (  # noqa: F401  # noqa: F401
        SparseVariationalEmbedding,
        VocabularyDropout,
    )
    from antembed.classify.classifier import HashedNgramClassifier, TextClassifier  # noqa: F401
    from antembed.classify.ngram_file import (  # noqa: F401
        load_hashed_ngrams,
    )
    from antembed.compression import compress  # noqa: F401
    from antembed.language.language_model import LanguageModel  # noqa: F401
    from antembed.layer.anchor import (  # noqa: F401
        AnchorEmbedding,
    )
    from antembed.layer.bag import (  # noqa: F401
        AnchorEmbeddingBag,
    )
    from antembed.layer.embedding import (  # noqa: F401
        param_groups,
    )
    from antembed.layer.full import (  # noqa: F401
        FullEmbedding,
    )
    from antembed.layer.mixture import (  # noqa: F401
        MixtureEmbedding,
    )
    from antembed.layer.optim.clip import (  # noqa: F401
        clip_grad_norm_,
    )
    from antembed.layer.optim.prox import (  # noqa: F401
        L1,
        FreeEntries,
        GroupL2,
        NonNegativeL1,
        SubgradientL1,
    )
    from antembed.layer.optim.rules import (  # noqa: F401
        ProximalAdam,
        ProximalSGD,
        ProximalYogi,
    )
    from antembed.layer.optim.wrapper import (  # noqa: F401
        Proximal,
    )
    from antembed.layer.replace import (  # noqa: F401
        replace_embeddings,
    )
    from antembed.layer.sparsify.prune import Prune  # noqa: F401
    from antembed.layer.sparsify.recode import Recode  # noqa: F401
    from antembed.layer.sparsity_controller import (  # noqa: F401
        SparsityController,
    )
    from antembed.recommend.recommender import Recommender  # noqa: F401
    from antembed.tables.container import (  # noqa: F401
        TableError,
    )
    from antembed.tables.keyed_vectors import (  # noqa: F401
        KeyedVectors,
    )
    from antembed.tables.save import (  # noqa: F401
        export,
        load_table,
    )
    from antembed.tables.static_model import (  # noqa: F401
        StaticModel,
    )
    from antembed.tables.table import (  # noqa: F401
        Table,
    )


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
