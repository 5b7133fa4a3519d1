"""The choices of a decision: places of the first waiting jobs, running jobs to park, and to serve no job now."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from rollmux_env.cluster.candidates import CandidateTable, candidates
from rollmux_env.cluster.link import waits_for_link
from rollmux_env.cluster.plan import Park, Place, Plan, Policy, may_park
from rollmux_env.cluster.remaining import done_s
from rollmux_env.cluster.state import State
from rollmux_env.kernel.feature_tables import Names
from rollmux_env.kernel.tables import Floats
from rollmux_env.scheduler.order import QueueRules, nodes_of, rows_of
from rollmux_env.scheduler.quotas import Quotas
from rollmux_env.scheduler.ranking import Ranking, compute_ranking
from rollmux_env.scheduler.room import free_nodes, may_fit

NAMES = Names(
    job=("waiting", "longest wait", "nodes asked for"),
    candidates=(
        *("place", "park", "rank", "left", "done", "waited", "T_solo", "nodes", "weight", "SLO"),
        *("new group", "new nodes", "progress", "slack", "members", "slowed"),
    ),
    cluster=("running", "groups", "free nodes of the scarcest pool", "free nodes of the other pools"),
)
_SCALE_H, _SCALE_SOLO_S, _SCALE_COUNT, _SCALE_NODES = 24.0, 600.0, 16.0, 4.0


@dataclass(frozen=True)
class MostChoices:
    """Largest numbers of choices.

    Attributes:
        jobs: Number of waiting jobs, the first in order, that may be placed.
        places: Number of places of each of them, those with the shortest period, new groups before others.
        parks: Number of running jobs that may be parked, those with the highest key.
    """

    jobs: int = 8
    places: int = 12
    parks: int = 10

    @property
    def rows(self) -> int:
        """Number of all choices, with the one that serves no job."""
        return 1 + self.jobs * self.places + self.parks


class Choice(NamedTuple):
    """One choice.

    Attributes:
        plan: Plan that it carries out, empty for the choice that serves no job.
        features: Features in the order of `NAMES.candidates`, within [-1, 1].
    """

    plan: Plan
    features: tuple[float, ...]


NOBODY = Choice((), (0.0,) * len(NAMES.candidates))


class Decision(NamedTuple):
    """The choices of an instant.

    Attributes:
        choices: Choices; the first one serves no job. It is the only one if no job can be served.
        queue: Ids of the waiting jobs in order.
        left_out: Whether there are places or jobs that no choice has.
    """

    choices: list[Choice]
    queue: list[str]
    left_out: bool


def decision_of(state: State, rules: QueueRules, policy: Policy, most: MostChoices) -> Decision:
    """Return the choices in a state.

    Args:
        state: State of the cluster.
        rules: Rules that order the waiting jobs, and say whether running ones may be parked.
        policy: Policy that the planner checks plans for.
        most: Largest numbers of choices.
    """
    ranking = compute_ranking(state, rules)
    first = ranking.queue[: most.jobs]
    if not first:
        return Decision([NOBODY], [], left_out=False)
    quotas, fits = Quotas(state), may_fit(state, rows_of(state, first)).tolist()
    places, left_out = list[Choice](), len(ranking.queue) > most.jobs
    for rank, job_id in enumerate(first):
        if not fits[rank] or quotas.bars(state.job(job_id)) or waits_for_link(state, job_id):
            continue
        table = candidates(state, job_id)
        rows = np.flatnonzero(table.feasible)
        if rows.size > most.places:
            left_out = True
            fastest = np.lexsort((table.group[rows] >= 0, table.period_s[rows]))  # of equal ones a new group
            rows = np.sort(rows[fastest[: most.places]])
        described = _of_job(state, rules, ranking, job_id, rank / most.jobs)
        for row in rows.tolist():
            plan = (Place(job_id, table.placement(row)),)
            if not (state.cluster.quotas and quotas.broken(plan, policy, [job_id])):
                places.append(Choice(plan, (1.0, 0.0, *described, *_of_place(state, table, row))))
    parks = [
        Choice((Park(job_id, first[0]),), (0.0, 1.0, *_of_job(state, rules, ranking, job_id, 0.0), *_of_member(state, job_id)))
        for job_id in (_parkable(state, ranking, most.parks) if rules.park else ())
    ]
    return Decision([NOBODY, *places, *parks], ranking.queue, left_out)


def _parkable(state: State, ranking: Ranking, most: int) -> Iterator[str]:
    """Yield the running jobs that may be parked, in the order in which the rules of the queue try them.

    A job that got its place at this instant is not among them, so that time passes between two parks of a job.
    """
    models, arrival_s = state.tables.models, state.tables.job_records["arrival_s"]

    def last_served(job_id: str) -> tuple[Any, ...]:
        row = state.row(job_id)
        return models[row].priority, -ranking.keys[job_id], -float(arrival_s[row]), -row

    earlier = (job_id for job_id, placed_s in state.stays.placed_at_s.items() if placed_s < state.now_s)
    legal = (job_id for job_id in sorted(earlier, key=last_served) if may_park(state, job_id))
    yield from (job_id for job_id, _ in zip(legal, range(most), strict=False))


def squashed(value: float, scale: float) -> float:
    """Map a number of at least 0, possibly infinite, to [0, 1]."""
    return 1.0 if value == float("inf") else value / (value + scale)


def _of_job(state: State, rules: QueueRules, ranking: Ranking, job_id: str, rank: float) -> tuple[float, ...]:
    """Return the features of a waiting or running job. How much it has left is what its key in the queue says."""
    row, job, jobs = state.row(job_id), state.job(job_id), state.tables.job_records
    nodes = float(nodes_of(state, np.array([row]))[0])
    left_h = rules.shown(ranking.keys[job_id], state) * job.weight / nodes
    done_h = float(done_s(state, np.array([row]))[0]) / 3600
    waited_h = max(0.0, state.now_s - job.arrival_s) / 3600
    return (
        rank,
        squashed(left_h, _SCALE_H),
        squashed(done_h, _SCALE_H),
        squashed(waited_h, _SCALE_H),
        squashed(float(jobs["solo_s"][row]), _SCALE_SOLO_S),
        squashed(nodes, _SCALE_NODES),
        squashed(job.weight, 1.0),
        1 / job.slo,
    )


def _of_place(state: State, table: CandidateTable, row: int) -> tuple[float, ...]:
    """Return the features of a place: of its group with the job in it."""
    jobs, groups = state.tables.job_records, state.tables.group_records
    period_s, solo_s = float(table.period_s[row]), float(jobs["solo_s"][state.row(table.job_id)])
    is_new, members, slowed = table.group[row] < 0, 0, 0.0
    if not is_new:
        group = state.tables.group_rows[int(table.group[row])]
        members, before_s = int(groups["n_members"][group]), float(groups["period_s"][group])
        slowed = 1 - before_s / period_s
    new_nodes = int(table.new_nodes[row]) + (int(table.training_nodes[row]) if is_new else 0)
    return (
        float(is_new),
        squashed(new_nodes, _SCALE_NODES),
        min(1.0, solo_s / period_s),
        min(1.0, max(-1.0, float(table.slack[row]))),
        squashed(members, _SCALE_NODES),
        min(1.0, max(0.0, slowed)),
    )


def _of_member(state: State, job_id: str) -> tuple[float, ...]:
    """Return the same features of the group in which a job runs."""
    row, groups = state.row(job_id), state.tables.group_records
    group = int(state.tables.job_records["group"][row])
    period_s, members = float(groups["period_s"][group]), int(groups["n_members"][group])
    progress = min(1.0, float(state.tables.job_records["solo_s"][row]) / period_s)
    slack = min(1.0, max(-1.0, float(groups["limit_s"][group]) / period_s - 1))
    return 0.0, 0.0, progress, slack, squashed(members - 1, _SCALE_NODES), 0.0


def queue_features(state: State) -> tuple[float, ...]:
    """Return the features of the queue, in the order of `NAMES.job`."""
    jobs = [state.job(job_id) for job_id in state.waiting]
    longest_h = max((state.now_s - job.arrival_s for job in jobs), default=0.0) / 3600
    asked = float(nodes_of(state, rows_of(state, state.waiting)).sum())
    return squashed(len(jobs), _SCALE_COUNT), squashed(max(0.0, longest_h), _SCALE_H), squashed(asked, _SCALE_COUNT)


def cluster_features(state: State) -> tuple[float, ...]:
    """Return the features of the cluster, in the order of `NAMES.cluster`."""
    most = state.limits.pools["nodes_max"]
    shares: Floats = np.sort(np.divide(free_nodes(state), most, out=np.ones(most.size), where=np.isfinite(most)))
    return (
        squashed(len(state.stays.placed_at_s), _SCALE_COUNT),
        squashed(state.tables.order.size, _SCALE_COUNT),
        min(1.0, max(0.0, float(shares[0]))),
        min(1.0, max(0.0, float(shares[1:].mean()))) if shares.size > 1 else 0.0,
    )
