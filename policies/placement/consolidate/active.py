"""Tables of the active jobs to regroup freely, and the plan that turns a regrouping into moves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rollmux_env.cluster.events import Placement
from rollmux_env.cluster.plan import Move, Place, Plan, may_move
from rollmux_env.cluster.state import State
from rollmux_env.kernel.tables import NOWHERE, Ints, View, copy_into, group_table


@dataclass(frozen=True)
class Active:
    """The running jobs of a state, and perhaps one that waits, in tables of their own.

    Attributes:
        state: where they come from.
        rows: rows of the jobs in the state's table, ascending.
        view: copies. Groups hold rows of its jobs; the present ones come first, in order of creation, then empty rows.
        home: (n,) row in `groups` where each job runs, NOWHERE for the one that waits.
        rank: (n,) its place among the members there.
        free: (n,) 1 where it may be given another place: it may be moved, or waits.
    """

    state: State
    rows: list[int]
    view: View
    home: Ints
    rank: Ints
    free: Ints


def active(state: State, newcomer: str | None, shape: int) -> Active:
    """Copy the active jobs out of a state; a newcomer is a job that waits, in the shape of that number. The others keep theirs."""
    order = state.order
    members = [state.groups.members[row, : state.groups.n_members[row]] for row in order]
    running = np.concatenate([*members, np.zeros(0, np.int64)]).astype(np.int64)
    waiting = np.array([] if newcomer is None else [state.row(newcomer)], np.int64)
    rows = np.sort(np.concatenate([running, waiting]))
    position = np.full(len(state.jobs), NOWHERE)
    position[rows] = np.arange(rows.size)
    # Room for any group of these jobs: a row for each in case that all move to new groups, and the largest memberships.
    largest = min(state.limits.group_size_max, rows.size)
    asked = state.jobs.rollout_nodes[rows]
    if newcomer is not None:
        asked = np.append(asked, state.jobs.rollout_nodes[state.shape_rows(int(waiting[0]))[shape]])
    nodes = int(np.sort(asked)[-largest:].sum())
    widths = max(state.groups.members.shape[1], largest), max(state.groups.node_number.shape[1], nodes)
    groups = group_table(order.size + rows.size, *widths)
    copy_into(groups, state.view.groups[order])
    jobs = state.view.jobs[rows]
    if newcomer is not None:
        jobs[position[waiting]] = state.view.jobs[state.shape_rows(int(waiting[0]))[shape]]
    jobs["more_shapes"] = 0  # who moves keeps its shape
    jobs["group"] = NOWHERE
    jobs["iterations"] = np.inf  # what is known of stays is told apart from the tables
    jobs["leaves_s"] = np.inf
    rank = np.zeros(rows.size, np.int64)
    for group, job_rows in enumerate(members):
        groups["members"][group, : job_rows.size] = position[job_rows]
        jobs["group"][position[job_rows]] = group
        rank[position[job_rows]] = np.arange(job_rows.size)
    ids = [state.job_id(int(row)) for row in rows]
    free = np.array(
        [
            job_id == newcomer or (not groups["exclusive"][group] and not state.is_paused(job_id) and may_move(state, job_id))
            for job_id, group in zip(ids, jobs["group"], strict=True)
        ],
        dtype=np.int64,
    )
    return Active(state, rows.tolist(), state.view._replace(jobs=jobs, groups=groups), jobs["group"].copy(), rank, free)


def plan_of(now: Active) -> Plan:
    """The moves, and the admission, that lead from the state to the groups in the tables.

    A group with a member that has not moved keeps its number, and its nodes where such members are pinned; everything else is new.
    """
    state = now.state
    jobs, groups = now.view.jobs.view(np.recarray), now.view.groups.view(np.recarray)
    actions: list[Place | Move] = []
    founded = 0
    for group in np.flatnonzero(groups.n_members > 0).tolist():
        members = groups.members[group, : groups.n_members[group]].tolist()
        movers = [job for job in members if now.home[job] != group]
        residents = [job for job in members if now.home[job] == group]
        if not movers:
            continue
        known = {number: number for job in residents for number in jobs.pins[job, : jobs.n_pins[job]].tolist()}
        if residents:
            number = int(groups.id[group])
            next_node = int(state.groups.next_number[state.order[group]])
        else:
            number = state.next_group_id + founded
            next_node = 0
            founded += 1
        for job in movers:
            pins = jobs.pins[job, : jobs.n_pins[job]].tolist()
            there = tuple(sorted(known[node] for node in pins if node in known))
            new = [node for node in pins if node not in known]
            first = not residents and job == movers[0]
            training_nodes = int(groups.training_nodes[group]) if first else 0
            shape = int(jobs.of_shape[job])
            placement = Placement(None if first else number, there, len(new), training_nodes, shape=shape)
            known.update(zip(new, range(next_node, next_node + len(new)), strict=True))
            next_node += len(new)
            kind = Place if now.home[job] == NOWHERE else Move
            actions.append(kind(state.job_id(now.rows[job]), placement))
    return tuple(actions)
