"""How long an iteration takes where nobody shares the nodes."""

from __future__ import annotations


def alone_s(rollout_s: float, training_s: float, sync_s: float, staleness: float = 0) -> float:
    """Seconds of an iteration in steady state, of a job that has its nodes for itself.

    On-policy one phase follows the other. A stale job's next rollouts go on beside its training: then its longest phase counts, and
    that from a rollout to the one that needs the weights it led to, 1 + staleness iterations later, the sync is waited for too.
    """
    cycle_s = rollout_s + training_s + sync_s
    return max(rollout_s, training_s, cycle_s / (1 + staleness)) if staleness else cycle_s
