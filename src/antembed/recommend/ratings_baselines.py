"""What a model of ratings must beat: the mean, and biases alone."""

import numpy as np

Columns = tuple[np.ndarray, ...]  # users, items, ratings, and maybe weights
BIAS_RIDGES = (0.5, 2.0, 6.0, 20.0, 60.0, 200.0)
SWEEPS = 6


def fit_biases(train: Columns, num_embeddings: tuple[int, int], ridge: float) -> tuple[float, np.ndarray, np.ndarray]:
    """Mean, users' and items' biases, by alternating least squares with this ridge."""
    users, items, ratings, *weights = train
    weight = weights[0].astype(np.float64) if weights else np.ones(len(ratings))
    mean = float((weight * ratings).sum() / weight.sum())
    ids, biases = (users, items), [np.zeros(n) for n in num_embeddings]
    for _ in range(SWEEPS):
        for own, n in enumerate(num_embeddings):
            rest = weight * (ratings - mean - biases[1 - own][ids[1 - own]])
            biases[own] = np.bincount(ids[own], rest, n) / (np.bincount(ids[own], weight, n) + ridge)
    return mean, biases[0], biases[1]


def biases_error(train: Columns, other: Columns, num_embeddings: tuple[int, int], ridge: float) -> float:
    """The mean squared error of mean and biases alone on other ratings."""
    mean, users, items = fit_biases(train, num_embeddings, ridge)
    return float(np.square(mean + users[other[0]] + items[other[1]] - other[2]).mean())


def best_bias_ridge(train: Columns, validation: Columns, num_embeddings: tuple[int, int]) -> float:
    """The ridge that suits the validation ratings best; without any, one that usually does."""
    if not len(validation[0]):
        return 6.0
    return min(BIAS_RIDGES, key=lambda ridge: biases_error(train, validation, num_embeddings, ridge))


def baseline_errors(train: Columns, validation: Columns, test: Columns, num_embeddings: tuple[int, int]) -> dict[str, float]:
    """The test errors of the mean and of biases whose ridge was chosen on validation ratings."""
    mean = float(np.average(train[2], weights=train[3] if len(train) > 3 else None))
    ridge = best_bias_ridge(train, validation, num_embeddings)
    found = {"the mean": float(np.square(test[2] - mean).mean())}
    return found | {"biases alone": biases_error(train, test, num_embeddings, ridge)}
