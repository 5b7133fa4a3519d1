"""Changes of jobs, groups and nodes at an admission, a move, a departure and the end of a pause.

`rollmux_env.cluster.apply` and the environments call these. A state alone has charges, quotas, observations, and syncs on a shared
link, and changes these itself.
"""

from __future__ import annotations

import numpy as np

from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.membership import attach, detach_for, open_group
from rollmux_env.kernel.tables import ROLLOUT, TRAINING, Ints, Records


@compiled(arrays=False)
def begin_stay(jobs: Records, job: int, now_s: float) -> None:
    """Admit a job: its fixed stay, if it has one, begins."""
    jobs[job].admitted_s = now_s
    jobs[job].leaves_s = now_s + jobs[job].duration_s


@compiled(arrays=False)
def begin_pause(jobs: Records, job: int, now_s: float, pause_s: float) -> None:
    """Begin the pause of a move: the job makes no progress in it, and a fixed stay is extended by it."""
    jobs[job].paused_until_s = now_s + pause_s
    jobs[job].leaves_s += pause_s


@compiled(arrays=False)
def end_stay(jobs: Records, job: int) -> None:
    """Complete a settled job: set its iterations as done, if it has a number of them."""
    if np.isfinite(jobs[job].iterations):
        jobs[job].done = jobs[job].iterations


@compiled(arrays=False)
def provide(nodes: Ints, record: Records, rollout: int, training: int) -> None:
    """Add provisioned nodes, or remove them if negative, of the pools of a record: a job, a group or a pause. `nodes` is (P, 2)."""
    nodes[record.rollout_pool, ROLLOUT] += rollout
    nodes[record.training_pool, TRAINING] += training


@compiled(arrays=False)
def start_group(groups: Records, nodes: Ints, group: int, number: int, first: Records, training_nodes: int, now_s: float) -> None:
    """Make a group of a free row, with training nodes, for the record of its future first member."""
    open_group(groups, group, number, first, training_nodes, now_s)
    provide(nodes, first, 0, training_nodes)


@compiled(arrays=False)
def enter(jobs: Records, groups: Records, nodes: Ints, job: int, group: int, kept_nodes: int, new_nodes: int) -> None:
    """Make a job the last member of a settled group; arguments as in `rollmux_env.kernel.membership.attach`."""
    attach(jobs, groups, job, group, kept_nodes, new_nodes)
    provide(nodes, groups[group], new_nodes, 0)


@compiled(arrays=False)
def leave(jobs: Records, groups: Records, job: int, staying: int, comes_back: bool) -> tuple[int, int]:
    """Take a job out of its settled group.

    Args:
        jobs: (J,) job table.
        groups: (G,) group table.
        job: Row of the job.
        staying: Number of its rollout nodes that stay, as in `rollmux_env.kernel.membership.detach_for`.
        comes_back: Whether it gets another place in the same group.

    Returns:
        The numbers of rollout nodes and training nodes that are no longer needed. They are still provisioned.
    """
    group = jobs[job].group
    dropped = detach_for(jobs, groups, job, staying)
    closes = groups[group].n_members == 0 and not comes_back
    return dropped, groups[group].training_nodes if closes else 0
