"""How long an iteration takes where nobody shares the nodes, and how fast a simulated rollout goes on.

A rollout runs to its threshold, then to its end, slower beside another's tail, and last as a tail itself. At `went_s`, from when on
it runs at `rate`, `left_s` seconds of full speed are left of it, the last `tail_s` of them past the threshold. Plain functions over
rows that have these attributes.
"""

from __future__ import annotations

from typing import Protocol


def alone_s(rollout_s: float, training_s: float, sync_s: float, staleness: float = 0) -> float:
    """Seconds of an iteration in steady state, of a job that has its nodes for itself.

    On-policy one phase follows the other. A stale job's next rollouts go on beside its training: then its longest phase counts, and
    that from a rollout to the one that needs the weights it led to, 1 + staleness iterations later, the sync is waited for too.
    """
    cycle_s = rollout_s + training_s + sync_s
    return max(rollout_s, training_s, cycle_s / (1 + staleness)) if staleness else cycle_s


class PaceRow(Protocol):
    """Of a rollout that runs; seconds, and 0 or 1 for `passed`."""

    went_s: float
    left_s: float
    tail_s: float
    rate: float


def set_out(r: PaceRow, at_s: float, seconds: float, threshold: float) -> None:
    """A rollout begins, when its switch is over; `threshold` is the share of its seconds after which its tail may move."""
    r.went_s = at_s
    r.left_s = seconds
    r.tail_s = r.left_s * (1 - threshold)


def advance(r: PaceRow, now_s: float) -> None:
    """Account for what a rollout has done since it last changed its speed."""
    r.left_s -= max(0.0, now_s - r.went_s) * r.rate
    r.went_s = max(r.went_s, now_s)


def pass_threshold(r: PaceRow, now_s: float) -> None:
    """Nothing but the tail is left."""
    r.left_s = r.tail_s
    r.went_s = now_s


def ends_s(r: PaceRow, passed: bool, rate: float) -> float:
    """When a rollout that goes on at a rate is at its threshold, or past it at its end."""
    r.rate = rate
    part_s = max(0.0, r.left_s - (0.0 if passed else r.tail_s))
    return r.went_s + part_s / r.rate


def tail_s(r: PaceRow, now_s: float, move_s: float, stretch: float) -> float:
    """When a tail that moves now is at its end."""
    advance(r, now_s)
    return now_s + move_s + max(0.0, r.left_s) * stretch
