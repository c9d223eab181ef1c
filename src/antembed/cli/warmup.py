"""`antembed warmup`: small models of every kind are trained, looked up and compressed, so that all kernels are compiled."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from antembed.layer.anchor import AnchorEmbedding
from antembed.layer.bag import AnchorEmbeddingBag
from antembed.layer.optim.rules import ProximalYogi
from antembed.layer.row_table import WORTH_GROUPING
from antembed.native.compile import FOLDER, HERE, KERNELS, WITHOUT, kept_in

# What is typed; the words in capitals are files and folders.
COMMANDS = (
    "train recommend RATINGS --solver stochastic --epochs 2 --l1-penalty 1e-4 --threads 2 --out RUN/fused",
    "train recommend RATINGS --solver stochastic --epochs 4 --budget 700 --embedding-dim 4 --anchors 6 --out RUN/recode",
    "train recommend RATINGS --solver coordinate_descent --embedding-dim 4 --anchors 6 --threads 2 --out RUN/descent",
    "train recommend EVENTS --solver coordinate_descent --embedding-dim 4 --anchors 6 --threads 2 --out RUN/events",
    "train classify TEXTS --model mean --epochs 2 --embedding-dim 8 --anchors 6 --threads 2 --out RUN/mean",
    "train classify TEXTS --threads 2 --out RUN/ngrams",
    "train language TEXT --epochs 2 --embedding-dim 8 --anchors 6 --batch-size 700 --threads 2 --out RUN/language",
    "compress VECTORS RUN/vectors.ant --budget 4x",
    "compress VECTORS RUN/few.ant --budget 24x",
    "recommend RUN/fused u1",
    "similar RUN/fused i1",
)


def write_data(folder: Path) -> dict[str, Path]:
    """Small files of each kind."""
    rng = np.random.default_rng(0)
    pairs = [(int(u), int(i)) for u, i in rng.integers(0, 40, (1500, 2))]
    lines = [" ".join(f"w{10 * (n % 3) + word}" for word in rng.integers(0, 20, 10)) for n in range(400)]
    vectors = [f"v{n} {' '.join(f'{x:.4f}' for x in row)}" for n, row in enumerate(rng.standard_normal((2000, 16)).tolist())]
    written = {
        "RATINGS": ["user,item,rating", *(f"u{u},i{i},{1 + 3 * (u % 2 == i % 2) + u % 3 / 2}" for u, i in pairs)],
        "EVENTS": ["user,item", *(f"u{u},i{i}" for u, i in pairs if u % 4 == i % 4)],
        "TEXTS": ["label,text", *(f"{n % 3},{line}" for n, line in enumerate(lines))],
        "TEXT": lines,
        "VECTORS": vectors,
    }
    files = {name: folder / f"{name.lower()}{'.csv' if name not in ('TEXT', 'VECTORS') else '.txt'}" for name in written}
    for name, file in files.items():
        file.write_text("\n".join(written[name]) + "\n")
    return files


LAYERS = "AnchorEmbedding and AnchorEmbeddingBag in a training loop"


def train_layers() -> None:
    """What a loop of one's own calls: steps of layers with lazy rows, in batches large enough to be grouped."""
    for layer in (AnchorEmbedding(100, 8, num_anchors=6, sparse=True), AnchorEmbeddingBag(100, 8, num_anchors=6, sparse=True)):
        optimizer = ProximalYogi(layer.param_groups(l1_penalty=1e-4))
        for step in range(2):
            layer((torch.arange(2 * WORTH_GROUPING) % (90 + step)).view(-1, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        layer.eval()


def warm_up(folder: Path, call: Callable[[list[str]], object]) -> Iterator[str]:
    """Each command, as it begins, in this folder."""
    if FOLDER is None:
        raise ValueError(f"machine code would not be kept: {WITHOUT}; set NUMBA_CACHE_DIR to a folder of your own")
    yield LAYERS
    train_layers()
    files = write_data(folder) | {"RUN": folder}
    for command in COMMANDS:
        yield command
        words = []
        for word in command.split():
            name, *rest = word.split("/")
            words.append("/".join([str(files.get(name, name)), *rest]))
        call(words)


def compiled_functions() -> int:
    """Functions whose machine code is kept."""
    files = [*HERE.glob("*.py"), *KERNELS.values()]
    return sum(len(list((FOLDER / kept_in(file)).glob("*.nbi"))) for file in files) if FOLDER else 0
