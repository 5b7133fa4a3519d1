"""What a job has left of its SLO for what joining a group costs: where switches are planned, a promise covers that too.

Who enters a group waits for a meta-iteration to begin and then starts cold; those who are there wait for its cold starts, and for
the pattern to settle. A strict round robin settles within two periods: a member's events lie less than two periods apart, because
its trainings share all nodes with everybody's. So m iterations from now take at most m + 2 periods, and the cold starts that are
still to come. A stale job fills its pipeline first: its own are m + 2 + staleness. A group of period P may be entered if every
member would keep its promise at that pace to its end:

    stayed + cold + (left + 2) P <= slo (T_solo iterations + own cold)                        with a number of iterations
    stayed + rest                <= slo (T_solo (done + (rest - cold) / P - 2) + own cold)    with a fixed stay, `rest` of it left

`cold` are the cold starts that are to come in the group: of members that have not finished an iteration there, and of those who
enter. Nothing is kept back for others who may come: each entry is checked against what every member has left then, and where one
has too little the group is closed to it. The right side is the SLO against a run alone, which begins with cold starts of its own
(`slo_attainment_observed`), as the job is written.

A job whose state is alive on the very nodes that it gets enters warm: it has no cold start to come there, and none to its credit,
since alone it would not have begun with one either. Where it could enter warm somewhere, it has no credit anywhere.

Every entry is checked so, and so is a group of a job's own in another shape: its cold starts may be longer, and a stale job's
pipeline may fill more slowly. As it is written a job always gets a group of its own, and no departure makes a period longer: what
was promised holds at worst-case durations. Of several jobs that enter a group in one plan each waits for all their cold starts
(`visits`).

Both conditions are lines in P: P <= limit - per_cold x cold (`stays_limit_s`, `enters_limit_s` and what stands beside them).
"""

from __future__ import annotations

import numpy as np

from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.membership import refresh_promises
from rollmux_env.kernel.tables import COLD, NOWHERE, Records, View

SETTLING = 2.0  # periods


@compiled(arrays=False)
def promised(job: Records, credit_s: float, stayed_s: float, rest_s: float, done: float) -> tuple[float, float]:
    """The longest period of a group, from an entry on, at which a job, a record, keeps its promise if no cold start is to come.

    Args:
        credit_s: cold starts of the job alone, as it is written.
        stayed_s: since its admission. rest_s: of a fixed stay, else infinite. done: iterations, with fractions.

    Returns:
        It, at most infinite, and what each second of cold starts takes off it.
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
    """Seconds since a member's admission, a pause's rest with them; seconds from then to the end of a fixed stay; iterations."""
    done = job.done
    if not observed:
        done += max(0.0, now_s - max(group.since_s, job.paused_until_s)) / group.period_s
    paused = max(0.0, job.paused_until_s - now_s)
    return now_s - job.admitted_s + paused, job.leaves_s - now_s - paused, done


@compiled
def promise(view: View, rows: int, observed: bool, pause_s: float) -> None:
    """Write what all jobs that wait or run, and the groups, have left now.

    Args:
        rows: jobs that have arrived.
        observed: as of `rollmux_env.cluster.state.State`.
        pause_s: of a move.
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
