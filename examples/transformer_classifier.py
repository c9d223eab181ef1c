"""A small Transformer classifier of one's own, its word table made 20 times smaller by five lines.

    python examples/transformer_classifier.py

The data are synthetic: documents of Zipf-distributed words, some of which are replaced by words of the document's class.
"""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import antembed as ant
from antembed.recommend.synthetic import zipf

WORDS, WIDTH, LENGTH, CLASSES, DOCUMENTS, EPOCHS = 8_000, 64, 24, 6, 6_000, 18


def documents(seed: int, n: int) -> tuple[Tensor, Tensor]:
    """words (n, LENGTH), classes (n,)."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, CLASSES, n)
    words = random.choice(WORDS, (n, LENGTH), p=zipf(WORDS, 0.8))
    own = words - words % CLASSES + labels[:, None]
    words = np.where((random.random(words.shape) < 0.25) & (own < WORDS), own, words)
    return torch.from_numpy(words), torch.from_numpy(labels)


class Classifier(nn.Module):
    def __init__(self, table: type[nn.Module], **options: object):
        super().__init__()
        self.words = table(WORDS, WIDTH, **options)
        self.place = nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 128, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.encoder(self.words(words) + self.place).mean(1))


def accuracy(model: nn.Module, data: tuple[Tensor, Tensor]) -> float:
    with torch.no_grad():
        return float((model.eval()(data[0]).argmax(1) == data[1]).float().mean())


def main() -> dict[str, float]:
    torch.manual_seed(0)
    train, test = documents(1, DOCUMENTS), documents(2, 3_000)
    loader = list(zip(*(column.split(128) for column in train), strict=True))
    found = {}
    for name in ("dense", "anchored"):
        dense = name == "dense"
        model = Classifier(nn.Embedding) if dense else Classifier(ant.AnchorEmbedding, num_anchors=16)

        def loss_fn(batch: tuple[Tensor, ...], model: nn.Module = model) -> Tensor:
            return F.cross_entropy(model(batch[0]), batch[1])

        if dense:
            optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.1)
        else:
            optimizer = ant.optim.ProximalAdam(ant.param_groups(model, l1_penalty=0.0), lr=2e-3)
            sparsifier = ant.Recode(model, optimizer, budget="25k", events=8)
        best = 0.0
        for epoch in range(EPOCHS):
            for group in optimizer.param_groups:
                group["lr"] = 2e-3 if epoch < 13 else 4e-4
            model.train()
            for batch in loader:
                optimizer.zero_grad()
                loss_fn(batch).backward()
                optimizer.step()
            if not dense:
                sparsifier.step(loader, loss_fn)
            best = max(best, accuracy(model, test)) if dense else accuracy(model, test)
        found[name] = best
        size = model.words.weight.numel() if dense else model.words.usage().parameters
        found[f"{name} parameters"] = size
        print(f"{name}: accuracy {best:.4f}, {size:,} parameters in the table")
    return found


if __name__ == "__main__":
    main()
