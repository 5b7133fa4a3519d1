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
            mask: True for rows that may be chosen, shape (B, A). Other rows have no influence. A decision without a valid row is
                computed as if it had no rows.

        Returns:
            Logits, `MASKED` for masked rows, shape (B, A), and values, shape (B,).
        """
        mask = mask.bool()
        real = mask.unsqueeze(-1)
        count = real.sum(dim=1).clamp(min=1)
        context = torch.relu(self.enter(torch.cat([job, cluster], dim=-1)))
        rows = candidates
        for of_row, of_context, of_pool in zip(self.row, self.context, self.pool, strict=True):
            rows = torch.relu(of_row(rows) + of_context(context).unsqueeze(1)) * real  # at least 0, so a masked row is no maximum
            pooled = torch.cat([context, rows.sum(dim=1) / count, rows.amax(dim=1)], dim=-1)
            context = torch.relu(of_pool(pooled))
        logits = (self.score(rows) + self.skip(candidates)).squeeze(-1).masked_fill(~mask, MASKED)
        return logits, self.value(context).squeeze(-1)

    def weights(self) -> dict[str, NDArray[np.float32]]:
        """Return copies of the weights, by their names in a policy file."""
        return {name: tensor.numpy().copy() for name, tensor in self.state_dict().items()}
