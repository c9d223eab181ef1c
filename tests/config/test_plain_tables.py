"""What configs know of embeddings and optimizers without torch is what their classes say."""

from antembed.config.embeddings import EMBEDDINGS, Plain
from antembed.config.solvers import OPTIMIZERS
from antembed.embedding import EMBEDDINGS as CLASSES
from antembed.optim import OPTIMIZERS as RULES


def test_embeddings():
    assert {name: Plain(kind.requires, kind.anchored) for name, kind in CLASSES.items()} == EMBEDDINGS
    assert list(CLASSES) == list(EMBEDDINGS)


def test_optimizers():
    assert tuple(RULES) == OPTIMIZERS
