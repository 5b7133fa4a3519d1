"""Long-tail migration (RollMux, arXiv 2512.11306): when the tail of a rollout may move, and what it keeps.

Dispatch policies and rollout policies that migrate tails have an attribute `migration`. Replays, environments and real runs
all take both numbers from there, so that what was simulated is what runs.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import ceil

AT, SHARE = 0.8, 0.5
"""Where nobody says: the paper's threshold; and, as the paper says only a few workers, the half with which the pairs of its
evaluation gain most (docs/results/rollout.md)."""


@dataclass(frozen=True)
class Migration:
    """When a tail may move, and what it keeps.

    Attributes:
        at: share of a rollout's responses that are done then. share: of the rollout's replicas, or engines, that the tail keeps;
            where only the nodes are known, of each node.

    Raises:
        ValueError: one of them is no number between 0 and 1; one line.
    """

    at: float = AT
    share: float = SHARE

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
                raise ValueError(f"{field.name} must be a number between 0 and 1, not {value}")

    def keeps(self, parts: int) -> int:
        """How many of so many replicas or engines a tail keeps: its share, rounded up."""
        return ceil(self.share * parts - 1e-9)


def migration_of(policy: object) -> Migration | None:
    """When a policy has tails moved, and what they keep; None where it has none moved."""
    migration: Migration | None = getattr(policy, "migration", None)
    return migration
