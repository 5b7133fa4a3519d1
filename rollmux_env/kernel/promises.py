"""What a job has left of its SLO for what joining a group costs: where switches are planned, a promise covers that too.

Who enters a group waits for a meta-iteration to begin and then starts cold; those who are there wait for its cold starts, and for
the pattern to settle. A strict round robin settles within two periods: a member's events lie less than two periods apart, because
its trainings share all nodes with everybody's. So m iterations from now take at most m + 2 periods, and the cold starts that are
still to come. A stale job fills its pipeline first: its own are m + 2 + staleness. A group of period P may be entered if every
member would keep its promise at that pace to its end:

    stayed + cold + (left + 2) P <= slo (T_solo iterations + own cold)                        with a number of iterations
    stayed + rest                <= slo (T_solo (done + (rest - cold) / P - 2) + own cold)    with a fixed stay, `rest` of it left

The right side is the SLO against a run alone, which begins with cold starts of its own (`slo_attainment_observed`), in the shape
that the job is written in. Every entry is checked so, and so is a group of a job's own in another shape: its cold starts may be
longer, and a stale job's pipeline may fill more slowly. As it is written a job always gets a group of its own, and no departure
makes a period longer: what was promised holds at worst-case durations. Of several jobs that enter a group in one plan each waits
for all their cold starts (`visits`).
"""

from __future__ import annotations

import numpy as np

from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.membership import refresh_promises
from rollmux_env.kernel.tables import NOWHERE, Records, View

SETTLING = 2.0  # periods


@compiled(arrays=False)
def _longest_period(
    job: Records, alone_cold_s: float, stayed_s: float, rest_s: float, done: float, cold_s: float
) -> tuple[float, float]:
    """The longest period of a group, from an entry on, at which a job, a record, keeps its promise; at most `limit_s`.

    Args:
        alone_cold_s: cold starts of the job alone, as it is written.
        stayed_s: since its admission. rest_s: of a fixed stay, else infinite. done: iterations, with fractions.
        cold_s: cold starts that are still to come in the group.

    Returns:
        It, and what each second of cold starts takes off it.
    """
    limit = job.limit_s
    longest, less = limit, 0.0
    own_cold = alone_cold_s * limit / job.solo_s
    if rest_s < np.inf:
        over = stayed_s + rest_s - own_cold - limit * (done - SETTLING - job.staleness)
        if over > 0.0:
            less = limit / over
            longest = less * (rest_s - cold_s)
    elif job.iterations < np.inf:
        less = 1.0 / (job.iterations - done + SETTLING + job.staleness)
        longest = less * (limit * job.iterations + own_cold - stayed_s - cold_s)
    return float(max(0.0, min(limit, longest))), less


@compiled(arrays=False)
def _coming_cold(jobs: Records, group: Records) -> float:
    """Cold starts of a group's members that have not finished an iteration there yet, seconds."""
    cold = 0.0
    for i in range(group.n_members):
        j = jobs[group.members[i]]
        if j.done - j.entered_done < 1.0:
            cold += j.cold_s
    return float(cold)


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
    entrants_cold = 0.0  # at most, of whoever may enter
    for row in range(rows):
        entrants_cold = max(entrants_cold, jobs[row].cold_s)
    most_cold = 0.0  # in a group
    for position in range(view.order.shape[0]):
        g = groups[view.order[position]]
        cold = _coming_cold(jobs, g)
        most_cold = max(most_cold, cold)
        for i in range(g.n_members):
            j = jobs[g.members[i]]
            stayed, rest, done = _stay(j, g, now_s, observed)
            alone_cold = jobs[j.first_shape].cold_s
            j.stays_limit_s, j.limit_per_cold = _longest_period(j, alone_cold, stayed, rest, done, cold + entrants_cold)
        refresh_promises(jobs, g)
    for row in range(rows):
        j = jobs[row]
        if j.more_shapes < 0:
            continue
        stayed, rest, done = 0.0, j.duration_s, 0.0
        if j.group != NOWHERE:
            stayed, rest, done = _stay(j, groups[j.group], now_s, observed)
            stayed += pause_s
        alone_cold = jobs[j.first_shape].cold_s
        j.enters_limit_s, less = _longest_period(j, alone_cold, stayed, rest, done, most_cold + j.cold_s)
        j.limit_per_cold = max(j.limit_per_cold, less) if j.group != NOWHERE else less
        j.follows_limit_s = j.enters_limit_s - j.limit_per_cold * entrants_cold
        if j.more_shapes > 0:
            for shape in range(1 + j.more_shapes):
                other = jobs[j.first_shape + shape]
                other.enters_limit_s, less = _longest_period(other, alone_cold, stayed, rest, done, most_cold + other.cold_s)
                other.limit_per_cold = less
                other.follows_limit_s = other.enters_limit_s - less * entrants_cold
