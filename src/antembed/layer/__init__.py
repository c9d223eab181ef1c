"""The anchored embedding layer for PyTorch, its optimizers, penalties and sparsification."""
