"""Accounts by user, month and job."""

from __future__ import annotations

from rollmux_env.cluster.events import Admitted, Arrived, Event, MonthBegun, Parked, Withdrawn, isolated
from rollmux_env.cluster.months import month_of
from runtime.report.usage import Waits, grouped
from tests.rollmux_env.cluster.twin import make_job, model


def test_waits_and_parks_are_of_the_month_in_which_they_were() -> None:
    a, b = model(make_job("a")), model(make_job("b"))
    events: list[Event] = [Arrived(0.0, a), Arrived(0.0, b), Admitted(1800.0, "a", isolated(a)), Parked(3600.0, "a")]
    events += [MonthBegun(7200.0, "2026-12")]
    waits = Waits("2026-11", [*events, Admitted(9000.0, "a", isolated(a)), Parked(9000.0, "a"), Withdrawn(10800.0, "b")])
    waited = {(job, month): waits.wait_h(job, month, 9000.0) for job in "ab" for month in ("2026-11", "2026-12")}
    assert waited == {("a", "2026-11"): 1.5, ("a", "2026-12"): 0.5, ("b", "2026-11"): 2.0, ("b", "2026-12"): 1.0}
    assert [waits.parks("a", month) for month in ("2026-11", "2026-12")] == [1, 1] and waits.parks("b", "2026-12") == 0
    assert Waits("2026-11", events).wait_h("a", "2026-12", 7200.0 + 3600) == 1.0


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
