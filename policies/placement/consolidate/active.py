"""Tables of running jobs that a search may regroup, and the plan of moves that a regrouping amounts to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rollmux_env.cluster.events import Placement
from rollmux_env.cluster.plan import Move, Place, Plan, may_each_move
from rollmux_env.cluster.state import State
from rollmux_env.kernel.tables import NOWHERE, Ints, Records, View, begin_with, group_table, joined, rows_of_shapes


@dataclass(frozen=True)
class Active:
    """Working copy of some groups of a state with their jobs, and possibly one waiting job, for a search to change.

    A job's shapes are its alternative numbers of nodes and durations. Its pins are the rollout nodes of its group that it uses.

    It has n jobs. J counts the rows of its job table: one for each job, then the shapes of movable jobs that have several.

    Attributes:
        state: State that the copy was made from.
        looked: Rows of the copied groups in the state's table, in order of creation.
        others: Rows of the groups in the state's table that were not copied.
        rows: Rows of the jobs in the state's table, ascending, shape (n,).
        view: The copied tables. Groups refer to rows of this job table. The existing groups come first, in order of creation, then
            empty rows for new groups.
        of_job: Job to which each row of the job table belongs, shape (J,).
        home: Row in `view.groups` of the group in which each job runs now, NOWHERE for the waiting job, shape (n,).
        of_shape: Number of the shape in which each job runs now, shape (n,).
        rank: Position of each job among the members of its current group, shape (n,).
        free: 1 if the job may get another placement because it is movable or waits, else 0, shape (n,).
    """

    state: State
    looked: Ints
    others: Ints
    rows: Ints
    view: View
    of_job: Ints
    home: Ints
    of_shape: Ints
    rank: Ints
    free: Ints


def active(state: State, newcomer: str | None, part: Ints | None = None) -> Active:
    """Copy running jobs and their shapes out of a state.

    Args:
        state: State to copy from.
        newcomer: Id of a waiting job to include, or None.
        part: Positions of the groups to copy in the state's order of groups, or None for all groups.
    """
    part = np.arange(state.tables.order.size) if part is None else part
    looked = state.tables.order[part]
    present = state.view.groups.take(looked)
    of_group = np.arange(present["members"].shape[1]) < present["n_members"][:, None]
    running = present["members"][of_group]
    waiting = np.array([] if newcomer is None else [state.row(newcomer)], np.int64)
    rows = np.sort(np.concatenate([running, waiting]))
    position = np.searchsorted(rows, running)
    # The tables must hold any grouping of these jobs: one new group for each job, and memberships of the largest size.
    largest = min(state.limits.group_size_max, rows.size)
    nodes = largest * state.tables.widest
    widths = max(present["members"].shape[1], largest), max(present["node_number"].shape[1], nodes)
    groups = group_table(looked.size + rows.size, *widths)
    begin_with(groups, present)
    groups["members"][: looked.size][:, : of_group.shape[1]][of_group] = position
    jobs = state.view.jobs.take(rows)
    rank = np.zeros(rows.size, np.int64)
    jobs["group"] = NOWHERE
    jobs["group"][position], rank[position] = np.nonzero(of_group)
    jobs["iterations"] = np.inf  # stays reach the search separately, as `Regrouping.homes`
    jobs["leaves_s"] = np.inf
    home = jobs["group"].copy()
    shared = (home != NOWHERE) & (groups["exclusive"][home] == 0)
    free = home == NOWHERE
    free[shared] = may_each_move(state, rows[shared])
    others = np.delete(state.tables.order, part)
    shape = jobs["of_shape"].copy()
    jobs["more_shapes"][~free] = 0
    jobs, of_job = _append_shapes(state, jobs)
    view = state.view._replace(jobs=jobs, groups=groups)
    return Active(state, looked, others, rows, view, of_job, home, shape, rank, free.astype(np.int64))


def _append_shapes(state: State, jobs: Records) -> tuple[Records, Ints]:
    """Append the records of the jobs' shapes to those of the jobs, and return them with the job of each row."""
    n = len(jobs)
    rows, of_job, starts = rows_of_shapes(jobs)
    if not rows.size:
        return jobs, np.arange(n)
    many = np.flatnonzero(jobs["more_shapes"])
    shapes = state.view.jobs.take(rows)
    shapes.put(starts[many] + jobs["of_shape"][many], jobs.take(many))  # the current shape keeps the job's current record
    for column in ("stays_limit_s", "stays_per_cold", "coming_cold_s"):
        shapes[column] = jobs[column][of_job]
    shapes["more_shapes"], shapes["group"] = 0, NOWHERE
    shapes["iterations"], shapes["leaves_s"] = np.inf, np.inf
    jobs["first_shape"][many] = n + starts[many]
    return joined(jobs, shapes), np.concatenate([np.arange(n), of_job])


def plan_of(now: Active) -> Plan:
    """Return the moves, and the admission of a waiting job, that lead from the state to the groups in the tables.

    A group in which at least one member stays keeps its number, and the nodes to which such members are pinned keep theirs. All
    other groups and nodes are new. A job that changes its shape counts as moved.
    """
    n = now.rows.size
    state, jobs, groups = now.state, now.view.jobs[:n], now.view.groups
    moved = (jobs["group"] != now.home) | (jobs["of_shape"] != now.of_shape)
    actions: list[Place | Move] = []
    founded = 0
    for group in np.unique(jobs["group"][moved]).tolist():
        members = groups["members"][group, : groups["n_members"][group]].tolist()
        movers = [job for job in members if moved[job]]
        known = {node: node for job in members if not moved[job] for node in _pins(jobs, job)}
        stays = len(movers) < len(members)
        if stays:
            number = int(groups["id"][group])
            next_node = int(state.view.groups["next_number"][now.looked[group]])
        else:
            number, next_node = state.tables.next_group_id + founded, 0
            founded += 1
        joining = [(int(jobs["of_shape"][job]), _pins(jobs, job)) for job in movers]
        to = placements(number, joining, None if stays else int(groups["training_nodes"][group]), known, next_node)
        for job, placement in zip(movers, to, strict=True):
            kind = Place if now.home[job] == NOWHERE else Move
            actions.append(kind(state.tables.job_id(int(now.rows[job])), placement))
    return tuple(actions)


def placements(
    number: int, joining: Iterable[tuple[int, Sequence[int]]], founding: int | None, known: Mapping[int, int], next_node: int = 0
) -> Iterator[Placement]:
    """Yield the placements of jobs that join one group, one after the other.

    Args:
        number: Number of the group.
        joining: Number of the shape and the rollout nodes of each job. The caller may number the nodes in any consistent way.
        founding: Number of training nodes of a new group that the first job creates, or None for an existing group.
        known: Number within the group of each node that members already use, by the caller's number.
        next_node: Number within the group of the next new node.
    """
    known = dict(known)
    for shape, pins in joining:
        there = tuple(sorted(known[node] for node in pins if node in known))
        new = [node for node in pins if node not in known]
        known.update(zip(new, range(next_node, next_node + len(new)), strict=True))
        next_node += len(new)
        yield Placement(number if founding is None else None, there, len(new), founding or 0, shape=shape)
        founding = None


def _pins(jobs: Records, job: int) -> list[int]:
    pins: list[int] = jobs["pins"][job, : jobs["n_pins"][job]].tolist()
    return pins
