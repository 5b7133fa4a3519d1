"""Moves of `fleet`: each is the one that a search over all jobs and places finds, without bounds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.placement.fleet import MostProgress
from policies.placement.fleet_moves import MAX_MOVES
from policies.placement.weighted_progress import Urgency, pace
from rollmux_env.bench.streams import workload
from rollmux_env.cluster.apply import apply
from rollmux_env.cluster.candidates import candidates
from rollmux_env.cluster.events import Admitted, Arrived, Departed, Moved, Placement, Ticked, isolated
from rollmux_env.cluster.plan import Move, may_move
from rollmux_env.cluster.state import State
from rollmux_env.kernel.membership import refresh
from rollmux_env.replay.fluid import replay
from rollmux_env.scenario import Scenario, parse_scenario
from rollmux_env.scheduler.quotas import Quotas
from tests.oracle.draw import examples, scenarios
from tests.rollmux_env.cluster.twin import CLUSTER, make_job

URGENCY = Urgency(0.5)


def _value(state: State, event: Departed | Moved | None = None) -> float:
    """V of a state after an event, with the jobs' urgencies before it."""
    now = pace(state, URGENCY)
    if event is None:
        return now.value
    urgency = dict(zip(now.rows.tolist(), now.urgency.tolist(), strict=True))
    twin = state.copy()
    apply(twin, event)
    jobs, groups = twin.tables.jobs, twin.tables.groups
    rows = pace(twin, URGENCY).rows.tolist()
    return float(sum(urgency[row] * jobs.solo_s[row] / groups.period_s[jobs.group[row]] for row in rows))


def _best(state: State) -> tuple[float, str, Placement] | None:
    best: tuple[float, str, Placement] | None = None
    now, before = pace(state, URGENCY), _value(state)
    for row, urgency in sorted(zip(now.rows.tolist(), now.urgency.tolist(), strict=True)):
        job_id = state.tables.job_id(row)
        stayed_s = state.now_s - state.stays.placed_at_s[job_id]
        alone = len(state.group_of(job_id).jobs) == 1
        if alone or stayed_s < state.cluster.min_run_s or state.is_paused(job_id) or not may_move(state, job_id):
            continue
        table, without = candidates(state, job_id), _value(state, Departed(state.now_s, job_id))
        found, to = 0.0, None
        for k in range(len(table)):
            if table.feasible[k]:
                joining = _value(state, Moved(state.now_s, job_id, table.placement(k))) - without
                if joining > found * (1 + 1e-9):
                    found, to = joining, table.placement(k)
        gain = found + without - before
        if to is not None and gain > 0.05 * urgency and (best is None or gain > best[0] * (1 + 1e-9)):
            best = gain, job_id, to
    return best


class _Compared(MostProgress):
    """Compares the first move of each plan with the search."""

    def __init__(self) -> None:
        super().__init__()
        self.moved = 0

    def rearrange(self, state: State) -> tuple[Move, ...]:
        plan, best = super().rearrange(state), _best(state)
        assert len(plan) <= MAX_MOVES
        if best is None:
            assert plan == ()
            return ()
        self.moved += 1
        gain = _value(state, Moved(state.now_s, plan[0].job_id, plan[0].placement)) - _value(state)
        assert gain == pytest.approx(best[0], rel=1e-6)
        return plan


def _with_min_run(scenario: dict[str, Any], seconds: float) -> Scenario:
    return parse_scenario({**scenario, "cluster": {**scenario["cluster"], "min_run_s": seconds}})


@examples(12)
@given(drawn=scenarios(max_jobs=8, shaped=True), min_run_s=st.sampled_from([0.0, 5.0]))
def test_the_first_move_gains_most_whatever_the_scenario(drawn: dict[str, Any], min_run_s: float) -> None:
    replay(_with_min_run(drawn, min_run_s), _Compared(), check=True)


