"""What a grouping of jobs is worth until its members leave, and which nodes reaching it leaves behind.

The dollars of a group are those of its nodes for as long as someone needs them: a rollout node until the last job pinned to it has
left, the training nodes until the last member has. From them the worth of the members' work is taken off: cost rate minus lambda
times work rate, as in Dinkelbach's method for ratios. Both are discounted by exp(-t / horizon): what is far away will be regrouped
before it comes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.pools import rollout_usd
from rollmux_env.kernel.tables import NOWHERE, ROLLOUT, TRAINING, Ints, Records, View


def home_type(pins: int) -> np.dtype[Any]:
    """What is known of a job that is regrouped. It is at home where it runs now; any other place is a move.

    group: row of the group where the job is at home, NOWHERE for one that waits for a place. of_shape: number of its shape there.
    rank: its position among the members there. pins: its rollout nodes there, ascending; n_pins: how many. free: 1 where it may be
    given another place.
    stay_h: hours that a job of fixed stay still has; infinite for others. iterations: what a job that leaves after so many still
    has to do; infinite for others. pause_h: hours until it makes progress at home: the rest of an earlier pause.
    work_usd: worth of a work-hour (T_solo / 3600 an iteration) of the job, $.
    """
    ints = [(name, "i8") for name in ("group", "of_shape", "rank", "n_pins", "free")]
    floats = [(name, "f8") for name in ("stay_h", "iterations", "pause_h", "work_usd")]
    return np.dtype([*ints, ("pins", "i8", (pins,)), *floats])


class Regrouping(NamedTuple):
    """What is known of the jobs that are regrouped, and how it counts.

    Attributes:
        homes: (J,) records of `home_type`, by row of the job table: those of a job's shapes have what the job has.
        n_jobs: rows of jobs; behind them come those of their shapes.
        rollout_nodes, training_nodes: (G,) nodes of the present groups, which are the first rows of the group table.
        horizon_h: of the discount, hours.
        migration_h: pause of a move, hours.
        overlooked: share of a job's shapes that are left out, at random, when the search puts it back.
        reserved: (P, 2) nodes of each pool that are held for earlier moves, for rollouts and for trainings.
    """

    homes: Records
    n_jobs: int
    rollout_nodes: Ints
    training_nodes: Ints
    horizon_h: float
    migration_h: float
    overlooked: float
    reserved: Ints


@compiled(arrays=False)
def discounted_h(hours: float, horizon_h: float) -> float:
    """The integral of exp(-t / horizon) from 0 to `hours`, hours."""
    return float(horizon_h * -np.expm1(-hours / horizon_h))


@compiled(arrays=False)
def is_home(jobs: Records, facts: Regrouping, job: int, group: int) -> bool:
    """Whether a job that is in a group, in the shape that its row has, is at home."""
    return bool(facts.homes[job].group == group and facts.homes[job].of_shape == jobs[job].of_shape)


@compiled(arrays=False)
def job_worth(jobs: Records, facts: Regrouping, job: int, group: int, period_s: float) -> tuple[float, float]:
    """What a job's stay in a group comes to: discounted hours until it leaves, and the worth of its work until then, $.

    A move adds its pause to a fixed stay, and no work is done in the pause. The row may be that of one of the job's shapes.
    """
    moved = facts.homes[job].group != NOWHERE and not is_home(jobs, facts, job, group)
    pause_h = facts.migration_h if moved else facts.homes[job].pause_h
    stay_h = facts.homes[job].stay_h + (facts.migration_h if moved else 0.0)
    stay_h = min(stay_h, pause_h + facts.homes[job].iterations * period_s / 3600.0)
    hours = discounted_h(stay_h, facts.horizon_h)
    running_h = hours - discounted_h(min(pause_h, stay_h), facts.horizon_h)
    return hours, float(facts.homes[job].work_usd * jobs[job].solo_s / period_s * running_h)


@compiled
def group_usd(view: View, facts: Regrouping, group: int, job: int, place: Records, period_s: float) -> float:
    """Discounted dollars of a group until its members have left, less the worth of their work.

    Args:
        job: row of a job, or of one of its shapes, that is counted as one more member; NOWHERE for none.
        place: of that job, a record of `rollmux_env.kernel.candidates.candidate_type`.
        period_s: of the group, with that job in it, seconds.

    Returns:
        $, 0 for an empty group.
    """
    jobs, limits = view.jobs, view.limits
    g = view.groups[group]
    n, n_nodes = g.n_members, g.n_nodes
    needed_h = np.zeros(n_nodes)
    longest_h = 0.0
    usd = 0.0
    for i in range(n + 1):
        if i == n and job == NOWHERE:
            break
        member = g.members[i] if i < n else job
        n_pins = jobs[member].n_pins if i < n else jobs[job].rollout_nodes - place.new_nodes
        hours, worth = job_worth(jobs, facts, member, group, period_s)
        longest_h = max(longest_h, hours)
        usd -= worth
        at = 0
        for v in range(n_nodes):
            if at < n_pins and (jobs[member].pins[at] if i < n else place.nodes[at]) == g.node_number[v]:
                needed_h[v] = max(needed_h[v], hours)
                at += 1
        if i == n:
            usd += place.new_nodes * rollout_usd(jobs[job], limits) * hours
    pools, needed = limits.pools, needed_h.sum()
    usd += pools[g.rollout_pool].usd * needed + pools[g.training_pool].usd * g.training_nodes * longest_h
    return float(usd)


@compiled
def nodes_left(jobs: Records, groups: Records, facts: Regrouping, out: Ints) -> None:
    """Count the nodes that no job needs any more that stays at home: they are held until the movers' pauses end.

    A node of the present groups stays where a member that has not moved is pinned to it, training nodes where there is any.

    Args:
        out: (P, 2) of each pool and side; added to.
    """
    for group in range(len(facts.rollout_nodes)):
        rollout, training = groups[group].rollout_pool, groups[group].training_pool
        out[rollout, ROLLOUT] += facts.rollout_nodes[group]
        out[training, TRAINING] += facts.training_nodes[group]
        stays = False
        for i in range(groups[group].n_members):
            job = groups[group].members[i]
            if not is_home(jobs, facts, job, group):
                continue
            stays = True
            for k in range(facts.homes[job].n_pins):
                if not _counted(jobs, groups, facts, group, i, facts.homes[job].pins[k]):
                    out[rollout, ROLLOUT] -= 1
        if stays:
            out[training, TRAINING] -= facts.training_nodes[group]


@compiled(arrays=False)
def _counted(jobs: Records, groups: Records, facts: Regrouping, group: int, end: int, number: int) -> bool:
    """Whether one of the group's first `end` members is at home on this rollout node."""
    for i in range(end):
        job = groups[group].members[i]
        if is_home(jobs, facts, job, group):
            for k in range(facts.homes[job].n_pins):
                if facts.homes[job].pins[k] == number:
                    return True
    return False


@compiled(arrays=False)
def nodes_in_use(jobs: Records, groups: Records, facts: Regrouping, out: Ints) -> None:
    """Write (P, 2) the nodes provisioned while the moves' pauses last: those of the groups, left ones, and held ones."""
    for p in range(len(out)):
        for side in range(out.shape[1]):
            out[p, side] = facts.reserved[p, side]
    nodes_left(jobs, groups, facts, out)
    for group in range(len(groups)):
        if groups[group].n_members > 0:
            out[groups[group].rollout_pool, ROLLOUT] += groups[group].n_nodes
            out[groups[group].training_pool, TRAINING] += groups[group].training_nodes
