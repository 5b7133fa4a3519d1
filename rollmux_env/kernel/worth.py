"""What a grouping of jobs is worth until its members leave, and which nodes reaching it leaves behind.

The dollars of a group are those of its nodes for as long as someone needs them: a rollout node until the last job pinned to it has
left, the training nodes until the last member has. From them the worth of the members' work is taken off: cost rate minus lambda
times work rate, as in Dinkelbach's method for ratios. Both are discounted by exp(-t / horizon): what is far away will be regrouped
before it comes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rollmux_env.kernel.compiled import compiled, uncounted
from rollmux_env.kernel.tables import NOWHERE, Floats, GroupTable, Ints, JobTable, Limits


class Regrouping(NamedTuple):
    """What is known of the jobs that are regrouped, and how it counts. Shapes: J job rows, G present groups, N rollout nodes.

    A job is at home in the group where it runs now, on the rollout nodes that it has there; any other place is a move.

    Attributes:
        home: (J,) row of the group where the job is at home, NOWHERE for one that waits for a place.
        home_pins: (J, N) its rollout nodes there, ascending; home_n_pins: (J,) how many.
        home_rank: (J,) its position among the members there.
        free: (J,) 1 where it may be given another place.
        stay_h: (J,) hours that a job of fixed stay still has; infinite for others.
        iterations: (J,) what a job that leaves after so many still has to do; infinite for others.
        pause_h: (J,) hours until it makes progress at home: the rest of an earlier pause.
        work_usd: (J,) worth of a work-hour (T_solo / 3600 an iteration) of the job, $.
        home_rollout_nodes, home_training_nodes: (G,) nodes of the present groups, which are the first rows of the group table.
        horizon_h: of the discount, hours.
        migration_h: pause of a move, hours.
        held_rollout, held_training: nodes that are held for earlier moves.
    """

    home: Ints
    home_pins: Ints
    home_n_pins: Ints
    home_rank: Ints
    free: Ints
    stay_h: Floats
    iterations: Floats
    pause_h: Floats
    work_usd: Floats
    home_rollout_nodes: Ints
    home_training_nodes: Ints
    horizon_h: float
    migration_h: float
    held_rollout: int
    held_training: int


@uncounted
def discounted_h(hours: float, horizon_h: float) -> float:
    """The integral of exp(-t / horizon) from 0 to `hours`, hours."""
    return float(horizon_h * -np.expm1(-hours / horizon_h))


@uncounted
def job_worth(jobs: JobTable, facts: Regrouping, job: int, group: int, period_s: float) -> tuple[float, float]:
    """What a job's stay in a group comes to: discounted hours until it leaves, and the worth of its work until then, $.

    A move adds its pause to a fixed stay, and no work is done in the pause.
    """
    moved = facts.home[job] != NOWHERE and facts.home[job] != group
    pause_h = facts.migration_h if moved else facts.pause_h[job]
    stay_h = facts.stay_h[job] + (facts.migration_h if moved else 0.0)
    stay_h = min(stay_h, pause_h + facts.iterations[job] * period_s / 3600.0)
    hours = discounted_h(stay_h, facts.horizon_h)
    running_h = hours - discounted_h(min(pause_h, stay_h), facts.horizon_h)
    return hours, float(facts.work_usd[job] * jobs.solo_s[job] / period_s * running_h)


@compiled
def group_usd(
    jobs: JobTable,
    groups: GroupTable,
    limits: Limits,
    facts: Regrouping,
    group: int,
    job: int,
    nodes: Ints,
    new: int,
    period_s: float,
) -> float:
    """Discounted dollars of a group until its members have left, less the worth of their work.

    Args:
        job: row of a job that is counted as one more member; NOWHERE for none.
        nodes: numbers of the group's rollout nodes that it would be pinned to, ascending; new: rollout nodes to add for it.
        period_s: of the group, with that job in it, seconds.

    Returns:
        $, 0 for an empty group.
    """
    n = groups.n_members[group]
    n_nodes = groups.n_nodes[group]
    needed_h = np.zeros(n_nodes)
    longest_h = 0.0
    usd = 0.0
    for i in range(n + 1):
        if i == n and job == NOWHERE:
            break
        member = groups.members[group, i] if i < n else job
        pins = jobs.pins[member] if i < n else nodes
        n_pins = jobs.n_pins[member] if i < n else jobs.rollout_nodes[job] - new
        hours, worth = job_worth(jobs, facts, member, group, period_s)
        longest_h = max(longest_h, hours)
        usd -= worth
        at = 0
        for v in range(n_nodes):
            if at < n_pins and pins[at] == groups.node_number[group, v]:
                needed_h[v] = max(needed_h[v], hours)
                at += 1
        if i == n:
            usd += new * limits.rollout_usd * hours
    usd += limits.rollout_usd * needed_h.sum() + limits.training_usd * groups.training_nodes[group] * longest_h
    return float(usd)


@compiled
def nodes_left(groups: GroupTable, facts: Regrouping) -> tuple[int, int]:
    """Rollout and training nodes that no job needs any more that stays at home: they are held until the movers' pauses end.

    A node of the present groups stays where a member that has not moved is pinned to it, training nodes where there is any.
    """
    rollout = facts.home_rollout_nodes.sum()
    training = facts.home_training_nodes.sum()
    for group in range(facts.home_rollout_nodes.shape[0]):
        stays = False
        for i in range(groups.n_members[group]):
            job = groups.members[group, i]
            if facts.home[job] != group:
                continue
            stays = True
            for k in range(facts.home_n_pins[job]):
                if not _counted(groups, facts, group, i, facts.home_pins[job, k]):
                    rollout -= 1
        if stays:
            training -= facts.home_training_nodes[group]
    return int(rollout), int(training)


@uncounted
def _counted(groups: GroupTable, facts: Regrouping, group: int, end: int, number: int) -> bool:
    """Whether one of the group's first `end` members is at home on this rollout node."""
    for i in range(end):
        job = groups.members[group, i]
        if facts.home[job] == group:
            for k in range(facts.home_n_pins[job]):
                if facts.home_pins[job, k] == number:
                    return True
    return False


@uncounted
def nodes_in_use(groups: GroupTable, facts: Regrouping) -> tuple[int, int]:
    """Rollout and training nodes provisioned while the moves' pauses last: those of the groups, left ones, and held ones."""
    rollout, training = nodes_left(groups, facts)
    for group in range(groups.id.shape[0]):
        if groups.n_members[group] > 0:
            rollout += groups.n_nodes[group]
            training += groups.training_nodes[group]
    return int(rollout + facts.held_rollout), int(training + facts.held_training)
