"""Future cost and work of groups, at several horizons.

A rollout node is paid for until the last job pinned to it has left, training nodes until the last member has left, and work is
done until then. Both are discounted by exp(-t / horizon), with t and the horizon in hours, as in `rollmux_env.kernel.lns_insert`,
since groups will be changed again before a distant time. Here one exponential gives all horizons: each divides the next one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rollmux_env.kernel.candidates import Subsets, candidate_type
from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.pools import nodes_usd, own_usd, rollout_usd
from rollmux_env.kernel.tables import NOWHERE, Floats, Ints, Records, View

HORIZONS_H = (1.0, 4.0, 24.0)
N_HORIZONS = len(HORIZONS_H)
N_VALUES = 2 * N_HORIZONS + 1  # dollars at each horizon, work-hours at each horizon, and the worth of work at the shortest, $
PRIOR_H = 24.0  # where it is not known when jobs leave, they are expected to stay so long, and as long again as they have


STAY = np.dtype(
    [
        ("stay_h", "f8"),  # hours that a job of fixed stay still has; infinite for others
        ("turns_h", "f8"),  # iterations left / 3600 for a job that leaves after a number of them; infinite for others
        ("pause_h", "f8"),  # hours until it makes progress
        ("left", "f8"),  # exp(-t / the longest horizon) for its fixed stay, or 0
    ]
)
TERMS = np.dtype(
    [
        ("work_usd", "f8"),  # worth of a work-hour, $, of jobs that leave after a number of iterations
        ("migration_h", "f8"),  # pause of a move, hours; 0 for a job that waits
        ("shield", "i8"),  # 1 where places that break an SLO are left out
    ]
)
_VALUED = np.dtype([("period_s", "f8"), ("longest", "f8"), ("work", "f8", (4,))])


class Valuation(NamedTuple):
    """Remaining stays of jobs, terms of a decision, and scratch to value a group with one more member.

    Attributes:
        stays: (J,) records of `STAY`, by job row; written for the relevant jobs.
        terms: (1,) record of `TERMS`.
        members: (1,) work of a group's members at a period, without a new member.
        work: (1,) the same with one more member.
        left: (J,) discount at the time each member leaves.
        needed: (N + 1,) discount at the time until which each rollout node is needed.
        place: (1,) record of `rollmux_env.kernel.candidates.candidate_type`: the present place.
        subsets: Scratch to enumerate subsets of the present group's nodes.
        values: (N_VALUES,) scratch for values.
    """

    stays: Records
    terms: Records
    members: Records
    work: Records
    left: Floats
    needed: Floats
    place: Records
    subsets: Subsets
    values: Floats


def make_valuation(jobs: int, group_nodes: int, job_nodes: int) -> Valuation:
    """Return room for a number of job rows, `group_nodes` rollout nodes of a group, and `job_nodes` of a job."""
    return Valuation(
        np.zeros(jobs, STAY),
        np.zeros(1, TERMS),
        np.zeros(1, _VALUED),
        np.zeros(1, _VALUED),
        np.zeros(jobs),
        np.zeros(group_nodes + 1),
        np.zeros(1, candidate_type(job_nodes)),
        Subsets(np.zeros(job_nodes + 1, dtype=np.int64), np.zeros(group_nodes + 1, dtype=np.int64)),
        np.zeros(N_VALUES),
    )


@compiled(arrays=False)
def write_stay(stay: Records, solo_s: float, leaves_s: float, iterations: float, aged_s: float, done: float, known: bool) -> None:
    """Write a job's remaining stay into a record of `STAY`, except `pause_h`, which the caller writes.

    Args:
        stay: Record of `STAY`; written.
        solo_s: T_solo, seconds.
        leaves_s: Seconds until its fixed stay ends, or infinite.
        iterations: Number of iterations after which it leaves, or infinite.
        aged_s: Seconds since its admission.
        done: Iterations done so far.
        known: Whether it is known when jobs leave. Otherwise only `aged_s`, `done` and the kind of stay are used. Stays are then
            as if drawn from a Lomax distribution with alpha = 2: the mean of the remaining stay is a constant plus the age.
    """
    fixed = iterations == np.inf
    if known:
        stay.stay_h = max(0.0, leaves_s) / 3600.0
        stay.turns_h = max(0.0, iterations - done) / 3600.0
    else:
        stay.stay_h = PRIOR_H + aged_s / 3600.0 if fixed else np.inf
        stay.turns_h = np.inf if fixed else PRIOR_H / solo_s + done / 3600.0
    stay.left = np.exp(-stay.stay_h / HORIZONS_H[2]) if stay.stay_h < np.inf else 0.0


@compiled(arrays=False)
def delay(stay: Records, migration_h: float) -> None:
    """Lengthen a stay, a record, by the pause of a move."""
    stay.stay_h += migration_h
    stay.pause_h = migration_h
    stay.left *= np.exp(-migration_h / HORIZONS_H[2])


@compiled(arrays=False)
def write_stays(view: View, known: bool, stays: Records) -> None:
    """Write how long the members of the groups in `view.order` still stay."""
    jobs, now_s = view.jobs, view.clock.now_s
    for k in range(len(view.order)):
        group = view.groups[view.order[k]]
        for i in range(group.n_members):
            row = group.members[i]
            job, stay = jobs[row], stays[row]
            stay.pause_h = max(0.0, job.paused_until_s - now_s) / 3600.0
            done = iterations_done(jobs, view.groups, row, now_s)
            write_stay(stay, job.solo_s, job.leaves_s - now_s, job.iterations, now_s - job.admitted_s, done, known)


@compiled(arrays=False)
def iterations_done(jobs: Records, groups: Records, job: int, now_s: float) -> float:
    """Return the iterations that a running job has done, with fractions."""
    group = jobs[job].group
    ran_s = max(0.0, now_s - max(groups[group].settled_s, jobs[job].paused_until_s))
    return float(jobs[job].done + ran_s / groups[group].period_s)


@compiled(arrays=False)
def _left(stay: Records, period_s: float, pause_h: float) -> float:
    """Return exp(-t / the longest horizon) for the time until a job leaves; a positive pause is that of a move."""
    if stay.turns_h == np.inf:
        return float(stay.left * np.exp(-pause_h / HORIZONS_H[2]) if pause_h > 0.0 else stay.left)
    hours = max(pause_h, stay.pause_h) + stay.turns_h * period_s
    return float(np.exp(-min(hours, stay.stay_h + pause_h) / HORIZONS_H[2]))


@compiled(arrays=False)
def value_members(view: View, valuation: Valuation, group: int, period_s: float) -> None:
    """Value the work of the members of a group until they have left, at a period, without a new member.

    Args:
        view: Tables of the cluster.
        valuation: Stays, terms and scratch; `members` and `left` are written.
        group: Row of the group, or negative for a new group, which has no members.
        period_s: Period of the group, seconds.
    """
    members = valuation.members[0]
    members.period_s, members.longest = period_s, 1.0
    for k in range(4):
        members.work[k] = 0.0
    if group < 0:
        return
    g = view.groups[group]
    work_usd = valuation.terms[0].work_usd
    for i in range(g.n_members):
        member = g.members[i]
        stay = valuation.stays[member]
        left = _left(stay, period_s, 0.0)
        valuation.left[i] = left
        members.longest = min(members.longest, left)
        worth_usd = work_usd if stay.turns_h < np.inf else 0.0
        _add_work(view.jobs[member].solo_s / period_s, stay.pause_h, left, worth_usd, members.work)


@compiled(arrays=False)
def value_group(view: View, valuation: Valuation, group: int, job: int, place: Records, out: Floats) -> None:
    """Write the future cost and work of a group until its members have left; call `value_members` for the group and period before.

    Args:
        view: Tables of the cluster.
        valuation: Stays, terms and scratch.
        group: Row of the group, or negative for a new group of the job alone.
        job: Row of a job that is counted as one more member, or negative for none.
        place: Place of that job, a record of `rollmux_env.kernel.candidates.candidate_type`. `nodes` are the numbers of the
            group's rollout nodes that it is pinned to, ascending; `new_nodes` is the number of added ones; `period_s` is the
            period of the group with it. If it moves, it pauses for the terms' `migration_h`.
        out: (N_VALUES,) values; written.
    """
    members, work = valuation.members[0], valuation.work[0].work
    longest = members.longest
    for k in range(4):
        work[k] = members.work[k]
    for k in range(N_HORIZONS):
        out[k] = 0.0
    if group >= 0:
        _need_nodes(view, valuation, group)
    if job >= 0:
        asks, stay = view.jobs[job], valuation.stays[job]
        pause_h = valuation.terms[0].migration_h
        left = _left(stay, place.period_s, pause_h)
        longest = min(longest, left)
        worth_usd = valuation.terms[0].work_usd if stay.turns_h < np.inf else 0.0
        _add_work(asks.solo_s / place.period_s, max(pause_h, stay.pause_h), left, worth_usd, work)
        if group >= 0:
            _need(view.groups[group], place.nodes, asks.rollout_nodes - place.new_nodes, left, valuation.needed)
        _add_nodes(left, place.new_nodes * rollout_usd(asks, view.limits), out)
    for k in range(4):
        out[N_HORIZONS + k] = work[k]
    if group >= 0:
        g = view.groups[group]
        for v in range(g.n_nodes):
            _add_nodes(valuation.needed[v], rollout_usd(g, view.limits), out)
        _add_nodes(longest, nodes_usd(g, 0, g.training_nodes, view.limits), out)
    else:
        _add_nodes(longest, nodes_usd(view.jobs[job], 0, view.jobs[job].training_nodes, view.limits), out)


@compiled(arrays=False)
def _need_nodes(view: View, valuation: Valuation, group: int) -> None:
    """Write the time until which the members of a group need each of its rollout nodes."""
    g = view.groups[group]
    for v in range(g.n_nodes):
        valuation.needed[v] = 1.0
    for i in range(g.n_members):
        member = view.jobs[g.members[i]]
        _need(g, member.pins, member.n_pins, valuation.left[i], valuation.needed)


@compiled(arrays=False)
def _need(group: Records, numbers: Ints, n: int, left: float, needed: Floats) -> None:
    """Extend the time until which a group, a record, needs the rollout nodes with the first `n` of ascending numbers."""
    at = 0
    for v in range(group.n_nodes):
        if at == n:
            break
        if numbers[at] == group.node_number[v]:
            needed[v] = min(needed[v], left)
            at += 1


@compiled(arrays=False)
def value_now(view: View, valuation: Valuation, group: int, out: Floats) -> None:
    """Write the values of a group without a change."""
    value_members(view, valuation, group, view.groups[group].period_s)
    value_group(view, valuation, group, NOWHERE, valuation.place[0], out)


@compiled(arrays=False)
def _add_work(rate: float, paused_h: float, left: float, work_usd: float, out: Floats) -> None:
    """Add a job's work-hours at the three horizons, and what they are worth at the shortest, to (4,) `out`."""
    four = left * left
    four = four * four * four  # exp(-t / 4 h) of exp(-t / 24 h)
    one = four * four
    one = one * one
    gone = gone_four = gone_one = 1.0
    if paused_h > 0.0:
        gone = max(left, np.exp(-paused_h / HORIZONS_H[2]))
        gone_four = gone * gone
        gone_four = gone_four * gone_four * gone_four
        gone_one = gone_four * gone_four
        gone_one = gone_one * gone_one
    worked = rate * HORIZONS_H[0] * (gone_one - one)
    out[0] += worked
    out[1] += rate * HORIZONS_H[1] * (gone_four - four)
    out[2] += rate * HORIZONS_H[2] * (gone - left)
    out[3] += work_usd * worked


