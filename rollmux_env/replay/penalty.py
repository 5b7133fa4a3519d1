"""The cost of broken SLOs as RollMux's authors count it: a group whose members miss their SLOs costs as much more as the worst of
them is slowed down.

It is what the simulator of the authors charges `random` and `most-idle` (github.com/wutianyuan1/ROLL at 66a06bba,
`global_scheduler/weave_scheduler.py`, `per_time_cost`), and what section 6.5 of the paper compares with its optimum.
"""

from __future__ import annotations

from rollmux_env.cluster.group import Group
from rollmux_env.cluster.state import State

_EXACT = 1 + 1e-6  # an SLO that is just kept is kept


def penalised_usd_per_hour(state: State) -> float:
    """What is provisioned now, $/h, with the price of every group times the slowdown of its worst member that misses its SLO."""
    return state.usd_per_hour + sum((_worst(state, group) - 1) * group.usd_per_hour for group in state.group_list())


def _worst(state: State, group: Group) -> float:
    """The largest slowdown of a member that misses its SLO in the group's steady period; 1 where none does."""
    jobs = [state.job(job_id) for job_id in group.jobs]
    return max((group.period_s / job.solo_s for job in jobs if group.period_s > job.slo * _EXACT * job.solo_s), default=1.0)
