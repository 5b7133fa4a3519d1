"""Why a job waits, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rollmux_env.cluster.candidates import REASONS, CandidateTable, candidates
from rollmux_env.cluster.demand import nodes_asked
from rollmux_env.cluster.state import State
from rollmux_env.kernel.candidates import SLO
from rollmux_env.kernel.tables import TOLERANCE

_NAMED = 3  # jobs that one reason names


def behind(state: State, head: str) -> str:
    """Why a job waits that has another one before it."""
    lacks = _lacks(state, head)
    ahead = f" of priority {state.job(head).priority}" if state.job(head).priority else ""
    return f"waits behind {head}{ahead}" + (f", which needs {_asked(lacks)}; {_free(lacks)}" if lacks else "")


def no_place(state: State, job_id: str) -> str:
    """Why a waiting job has no place that is the next in its turn, or would be."""
    table = candidates(state, job_id)
    if fitting := int(table.feasible.sum()):
        return f"the policy lets it wait, though {fitting} placement{'s' if fitting > 1 else ''} would fit"
    lacks = _lacks(state, job_id)
    alone = f"needs {_asked(lacks)} for a group of its own; {_free(lacks)}" if lacks else "may have no group of its own"
    nearest = {int(group): int(reason) for group, reason in sorted(zip(table.group, table.reason, strict=True)) if group >= 0}
    counts = Counter(reason for reason in nearest.values() if reason != SLO)
    groups = [f"{count} group{'s' if count > 1 else ''}: {REASONS[reason]}" for reason, count in counts.items()]
    tight = [group for group, reason in nearest.items() if reason == SLO]
    if tight:
        count = f"{len(tight)} group{'s' if len(tight) > 1 else ''}"
        groups.append(f"{count}: it would break the SLO of {_names(_losers(state, table, tight, job_id))}")
    return "; ".join([alone, *groups])


def _lacks(state: State, job_id: str) -> dict[str, tuple[int, int]]:
    """(asked, free) nodes, by pool, of the pools that have too few left for a group of the job's own."""
    asked = nodes_asked(state.job(job_id), state.cluster)
    lacks: dict[str, tuple[int, int]] = {}
    for (name, pool), used in zip(state.cluster.pools.items(), state.nodes.sum(axis=1).tolist(), strict=True):
        if pool.max_nodes is not None and asked[name] > max(0, pool.max_nodes - used):
            lacks[name] = asked[name], pool.max_nodes - used
    return lacks


def _asked(lacks: dict[str, tuple[int, int]]) -> str:
    return " and ".join(f"{asked} {name} node{'s' if asked > 1 else ''}" for name, (asked, _) in lacks.items())


def _free(lacks: dict[str, tuple[int, int]]) -> str:
    free = [left for _, left in lacks.values()]
    return f"{' and '.join(map(str, free))} {'is' if free == [1] else 'are'} free"


def _losers(state: State, table: CandidateTable, groups: Sequence[int], job_id: str) -> list[str]:
    """Whose SLO is in the way in groups: of the candidate of each that comes nearest."""
    losers: dict[str, None] = {}
    for group in groups:
        rows = [row for row in range(len(table)) if table.group[row] == group and table.reason[row] == SLO]
        period_s = min(float(table.period_s[row]) for row in rows)
        row = state.group_row(group)
        assert row is not None
        members = state.groups["members"][row, : state.groups["n_members"][row]].tolist()
        for member in [*members, state.row(job_id)]:
            if period_s > float(state.jobs["limit_s"][member]) * (1 + TOLERANCE):
                losers[state.job_id(member)] = None
    return [*losers]


def _names(job_ids: Sequence[str]) -> str:
    if not job_ids:
        return "a job, warm starts counted"
    more = len(job_ids) - _NAMED
    return " and ".join([", ".join(job_ids[:_NAMED])] + ([f"{more} more"] if more > 0 else []))
