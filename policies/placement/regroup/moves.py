"""Moves that turn the present groups into others: jobs, nodes and order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import numpy as np

from rollmux_env.cluster.candidates import candidates
from rollmux_env.cluster.events import Admitted, Departed, Placement
from rollmux_env.cluster.plan import Move
from rollmux_env.cluster.state import State, apply


def without(state: State, job_ids: Sequence[str]) -> State:
    """A copy of the state in which some running jobs wait for a place."""
    left = state.copy()
    for job_id in job_ids:
        apply(left, Departed(left.now_s, job_id))
        left.waiting.append(job_id)
    return left


def join(state: State, group: int, job_ids: Sequence[str], rollout_nodes: int) -> tuple[Move, ...] | None:
    """Let jobs that wait join a present group.

    Every order of joining is tried, each job with the fewest new nodes and then the shortest period, until the group has no more
    than so many rollout nodes. What a placement names are nodes of members that stay and nodes that joining jobs brought; so it
    does not matter when, in one plan, those that leave the group go.

    Returns:
        The moves in order; None where no order keeps all SLOs on so few nodes.
    """
    for order in permutations(job_ids):
        trial = state.copy()
        moves: list[Move] = []
        for job_id in order:
            table = candidates(trial, job_id)
            rows = np.flatnonzero(table.feasible & (table.group == group))
            if not rows.size:
                break
            best = rows[np.lexsort((table.period_s[rows], table.new_nodes[rows]))[0]]
            placement = table.placement(int(best))
            apply(trial, Admitted(trial.now_s, job_id, placement))
            moves.append(Move(job_id, placement))
        row = trial.group_row(group)
        if len(moves) == len(order) and row is not None and trial.groups.n_nodes[row] <= rollout_nodes:
            return tuple(moves)
    return None


def create_group(
    group: int, jobs: Sequence[tuple[str, int]], pins: Sequence[tuple[int, ...]], training_nodes: int
) -> tuple[Move, ...]:
    """Let jobs make a new group.

    Args:
        group: the number that it will get.
        jobs: their ids and shapes, in round-robin order.
        pins: of each, numbers of its rollout nodes in some numbering of the group's own.
    """
    number: dict[int, int] = {}
    moves: list[Move] = []
    for (job_id, shape), own in zip(jobs, pins, strict=True):
        old = tuple(sorted(number[node] for node in own if node in number))
        new = [node for node in own if node not in number]
        number |= {node: len(number) + k for k, node in enumerate(new)}
        placement = Placement(group if moves else None, old, len(new), 0 if moves else training_nodes, shape=shape)
        moves.append(Move(job_id, placement))
    return tuple(moves)
