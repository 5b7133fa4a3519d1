"""The link that the syncs of all jobs share, as it is planned: what each takes when all of them are on it at once."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from tests.oracle.flows import fair_rates
from tests.oracle.planner import Dict, all_shapes, alone_s, at_most, in_shape, keeps_slos, period_of, solo_s, sync_s


def shared(cluster: Dict, groups: list[Dict], waiting: list[Dict]) -> tuple[list[Dict], list[Dict], bool]:
    """Plan the syncs of jobs that run in groups and of jobs that wait, of which the fastest sync counts too.

    Returns:
        The groups and the jobs that wait, with `link_s`; and whether the link is full:
        then the groups' syncs are as if nobody waited.
    """
    if cluster["network"] is None:
        return groups, waiting, False
    gbps = Fraction(cluster["network"]["link_gbps"])
    running = [m["job"] for g in groups for m in g["members"] if crosses(m["job"])]
    fastest = sorted((job for job in waiting if crosses(job)), key=lambda job: -_rate_gbps(job, gbps))[:1]
    level = _level_gbps([_rate_gbps(job, gbps) for job in (*running, *fastest)], gbps)
    after = [_with_syncs(group, gbps, level) for group in groups]
    waiting = [_on_link(job, gbps, level) for job in waiting]
    if fastest and not all(keeps_slos(group) and _syncs_in_time(group) for group in after):
        level = _level_gbps([_rate_gbps(job, gbps) for job in running], gbps)
        return [_with_syncs(group, gbps, level) for group in groups], waiting, True
    return after, waiting, False


def ask(decide: Any, cluster: Dict, groups: list[Dict], groups_made: int, queue: list[Dict]) -> Any:
    """What a policy says of the head of the queue, which waits where the link could make it or anybody else miss an SLO."""
    groups, (job, *_), full = shared(cluster, groups, queue)
    if cluster["network"] is not None and crosses(job):
        longest_s = max(alone_s(in_shape(job, 0)), job["link_s"])
        if full or not at_most(longest_s, job["slo"] * solo_s(job)):
            return None
    return decide(cluster, groups, groups_made, job)


def crosses(job: Dict) -> bool:
    """Whether a job's sync is on the link in one of its shapes at least: it is not where both sides are on one pool."""
    ways = [(one["rollout"]["pool"], one["training"]["pool"]) for one in all_shapes(in_shape(job, 0))]
    return bool(job["sync_s"] > 0) and any(rollout != training for rollout, training in ways)


def _rate_gbps(job: Dict, gbps: Fraction) -> Fraction:
    """What a sync gets when it is alone on the link."""
    return gbps if job["sync_gb"] is None else min(8 * Fraction(job["sync_gb"]) / Fraction(job["sync_s"]), gbps)


def _level_gbps(rates: list[Fraction], gbps: Fraction) -> Fraction:
    """What no sync gets more of, where so many are on the link at once: what one that wants all of it would get beside them."""
    got = fair_rates([(0, 1 + k) for k in range(len(rates))], [gbps, *rates])
    return max(got) if got != rates else gbps


def _on_link(job: Dict, gbps: Fraction, level: Fraction) -> Dict:
    """The job in its shape, with what its sync takes at a rate of at most `level`."""
    if not job["sync_s"]:
        return job
    rate = _rate_gbps(job, gbps)
    seconds = Fraction(job["sync_s"]) * rate / min(rate, level)
    return in_shape({**in_shape(job, 0), "link_s": seconds}, job["shape"])


def _with_syncs(group: Dict, gbps: Fraction, level: Fraction) -> Dict:
    return {**group, "members": [{**m, "job": _on_link(m["job"], gbps, level)} for m in group["members"]]}


def _syncs_in_time(group: Dict) -> bool:
    """Whether no job's syncs come faster than they go."""
    return all(at_most(float(sync_s(m["job"])), period_of(group)) for m in group["members"])
