"""Accounts of jobs and users by calendar month."""

from __future__ import annotations

import pytest

from rollmux_env.cluster.apply import apply
from rollmux_env.cluster.events import (
    Admitted,
    Arrived,
    Departed,
    JobProgress,
    Lent,
    MonthBegun,
    Progressed,
    QuotaSet,
    Requeued,
    isolated,
)
from rollmux_env.cluster.state import State
from rollmux_env.cluster.totals import totals_of, totals_of_all
from rollmux_env.keys.cluster import Cluster
from rollmux_env.keys.queue import Quota
from rollmux_env.scheduler.quotas import Quotas, held_words, is_used_up
from tests.rollmux_env.cluster.twin import CLUSTER, make_job, model

PAIR_USD = 8 * 1.85 + 8 * 5.28


def test_a_month_begins_at_nothing_and_jobs_keep_their_totals() -> None:
    job = model(make_job("a", user="ann", sync_s=5))
    state = State(Cluster.model_validate(CLUSTER), observed=True)
    for event in (Arrived(0.0, job), Admitted(0.0, "a", isolated(job)), QuotaSet(0.0, "*", Quota(node_hours=2.0))):
        apply(state, event)
    apply(state, Progressed(3600.0, (JobProgress("a", 100.0, 1000.0, 800.0),)))
    assert is_used_up(state, "ann") and not is_used_up(state, "bob")
    apply(state, MonthBegun(3600.0, "2026-12"))
    apply(state, Progressed(5400.0, (JobProgress("a", 150.0, 1600.0, 1200.0),)))
    assert state.charges.month_h("ann", 5400.0) == pytest.approx(1.0) and not is_used_up(state, "ann")
    totals = totals_of(state, "a")
    (month,) = state.copy().months
    assert month.name == "2026-12" and (totals.node_hours, totals.usd) == pytest.approx((3.0, 1.5 * PAIR_USD))
    alone_usd = PAIR_USD / 3600  # of a second
    assert month.before["a"] == pytest.approx((2.0, PAIR_USD, 2300 * alone_usd, 100.0))
    assert totals.since(month.before["a"]) == pytest.approx((1.0, PAIR_USD / 2, 1250 * alone_usd, 50.0))


def test_lent_nodes_are_charged_to_the_jobs_that_are_profiled_on_them() -> None:
    job, state = model(make_job("a", user="ann")), State(Cluster.model_validate(CLUSTER), observed=True)
    apply(state, QuotaSet(0.0, "ann", Quota(node_hours=1.5)))
    apply(state, Lent(0.0, {"a": "ann", "b": "bob"}, 1, 1))
    assert state.charges.user_share("ann").nodes == 1 and state.charges.users() == {"ann", "bob"}
    apply(state, MonthBegun(3600.0, "2026-12"))
    apply(state, Lent(3600.0, {"a": "ann"}, 1, 1))
    assert state.charges.month_h("ann", 5400.0) == pytest.approx(1.0) and not is_used_up(state, "ann")
    apply(state, Lent(7200.0, {}, 0, 0))
    assert is_used_up(state, "ann") and state.charges.user_share("ann").nodes == 0 < state.charges.usage_h("ann", 7200.0) < 3
    apply(state, Arrived(7200.0, job))
    totals = totals_of_all(state.copy())
    assert totals["a"] == pytest.approx((3.0, 1.5 * PAIR_USD, 1.5 * PAIR_USD, 0.0))
    assert totals["b"] == state.months[0].before["b"] == pytest.approx((1.0, PAIR_USD / 2, PAIR_USD / 2, 0.0))


def test_jobs_that_had_a_place_continue_when_the_month_is_used_up() -> None:
    old, new = (model(make_job(name, user="ann")) for name in ("old", "new"))
    state = State(Cluster.model_validate(CLUSTER), observed=True)
    for event in (
        Arrived(0.0, old),
        Admitted(0.0, "old", isolated(old)),
        Departed(3600.0, "old"),
        Requeued(3600.0, old),
        Arrived(3600.0, new),
        QuotaSet(3600.0, "ann", Quota(node_hours=2.0, nodes=9)),
    ):
        apply(state, event)
    assert [Quotas(state).bars(job) for job in (old, new)] == [False, True]
    assert held_words(state, new) == "user ann has used 2 of 2 node-hours of this month"
    apply(state, QuotaSet(3600.0, "ann", Quota(node_hours=2.0, nodes=0)))
    assert Quotas(state).bars(old) and held_words(state, old) == "user ann holds 0 of 0 nodes"


def test_a_job_that_had_to_leave_its_nodes_keeps_its_totals() -> None:
    job = model(make_job("a", user="ann", sync_s=5))
    state = State(Cluster.model_validate(CLUSTER), observed=True)
    for event in (
        Arrived(0.0, job),
        Admitted(0.0, "a", isolated(job)),
        Progressed(3600.0, (JobProgress("a", 100.0, 1000.0, 800.0),)),
    ):
        apply(state, event)
    first = totals_of(state, "a")
    rest = job.model_copy(update={"iterations": 50})
    for again in (Departed(3600.0, "a"), Requeued(3600.0, rest), Admitted(5400.0, "a", isolated(rest))):
        apply(state, again)
        assert tuple(totals_of(state, "a")) == pytest.approx(first), again
    apply(state, Progressed(7200.0, (JobProgress("a", 50.0, 500.0, 400.0),)))
    assert tuple(totals_of(state.copy(), "a")) == pytest.approx(tuple(1.5 * figure for figure in first))


def test_the_hours_of_a_budget_are_those_with_a_place() -> None:
    """A drain that sends a job to the queue for days does not end it."""
    job = model(make_job("a", budget={"hours": 1.0}))
    state = State(Cluster.model_validate(CLUSTER), observed=True)
    for event in (
        Arrived(0.0, job),
        Admitted(0.0, "a", isolated(job)),
        Departed(1800.0, "a"),
        Requeued(1800.0, job),
        Admitted(90_000.0, "a", isolated(job)),
    ):
        apply(state, event)
    assert state.charges.next_end_s() == 90_000.0 + 1800.0
