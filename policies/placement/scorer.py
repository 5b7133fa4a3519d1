"""The forward pass of the candidate-scoring network in NumPy, so that decisions need no learning framework.

Its counterpart in torch is `trainers.network.Scorer`. The weights have the names of that module's `state_dict()`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


def weight_sizes(job_dim: int, candidate_dim: int, cluster_dim: int, widths: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Return the dimensions of every weight by name."""
    by_name: dict[str, tuple[int, ...]] = {
        "enter.weight": (widths[0], job_dim + cluster_dim),
        "enter.bias": (widths[0],),
        "score.weight": (1, widths[-1]),
        "score.bias": (1,),
        "skip.weight": (1, candidate_dim),
        "value.weight": (1, widths[-1]),
        "value.bias": (1,),
    }
    of_row, of_context = candidate_dim, widths[0]
    for k, width in enumerate(widths):
        by_name[f"row.{k}.weight"] = (width, of_row)
        by_name[f"row.{k}.bias"] = (width,)
        by_name[f"context.{k}.weight"] = (width, of_context)
        by_name[f"pool.{k}.weight"] = (width, of_context + 2 * width)
        by_name[f"pool.{k}.bias"] = (width,)
        of_row = of_context = width
    return by_name


def random_weights(job_dim: int, candidate_dim: int, cluster_dim: int, widths: Sequence[int], seed: int) -> dict[str, Array]:
    """Return the weights of an untrained network, uniform within 1 / sqrt(inputs) like torch's initial weights."""
    rng = np.random.default_rng(seed)
    weights: dict[str, Array] = {}
    for name, size in weight_sizes(job_dim, candidate_dim, cluster_dim, widths).items():
        bound = size[-1] ** -0.5
        weights[name] = rng.uniform(-bound, bound, size).astype(np.float32)
    return weights


def score(weights: Mapping[str, Array], job: Array, rows: Array, cluster: Array) -> Array:
    """Compute the logits of one decision.

    Args:
        weights: Weights by name, with the dimensions that `weight_sizes` gives.
        job: Features of the job, shape (Fj,).
        rows: Features of the rows that may be chosen, at least one, shape (R, Fc).
        cluster: Features of the cluster, shape (Fk,).

    Returns:
        Logits of the rows, float32, shape (R,).
    """
    scores = rows @ weights["skip.weight"][0] + weights["score.bias"][0]
    known = np.concatenate([job, cluster])
    context = np.maximum(weights["enter.weight"] @ known + weights["enter.bias"], 0)
    for k in range(sum(name.startswith("context.") for name in weights)):
        shift = weights[f"context.{k}.weight"] @ context + weights[f"row.{k}.bias"]
        rows = np.maximum(rows @ weights[f"row.{k}.weight"].T + shift, 0)
        pooled = np.concatenate([context, rows.mean(axis=0), rows.max(axis=0)])
        context = np.maximum(weights[f"pool.{k}.weight"] @ pooled + weights[f"pool.{k}.bias"], 0)
    return np.asarray(scores + rows @ weights["score.weight"][0], dtype=np.float32)
