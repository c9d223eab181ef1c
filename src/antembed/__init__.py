"""antembed: small embedding tables. Every vector is a sparse, non-negative mix of a few anchor vectors (E = T·A)."""
# ruff: noqa: F401

import sys
import warnings
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from antembed.extras import explained

__version__ = "0.1.0"

# Loaded on first use: `antembed.load_table` works where torch is not installed.
_HOMES = {
    "AnchorEmbedding": "layer.anchor",
    "AnchorEmbeddingBag": "layer.bag",
    "HashedNgramClassifier": "classify.classifier",
    "KeyedVectors": "tables.keyed_vectors",
    "LanguageModel": "language.language_model",
    "ProximalYogi": "layer.optim",
    "Prune": "layer.sparsify.sparsifier",
    "Recode": "layer.sparsify.recode",
    "Recommender": "recommend.recommender",
    "SparsityController": "layer.sparsity_controller",
    "StaticModel": "tables.static_model",
    "Table": "tables.table",
    "TableError": "tables.container",
    "TextClassifier": "classify.classifier",
    "compress": "compression",
    "export": "tables.save",
    "load_table": "tables.save",
    "param_groups": "layer.embedding",
    "replace_embeddings": "layer.replace",
}
_NAMESPACES = {"baselines": "baselines", "optim": "layer.optim", "penalties": "layer.optim.prox"}
__all__ = [*_HOMES, *_NAMESPACES, "__version__"]

if TYPE_CHECKING:
    from antembed import baselines
    from antembed.classify.classifier import HashedNgramClassifier, TextClassifier
    from antembed.compression import compress
    from antembed.language.language_model import LanguageModel
    from antembed.layer import optim
    from antembed.layer.anchor import AnchorEmbedding
    from antembed.layer.bag import AnchorEmbeddingBag
    from antembed.layer.embedding import param_groups
    from antembed.layer.optim import prox as penalties
    from antembed.layer.optim.rules import ProximalYogi
    from antembed.layer.replace import replace_embeddings
    from antembed.layer.sparsify.recode import Recode
    from antembed.layer.sparsify.sparsifier import Prune
    from antembed.layer.sparsity_controller import SparsityController
    from antembed.recommend.recommender import Recommender
    from antembed.tables.container import TableError
    from antembed.tables.keyed_vectors import KeyedVectors
    from antembed.tables.save import export, load_table
    from antembed.tables.static_model import StaticModel
    from antembed.tables.table import Table

# Names that stood at the top level before, by where they are now.
_MOVED = {
    "baselines": "FullEmbedding GroupLassoEmbedding HashEmbedding LowRankEmbedding MixedDimensionEmbedding MixtureEmbedding "
    "SlimmingTransform SparseCodeEmbedding SparseEmbedding SparseVariationalEmbedding TensorTrainEmbedding VocabularyDropout",
    "optim": "Proximal ProximalAdam ProximalSGD clip_grad_norm_",
    "penalties": "FreeEntries GroupL2 L1 NonNegativeL1 SubgradientL1",
    "classify.ngram_file": "load_hashed_ngrams",
}
# Modules that documents named before, and the modules that have their names now.
_MOVED_MODULES = {
    "distributed": ("layer.sharded.collectives", "layer.sharded.sharded_embedding", "train.processes"),
    "distributed.storage": ("train.sharded_checkpoint",),
    "embedding": ("baselines", "layer.anchor", "layer.bag", "layer.embedding", "layer.replace", "layer.sparsity_controller"),
    "huggingface": ("hf",),
    "inference": (),
    "inference.ratings": ("recommend.predictor",),
    "inference.text": ("classify.predictor",),
    "optim": ("layer.optim",),
    "penalties": ("layer.optim.prox",),
    "serving": ("tables.save", "tables.keyed_vectors", "tables.static_model", "tables.container", "classify.ngram_file"),
    "sparsify": ("layer.sparsify.sparsifier", "layer.sparsify.recode"),
    "sparsify.lightning": ("layer.sparsify.lightning",),
}


def __getattr__(name: str) -> Any:
    home = _NAMESPACES.get(name) or _HOMES.get(name)
    if home is None:
        home = next((home for home, names in _MOVED.items() if name in names.split()), None)
        if home is None:
            raise AttributeError(f"module 'antembed' has no attribute {name!r}")
        warnings.warn(f"antembed.{name} is antembed.{home}.{name} now", DeprecationWarning, stacklevel=2)
        home = _NAMESPACES.get(home, home)
    try:
        module = import_module(f"antembed.{home}")
    except ImportError as error:
        raise explained(error, f"antembed.{name}", "cli" if home == "compression" else "train") from error
    return module if name in _NAMESPACES else getattr(module, name)


def __dir__() -> list[str]:
    return sorted(__all__)


class _MovedModules:
    """Imports modules by their former names; of those that are no namespaces with a warning that says the new ones."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        known = name.removeprefix("antembed.") in _MOVED_MODULES
        return ModuleSpec(name, self, is_package=True) if known else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None: ...

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__.removeprefix("antembed.")
        homes = [f"antembed.{home}" for home in _MOVED_MODULES[name]]
        if homes and name not in _NAMESPACES:
            text = f"antembed.{name} has moved to {', '.join(homes)}; import what is at the top level from antembed"
            warnings.warn(text, DeprecationWarning, stacklevel=2)
        for home in homes:
            vars(module).update({key: found for key, found in vars(import_module(home)).items() if key[:1] != "_"})


sys.meta_path.append(_MovedModules())
