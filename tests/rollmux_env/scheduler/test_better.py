"""Where a running job would go if it came now, as the policy says."""

from __future__ import annotations

from policies.registry import make_runnable
from rollmux_env.cluster.apply import apply
from rollmux_env.cluster.events import Admitted, Arrived, JobProgress, Placement, Progressed, Reprofiled
from rollmux_env.cluster.plan import Move
from rollmux_env.cluster.state import State
from rollmux_env.keys.cluster import Cluster, Pool
from rollmux_env.keys.job import Job
from rollmux_env.keys.phases import Phase, Training
from rollmux_env.scheduler.relocation import better_place


def job(name: str, rollout_s: float, training_s: float, slo: float = 2.0) -> Job:
    rollout, training = Phase(worst_case_s=rollout_s), Training(worst_case_s=training_s)
    return Job(id=name, arrival_s=0.0, iterations=100, slo=slo, rollout=rollout, training=training)


def two_in_a_group(nodes: int = 2, pause_s: float = 0.0) -> State:
    """Two jobs of 10 + 10 s share a pair of nodes; each has done 20 iterations of 20 s."""
    pool = Pool(gpus_per_node=1, usd_per_gpu_hour=1.0, max_nodes=nodes)
    state = State(Cluster(rollout=pool, training=pool, migration_s=pause_s), observed=True)
    for name, place in (("a", Placement(None, (), 1, 1)), ("b", Placement(0, (0,)))):
        apply(state, Arrived(0.0, job(name, 10.0, 10.0)))
        apply(state, Admitted(0.0, name, place))
    apply(state, Progressed(400.0, (JobProgress("a", 20, 200.0, 200.0), JobProgress("b", 20, 200.0, 200.0))))
    return state


def test_a_job_stays_where_it_would_be_placed_again() -> None:
    state = two_in_a_group()
    assert better_place(state, "b", make_runnable("rollmux", 0)) == ()


def test_a_job_goes_where_it_keeps_its_slo_once_a_neighbour_takes_longer() -> None:
    state = two_in_a_group()
    apply(state, Reprofiled(400.0, job("a", 45.0, 10.0)))
    assert state.group_of("b").period_s == 55 > state.tables.jobs.limit_s[state.row("b")]
    before = state.copy()
    assert better_place(state, "b", make_runnable("rollmux", 0)) == (Move("b", Placement(None, (), 1, 1)),)
    assert state.group_list() == before.group_list() and state.waiting == before.waiting  # it was only asked


def test_a_job_stays_where_there_are_no_nodes_or_a_move_may_not_be() -> None:
    crowded = two_in_a_group(nodes=1)
    apply(crowded, Reprofiled(400.0, job("a", 45.0, 10.0)))
    assert better_place(crowded, "b", make_runnable("rollmux", 0)) == ()
    late = two_in_a_group(pause_s=500.0)  # 400 s behind it, 40 s allowed for each of 20 iterations
    apply(late, Reprofiled(400.0, job("a", 45.0, 10.0)))
    assert better_place(late, "b", make_runnable("rollmux", 0)) == ()


def test_the_nodes_that_it_leaves_are_held_until_it_has_gone() -> None:
    state = two_in_a_group(nodes=2)
    apply(state, Arrived(400.0, job("c", 10.0, 10.0)))
    apply(state, Admitted(400.0, "c", Placement(None, (), 1, 1)))
    apply(state, Reprofiled(400.0, job("c", 10.0, 10.0, slo=1.0)))
    apply(state, Reprofiled(400.0, job("a", 45.0, 10.0)))
    assert better_place(state, "b", make_runnable("solo", 0)) == ()  # `solo` wants a third pair


def test_jobs_that_wait_do_not_stand_in_the_way_of_the_question() -> None:
    state = two_in_a_group(nodes=2)
    apply(state, Reprofiled(400.0, job("a", 45.0, 10.0)))
    apply(state, Arrived(400.0, job("c", 10.0, 10.0).model_copy(update={"rollout": Phase(worst_case_s=10.0, nodes=2)})))
    assert better_place(state, "b", make_runnable("rollmux", 0)) == (Move("b", Placement(None, (), 1, 1)),) and state.waiting == [
        "c"
    ]
