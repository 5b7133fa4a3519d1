"""Accounts by user, month and job."""

from __future__ import annotations

from unittest.mock import patch

from rollmux_env.cluster.apply import apply
from rollmux_env.cluster.events import Admitted, Arrived, Event, Lent, MonthBegun, Parked, Ticked, Withdrawn, isolated
from rollmux_env.cluster.months import JobTotals, month_of
from rollmux_env.cluster.state import State
from rollmux_env.cluster.totals import totals_with_lent
from rollmux_env.keys.cluster import Cluster
from runtime.report import usage
from runtime.report.usage import Waits, grouped
from tests.rollmux_env.cluster.twin import CLUSTER, make_job, model


def test_waits_and_parks_are_of_the_month_in_which_they_were() -> None:
    a, b = model(make_job("a")), model(make_job("b"))
    events: list[Event] = [Arrived(0.0, a), Arrived(0.0, b), Admitted(1800.0, "a", isolated(a)), Parked(3600.0, "a")]
    events += [MonthBegun(7200.0, "2026-12")]
    waits = Waits("2026-11", [*events, Admitted(9000.0, "a", isolated(a)), Parked(9000.0, "a"), Withdrawn(10800.0, "b")])
    waited = {(job, month): waits.wait_h(job, month, 9000.0) for job in "ab" for month in ("2026-11", "2026-12")}
    assert waited == {("a", "2026-11"): 1.5, ("a", "2026-12"): 0.5, ("b", "2026-11"): 2.0, ("b", "2026-12"): 1.0}
    assert [waits.parks("a", month) for month in ("2026-11", "2026-12")] == [1, 1] and waits.parks("b", "2026-12") == 0
    assert Waits("2026-11", events).wait_h("a", "2026-12", 7200.0 + 3600) == 1.0


def test_jobs_are_added_up_one_after_the_other_while_the_state_may_change() -> None:
    state, seen = State(Cluster.model_validate(CLUSTER), observed=True), list[str]()
    a, b, c = (model(make_job(name, user="ann")) for name in "abc")
    events = Lent(0.0, {"c": "ann"}, 1, 1), Arrived(0.0, a), Arrived(0.0, b), Admitted(0.0, "a", isolated(a)), Ticked(3600.0)
    for event in events:
        apply(state, event)

    def totals_of_one(state: State, job_id: str) -> JobTotals:
        seen.append(job_id)
        return totals_with_lent(state, job_id)

    waits = Waits("2026-11", events)
    with patch.object(usage, "totals_with_lent", totals_of_one):
        rows = usage.usage_rows(state, waits, "2026-11")
        assert next(rows)["job"] == "a" and seen == ["a"]
        apply(state, Arrived(7200.0, c))
        assert {row["job"]: (row["user"], row["node_hours"], row["wait_h"]) for row in rows} == {
            "b": ("ann", 0.0, 2.0),
            "c": ("ann", 4.0, 0.0),
        }


def test_rows_are_summed_by_any_keys() -> None:
    figures = {"iterations": 1.0, "node_hours": 2.0, "usd": 3.0, "alone_usd": 5.0, "wait_h": 0.5, "parks": 1}
    rows = [
        {"user": user, "month": month, "job": job, **figures}
        for user, month, job in (("bob", "2026-11", "x"), ("ann", "2026-12", "y"), ("ann", "2026-11", "y"), ("ann", "2026-12", "z"))
    ]
    by_user = grouped(rows, ("user",))
    assert [(row["user"], row["jobs"], row["usd"], row["saved_usd"]) for row in by_user] == [
        ("ann", 2, 9.0, 6.0),
        ("bob", 1, 3.0, 2.0),
    ]
    assert [(row["month"], row["user"], row["parks"]) for row in grouped(rows, ("month", "user"))] == [
        ("2026-11", "ann", 1),
        ("2026-11", "bob", 1),
        ("2026-12", "ann", 2),
    ]
    assert month_of(1_796_083_199.0) == "2026-11" and month_of(1_796_083_200.0) == "2026-12"
