"""What groups cost and do from now on, at several horizons.

A rollout node is paid for until the last job pinned to it has left, training nodes until the last member has, and work is done
until then; both are discounted by exp(-t / horizon), as in `rollmux_env.kernel.worth`, since what is far away will be regrouped
before it comes. Here all horizons are had for one exponential: each divides the next one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rollmux_env.kernel.compiled import uncounted
from rollmux_env.kernel.tables import Floats, GroupTable, Ints, JobTable, Limits

HORIZONS_H = (1.0, 4.0, 24.0)
N_HORIZONS = len(HORIZONS_H)
N_VALUES = 2 * N_HORIZONS + 1  # dollars at each horizon, work-hours at each horizon, and the worth of work at the shortest, $
PRIOR_H = 24.0  # where it is not known when jobs leave, they are expected to stay so long, and as long again as they have


class Stays(NamedTuple):
    """How long jobs still stay, by job row: (J,) each, written for those in question.

    Attributes:
        stay_h: hours that a job of fixed stay still has; infinite for others.
        turns_h: what a job that leaves after so many iterations still has to do, iterations / 3600; infinite for others.
        pause_h: hours until it makes progress.
        left: exp(-t / the longest horizon) for its fixed stay, or 0.
        memo: of the last group and period that were valued: what does not depend on the job that might join.
    """

    stay_h: Floats
    turns_h: Floats
    pause_h: Floats
    left: Floats
    memo: Floats


_GROUP, _PERIOD, _LONGEST, _WORK, _LEFT = 0, 1, 2, 3, 7
_NOTHING = -2.0


def stays_table(jobs: int) -> Stays:
    """Room for so many job rows."""
    return Stays(np.zeros(jobs), np.zeros(jobs), np.zeros(jobs), np.zeros(jobs), np.full(_LEFT + jobs, _NOTHING))


@uncounted
def write_stay(
    jobs: JobTable,
    stays: Stays,
    job: int,
    leaves_s: float,
    iterations: float,
    aged_s: float,
    done: float,
    pause_s: float,
    known: bool,
) -> None:
    """Write how long a job still stays.

    Args:
        leaves_s: seconds until its fixed stay ends, or infinite. iterations: after which it leaves, or infinite.
        aged_s: seconds since its admission. done: iterations so far. pause_s: seconds that it still pauses.
        known: whether it is known when jobs leave; else only `aged_s` and `done` count, and which kind of stay it is. Stays then
            are as if drawn from a Lomax distribution of shape 2: the mean of what is left is a constant and the age.
    """
    fixed = iterations == np.inf
    if known:
        stays.stay_h[job] = max(0.0, leaves_s) / 3600.0
        stays.turns_h[job] = max(0.0, iterations - done) / 3600.0
    else:
        stays.stay_h[job] = PRIOR_H + aged_s / 3600.0 if fixed else np.inf
        stays.turns_h[job] = np.inf if fixed else PRIOR_H / jobs.solo_s[job] + done / 3600.0
    stays.pause_h[job] = pause_s / 3600.0
    stays.left[job] = np.exp(-stays.stay_h[job] / HORIZONS_H[2]) if stays.stay_h[job] < np.inf else 0.0


@uncounted
def forget(stays: Stays) -> None:
    """To be called where the time, a stay or the members of a group row have changed, before anything is valued."""
    stays.memo[_GROUP] = _NOTHING


@uncounted
def write_stays(jobs: JobTable, groups: GroupTable, order: Ints, now_s: float, known: bool, stays: Stays) -> None:
    """Write how long the members of these group rows still stay, and forget what was valued."""
    forget(stays)
    for k in range(order.shape[0]):
        group = order[k]
        for i in range(groups.n_members[group]):
            job = groups.members[group, i]
            leaves_s = jobs.leaves_s[job] - now_s
            pause_s = max(0.0, jobs.paused_until_s[job] - now_s)
            done = iterations_done(jobs, groups, job, now_s)
            write_stay(jobs, stays, job, leaves_s, jobs.iterations[job], now_s - jobs.admitted_s[job], done, pause_s, known)


@uncounted
def iterations_done(jobs: JobTable, groups: GroupTable, job: int, now_s: float) -> float:
    """Iterations that a running job has done, with fractions."""
    group = jobs.group[job]
    ran_s = max(0.0, now_s - max(groups.since_s[group], jobs.paused_until_s[job]))
    return float(jobs.done[job] + ran_s / groups.period_s[group])


@uncounted
def _left(stays: Stays, job: int, period_s: float, pause_h: float) -> float:
    """exp(-t / the longest horizon) for the time until a job leaves; a positive pause is that of a move."""
    if stays.turns_h[job] == np.inf:
        return float(stays.left[job] * np.exp(-pause_h / HORIZONS_H[2]) if pause_h > 0.0 else stays.left[job])
    hours = max(pause_h, stays.pause_h[job]) + stays.turns_h[job] * period_s
    return float(np.exp(-min(hours, stays.stay_h[job] + pause_h) / HORIZONS_H[2]))


@uncounted
def value_of(
    jobs: JobTable,
    groups: GroupTable,
    limits: Limits,
    stays: Stays,
    group: int,
    training_nodes: int,
    job: int,
    nodes: Ints,
    new: int,
    period_s: float,
    pause_h: float,
    work_usd: float,
    needed: Floats,
    out: Floats,
) -> None:
    """What a group costs and does until its members have left.

    Args:
        group: row, or negative for a new group of the job alone.
        training_nodes: of the group.
        job: row of a job that is counted as one more member, or negative for none.
        nodes: numbers of the group's rollout nodes that it is pinned to, ascending, `rollout_nodes - new` of them count; new:
            rollout nodes to add for it.
        period_s: of the group, with that job in it, seconds.
        pause_h: of the job, if it moves, hours.
        work_usd: worth of a work-hour, $, of jobs that leave after so many iterations; others leave at the same time anyway.
        needed: (>= N,) scratch.
        out: (N_VALUES,) out.
    """
    n = groups.n_members[group] if group >= 0 else 0
    n_nodes = groups.n_nodes[group] if group >= 0 else 0
    memo = stays.memo
    if memo[_GROUP] != group or memo[_PERIOD] != period_s:
        memo[_GROUP], memo[_PERIOD], memo[_LONGEST] = group, period_s, 1.0
        for k in range(4):
            memo[_WORK + k] = 0.0
        for i in range(n):
            member = groups.members[group, i]
            left = _left(stays, member, period_s, 0.0)
            memo[_LEFT + i] = left
            memo[_LONGEST] = min(memo[_LONGEST], left)
            _add_work(jobs, stays, member, period_s, 0.0, left, work_usd, memo, _WORK)
    longest = memo[_LONGEST]
    out[0] = out[1] = out[2] = 0.0
    for k in range(4):
        out[N_HORIZONS + k] = memo[_WORK + k]
    for v in range(n_nodes):
        needed[v] = 1.0
    for i in range(n):
        member = groups.members[group, i]
        at = 0
        for v in range(n_nodes):
            if at == jobs.n_pins[member]:
                break
            if jobs.pins[member, at] == groups.node_number[group, v]:
                needed[v] = min(needed[v], memo[_LEFT + i])
                at += 1
    if job >= 0:
        left = _left(stays, job, period_s, pause_h)
        longest = min(longest, left)
        _add_work(jobs, stays, job, period_s, pause_h, left, work_usd, out, N_HORIZONS)
        at = 0
        for v in range(n_nodes):
            if at == jobs.rollout_nodes[job] - new:
                break
            if nodes[at] == groups.node_number[group, v]:
                needed[v] = min(needed[v], left)
                at += 1
        _add_nodes(left, new * limits.rollout_usd, out)
    for v in range(n_nodes):
        _add_nodes(needed[v], limits.rollout_usd, out)
    _add_nodes(longest, training_nodes * limits.training_usd, out)


@uncounted
def _add_work(
    jobs: JobTable, stays: Stays, job: int, period_s: float, pause_h: float, left: float, work_usd: float, out: Floats, at: int
) -> None:
    """Add a job's work-hours at the three horizons, and what they are worth at the shortest, to `out` from `at` on."""
    rate = jobs.solo_s[job] / period_s
    four = left * left
    four = four * four * four  # exp(-t / 4 h) of exp(-t / 24 h)
    one = four * four
    one = one * one
    gone = gone_four = gone_one = 1.0
    paused_h = max(pause_h, stays.pause_h[job])
    if paused_h > 0.0:
        gone = max(left, np.exp(-paused_h / HORIZONS_H[2]))
        gone_four = gone * gone
        gone_four = gone_four * gone_four * gone_four
        gone_one = gone_four * gone_four
        gone_one = gone_one * gone_one
    worked = rate * HORIZONS_H[0] * (gone_one - one)
    out[at] += worked
    out[at + 1] += rate * HORIZONS_H[1] * (gone_four - four)
    out[at + 2] += rate * HORIZONS_H[2] * (gone - left)
    if stays.turns_h[job] < np.inf:
        out[at + 3] += work_usd * worked


