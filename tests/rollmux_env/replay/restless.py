"""Placement policies that are hard on a replay, and scenarios as models."""

from __future__ import annotations

from typing import Any

import numpy as np

from rollmux_env.cluster.candidates import candidates
from rollmux_env.cluster.events import Admitted, Arrived, Departed, Event, Moved, Placement, Resumed, isolated
from rollmux_env.cluster.plan import Move, Place, Plan, Wait, may_move
from rollmux_env.cluster.state import State
from rollmux_env.scenario import Scenario


class Restless:
    """Admits anywhere, lets jobs wait without need, and moves a running job wherever it may, as often as it may."""

    def __init__(self, seed: int, keeps_slo: bool, moves: bool = True) -> None:
        self.keeps_slo = keeps_slo
        self._moves = moves
        self._random = np.random.default_rng(seed)

    def decide(self, state: State, event: Event) -> Plan:
        if isinstance(event, Arrived):
            choice = self._any(state, event.job.id)
            idle = not state.tables.order.size
            if choice is None or (not idle and self._random.random() < 0.2):
                return (Wait(event.job.id),)
            return (Place(event.job.id, choice),)
        movable = [j for g in state.group_list() for j in g.jobs if not state.is_paused(j) and may_move(state, j)]
        if self._moves and movable:
            job_id = str(self._random.choice(movable))
            choice = self._any(state, job_id)
            if choice is not None:
                return (Move(job_id, choice),)
        return ()

    def _any(self, state: State, job_id: str) -> Placement | None:
        table = candidates(state, job_id)
        rows = np.flatnonzero(table.feasible if self.keeps_slo else table.physical)
        return table.placement(int(self._random.choice(rows))) if rows.size else None


class Scripted:
    """Every job on nodes of its own; at the departure of `after`, the move that was written down."""

    keeps_slo = True

    def __init__(self, after: str, move: Move) -> None:
        self._after, self._move = after, move

    def decide(self, state: State, event: Event) -> Plan:
        if isinstance(event, Arrived):
            return (Place(event.job.id, isolated(event.job, state.cluster)),)
        return (self._move,) if isinstance(event, Departed) and event.job_id == self._after else ()


class Never:
    """Leaves every job waiting."""

    keeps_slo = True

    def decide(self, state: State, event: Event) -> Plan:
        return (Wait(event.job.id),) if isinstance(event, Arrived) else ()


def cost_of_log(scenario: Scenario, log: list[Event]) -> float:
    """cost_usd from the events alone: which nodes each event takes and gives back, priced between events."""
    usd_s = 0.0
    now_s = log[0].at_s
    groups: dict[int, dict[str, Any]] = {}  # id -> training nodes, pins of each member, number of the next new node
    held: dict[str, float] = {}  # job -> $/h of the nodes that it left
    made = 0
    jobs, pools = {job.id: job for job in scenario.jobs}, scenario.cluster.pools

    def usd_per_hour(group: dict[str, Any]) -> float:
        if not group["pins"]:
            return 0.0
        rollout_usd, training_usd = group["usd"]
        return float(len(set().union(*group["pins"].values())) * rollout_usd + group["training"] * training_usd)

    def home(job_id: str) -> dict[str, Any]:
        return next(g for g in groups.values() if job_id in g["pins"])

    for event in log:
        usd_s += (event.at_s - now_s) * (sum(usd_per_hour(g) for g in groups.values()) + sum(held.values()))
        now_s = event.at_s
        if isinstance(event, Departed):
            del home(event.job_id)["pins"][event.job_id]
        if isinstance(event, Moved):
            group = home(event.job_id)
            before = usd_per_hour(group)
            del group["pins"][event.job_id]
            held[event.job_id] = before - usd_per_hour(group)
        if isinstance(event, Resumed):
            del held[event.job_id]
        if isinstance(event, Admitted | Moved):
            place = event.placement
            number = place.group
            if number is None:
                number, made = made, made + 1
                names = [phase.pool for phase in jobs[event.job_id].phases(place.shape)]
                usd = [pools[name].usd_per_node_hour if name in pools else 0.0 for name in names]  # one_device has no rollout pool
                groups[number] = {"training": place.training_nodes, "pins": {}, "next": 0, "usd": usd}
            group = groups[number]
            new = range(group["next"], group["next"] + place.new_rollout_nodes)
            group["next"] += place.new_rollout_nodes
            group["pins"][event.job_id] = {*place.rollout_nodes, *new}
    return usd_s / 3600
