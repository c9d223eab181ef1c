"""Tables made small after training, in a language model: a run with full tables → perplexity with each of them.

    python -m experiments bench after_training runs/full ptb [--record results/after-training.jsonl]

Post-sparse hash, k-SVD, low rank by singular values, product quantization, and our entropy-coded files. The rest of the network
stays as it was trained. Parameters count weights that are not zero, anchors and biases; of codes, each code and codebook entry.
"""

import time
from collections.abc import Callable

import numpy as np
import torch

from antembed.baselines.after_training import ksvd, post_sparse_hash
from antembed.baselines.low_rank import LowRankEmbedding
from antembed.baselines.product_quantized import quantize
from antembed.compression import compress
from antembed.layer.embedding import Embedding
from antembed.layer.full import FullEmbedding
from antembed.train.options import with_options
from antembed.train.run import load_model
from antembed.train.run_folder import RunFolder
from experiments.race import parse, publish


def contestants(E: torch.Tensor) -> dict[str, Callable[[], Embedding]]:
    return {
        "full": lambda: full(E.numpy()),
        "post-sparse hash, 500 anchors, 10 each": lambda: post_sparse_hash(E, num_anchors=500, nonzeros=10),
        "post-sparse hash, 1000 anchors, 20 each": lambda: post_sparse_hash(E, num_anchors=1000, nonzeros=20),
        "post-sparse hash, 100 anchors, 2 each": lambda: post_sparse_hash(E, num_anchors=100, nonzeros=2),
        "k-SVD, 500 anchors, 10 each": lambda: ksvd(E, num_anchors=500, nonzeros=10),
        "k-SVD, 1000 anchors, 20 each": lambda: ksvd(E, num_anchors=1000, nonzeros=20),
        "k-SVD, 100 anchors, 2 each": lambda: ksvd(E, num_anchors=100, nonzeros=2),
        "singular values, rank 39": lambda: LowRankEmbedding.from_pretrained(E, num_anchors=39),
        "product quantization, 40 parts": lambda: quantize(E, parts=40),
        "product quantization, 10 parts": lambda: quantize(E, parts=10),
        "compress 8x": lambda: full(compress(E, budget="8x")[:]),
        "compress 16x": lambda: full(compress(E, budget="16x")[:]),
        "compress 32x": lambda: full(compress(E, budget="32x")[:]),
    }


def full(E: np.ndarray) -> FullEmbedding:
    table = FullEmbedding(*E.shape)
    with torch.no_grad():
        table.rows.weight.copy_(torch.from_numpy(E))
    return table


def main(words: list[str]) -> None:
    given = parse(words, __doc__, "run", "data")
    folder = RunFolder(given.run)
    task = folder.task()
    config, _ = folder.open()
    splits = task.load(with_options(config.for_evaluation(), data=given.data))
    model = load_model(given.run)
    E = model.words.to_dense().detach().clone()
    for name, make in contestants(E).items():
        started = time.perf_counter()
        model.words = make()
        seconds = time.perf_counter() - started
        coded = name.startswith(("compress", "full"))
        size = E.numel() if coded else model.words.usage().parameters
        metrics = task.evaluate(model, splits, "test")
        error = float((model.words.to_dense().detach() - E).square().sum() / E.square().sum())
        record = {"method": name, "perplexity": metrics["perplexity"], "parameters": size + model.bias_parameters()}
        publish(given.record, {**record, "relative_error": error, "seconds": round(seconds, 1)})
