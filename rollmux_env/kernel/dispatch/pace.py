"""Seconds of an iteration without sharing, and the pace of a simulated rollout.

A rollout runs to its threshold and then to its end. It runs slower beside another job's tail, and at last as a tail itself. From
`updated_s` on it runs at `rate`. At that time `left_s` seconds at full speed are left, of which the last `tail_s` are past the
threshold. These are plain functions over rows with these attributes.
"""

from __future__ import annotations

from typing import Protocol


def alone_s(rollout_s: float, training_s: float, sync_s: float, staleness: float = 0) -> float:
    """Return the seconds of an iteration in steady state of a job that shares no nodes.

    An on-policy job runs one phase after the other. A stale job continues with its next rollouts during its training, so its
    longest phase counts. The cycle from a rollout to the one that needs its weights, 1 + staleness iterations later, includes the
    sync and counts too.
    """
    cycle_s = rollout_s + training_s + sync_s
    return max(rollout_s, training_s, cycle_s / (1 + staleness)) if staleness else cycle_s


class PaceRow(Protocol):
    """State of a running rollout: times in seconds, and `passed` as 0 or 1."""

    updated_s: float
    left_s: float
    tail_s: float
    rate: float


def begin_rollout(r: PaceRow, at_s: float, seconds: float, threshold: float) -> None:
    """Begin a rollout after its switch; `threshold` is the share of its seconds after which its tail may move."""
    r.updated_s = at_s
    r.left_s = seconds
    r.tail_s = r.left_s * (1 - threshold)


def advance(r: PaceRow, now_s: float) -> None:
    """Account for a rollout's progress since the last change of its rate."""
    r.left_s -= max(0.0, now_s - r.updated_s) * r.rate
    r.updated_s = max(r.updated_s, now_s)


def pass_threshold(r: PaceRow, now_s: float) -> None:
    """Record that only the tail is left."""
    r.left_s = r.tail_s
    r.updated_s = now_s


def ends_s(r: PaceRow, passed: bool, rate: float) -> float:
    """Set the rate of a rollout, and return when it reaches its threshold, or its end if it is past the threshold."""
    r.rate = rate
    part_s = max(0.0, r.left_s - (0.0 if passed else r.tail_s))
    return r.updated_s + part_s / r.rate


def tail_s(r: PaceRow, now_s: float, move_s: float, stretch: float) -> float:
    """Return the end of a tail that moves now."""
    advance(r, now_s)
    return now_s + move_s + max(0.0, r.left_s) * stretch
