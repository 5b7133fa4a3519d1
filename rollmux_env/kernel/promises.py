"""Limits on a group's period from its jobs' SLOs, and from switches where they are planned.

A job that enters a group waits for a meta-iteration to begin and then starts cold. The members wait for its cold starts, and for
the pattern to settle. A strict round robin settles within two periods: a member's events are less than two periods apart, because
its trainings share all nodes with those of all others. So m iterations from now take at most m + 2 periods, and the remaining cold
starts. A stale job fills its pipeline first: its m iterations take m + 2 + staleness periods. A group of period P may be entered
if every member would keep its promise at that pace to its end:

    stayed + cold + (left + 2) P <= slo (T_solo iterations + own cold)                        with a number of iterations
    stayed + rest                <= slo (T_solo (done + (rest - cold) / P - 2) + own cold)    with a fixed stay, `rest` of it left

`stayed` are the seconds since the job's admission, `left` and `done` its iterations left and done. `cold` are the remaining cold
starts of the group: of members that have not finished an iteration there, and of the entering jobs. No time is reserved for jobs
that may arrive later: each entry is checked against the time that every member has left then, and a group is closed if one of them
has too little. The right side is the SLO against a run alone, which begins with the job's own cold starts
(`slo_attainment_observed`), in shape 0.

A job whose state is alive on exactly the nodes that it gets enters warm. It has no cold start there, and no credit for one, since
alone it would not have begun with one either. If it could enter warm in one group, it has no credit in any.

Every entry is checked like this. A new group in another shape is checked too: its cold starts may be longer, and a stale job's
pipeline may fill more slowly. In shape 0 a job may always get a new group, and no departure makes a period longer. So a promise
holds at worst-case durations. If several jobs enter a group in one plan, each waits for all their cold starts (`is_tentative`).

Both conditions are linear in P: P <= limit - per_cold x cold (`stays_limit_s`, `enters_limit_s` and the columns after them).
"""

from __future__ import annotations

import numpy as np

from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.membership import refresh_promises
from rollmux_env.kernel.tables import COLD, NOWHERE, Records, View

SETTLING = 2.0  # periods


@compiled(arrays=False)
def promised(job: Records, credit_s: float, stayed_s: float, rest_s: float, done: float) -> tuple[float, float]:
    """Return the longest period of a group, from an entry on, at which a job keeps its promise if no cold start is ahead.

    Args:
        job: Record of the job.
        credit_s: Cold starts of the job alone in shape 0, seconds.
        stayed_s: Time since its admission, seconds.
        rest_s: Rest of a fixed stay, seconds, else infinite.
        done: Iterations done, with fractions.

    Returns:
        The period, seconds, possibly infinite, and its decrease for each second of cold starts.
    """
    limit = job.limit_s
    credit_s *= limit / job.solo_s
    if rest_s < np.inf:
        over = stayed_s + rest_s - credit_s - limit * (done - SETTLING - job.staleness)
        if over > 0.0:
            return float(limit / over * rest_s), float(limit / over)
    elif job.iterations < np.inf:
        less = 1.0 / (job.iterations - done + SETTLING + job.staleness)
        return float(less * (limit * job.iterations + credit_s - stayed_s)), float(less)
    return np.inf, 0.0


@compiled(arrays=False)
def _stay(job: Records, group: Records, now_s: float, observed: bool) -> tuple[float, float, float]:
    """Return seconds stayed, seconds of a fixed stay left, and iterations done; the rest of a pause counts as stayed."""
    done = job.done
    if not observed:
        done += max(0.0, now_s - max(group.settled_s, job.paused_until_s)) / group.period_s
    paused = max(0.0, job.paused_until_s - now_s)
    return now_s - job.admitted_s + paused, job.leaves_s - now_s - paused, done


@compiled
def promise(view: View, rows: int, observed: bool, pause_s: float) -> None:
    """Write the limits of all jobs that wait or run, and of the groups, at the present time.

    Args:
        view: Tables of the cluster; updated.
        rows: Number of jobs that have arrived.
        observed: Whether progress is observed, as in `rollmux_env.cluster.state.State`.
        pause_s: Pause of a move, seconds.
    """
    jobs, groups, now_s = view.jobs, view.groups, view.clock.now_s
    for position in range(len(view.order)):
        g = groups[view.order[position]]
        for i in range(g.n_members):
            j = jobs[g.members[i]]
            stayed, rest, done = _stay(j, g, now_s, observed)
            begun = j.entered_warm != 0 or done - j.entered_done >= 1.0
            j.coming_cold_s = 0.0 if begun else j.cold_s
            credit = 0.0 if j.admitted_warm != 0 else jobs[j.first_shape].cold_s
            j.stays_limit_s, j.stays_per_cold = promised(j, credit, stayed, rest, done)
        refresh_promises(jobs, g)
    for row in range(rows):
        j = jobs[row]
        if j.more_shapes < 0:
            continue
        stayed, rest, done = 0.0, j.duration_s, 0.0
        warm = j.warm_group != COLD
        if j.group != NOWHERE:
            stayed, rest, done = _stay(j, groups[j.group], now_s, observed)
            stayed += pause_s
            warm = j.admitted_warm != 0
        credit = 0.0 if warm else jobs[j.first_shape].cold_s
        limit, per_cold = promised(j, credit, stayed, rest, done)
        j.enters_limit_s, j.enters_per_cold = limit, per_cold
        if j.more_shapes > 0:
            for other in range(j.first_shape, j.first_shape + 1 + j.more_shapes):
                jobs[other].enters_limit_s, jobs[other].enters_per_cold = limit, per_cold
