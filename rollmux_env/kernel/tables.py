"""The state of a cluster as struct-of-arrays: one row a job, one row a group.

Compiled functions take these named tuples; `rollmux_env.cluster.state` owns them and makes them larger.
Shapes: J job rows, G group rows, M members of a group, N rollout nodes (of a job in `pins`, else of a group), K rescaling steps.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple, get_type_hints

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NOWHERE = -1
UNUSED = np.iinfo(np.int64).max  # nodes of a rescaling step that there is not
TOLERANCE = 1e-9  # relative, in favour of <= and >=: SLO, residency, saturation


class JobTable(NamedTuple):
    """What is known of each job, and where it is.

    Attributes:
        rollout_s: (J,) worst-case rollout on the job's own rollout nodes, seconds.
        training_s: (J,) worst-case training on the job's own number of training nodes, seconds.
        sync_s: (J,) seconds.
        solo_s: (J,) T_solo, seconds.
        limit_s: (J,) longest period that keeps the SLO, slo * T_solo, seconds.
        rollout_gb, training_gb: (J,) host memory per node, GB.
        rollout_nodes, training_nodes: (J,) nodes that the phases ask for.
        rescale_nodes, rescale_s: (J, K) training seconds from so many nodes on, ascending; unused steps come last.
        movable: (J,) 0 where the job stays in the place that it got first, else 1.
        group: (J,) row of the job's group, or NOWHERE.
        pins: (J, N) numbers of the rollout nodes that it is pinned to, ascending; n_pins: (J,) how many.
        placed_rollout_s, placed_training_s, placed_sync_s: (J,) the phases in the present placement, seconds.
        done: (J,) iterations done, with fractions, when its group was last settled.
        rollout_busy_s, training_busy_s: (J,) node-seconds of its phases on either pool's nodes, likewise.
        admitted_s: (J,) when it was admitted; paused_until_s: (J,) end of the pause of a move.
        iterations: (J,) after which it leaves, or infinite; leaves_s: (J,) when its fixed stay ends, or infinite.
    """

    rollout_s: Floats
    training_s: Floats
    sync_s: Floats
    solo_s: Floats
    limit_s: Floats
    rollout_gb: Floats
    training_gb: Floats
    rollout_nodes: Ints
    training_nodes: Ints
    rescale_nodes: Ints
    rescale_s: Floats
    movable: Ints
    group: Ints
    pins: Ints
    n_pins: Ints
    placed_rollout_s: Floats
    placed_training_s: Floats
    placed_sync_s: Floats
    done: Floats
    rollout_busy_s: Floats
    training_busy_s: Floats
    admitted_s: Floats
    paused_until_s: Floats
    iterations: Floats
    leaves_s: Floats


class GroupTable(NamedTuple):
    """The co-execution groups.

    Attributes:
        id: (G,) numbers in order of creation, never reused.
        members: (G, M) job rows in order of admission; n_members: (G,) how many.
        training_nodes: (G,) size of the training pool.
        node_number: (G, N) the rollout nodes' numbers, ascending; n_nodes: (G,) how many; next_number: (G,) of the next new node.
        node_load_s: (G, N) rollout seconds pinned to a node in a meta-iteration.
        node_gb: (G, N) host memory in use on a node, GB.
        node_before: (G, N) position of the last node before this one with the same pinned members, or -1.
        training_load_s: (G,) training seconds in a meta-iteration; training_gb: (G,) host memory in use on each training node, GB.
        cycle_s: (G,) T_cycle; load_s: (G,) T_load, seconds.
        limit_s: (G,) longest period that keeps every member's SLO, seconds.
        period_s: (G,) exact round-robin period, seconds.
        general: (G,) 1 where the period can exceed max(cycles, loads): a member has sync or spans rollout nodes.
        exclusive: (G,) 1 for a co-located job's own training nodes: not a co-execution group, no one may join.
        since_s: (G,) when the members' `done` was last brought up to date.
        departs_s: (G,) when the first member leaves at the present period.
    """

    id: Ints
    members: Ints
    n_members: Ints
    training_nodes: Ints
    node_number: Ints
    n_nodes: Ints
    next_number: Ints
    node_load_s: Floats
    node_gb: Floats
    node_before: Ints
    training_load_s: Floats
    training_gb: Floats
    cycle_s: Floats
    load_s: Floats
    limit_s: Floats
    period_s: Floats
    general: Ints
    exclusive: Ints
    since_s: Floats
    departs_s: Floats


class Limits(NamedTuple):
    """What holds for the whole cluster. Counts and memory without a limit are infinite.

    Attributes:
        rollout_node_gb, training_node_gb: host memory of a node, GB.
        rollout_nodes_max, training_nodes_max: nodes that can be provisioned at once.
        rollout_usd, training_usd: price of a node, $/h.
        group_size_max: most jobs in a group.
    """

    rollout_node_gb: float
    training_node_gb: float
    rollout_nodes_max: float
    training_nodes_max: float
    rollout_usd: float
    training_usd: float
    group_size_max: int


_SECOND_AXIS = {"rescale_nodes": "K", "rescale_s": "K", "pins": "N", "members": "M"}
_FILL = {"rescale_nodes": UNUSED, "movable": 1, "group": NOWHERE, "iterations": np.inf, "leaves_s": np.inf}


@cache
def _types(table: type[NamedTuple]) -> dict[str, Any]:
    """Types of a table's columns; resolving them takes longer than all else here."""
    return get_type_hints(table)


def _column(table: type[NamedTuple], name: str, rows: int, widths: dict[str, int]) -> NDArray[Any]:
    axis = "N" if name.startswith("node_") else _SECOND_AXIS.get(name)
    shape = (rows, widths[axis]) if axis else (rows,)
    kind = np.int64 if _types(table)[name] == Ints else np.float64
    return np.full(shape, _FILL.get(name, 0), dtype=kind)


def job_table(rows: int, pins: int, steps: int) -> JobTable:
    """An empty table: `rows` jobs, `pins` rollout nodes of a job, `steps` rescaling steps."""
    return JobTable(*(_column(JobTable, name, rows, {"N": pins, "K": steps}) for name in JobTable._fields))


def group_table(rows: int, members: int, nodes: int) -> GroupTable:
    """An empty table: `rows` groups, `members` and rollout `nodes` of a group."""
    return GroupTable(*(_column(GroupTable, name, rows, {"M": members, "N": nodes}) for name in GroupTable._fields))


def copy_into(larger: NamedTuple, smaller: NamedTuple) -> None:
    """Copy every column into the corner of a table that is at least as large."""
    for new, old in zip(larger, smaller, strict=True):
        new[tuple(slice(0, n) for n in old.shape)] = old
