"""Hypothesis strategies for the keys of the queue: priorities, users, quotas and budgets of whole scenarios."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.oracle import draw as drawing

USERS = ("", "ann", "bob")


@st.composite
def queued(draw: st.DrawFn, max_jobs: int = 10, budgets: bool = True) -> dict[str, Any]:
    """A scenario of a small cluster; every job fits alone within its user's quota, and no two departures lie close together."""
    scenario = draw(drawing.scenarios(max_jobs=max_jobs))
    for name, fewest in (("rollout", 3), ("training", 2)):
        scenario["cluster"][name]["max_nodes"] = draw(st.integers(fewest, 5))
    nodes, usd = st.none() | st.integers(5, 7), st.none() | st.integers(130, 250)
    for user in USERS:
        if draw(st.booleans()):
            quotas = scenario["cluster"].setdefault("quotas", {})
            quotas[user] = {"nodes": draw(nodes), "usd_per_hour": draw(usd)}
    for job in scenario["jobs"]:
        job["user"], job["priority"] = draw(st.sampled_from(USERS)), draw(st.integers(-1, 1))
        if budgets and draw(st.booleans()):
            spent = {"usd": st.sampled_from([0.05, 0.5, 5]), "hours": st.sampled_from([0.001, 0.02, 0.1])}
            names = draw(st.sampled_from([("usd",), ("hours",), ("usd", "hours")]))
            job["budget"] = {name: draw(spent[name]) for name in names}
    return scenario