@compiled(arrays=False)
def _add_nodes(left: float, usd_per_hour: float, out: Floats) -> None:
    four = left * left
    four = four * four * four
    one = four * four
    one = one * one
    out[0] += usd_per_hour * HORIZONS_H[0] * (1.0 - one)
    out[1] += usd_per_hour * HORIZONS_H[1] * (1.0 - four)
    out[2] += usd_per_hour * HORIZONS_H[2] * (1.0 - left)


@compiled(arrays=False)
def present_rates(view: View) -> tuple[float, float, float, int]:
    """Return the present rates of the groups in `view.order`.

    These are the price of their nodes and of their members' own nodes, $/h, the work-hours done in an hour, and the number of
    members.
    """
    limits = view.limits
    usd = own = work = 0.0
    running = 0
    for k in range(len(view.order)):
        group = view.groups[view.order[k]]
        usd += nodes_usd(group, group.n_nodes, group.training_nodes, limits)
        rate = 1.0 / group.period_s
        for i in range(group.n_members):
            job = view.jobs[group.members[i]]
            own += own_usd(job, limits)
            work += job.solo_s * rate
        running += group.n_members
    return usd, own, work, int(running)


@compiled(arrays=False)
def work_price(rates: tuple[float, float, float, int]) -> float:
    """Return the present cost of a work-hour, $."""
    return float(rates[0] / rates[2] if rates[2] > 0.0 else 0.0)


@compiled(arrays=False)
def net_usd(values: Floats) -> float:
    """Return the dollars less the worth of work, at the shortest horizon."""
    return float(values[0] - values[6])
