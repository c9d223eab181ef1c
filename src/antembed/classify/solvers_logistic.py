"""Logistic regression with a quadratic penalty for each feature, warm-started: the anchors of hashed n-grams."""

import numpy as np

from antembed.classify.logistic_kernel import logistic_loss
from antembed.native.threads import usable_cpus


def softmax(S: np.ndarray) -> np.ndarray:
    """Probabilities of scores (n, C)."""
    powers = np.exp(S - S.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def curvatures(weights: np.ndarray, P: np.ndarray) -> np.ndarray:
    """Σ_i weights[i, k]·(diag(P_i) − P_i·P_iᵀ) for each k: (K, C, C)."""
    rows = [weights.T @ (P[:, a : a + 1] * (np.eye(P.shape[1])[a] - P)) for a in range(P.shape[1])]
    return np.stack(rows, axis=1)


def logistic(
    Z: np.ndarray, labels: np.ndarray, penalty: np.ndarray, B: np.ndarray, bias: np.ndarray, steps: int = 20
) -> tuple[np.ndarray, np.ndarray]:
    """min over B (K, C), bias (C):  mean_i −log softmax(Z_i·B + bias)[labels_i]  +  ½/n·Σ_k B_kᵀ·penalty_k·B_k.

    From those given. A penalty is a matrix (K, C, C) or its diagonals (K, C)."""
    from scipy.optimize import minimize  # a fifth of a second, which other solvers' runs need not wait for

    shape, size, threads = B.shape, B.size, usable_cpus()

    def loss(x: np.ndarray) -> tuple[float, np.ndarray]:
        B, bias = x[:size].reshape(shape), x[size:]
        pull = penalty * B if penalty.ndim == 2 else (penalty @ B[..., None])[..., 0]
        total, slopes, slope = logistic_loss(Z, labels, B, bias, threads)
        return (total + 0.5 * (pull * B).sum()) / len(Z), np.concatenate([(slopes + pull).ravel(), slope]) / len(Z)

    found = minimize(loss, np.concatenate([B.ravel(), bias]), jac=True, method="L-BFGS-B", options={"maxiter": steps}).x
    return found[:size].reshape(shape), found[size:]
