"""What configs know of embeddings and optimizers without torch is what their classes say."""

from antembed.baselines import EMBEDDINGS as CLASSES
from antembed.layer.embedding_names import EMBEDDINGS, Plain
from antembed.layer.optim import OPTIMIZERS as RULES
from antembed.train.config import OPTIMIZERS


def test_embeddings():
    assert {name: Plain(kind.requires, kind.anchored) for name, kind in CLASSES.items()} == EMBEDDINGS
    assert list(CLASSES) == list(EMBEDDINGS)


def test_optimizers():
    assert tuple(RULES) == OPTIMIZERS
