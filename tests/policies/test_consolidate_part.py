"""`consolidate` in large clusters: it looks at a part of the groups, and remembers what it has found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from policies.placement.algorithm1 import Algorithm1
from policies.placement.consolidate import Consolidate
from policies.placement.consolidate.active import active
from policies.placement.consolidate.stays import known_stays
from policies.placement.learned import Learned
from rollmux_env.cluster.apply import apply, forecast
from rollmux_env.cluster.candidates import part_of
from rollmux_env.cluster.events import Arrived, Departed, Event, Placement
from rollmux_env.cluster.plan import Move, Plan, carry_out, may_move
from rollmux_env.cluster.remaining import iterations_done
from rollmux_env.cluster.state import State
from rollmux_env.errors import InputError
from rollmux_env.kernel.lns_insert import insert, make_search, refresh_group
from rollmux_env.kernel.membership import detach
from rollmux_env.kernel.tables import Records
from rollmux_env.kernel.trials import begin_trial
from rollmux_env.replay.fluid import replay
from rollmux_env.replay.metrics import metrics
from rollmux_env.workloads import WorkloadOptions, make_workload


def crowd(jobs: int, **options: Any) -> State:
    """So many jobs, placed at time 0 by Algorithm 1, after two hours; the first ones have moved since, and one waits."""
    stream = make_workload("production", WorkloadOptions(jobs=jobs, seed=3, **options))
    state = State(stream.cluster)
    for job in stream.jobs[:-1]:
        arrived = Arrived(0.0, job)
        apply(state, arrived)
        carry_out(state, Algorithm1().decide(state, arrived), keeps_slo=True)
    state.now_s = 7000.0
    for job in stream.jobs[:3]:
        if may_move(state, job.id):
            alone = Placement(None, (), job.rollout.nodes, job.training.nodes)
            carry_out(state, (Move(job.id, alone),), keeps_slo=True)
    apply(state, Arrived(7020.0, stream.jobs[-1]))
    return state


@pytest.mark.parametrize("stays", ["fixed", "iterations"])
def test_what_is_known_of_jobs_is_what_the_state_says_of_each(stays: Any) -> None:
    state = crowd(30, stays=stays)
    waits = state.waiting[0]
    now = active(state, waits)
    ids = [state.tables.job_id(int(row)) for row in now.rows]
    movable = [job_id == waits or (not state.is_paused(job_id) and may_move(state, job_id)) for job_id in ids]
    assert now.free.tolist() == movable and any(state.is_paused(job_id) for job_id in ids)
    assert iterations_done(state, now.rows).tolist() == [state.iterations_done(job_id) for job_id in ids]
    for k, (stay_h, iterations) in enumerate(zip(*known_stays(state, now.rows), strict=True)):
        job, row = state.job(ids[k]), int(now.rows[k])
        if job.iterations is not None:
            assert (stay_h, iterations) == (np.inf, max(0.0, job.iterations - state.iterations_done(job.id)))
        else:
            assert job.duration_s is not None
            leaves_s = state.now_s + job.duration_s if job.id == waits else state.tables.jobs.leaves_s[row]
            assert (stay_h, iterations) == (max(0.0, leaves_s - state.now_s) / 3600, np.inf)
    groups = state.view.groups[state.tables.order]
    rates = [sum(state.job(job_id).solo_s / group.period_s for job_id in group.jobs) for group in state.group_list()]
    assert groups["work_rate"].tolist() == pytest.approx(rates)


def shown(jobs: Records, groups: Records) -> list[Any]:
    """What counts of the tables: who is where, on which nodes, at which period."""
    there = groups["n_members"] > 0
    members = [row["members"][: row["n_members"]].tolist() for row in groups[there]]
    pins = [row["pins"][: row["n_pins"]].tolist() for row in jobs]
    return [jobs["group"].tolist(), pins, members, *(groups[there][name].tolist() for name in ("period_s", "n_nodes", "id"))]


@pytest.mark.parametrize("spare", [np.inf, 2.0])
def test_what_a_search_remembers_is_what_it_would_find_anew(spare: float) -> None:
    state = crowd(30)
    state.limits.pools["nodes_max"] = state.nodes.sum(axis=1) + spare
    now = active(state, None)
    view, facts, search = now.view, Consolidate()._search_input(now), make_search(now.view)  # noqa: SLF001 (the same facts)
    for group in range(now.looked.size):
        refresh_group(view, facts, group, search)
    rng = np.random.default_rng(1)
    places = set()
    for k in range(200):
        job = int(rng.choice(np.flatnonzero(now.free)))
        group = int(view.jobs["group"][job])
        begin_trial(search.trial)
        detach(view.jobs, view.groups, job)
        refresh_group(view, facts, group, search)
        twin = view._replace(jobs=view.jobs.copy(), groups=view.groups.copy())
        anew = make_search(view)._replace(usd=search.usd.copy(), version=search.version.copy(), last=search.last.copy())
        looked = insert(view, facts, job, 0.3, np.random.default_rng(k), search)
        assert looked == insert(twin, facts, job, 0.3, np.random.default_rng(k), anew) > 0
        assert search.usd.tolist() == anew.usd.tolist()
        assert shown(view.jobs, view.groups) == shown(twin.jobs, twin.groups)
        places.add((job, int(view.jobs["group"][job])))
    assert len(places) > 20, "else nothing has changed that could be remembered wrongly"


def test_a_part_is_drawn_anew_at_every_event_and_has_what_matters() -> None:
    state = crowd(60)
    newcomer, most = state.waiting[0], 9
    part = part_of(state, most, newcomer)
    assert np.array_equal(part.positions, part_of(state, most, newcomer).positions)
    assert part.positions.size == most and (np.diff(part.positions) > 0).all() and part.positions[-1] < state.tables.order.size
    assert part.cheapest_placement is not None
    if part.cheapest_placement.group is not None:
        assert state.tables.group_rows.get(part.cheapest_placement.group) in state.tables.order[part.positions]
    leaver = state.group_list()[3].jobs
    apply(state, Departed(7200.0, leaver[0]))
    if len(leaver) > 1:
        assert 3 in part_of(state, most).positions, "somebody has left it just now"
    seen = set()
    for k, job_id in enumerate([job_id for group in state.group_list() for job_id in group.jobs][:25]):
        apply(state, Departed(7300.0 + k, job_id))
        seen |= set(state.tables.groups.id[state.tables.order[part_of(state, most).positions]].tolist())
    assert len(seen) > 2 * most
    whole = part_of(state, 1000)
    assert whole.positions.tolist() == list(range(state.tables.order.size)) and whole.cheapest_placement is None


@pytest.mark.parametrize("stays", ["fixed", "iterations"])
def test_a_part_is_enough_to_keep_every_slo_and_to_save(stays: Any) -> None:
    stream = make_workload("production", WorkloadOptions(seed=3, jobs=60, stays=stays))
    found = metrics(replay(stream, Consolidate(budget=1000, groups=4), check=True))
    assert found.slo_attainment == 1.0 and found.migrations > 20
    assert found.cost_usd < 0.95 * metrics(replay(stream, Algorithm1(prune=False))).cost_usd


def test_departures_are_those_of_the_groups_as_they_are() -> None:
    """The state keeps them in one piece beside the table."""

    class Watching:
        keeps_slo = True
        policy = Consolidate(budget=300, groups=4)

        def decide(self, state: State, event: Event) -> Plan:
            of_groups = state.view.groups["departs_s"][state.tables.order]
            assert state.tables.next_departure_s() == of_groups.min(initial=np.inf)
            for seen in (state.copy(), forecast(state)):
                assert seen.tables.next_departure_s() == state.tables.next_departure_s()
            return self.policy.decide(state, event)

    replay(make_workload("production", WorkloadOptions(seed=3, jobs=30)), Watching())


def test_a_newcomer_gets_the_place_that_there_is_wherever_it_is() -> None:
    """Scarce nodes: a part that has no place for it must not let it wait."""
    stream = make_workload("production", WorkloadOptions(seed=3, jobs=40))
    pools = {name: pool.model_copy(update={"max_nodes": 14}) for name, pool in stream.cluster.pools.items()}
    scarce = stream.model_copy(update={"cluster": stream.cluster.with_pools(pools)})
    found = metrics(replay(scarce, Consolidate(budget=500, groups=2), check=True))
    assert found.slo_attainment == 1.0


def test_a_network_looks_at_a_part_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("policies.placement.learned._PART", 4)
    stream = make_workload("production", WorkloadOptions(seed=3, jobs=60))
    found = metrics(replay(stream, Learned(), check=True))
    assert found.slo_attainment == 1.0 and found.migrations > 40
    assert found.usd_per_work_hour < 0.95 * metrics(replay(stream, Algorithm1(prune=False))).usd_per_work_hour


@pytest.mark.parametrize("groups", [1, True, 2.5])
def test_a_part_of_too_few_groups_is_refused(groups: Any) -> None:
    with pytest.raises(InputError, match="groups"):
        Consolidate(groups=groups)
