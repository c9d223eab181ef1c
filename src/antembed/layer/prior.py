"""The Indian buffet process, the prior behind nbANT's objective: samples, log-probability, and the limit that gives eq. 5."""

import numpy as np
from scipy.special import gammaln


def sample_ibp(num_objects: int, a: float, b: float = 1.0, *, rng: np.random.Generator) -> np.ndarray:
    """Z (num_objects, K) of 0 and 1 with random K, from the two-parameter process; b = 1 is the one-parameter process.

    Object i (from 1) uses each anchor that m_k objects use before it with probability m_k/(b + i − 1), and
    Poisson(a·b/(b + i − 1)) new ones. (The paper's appendix prints the denominators as i + b, which contradicts its own
    probability of Z; this is Ghahramani et al. 2007.)
    """
    used: list[np.ndarray] = []
    popularity = np.zeros(0)
    for i in range(1, num_objects + 1):
        old = rng.random(len(popularity)) < popularity / (b + i - 1)
        new = rng.poisson(a * b / (b + i - 1))
        used.append(np.concatenate([old, np.ones(new, bool)]))
        popularity = np.concatenate([popularity + old, np.ones(new)])
    Z = np.zeros((num_objects, len(popularity)), np.int8)
    for i, row in enumerate(used):
        Z[i, : len(row)] = row
    return Z


def log_probability(Z: np.ndarray, log_a: float, log_b: float = 0.0) -> float:
    """log p([Z]) of the two-parameter process (Appendix A). a and b are given as logarithms, so that e^(±βλ) does not overflow.

    [Z] is the class of matrices with the same columns in any order; empty columns do not count.
    """
    Z = Z[:, Z.any(axis=0)]
    V, K = Z.shape
    m = Z.sum(axis=0).astype(float)
    harmonic = np.exp(log_a + log_b - _log_plus(log_b, V)).sum()  # a·b·Σ 1/(b + j − 1)
    same = np.unique(Z, axis=1, return_counts=True)[1] if K else np.zeros(0)
    columns = gammaln(m) + _log_rising(V - m, log_b) - _log_rising(np.full_like(m, V), log_b)
    return float(K * (log_a + log_b) - gammaln(same + 1).sum() - harmonic + columns.sum())


def _log_plus(log_b: float, n: int) -> np.ndarray:
    """log(b + j) for j = 0 … n − 1."""
    return np.logaddexp(log_b, np.log(np.maximum(np.arange(n), np.finfo(float).tiny)))


def _log_rising(n: np.ndarray, log_b: float) -> np.ndarray:
    """log Γ(n + b)/Γ(b) = Σ_{j<n} log(b + j), accurate also for huge b."""
    steps = np.concatenate([[0.0], np.cumsum(_log_plus(log_b, int(n.max(initial=0))))])
    return steps[n.astype(int)]


def small_variance_limit(Z: np.ndarray, anchor_penalty: float, l0_penalty: float) -> float:
    """−λ2·‖Z‖₀ − (λ1 − λ2)·K, the limit of (1/β)·log p(Z) with a = e^(−βλ1), b = e^(βλ2) (Appendix B).

    λ1 is `anchor_penalty`, λ2 `l0_penalty`."""
    return float(-l0_penalty * Z.sum() - (anchor_penalty - l0_penalty) * int(Z.any(axis=0).sum()))
