"""`gavel`: the program against solutions by hand, what a schedule in rounds must keep, and what can be proved about its cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.gavel import Gavel
from policies.gavel.worker_sets import WorkerSetAllocation, WorkerSetKind, allocate, fastest_mode, kinds_for, nodes_of
from policies.placement.baselines import Solo
from rollmux_env.errors import InputError
from rollmux_env.replay.fluid import replay
from rollmux_env.replay.metrics import metrics
from rollmux_env.scenario import Scenario, parse_scenario
from rollmux_env.workloads import make_workload
from rollmux_env.workloads.options import WorkloadOptions
from tests.oracle.draw import examples

SLOW: dict[str, object] = {"nodes": 1, "rollout_s": 600, "training_s": 400}  # ten times solo: never worth it


Pool = dict[str, object] | None


def scenario(*jobs: Mapping[str, object], rollout: Pool = None, training: Pool = None) -> Scenario:
    """Jobs of 60 + 40 s unless they say otherwise; a rollout node is $8/h, a training node $32/h, both together $40/h."""
    job = {"arrival_s": 0, "duration_s": 3600, "slo": 1.5, "rollout": {"worst_case_s": 60}, "training": {"worst_case_s": 40}}
    cluster = {
        "rollout": {"gpus_per_node": 8, "usd_per_gpu_hour": 1, **(rollout or {})},
        "training": {"gpus_per_node": 8, "usd_per_gpu_hour": 4, **(training or {})},
    }
    return parse_scenario({"version": 1, "cluster": cluster, "jobs": [{"id": f"j{k}", **job, **j} for k, j in enumerate(jobs)]})


def solved(stream: Scenario, training_slowdown: float | None = None) -> WorkerSetAllocation:
    found = allocate(stream.jobs, stream.cluster, training_slowdown)
    assert found is not None
    return found


def usd_per_hour(found: WorkerSetAllocation) -> int:
    return 8 * found.nodes["rollout"] + 32 * found.nodes["training"]


def speed(found: WorkerSetAllocation, job_id: str, solo_s: float = 100) -> float:
    return sum(
        time_share.share * solo_s / time_share.mode.iteration_s for time_share in found.time_shares() if time_share.job_id == job_id
    )


def test_three_jobs_take_turns_on_two_worker_sets() -> None:
    # By hand: co-located they are ten times slower and miss 1/1.5, so each needs 2/3 of the time on a set of a rollout and a
    # training node: 3 * 2/3 = 2 sets, $80/h where solo pays $120/h, and no time is left over.
    found = solved(scenario(*[{"colocated": SLOW}] * 3))
    assert found.nodes == Counter(rollout=2, training=2)
    assert found.relaxed_usd_per_hour == pytest.approx(80)
    assert [speed(found, f"j{k}") for k in range(3)] == pytest.approx([2 / 3] * 3)


def test_whole_numbers_are_rounded_up_and_the_time_left_over_is_given_out() -> None:
    # By hand: two such jobs need 4/3 sets, $53.33/h; whole sets are two, and on two sets both run all the time.
    found = solved(scenario(*[{"colocated": SLOW}] * 2))
    assert found.nodes == Counter(rollout=2, training=2)
    assert found.relaxed_usd_per_hour == pytest.approx(4 / 3 * 40)
    assert [speed(found, f"j{k}") for k in range(2)] == pytest.approx([1, 1])


def test_jobs_alternate_between_types() -> None:
    # By hand: co-located an iteration takes 110 s, speed 1/1.1. With an SLO of 1.05 a job needs 1/1.05 = 0.952, more than 1/1.1, so
    # it spends y of its time on both pools, y + (1 - y)/1.1 >= 1/1.05, y >= 0.476. For two jobs 2y = 0.952 such sets and 1.048 of
    # training nodes alone: $38.10 + $33.52 = $71.62/h. In whole numbers one of each, $72/h: two of the latter are too slow,
    # one of the former is too few. A half of either makes 0.5 + 0.5/1.1 for each job, 1 + 1/1.1 for both.
    block = {"nodes": 1, "rollout_s": 70, "training_s": 40}
    found = solved(scenario(*[{"colocated": block, "slo": 1.05}] * 2))
    assert sorted(one.kind[:2] for one in found.sets) == [(0, 1), (1, 1)]
    assert found.relaxed_usd_per_hour == pytest.approx(40 * 20 / 21 + 32 * 22 / 21)
    assert speed(found, "j0") + speed(found, "j1") == pytest.approx(1 + 1 / 1.1)
    assert min(speed(found, "j0"), speed(found, "j1")) >= 1 / 1.05 * (1 - 1e-7)


def test_rollout_nodes_that_can_train_are_a_third_type() -> None:
    # By hand: 90 + 10 s, training four times longer on the rollout node: 130 s, speed 1/1.3 for $8/h, enough for an SLO of 1.5.
    job = {"rollout": {"worst_case_s": 90}, "training": {"worst_case_s": 10}}
    assert solved(scenario(job)).nodes == Counter(rollout=0, training=1)
    found = solved(scenario(job), training_slowdown=4)
    assert found.nodes == Counter(rollout=1, training=0)
    assert speed(found, "j0") == pytest.approx(1 / 1.3)


def test_a_job_runs_on_any_set_that_holds_it_and_trains_on_all_of_it() -> None:
    job = scenario({"training": {"worst_case_s": 40, "by_nodes": {2: 25}}, "colocated": SLOW, "sync_s": 5}).jobs[0]
    cluster, sets = scenario({}).cluster, [(1, 1), (1, 2), (2, 3), (0, 1), (1, 0)]
    times = {nodes: fastest_mode(job, WorkerSetKind(*nodes, "rollout", "training"), cluster, None) for nodes in sets}
    assert {shape[:2]: mode and mode.iteration_s for shape, mode in times.items()} == {
        (1, 1): 105, (1, 2): 90, (2, 3): 90, (0, 1): 1000, (1, 0): None,
    }  # fmt: skip
    assert times[1, 2] is not None and times[1, 2].training_busy_s == 50
    assert [shape[:2] for shape in kinds_for([job], None)] == [(0, 1), (1, 1)]


def test_without_slack_or_a_faster_way_it_is_solo() -> None:
    stream = scenario(*[{"slo": 1, "arrival_s": 600 * k, "colocated": SLOW} for k in range(4)])
    ours, solo = Gavel().replay(stream, check=True).metrics, metrics(replay(stream, Solo()))
    assert ours.as_dict() == {**solo.as_dict(), "cost_usd": pytest.approx(solo.cost_usd), "work_h": pytest.approx(solo.work_h),
        "usd_per_hour": pytest.approx(solo.usd_per_hour), "usd_per_work_hour": pytest.approx(solo.usd_per_work_hour),
        "slowdown": pytest.approx(solo.slowdown), "utilization": pytest.approx(solo.utilization)}  # fmt: skip


def test_host_memory_limits_who_shares_a_set() -> None:
    # Three jobs would share two sets, one of them on both; two at 600 GB do not fit on a node of 1000 GB, so it takes a third set.
    jobs = [{"colocated": SLOW, "rollout": {"worst_case_s": 60, "host_memory_gb": 600}}] * 3
    assert solved(scenario(*jobs, rollout={"node_memory_gb": 1200})).nodes == Counter(rollout=2, training=2)
    assert solved(scenario(*jobs, rollout={"node_memory_gb": 1000})).nodes == Counter(rollout=3, training=3)


def test_device_memory_does_too() -> None:
    jobs = [{"colocated": SLOW, "rollout": {"worst_case_s": 60, "device_gb": 6}}] * 3
    assert solved(scenario(*jobs, rollout={"device_memory_gb": 12})).nodes == Counter(rollout=2, training=2)
    assert solved(scenario(*jobs, rollout={"device_memory_gb": 10})).nodes == Counter(rollout=3, training=3)


def test_both_phases_on_one_node_need_the_memory_of_both() -> None:
    memory = {"host_memory_gb": 600, "worst_case_s": 50}
    job = {"rollout": memory, "training": memory}
    assert solved(scenario(job, training={"node_memory_gb": 1200})).nodes == Counter(rollout=0, training=1)
    assert solved(scenario(job, training={"node_memory_gb": 1100})).nodes == Counter(rollout=1, training=1)


def test_jobs_wait_first_come_first_served_for_nodes() -> None:
    # By hand: with y of its time on both pools and the rest on training nodes alone, at a tenth of the speed, a job needs
    # y + (1 - y)/10 >= 1/slo, y >= 0.630 for an SLO of 1.5 and 0.815 for 1.2. Two sets hold j0 to j2 (1.89), not j3 as well (2.70),
    # nor when j0 has left (2.07), only when j1 has left at 3601 s. j4 would fit all along, but stands behind j3.
    jobs = [{"colocated": SLOW, "arrival_s": k} for k in range(3)]
    jobs += [{"colocated": SLOW, "arrival_s": 3, "slo": 1.2}, {"colocated": SLOW, "arrival_s": 4, "slo": 1e3}]
    stream = scenario(*jobs, rollout={"max_nodes": 2})
    found = Gavel().replay(stream, check=True)
    assert found.metrics.wait_s == pytest.approx({"j3": 3598, "j4": 3597})
    assert found.metrics.peak_gpus == {"rollout": 16, "training": 16}
    assert found.metrics.slo_attainment == 1


def test_jobs_with_iterations_leave_when_they_have_done_them() -> None:
    base = scenario({"colocated": SLOW}).model_dump(mode="json", exclude_none=True)
    job = {key: value for key, value in base["jobs"][0].items() if key != "duration_s"}
    jobs = [{**job, "id": f"j{k}", "iterations": n} for k, n in enumerate((30, 30, 60))]
    stream = parse_scenario({**base, "jobs": jobs})
    found = Gavel().replay(stream, check=True).metrics
    # Three at 2/3 until 30 iterations are done, 4500 s; then one alone on its own set for 30 iterations of 100 s.
    assert found.hours == pytest.approx((4500 + 3000) / 3600)
    assert found.cost_usd == pytest.approx((80 * 4500 + 40 * 3000) / 3600)
    assert found.slowdown == pytest.approx({"j0": 1.5, "j1": 1.5, "j2": 1.25})
    assert found.utilization == pytest.approx({"rollout": 120 * 60 / 12000, "training": 120 * 40 / 12000})


def production(seed: int, **options: object) -> Scenario:
    return make_workload("production", WorkloadOptions(seed=seed, jobs=25, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("training_slowdown", [None, 6.69])
@pytest.mark.parametrize("stays", ["fixed", "iterations"])
def test_every_slo_is_kept_and_every_round_possible(stays: str, training_slowdown: float | None) -> None:
    stream = production(0, stays=stays)
    found = Gavel(training_slowdown).replay(stream, check=True)
    assert found.metrics.slo_attainment == 1
    assert found.metrics.migrations == 0
    assert (found.extra["relaxed_usd"] or 0.0) <= found.metrics.cost_usd * (1 + 1e-9)
    assert sum(found.metrics.admissions.values()) == 25


def test_the_cost_is_never_below_the_sum_of_the_jobs_own_cheapest_speeds() -> None:
    # Proof: sets of a type are at least the time spent on it, and time at speed v on a type of price p costs p/v per unit of speed.
    # A job needs 1/slo of speed, so it costs at least the least p/v over the types, times 1/slo.
    for seed in range(3):
        stream = production(seed, stays="fixed")
        pools = stream.cluster.pools
        kinds = kinds_for(stream.jobs, None)
        least_usd = 0.0
        for job in stream.jobs:
            modes = {shape: fastest_mode(job, shape, stream.cluster, None) for shape in kinds}
            price = {shape: sum(n * pools[name].usd_per_node_hour for name, n in nodes_of(shape).items()) for shape in kinds}
            per_speed = min(price[shape] * mode.iteration_s / job.solo_s for shape, mode in modes.items() if mode)
            assert job.duration_s is not None
            least_usd += per_speed / job.slo * job.duration_s / 3600
        found = Gavel().replay(stream)
        assert found.metrics.cost_usd >= least_usd * (1 - 1e-9)
        assert (found.extra["relaxed_usd"] or 0.0) >= least_usd * (1 - 1e-7)


def test_the_same_scenario_gives_the_same_outcome() -> None:
    stream = production(4, stays="iterations")
    first, second = Gavel().replay(stream), Gavel().replay(stream)
    assert (first.metrics, first.time_s, first.extra) == (second.metrics, second.time_s, second.extra)


def test_a_higher_price_never_makes_it_cheaper() -> None:
    jobs = production(5, stays="fixed")
    costs = []
    for factor in (1.0, 1.3, 2.0):
        pool = jobs.cluster.pools["training"].model_copy(update={"usd_per_gpu_hour": 5.28 * factor, "node_memory_gb": None})
        rollout = jobs.cluster.pools["rollout"].model_copy(update={"node_memory_gb": None})
        cluster = jobs.cluster.model_copy(update={"training": pool, "rollout": rollout})
        costs.append(Gavel().replay(jobs.model_copy(update={"cluster": cluster})).metrics.cost_usd)
    assert costs == sorted(costs)


def test_free_nodes_are_no_trouble() -> None:
    stream = scenario({}, {}, rollout={"usd_per_gpu_hour": 0}, training={"usd_per_gpu_hour": 0})
    assert Gavel().replay(stream, check=True).metrics.cost_usd == 0


JOBS = st.lists(
    st.fixed_dictionaries(
        {
            "slo": st.floats(1, 3),
            "rollout": st.fixed_dictionaries({"worst_case_s": st.integers(1, 500), "nodes": st.integers(1, 3)}),
            "training": st.fixed_dictionaries({"worst_case_s": st.integers(1, 500), "nodes": st.integers(1, 2)}),
            "sync_s": st.sampled_from([0, 20]),
            "staleness": st.sampled_from([0, 0, 2]),
            "arrival_s": st.integers(0, 5000),
        },
        optional={
            "colocated": st.fixed_dictionaries(
                {"nodes": st.integers(1, 3), "rollout_s": st.integers(1, 900), "training_s": st.integers(1, 900)}
            )
        },
    ),
    min_size=1,
    max_size=7,
)


@examples(60)
@given(JOBS, st.sampled_from([None, 3]), st.sampled_from([None, 2.0]))
def test_any_stream_keeps_its_slos_and_costs_no_more_than_solo(
    jobs: list[dict[str, object]], max_nodes: int | None, training_slowdown: float | None
) -> None:
    stream = scenario(*jobs, rollout={"max_nodes": max_nodes}, training={"max_nodes": 3} if max_nodes else None)
    found = Gavel(training_slowdown).replay(stream, check=True)
    assert found.metrics.slo_attainment == 1
    assert np.diff(found.time_s).min(initial=0) >= 0
    if max_nodes is None:
        assert found.metrics.cost_usd <= metrics(replay(stream, Solo())).cost_usd * (1 + 1e-9), "solo solves the program"


def test_a_slowdown_that_is_none_is_bad_input() -> None:
    for value in (0, -1, float("nan"), float("inf"), True, "fast"):
        with pytest.raises(InputError, match="training_slowdown: must be a number above 0"):
            Gavel(value)  # type: ignore[arg-type]
