"""Why this placement and not that one: the alternatives of one decision in a replay."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, cast

from rollmux_env.cluster.candidates import REASONS, CandidateTable, candidates
from rollmux_env.cluster.events import Arrived, Event, Placement
from rollmux_env.cluster.plan import Place, Plan, Policy
from rollmux_env.cluster.sides import against
from rollmux_env.cluster.state import State
from rollmux_env.errors import InputError
from rollmux_env.kernel.candidates import SLO
from rollmux_env.replay.fluid import replay
from rollmux_env.scenario import Scenario


@dataclass
class _RecordingPolicy:
    """Delegates to a policy, and records the last candidate table of one job, and what SLOs have against its rows."""

    policy: Policy
    job_id: str
    at_s: float = 0.0
    table: CandidateTable | None = None
    why: dict[int, str] = field(default_factory=dict)
    placement: Placement | None = None
    asked: int = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)

    def decide(self, state: State, event: Event) -> Plan:
        mine = isinstance(event, Arrived) and event.job.id == self.job_id
        table = candidates(state, self.job_id) if mine else None
        if table is not None:
            self.why = {row: against(state, table, row).words for row in range(len(table)) if table.reason[row] == SLO}
        plan = self.policy.decide(state, event)
        if table is not None:
            self.at_s, self.table, self.asked = state.now_s, table, self.asked + 1
            places = [action.placement for action in plan if isinstance(action, Place) and action.job_id == self.job_id]
            self.placement = places[0] if places else None
        return plan


def explain(scenario: Scenario, policy: Policy, job_id: str) -> dict[str, Any]:
    """Replay a scenario and report every alternative of the decision that placed a job.

    Returns:
        `job`, `at_s`, `asked` (how often: more than once where it waited), `outcome`, and `alternatives` in Algorithm 1's order:
        each with `verdict`, `group` (None for a new one), `shape` (of a job that has any), `rollout_nodes`, `new_rollout_nodes`,
        `delta_usd_per_hour`, `period_s`, `slack`, `saturated` and `why` (the numbers of the SLO that drops it, in words, else
        None); figures are None where a group is out as a whole.

    Raises:
        InputError: no such job.
    """
    if job_id not in {job.id for job in scenario.jobs}:
        raise InputError(f"--job {job_id}: no such job in the scenario")
    recorder = _RecordingPolicy(policy, job_id)
    replay(scenario, cast("Policy", recorder))
    table = recorder.table
    if table is None:
        raise InputError(f"--job {job_id}: the policy was never asked about it")
    chosen = _row_of(table, recorder.placement)
    prunes = bool(getattr(policy, "prune", False))
    rows = [_alternative(table, row, _verdict(table, row, chosen, prunes), recorder.why.get(row)) for row in range(len(table))]
    if chosen is None and recorder.placement is not None:  # a co-located one, or another training pool size
        rows.append(_said("chosen", recorder.placement))
    if not next(job for job in scenario.jobs if job.id == job_id).shapes:
        for alternative in rows:
            del alternative["shape"]
    outcome = "placed" if recorder.placement else "waits: nothing fits"
    return {"job": job_id, "at_s": recorder.at_s, "asked": recorder.asked, "outcome": outcome, "alternatives": rows}


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
    return _said(verdict, placement, why) | figures


def _said(verdict: str, placement: Placement, why: str | None = None) -> dict[str, Any]:
    """An alternative, without what the candidate table says of it."""
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


def _verdict(table: CandidateTable, row: int, chosen: int | None, prunes: bool) -> str:
    if row == chosen:
        return "chosen"
    if prunes and table.saturated[row]:
        return "dropped: the group is saturated"
    if not table.feasible[row]:
        return f"dropped: {REASONS[int(table.reason[row])]}"
    if chosen is None:
        return "lost"
    more = float(table.usd_per_hour[row] - table.usd_per_hour[chosen])
    if more == 0:
        return "lost: costs the same and comes later" if row > chosen else "lost: costs the same"
    return f"lost: {abs(more):.2f} $/h {'more' if more > 0 else 'less'}"


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