def test_the_first_move_gains_most_on_a_full_fleet() -> None:
    stream = workload("production", 0, jobs=20, slo=(1.5, 3.0))
    pools = {name: pool.model_copy(update={"max_nodes": 8}) for name, pool in stream.cluster.pools.items()}
    policy = _Compared()
    replay(stream.model_copy(update={"cluster": stream.cluster.with_pools(pools)}), policy, check=True)
    assert policy.moved > 3


def test_a_job_moves_to_nodes_that_become_idle_once_it_has_had_its_place_for_long_enough() -> None:
    """a and b share from the beginning. c leaves after 100 s, too early for a move. d leaves the idle nodes at 2100 s."""
    limits = {pool: {**CLUSTER[pool], "max_nodes": 2} for pool in ("rollout", "training")}
    jobs = [
        make_job("c", 45, 55, iterations=1, slo=3),
        make_job("a", 45, 55, iterations=100, slo=3),
        make_job("b", 45, 55, iterations=100, slo=3),
        make_job("d", 45, 55, iterations=1, slo=3, arrival_s=2000),
    ]
    scenario = {"version": 1, "cluster": {**limits, "migration_s": 60}, "jobs": jobs}
    log = replay(parse_scenario(scenario), MostProgress(), check=True).log
    moved = [event for event in log if isinstance(event, Moved)]
    assert [event.at_s for event in moved] == [2100]
    assert not any(isinstance(event, Moved) for event in replay(parse_scenario(scenario), MostProgress(moves=False)).log)


def paired(quotas: dict[str, Any], *users: tuple[str, str, int]) -> State:
    """Jobs of two users and a weight share each pair of nodes, and a pair is free."""
    most = len(users) + 1
    limits = {pool: {**CLUSTER[pool], "max_nodes": most} for pool in ("rollout", "training")}
    jobs = [
        make_job(f"{user}{k}-{number}", 60, 40, iterations=99, slo=3, user=user, weight=weight)
        for k, (*pair, weight) in enumerate(users)
        for number, user in enumerate(pair)
    ]
    scenario = parse_scenario({"version": 1, "cluster": {**limits, "min_run_s": 0, "quotas": quotas}, "jobs": jobs})
    state = State(scenario.cluster)
    for k, job in enumerate(scenario.jobs):
        apply(state, Arrived(0.0, job))
        place = Placement(state.group_of(scenario.jobs[k - 1].id).id, (0,)) if k % 2 else isolated(job)
        apply(state, Admitted(0.0, job.id, place))
    apply(state, Ticked(3600.0))
    return state


@pytest.mark.parametrize(("quotas", "moved"), [({}, ["ann"]), ({"ann": {"nodes": 3}}, ["bob", "ann"]), ({"*": {"nodes": 3}}, [])])
def test_a_user_at_a_quota_stops_no_move_of_another(quotas: dict[str, Any], moved: list[str]) -> None:
    """The move that gains most is Ann's, and takes her to 4. After Bob's a job of hers may join one of his: that takes her to 3."""
    state, policy = paired(quotas, ("ann", "ann", 3), ("bob", "bob", 1)), MostProgress()
    plan = policy.rearrange(state)
    assert [state.job(move.job_id).user for move in plan] == moved
    assert not Quotas(state).broken(plan, policy)


def test_a_move_above_a_quota_stops_no_other_move_of_its_user() -> None:
    """Ann holds 3 nodes. With the move that gains most she would hold 5, with that of her job that shares with Bob's 4."""
    state, policy = paired({"ann": {"nodes": 4}}, ("ann", "ann", 3), ("ann", "bob", 1)), MostProgress()
    plan = policy.rearrange(state)
    assert plan[0].job_id == "ann1-0"
    assert not Quotas(state).broken(plan, policy)


def test_a_copy_of_groups_in_another_order_is_refreshed_by_itself() -> None:
    """The row of a member's group is that of the table, and may be outside of the copy."""
    view = paired({}, ("ann", "ann", 3), ("bob", "bob", 1)).view
    copied = view.groups.take(view.order[::-1])
    copied["period_s"][1] = 1.0
    refresh(view.jobs, copied, 0)
    assert copied["departs_s"][0] == view.groups["departs_s"][view.order[1]] > 0
