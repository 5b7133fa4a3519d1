"""Jobs that were packed into a group and slowed down, although enough nodes of an owned fleet were idle for a new group."""

from __future__ import annotations

from collections.abc import Set

from rollmux_env.cluster.apply import change
from rollmux_env.cluster.events import Admitted, isolated
from rollmux_env.cluster.state import State
from rollmux_env.kernel.tables import TOLERANCE
from rollmux_env.replay.run import Run


def packed_beside_idle(run: Run, slowed: Set[str]) -> int:
    """Return the number of jobs with which a group gained less progress than the job would have made on idle nodes.

    Args:
        run: Finished replay.
        slowed: Identifiers of the jobs that were slower than alone. Others were not packed at a cost.
    """
    if any(pool.max_nodes is None for pool in run.scenario.cluster.pools.values()):
        return 0
    packed: set[str] = set()
    state = State(run.scenario.cluster, run.state.observed, run.state.switches)
    for event in run.log if slowed else ():
        if not isinstance(event, Admitted) or event.placement.group is None or not _could_be_alone(state, event.job_id):
            change(state, event)
            continue
        row = state.tables.group_rows[event.placement.group]
        before = float(state.tables.group_records["work_rate"][row])
        change(state, event)
        gained = float(state.tables.group_records["work_rate"][row]) - before
        if event.job_id in slowed and gained < 1 - TOLERANCE * (before + 1):
            packed.add(event.job_id)
    return len(packed)


def _could_be_alone(state: State, job_id: str) -> bool:
    return state.has_room({job_id: isolated(state.job(job_id), state.cluster)})
