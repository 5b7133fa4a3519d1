"""Explanation of a placement: the alternatives of one decision in a replay."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from rollmux_env.cluster.candidates import REASONS, CandidateTable, candidates
from rollmux_env.cluster.events import Arrived, Event, Placement
from rollmux_env.cluster.plan import Move, Place, Plan, Policy, carry_out
from rollmux_env.cluster.sides import against
from rollmux_env.cluster.state import State
from rollmux_env.errors import InputError, PlanError
from rollmux_env.kernel.candidates import SLO
from rollmux_env.replay.fluid import replay
from rollmux_env.scenario import Scenario
from rollmux_env.scheduler.asking import ask, shown_to
from rollmux_env.suggestions import did_you_mean
from rollmux_env.user_code import brief, guarded


@dataclass
class _RecordingPolicy:
    """A policy that delegates to another one and records its last decision about one job.

    It records the candidate table, the reasons why rows break SLOs, the policy's scores of the rows, the placement, and the moves
    of running jobs.
    """

    policy: Policy
    job_id: str
    at_s: float = 0.0
    table: CandidateTable | None = None
    why: dict[int, str] = field(default_factory=dict)
    placement: Placement | None = None
    asked: int = 0
    scores: Sequence[float] | None = None
    moves: list[dict[str, Any]] = field(default_factory=list)
    usd_per_hour: tuple[float, float] = (0.0, 0.0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)

    def decide(self, state: State, event: Event) -> Plan:
        mine = isinstance(event, Arrived) and event.job.id == self.job_id
        table = candidates(state, self.job_id) if mine else None
        if table is not None:
            self.why = {row: against(state, table, row).words for row in range(len(table)) if table.reason[row] == SLO}
            self.scores = self._scores(state, table)
        plan = ask(self.policy, state, event)
        if table is not None:
            self.at_s, self.table, self.asked = state.now_s, table, self.asked + 1
            places = [action.placement for action in plan if isinstance(action, Place) and action.job_id == self.job_id]
            self.placement = places[0] if places else None
            self.moves = [_move(state, action) for action in plan if isinstance(action, Move)]
            self.usd_per_hour = state.usd_per_hour, _usd_after(state, plan, self.policy.keeps_slo)
        return plan

    def _scores(self, state: State, table: CandidateTable) -> Sequence[float] | None:
        scored = getattr(self.policy, "scores", None)
        if not callable(scored):
            return None
        answer = guarded(scored)(shown_to(self.policy, state), table)
        try:
            scores = [float(value) for value in answer]
        except Exception:
            raise PlanError(f"the policy's scores returned {brief(answer)}, which are no numbers") from None
        if len(scores) != len(table):
            raise PlanError(f"the policy's scores has {len(scores)} scores of a candidate table of {len(table)} rows")
        return scores


def explain(scenario: Scenario, policy: Policy, job_id: str) -> dict[str, Any]:
    """Replay a scenario and report every alternative of the decision that placed a job.

    Args:
        scenario: Scenario to replay.
        policy: Placement policy.
        job_id: Identifier of the job.

    Returns:
        A mapping with `job`, `at_s`, `asked` (number of times the policy was asked, more than once if the job waited), `outcome`,
        and `alternatives` in Algorithm 1's order. Each alternative has `verdict`, `group` (None for a new one), `shape` (if the job
        has shapes), `rollout_nodes`, `new_rollout_nodes`, `delta_usd_per_hour`, `period_s`, `slack`, `saturated` and `why` (the
        broken SLO in words, or None). Figures are None if a group is rejected as a whole. If the policy has a method `scores(state,
        table)`, each also has its `score`, None if it is not finite. `moves` are the running jobs that the same decision moved,
        with `job`, `from_group`, `group`, `shape`, `rollout_nodes` and `new_rollout_nodes`. `usd_per_hour` is the price of all
        groups `before` the decision and `after` it, when the pauses of its moves are over.

    Raises:
        InputError: If there is no such job, or the policy was never asked about it.
        PlanError: If the policy's scores cannot be used.
    """
    ids = [job.id for job in scenario.jobs]
    if job_id not in ids:
        known = did_you_mean(job_id, ids) or f"; the first of {len(ids)} is {ids[0]}"
        raise InputError(f"--job {job_id}: no such job in the scenario{known}")
    recorder = _RecordingPolicy(policy, job_id)
    replay(scenario, cast("Policy", recorder))
    table = recorder.table
    if table is None:
        raise InputError(f"--job {job_id}: the policy was never asked about it")
    chosen = _row_of(table, recorder.placement)
    prunes = bool(getattr(policy, "prune", False))
    verdicts = [_verdict(table, row, chosen, prunes, recorder.scores) for row in range(len(table))]
    rows = [_alternative(table, row, verdict, recorder.why.get(row)) for row, verdict in enumerate(verdicts)]
    if (
        chosen is None and recorder.placement is not None
    ):  # the table has no co-located placements and no other sizes of the training pool
        rows.append(_row("chosen", recorder.placement))
    if not next(job for job in scenario.jobs if job.id == job_id).shapes:
        for alternative in rows:
            del alternative["shape"]
    if recorder.scores is not None:
        for row, alternative in enumerate(rows):
            alternative["score"] = _number(recorder.scores[row]) if row < len(recorder.scores) else None
    before, after = recorder.usd_per_hour
    return {
        "job": job_id,
        "at_s": recorder.at_s,
        "asked": recorder.asked,
        "outcome": _outcome(table, recorder.placement),
        "usd_per_hour": {"before": before, "after": after},
        "moves": recorder.moves,
        "alternatives": rows,
    }


def _outcome(table: CandidateTable, placement: Placement | None) -> str:
    if placement is not None:
        return "placed"
    return "waits: the policy takes none of the places that fit" if table.feasible.any() else "waits: nothing fits"


def _move(state: State, move: Move) -> dict[str, Any]:
    to = move.placement
    return {
        "job": move.job_id,
        "from_group": state.group_of(move.job_id).id,
        "group": to.group,
        "shape": to.shape,
        "rollout_nodes": list(to.rollout_nodes),
        "new_rollout_nodes": to.new_rollout_nodes,
    }


def _usd_after(state: State, plan: Plan, keeps_slo: bool) -> float:
    """Return the price in $/h of all groups after a plan is carried out and the pauses of its moves are over."""
    twin = state.copy()
    passed = next((state.waiting.index(action.job_id) for action in plan if isinstance(action, Place)), 0)  # for their quotas
    carry_out(twin, plan, keeps_slo, passed)
    return float(((twin.nodes - twin.pauses.held_nodes()).sum(axis=1) * twin.limits.pools["usd"]).sum())


def _row_of(table: CandidateTable, placement: Placement | None) -> int | None:
    rows = (row for row in range(len(table)) if not table.is_group[row] and table.placement(row) == placement)
    return next(rows, None)


def _alternative(table: CandidateTable, row: int, verdict: str, why: str | None) -> dict[str, Any]:
    group = int(table.group[row])
    placement = table.placement(row) if not table.is_group[row] else Placement(None if group < 0 else group, (), 0)
    figures = {
        "shape": int(table.shape[row]),
        "delta_usd_per_hour": _number(table.usd_per_hour[row]),
        "period_s": _number(table.period_s[row]),
        "slack": _number(table.slack[row]),
        "saturated": bool(table.saturated[row]),
    }
    return _row(verdict, placement, why) | figures


def _row(verdict: str, placement: Placement, why: str | None = None) -> dict[str, Any]:
    """Return an alternative without the figures of the candidate table."""
    return {
        "verdict": verdict,
        "group": placement.group,
        "shape": placement.shape,
        "rollout_nodes": list(placement.rollout_nodes),
        "new_rollout_nodes": placement.new_rollout_nodes,
        **dict.fromkeys(("delta_usd_per_hour", "period_s", "slack")),
        "saturated": False,
        "why": why,
    }


def _verdict(table: CandidateTable, row: int, chosen: int | None, prunes: bool, scores: Sequence[float] | None) -> str:
    """Return the fate of a candidate. With scores the policy chose by these, and otherwise by dollars."""
    if row == chosen:
        return "chosen"
    if prunes and table.saturated[row]:
        return "dropped: the group is saturated"
    if not table.feasible[row]:
        return f"dropped: {REASONS[int(table.reason[row])]}"
    if chosen is None:
        return "lost"
    if scores is not None:
        less = float(scores[chosen] - scores[row])
        if not math.isfinite(less):
            return "lost: has no score" if not math.isfinite(scores[row]) else "lost: the chosen one has no score"
        return f"lost: score {abs(less):.3f} {'lower' if less >= 0 else 'higher'}"
    more = float(table.usd_per_hour[row] - table.usd_per_hour[chosen])
    if more == 0:
        return "lost: costs the same and comes later" if row > chosen else "lost: costs the same"
    return f"lost: {abs(more):.2f} $/h {'more' if more > 0 else 'less'}"


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
