"""Tables of running jobs to regroup freely, and the plan that turns a regrouping into moves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from policies.placement.consolidate.stays import iterations_done
from rollmux_env.cluster.events import Placement
from rollmux_env.cluster.plan import Move, Place, Plan
from rollmux_env.cluster.state import State
from rollmux_env.kernel.tables import NOWHERE, TOLERANCE, Ints, Records, View, begin_with, group_table, joined, rows_of_shapes


@dataclass(frozen=True)
class Active:
    """The members of some groups of a state, and perhaps a job that waits, in tables of their own.

    Attributes:
        state: where they come from.
        looked: rows of the groups in the state's table, in order of creation; others: rows of those that are not looked at.
        rows: (n,) rows of the jobs in the state's table, ascending.
        view: copies. Groups hold rows of its jobs; the present ones come first, in order of creation, then empty rows. Behind the
            jobs come the shapes of those that are free and have several.
        of_job: (J,) of each row of its jobs, and of their shapes, the row of the job.
        home: (n,) row in `groups` where each job runs, NOWHERE for the one that waits.
        of_shape: (n,) number of the shape that each has now.
        rank: (n,) its place among the members there.
        free: (n,) 1 where it may be given another place: it may be moved, or waits.
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
    """Copy running jobs out of a state, and their shapes.

    Args:
        newcomer: a job that waits.
        part: positions in the state's order of the groups that are looked at; all of them without it.
    """
    part = np.arange(state.tables.order.size) if part is None else part
    looked = state.tables.order[part]
    present = state.view.groups.take(looked)
    of_group = np.arange(present["members"].shape[1]) < present["n_members"][:, None]
    running = present["members"][of_group]
    waiting = np.array([] if newcomer is None else [state.row(newcomer)], np.int64)
    rows = np.sort(np.concatenate([running, waiting]))
    position = np.searchsorted(rows, running)
    # Room for any group of these jobs: a row for each in case that all move to new groups, and the largest memberships.
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
    jobs["iterations"] = np.inf  # what is known of stays is told apart from the tables
    jobs["leaves_s"] = np.inf
    home = jobs["group"].copy()
    shared = (home != NOWHERE) & (groups["exclusive"][home] == 0)
    free = (home == NOWHERE) | (shared & _may_move(state, rows, jobs))
    others = np.delete(state.tables.order, part)
    shape = jobs["of_shape"].copy()
    jobs["more_shapes"][~free] = 0
    jobs, of_job = _with_shapes(state, jobs)
    view = state.view._replace(jobs=jobs, groups=groups)
    return Active(state, looked, others, rows, view, of_job, home, shape, rank, free.astype(np.int64))


def _with_shapes(state: State, jobs: Records) -> tuple[Records, Ints]:
    """The records of jobs with those of their shapes behind them, and of each row that of the job."""
    n = len(jobs)
    rows, of_job, starts = rows_of_shapes(jobs)
    if not rows.size:
        return jobs, np.arange(n)
    many = np.flatnonzero(jobs["more_shapes"])
    shapes = state.view.jobs.take(rows)
    shapes.put(starts[many] + jobs["of_shape"][many], jobs.take(many))  # what goes home is what was there
    for column in ("stays_limit_s", "stays_per_cold", "coming_cold_s"):
        shapes[column] = jobs[column][of_job]
    shapes["more_shapes"], shapes["group"] = 0, NOWHERE
    shapes["iterations"], shapes["leaves_s"] = np.inf, np.inf
    jobs["first_shape"][many] = n + starts[many]
    return joined(jobs, shapes), np.concatenate([np.arange(n), of_job])


def _may_move(state: State, rows: Ints, jobs: Records) -> NDArray[np.bool_]:
    """(n,) `rollmux_env.cluster.plan.may_move` of running jobs, by row and as records, and whether none is in a pause."""
    paused = np.isin(rows, [state.row(job_id) for job_id in state.pauses.ending(np.inf)])
    stayed_s = state.now_s - jobs["admitted_s"]
    in_time = stayed_s + state.cluster.migration_s <= jobs["limit_s"] * iterations_done(state, rows) * (1.0 + TOLERANCE)
    return np.asarray((jobs["movable"] != 0) & ~paused & in_time)


def plan_of(now: Active) -> Plan:
    """The moves, and the admission, that lead from the state to the groups in the tables.

    A group with a member that has not moved keeps its number, and its nodes where such members are pinned; everything else is new.
    Who has another shape has moved.
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
    """The placements of jobs that join a group one after the other.

    Args:
        number: of the group. joining: of each job, the number of its shape and its rollout nodes, in any numbering.
        founding: training nodes of a group that the first of them opens; None of one that is there.
        known: numbers in the group of the nodes of who is there. next_node: the number of its next node.
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
