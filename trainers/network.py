"""The candidate-scoring network: one logit per row, so one network serves any number of candidates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

MASKED = -1e8  # logit of a row that may not be chosen; finite, so that no arithmetic with it gives NaN


class Scorer(nn.Module):
    """Scores the rows of a candidate table, each in the context of all (deep sets, Zaheer et al. 2017, as a pointer).

    A context vector starts from the features of the job and the cluster. In every layer a row becomes a function of itself and the
    context, and the context becomes a function of itself and of the rows' mean and maximum. A row's logit is linear in the last
    layer and in the row itself, so that small differences between rows are not lost. Equal rows get equal logits, in any order.
    `policies.placement.scorer` computes the same logits in NumPy from `state_dict()`.

    Args:
        job_dim: Number of features of the job.
        candidate_dim: Number of features of a row.
        cluster_dim: Number of features of the cluster.
        widths: Width of each layer.
    """

    def __init__(self, job_dim: int, candidate_dim: int, cluster_dim: int, widths: Sequence[int] = (64, 64)) -> None:
        super().__init__()
        self.widths = tuple(widths)
        self.enter = nn.Linear(job_dim + cluster_dim, widths[0])
        rows_in, contexts_in = (candidate_dim, *widths[:-1]), (widths[0], *widths[:-1])
        self.row = nn.ModuleList(nn.Linear(n, width) for n, width in zip(rows_in, widths, strict=True))
        self.context = nn.ModuleList(nn.Linear(n, width, bias=False) for n, width in zip(contexts_in, widths, strict=True))
        self.pool = nn.ModuleList(nn.Linear(n + 2 * width, width) for n, width in zip(contexts_in, widths, strict=True))
        self.score = nn.Linear(widths[-1], 1)
        self.skip = nn.Linear(candidate_dim, 1, bias=False)
        self.value = nn.Linear(widths[-1], 1)

    def forward(self, job: Tensor, candidates: Tensor, cluster: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Score a batch of decisions.

        Args:
            job: Features of the jobs, shape (B, Fj).
            candidates: Features of the rows, shape (B, A, Fc).
            cluster: Features of the cluster, shape (B, Fk).
            mask: True for rows that may be chosen, shape (B, A). Other rows are not computed and have no influence. A decision
                without a valid row is computed as if it had no rows.

        Returns:
            Logits, `MASKED` for masked rows, shape (B, A), and values, shape (B,).
        """
        mask = mask.bool()
        logits, context, rows, of = self._encode(job, candidates[mask], cluster, mask.sum(dim=1))
        values = self.value(self._pool(-1, context, rows, of)).squeeze(-1)
        return spread(logits, mask), values

    def logits(self, job: Tensor, rows: Tensor, cluster: Tensor, counts: Tensor) -> Tensor:
        """Score the valid rows of a batch of decisions, without values.

        Args:
            job: Features of the jobs, shape (B, Fj).
            rows: Features of the valid rows of all decisions, one decision after the other, shape (N, Fc).
            cluster: Features of the cluster, shape (B, Fk).
            counts: Number of rows of each decision, shape (B,).

        Returns:
            Logits, shape (N,).
        """
        return self._encode(job, rows, cluster, counts)[0]

    def _encode(self, job: Tensor, candidates: Tensor, cluster: Tensor, counts: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return logits (N,), the context of the last layer (B, W), its rows (N, W), and the decision of each row (N,)."""
        of = torch.repeat_interleave(torch.arange(len(counts)), counts)
        context = torch.relu(self.enter(torch.cat([job, cluster], dim=-1)))
        rows = candidates
        for layer, (of_row, of_context) in enumerate(zip(self.row, self.context, strict=True)):
            if layer > 0:
                context = self._pool(layer - 1, context, rows, of)
            rows = torch.relu(of_row(rows) + of_context(context).index_select(0, of))
        return (self.score(rows) + self.skip(candidates)).squeeze(-1), context, rows, of

    def _pool(self, layer: int, context: Tensor, rows: Tensor, of: Tensor) -> Tensor:
        """Return the context after a layer, from the context before it and the mean and maximum of each decision's rows."""
        total, most = (rows.new_zeros(len(context), rows.shape[1]) for _ in range(2))  # rows are at least 0
        count = torch.bincount(of, minlength=len(context)).clamp(min=1).unsqueeze(-1)
        mean = total.index_add(0, of, rows) / count
        most = most.scatter_reduce(0, of.unsqueeze(-1).expand_as(rows), rows, "amax")
        return torch.relu(self.pool[layer](torch.cat([context, mean, most], dim=-1)))

    def weights(self) -> dict[str, NDArray[np.float32]]:
        """Return copies of the weights, by their names in a policy file."""
        return {name: tensor.numpy().copy() for name, tensor in self.state_dict().items()}


def spread(logits: Tensor, mask: Tensor) -> Tensor:
    """Return the logits of valid rows (N,) as a table with `MASKED` for other rows, shape (B, A)."""
    return torch.full(mask.shape, MASKED, dtype=logits.dtype).masked_scatter(mask, logits)
