"""Reasons why a job waits, in words."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rollmux_env.cluster.candidates import REASONS, CandidateTable, candidates
from rollmux_env.cluster.demand import nodes_asked
from rollmux_env.cluster.link import waits_for_link
from rollmux_env.cluster.sides import tightest
from rollmux_env.cluster.state import State
from rollmux_env.kernel.candidates import SLO


def behind(state: State, head: str, how: str = "") -> str:
    """Return the reason of a job that waits behind another one, by which `how` may say."""
    lacks = _lacks(state, head)
    ahead = f" of priority {state.job(head).priority}" if state.job(head).priority else ""
    return f"waits behind {head}{ahead}{how}" + (f", which needs {_describe_needs(lacks)}; {_free_words(lacks)}" if lacks else "")


def no_place(state: State, job_id: str, prunes: bool = False) -> str:
    """Return the reason why the next job in the queue has no place.

    Args:
        state: State of the cluster.
        job_id: Identifier of the job.
        prunes: Whether the policy leaves saturated groups out.
    """
    if waits_for_link(state, job_id):
        return "with one more sync on the link between the pools a job could break its SLO, if all synced at once"
    table = candidates(state, job_id)
    lacks = _lacks(state, job_id)
    alone = f"needs {_describe_needs(lacks)} for a group of its own; {_free_words(lacks)}" if lacks else ""
    if fitting := int(table.feasible.sum()):
        held_back = _describe_saturation(table, table.feasible) if prunes else ""
        if not held_back:
            held_back = f"the policy lets it wait, though {fitting} placement{'s' if fitting > 1 else ''} would fit"
            held_back += "" if table.feasible[table.group < 0].any() else f" in {_numbers(table)}"
        return "; ".join(filter(None, (held_back, alone)))
    return "; ".join([alone or "may have no group of its own", *_groups(state, table)])


def _numbers(table: CandidateTable) -> str:
    """Return the numbers of the groups that would take a job, in words."""
    groups = np.unique(table.group[table.feasible]).tolist()
    return f"group{'s' if len(groups) > 1 else ''} {', '.join(map(str, groups))}"


def alone_because(state: State, table: CandidateTable, prunes: bool) -> str:
    """Return the reason why a job that gets a new group shares none.

    It is empty if there is no other group, or the policy merely prefers a new one.

    Args:
        state: State of the cluster.
        table: Candidates of the job before it is placed.
        prunes: Whether the policy leaves saturated groups out.
    """
    takers = table.feasible & (table.group >= 0)
    if not takers.any():
        return "; ".join(_groups(state, table))
    return _describe_saturation(table, takers) if prunes else ""


def _describe_saturation(table: CandidateTable, takers: npt.NDArray[np.bool_]) -> str:
    """Return that the groups which would take a job are saturated, or an empty text if one of them is not.

    Args:
        table: Candidates of the job.
        takers: Whether each candidate would take it, shape (candidates,).
    """
    if not table.saturated[takers].all() or (table.group[takers] < 0).any():
        return ""
    count = np.unique(table.group[takers]).size
    groups = "1 group would take it, but is" if count == 1 else f"{count} groups would take it, but are"
    return f"{groups} saturated (T_load >= T_cycle), which the policy leaves out"


def _groups(state: State, table: CandidateTable) -> list[str]:
    """Return the reasons against the groups; for groups whose SLOs reject the job, the figures of the nearest one."""
    order = np.lexsort((table.reason, table.group))
    group, reason = table.group[order], table.reason[order]
    last = np.append(group[1:] != group[:-1], True) & (group >= 0) & (reason != SLO)
    reasons, first, counts = np.unique(reason[last], return_index=True, return_counts=True)
    counted = [(int(reasons[k]), int(counts[k])) for k in np.argsort(first)]
    texts = [f"{count} group{'s' if count > 1 else ''}: {REASONS[one]}" for one, count in counted]
    if sides := tightest(state, table):
        count = np.unique(table.group[(table.reason == SLO) & (table.group >= 0)]).size
        texts.append(f"{count} group{'s' if count > 1 else ''}: {sides.words}")
    return texts


def _lacks(state: State, job_id: str) -> dict[str, tuple[int, int]]:
    """Return the asked and the free number of nodes of the pools that have too few for a new group of the job."""
    asked = nodes_asked(state.job(job_id), state.cluster)
    lacks: dict[str, tuple[int, int]] = {}
    for (name, pool), used in zip(state.cluster.pools.items(), state.nodes.sum(axis=1).tolist(), strict=True):
        if pool.max_nodes is not None and asked[name] > max(0, pool.max_nodes - used):
            lacks[name] = asked[name], pool.max_nodes - used
    return lacks


def _describe_needs(lacks: dict[str, tuple[int, int]]) -> str:
    return " and ".join(f"{asked} {name} node{'s' if asked > 1 else ''}" for name, (asked, _) in lacks.items())


def _free_words(lacks: dict[str, tuple[int, int]]) -> str:
    free = [left for _, left in lacks.values()]
    return f"{' and '.join(map(str, free))} {'is' if free == [1] else 'are'} free"