@uncounted
def _add_nodes(left: float, usd_per_hour: float, out: Floats) -> None:
    four = left * left
    four = four * four * four
    one = four * four
    one = one * one
    out[0] += usd_per_hour * HORIZONS_H[0] * (1.0 - one)
    out[1] += usd_per_hour * HORIZONS_H[1] * (1.0 - four)
    out[2] += usd_per_hour * HORIZONS_H[2] * (1.0 - left)


@uncounted
def present_rates(jobs: JobTable, groups: GroupTable, order: Ints, limits: Limits) -> tuple[float, float, float, int]:
    """Of these group rows: price of their nodes and of their members' own nodes, $/h; work-hours done in an hour; members."""
    usd = own = work = 0.0
    running = 0
    for k in range(order.shape[0]):
        group = order[k]
        usd += groups.n_nodes[group] * limits.rollout_usd + groups.training_nodes[group] * limits.training_usd
        rate = 1.0 / groups.period_s[group]
        for i in range(groups.n_members[group]):
            job = groups.members[group, i]
            own += jobs.rollout_nodes[job] * limits.rollout_usd + jobs.training_nodes[job] * limits.training_usd
            work += jobs.solo_s[job] * rate
        running += groups.n_members[group]
    return usd, own, work, int(running)


@uncounted
def work_price(rates: tuple[float, float, float, int]) -> float:
    """What a work-hour costs at present, $."""
    return float(rates[0] / rates[2] if rates[2] > 0.0 else 0.0)


@uncounted
def net_usd(values: Floats) -> float:
    """Dollars less the worth of work, at the shortest horizon."""
    return float(values[0] - values[6])
