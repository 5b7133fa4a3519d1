"""Completion and waiting: small fleets whose figures follow by hand, and the bound that no policy beats."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest

from policies.registry import make_policy
from rollmux_env.bench.harness import OwnReplay
from rollmux_env.replay.bounds import Need, bound_completion_h
from rollmux_env.replay.completion import Completion, JobCompletion, jain_index, nearest_rank
from rollmux_env.replay.fluid import replay
from rollmux_env.replay.outcome import Outcome, outcome
from rollmux_env.scenario import Scenario, parse_scenario
from rollmux_env.workloads import WorkloadOptions, make_workload
from rollmux_env.workloads.fleets import with_fleet


def fleet(nodes: int, *jobs: dict[str, Any], group: int = 5, **more: Any) -> Scenario:
    """Return a scenario whose jobs arrive at once on a fleet, with a rollout of 60 s and a training of 40 s unless they differ."""
    pool = {"gpus_per_node": 8, "usd_per_gpu_hour": 1.0, "max_nodes": nodes}
    own = {"arrival_s": 0, "slo": 3, "rollout": {"worst_case_s": 60}, "training": {"worst_case_s": 40}}
    cluster = {"rollout": pool, "training": pool, "max_group_size": group, **more}
    return parse_scenario({"version": 1, "cluster": cluster, "jobs": [{**own, **job} for job in jobs]})


def played(scenario: Scenario, policy: str) -> Outcome:
    made = make_policy(policy, 0)
    return made.replay(scenario, check=True) if isinstance(made, OwnReplay) else outcome(replay(scenario, made, check=True))


WIDE = {"rollout": {"nodes": 2, "worst_case_s": 60}, "training": {"nodes": 2, "worst_case_s": 40}}
QUEUE = fleet(
    2,
    {"id": "a", "iterations": 144, "user": "ann"},
    {"id": "b", "iterations": 108, "user": "bob", **WIDE},
    {"id": "c", "iterations": 36, "user": "bob"},
    group=1,
)


def test_jobs_that_wait_in_line() -> None:
    """Job b needs both nodes and waits for a; c waits behind b, although it would fit beside a."""
    found = played(QUEUE, "solo")
    jobs = {job.job: job for job in found.jobs}
    assert [jobs[name].completion_h for name in "abc"] == pytest.approx([4, 7, 8])
    assert [jobs[name].queue_h for name in "abc"] == pytest.approx([0, 4, 7])
    assert [jobs[name].first_wait_h for name in "abc"] == pytest.approx([0, 4, 7])
    assert [jobs[name].stretch for name in "abc"] == pytest.approx([1, 7 / 3, 8])
    # Nodes asked for over the fleet: 4 of 2 for 4 h, 3 of 2 for 3 h, then 1 of 2, which counts as 1.
    assert [jobs[name].rho for name in "abc"] == pytest.approx([0.5, 1.306667, 4.740741], abs=1e-6)
    assert [job.parks for job in found.jobs] == [0, 0, 0]
    figures = found.metrics
    assert figures.mean_completion_h == pytest.approx(19 / 3)
    assert (figures.completion_p50_h, figures.completion_p95_h, figures.completion_p99_h) == pytest.approx((7, 8, 8))
    assert (figures.mean_queue_h, figures.max_queue_h) == pytest.approx((11 / 3, 7))
    assert (figures.mean_stretch, figures.stretch_p99) == pytest.approx((34 / 9, 8))
    assert (figures.worst_rho, figures.unfair_share) == pytest.approx((4.740741, 2 / 3), abs=1e-6)
    assert (figures.jain, figures.worst_user) == pytest.approx((0.68656, 31 / 6), abs=1e-5)
    assert figures.makespan_h == pytest.approx(8)
    assert figures.fleet_busy == pytest.approx({"rollout": 11 / 16, "training": 11 / 16})
    assert max(found.waiting) == 2 and found.waiting[-1] == 0
    assert found.packed_beside_idle == 0


def test_jobs_that_share_are_slower_and_do_not_wait() -> None:
    jobs = [{"id": "p", "iterations": 36}, {"id": "q", "iterations": 36, **phases(40, 60)}, {"id": "s", "iterations": 18}]
    found = played(fleet(1, *jobs), "rollmux,prune=false")
    assert [job.completion_h for job in found.jobs] == pytest.approx([1.3, 1.3, 0.8])
    assert [job.rho for job in found.jobs] == pytest.approx([0.497059, 0.497059, 0.533333], abs=1e-6)
    assert (found.metrics.mean_queue_h, found.metrics.unfair_share, found.metrics.jain) == (0, 0, 1)
    assert found.metrics.mean_completion_h == pytest.approx(3.4 / 3)


def phases(rollout_s: float, training_s: float) -> dict[str, Any]:
    return {"rollout": {"worst_case_s": rollout_s}, "training": {"worst_case_s": training_s}}


def test_a_parked_job_waits_twice() -> None:
    """Job l is parked for m at 1 h; m and k come first. At 2.9 h it gets a place again, and pauses for 0.1 h."""
    jobs = [
        {"id": "l", "iterations": 360},
        {"id": "m", "iterations": 36, "arrival_s": 3600},
        {"id": "k", "iterations": 32, "arrival_s": 6480, **phases(60, 41.25)},
    ]
    found = played(fleet(1, *jobs, group=1, migration_s=360), "solo,order=shortest,park=true")
    long = found.jobs[0]
    assert [job.completion_h for job in found.jobs] == pytest.approx([12, 1, 1.1])
    assert (long.first_wait_h, long.queue_h, long.parks) == pytest.approx((0, 1.9, 1))
    assert (long.slowdown, long.stretch) == pytest.approx((1.01, 1.2))
    assert (found.metrics.parks, found.metrics.mean_completion_h) == pytest.approx((1, 4.7))


def test_weights_count_in_the_mean_alone() -> None:
    jobs = [{"id": "a", "iterations": 36, "weight": 3}, {"id": "b", "iterations": 72}]
    figures = played(fleet(2, *jobs), "solo").metrics
    assert figures.mean_completion_h == pytest.approx((3 * 1 + 2) / 4)
    assert figures.completion_p50_h == pytest.approx(1)
    assert figures.mean_stretch == pytest.approx(1)


def test_nothing_is_said_of_waiting_where_nodes_are_unlimited() -> None:
    free = make_workload("mixed", WorkloadOptions(jobs=4))
    found = played(free, "rollmux")
    assert all(getattr(found.metrics, one.name) is None for one in fields(Completion))
    assert all(getattr(job, one.name) is None for job in found.jobs for one in fields(JobCompletion))


def test_percentiles_by_nearest_rank() -> None:
    values = [float(value) for value in range(20, 0, -1)]
    assert [nearest_rank(values, percent) for percent in (50, 95, 96, 99)] == [10, 19, 20, 20]
    assert nearest_rank([5.0], 50) == 5


def test_jains_index_of_one_user_is_one_and_none_is_above() -> None:
    stretches = [1 + number / 977 for number in range(20_000)]
    assert {jain_index([stretch]) for stretch in stretches} == {1.0}
    assert max(jain_index([stretch] * 3) for stretch in stretches) == 1
    assert jain_index([1.0, 3.0]) == 0.8


def test_a_policy_that_packs_beside_idle_nodes_is_told_so() -> None:
    """Two jobs on two node pairs: packing makes each a fifth slower, and saves nothing on a fleet that is owned."""
    jobs = [{"id": name, "iterations": 36} for name in "ab"]
    assert played(fleet(2, *jobs), "rollmux,prune=false").packed_beside_idle == 1
    assert played(fleet(1, *jobs), "rollmux,prune=false").packed_beside_idle == 0
    assert all(played(fleet(2, *jobs), policy).packed_beside_idle == 0 for policy in ("solo", "fleet"))


def test_no_policy_is_below_the_bound() -> None:
    for seed, load in enumerate((1.1, 2.2)):
        scenario = with_fleet(make_workload("mixed", WorkloadOptions(seed=seed, jobs=16)), f"load={load}")
        for policy in ("solo,order=area,park=true", "rollmux,prune=false", "consolidate", "optimal-work"):
            figures = played(scenario, policy).metrics
            assert 0 < (figures.bound_completion_h or 0) <= (figures.mean_completion_h or 0)


def test_the_bound_by_hand() -> None:
    """Four jobs of 2 h on a node that an hour of work takes for half an hour: two hours of work fit into each hour."""
    job = Need(1.0, 0.0, 2.0, 1.0, (0.5,))
    mean_busy_h = (0 + 1 + 2 + 3) * 2 / 2  # each bucket's two hours of work, over the 2 h of a job
    assert bound_completion_h((job,) * 4, (1.0,)) == pytest.approx(mean_busy_h / 4 + 1, abs=1e-6)
    assert bound_completion_h((job,), (1.0,)) == 2  # the work alone is longer than the program says
    assert bound_completion_h((job,) * 4, (float("inf"),)) == 2


def test_jobs_that_stay_for_a_moment_need_nothing() -> None:
    job, moment = Need(1.0, 0.0, 2.0, 1.0, (0.5,)), Need(4.0, 7.0, 0.0, 1.0, (0.5,))
    assert bound_completion_h((job,) * 4 + (moment,), (1.0,)) == pytest.approx(4 * 2.5 / 8, abs=1e-6)
    assert bound_completion_h((moment,), (1.0,)) == 0
    jobs = [{"id": "a", "duration_s": 1e-5}, {"id": "b", "duration_s": 3600}]
    assert played(fleet(1, *jobs), "solo").metrics.bound_completion_h == 0.5


def test_where_the_program_cannot_be_solved_the_work_is_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scipy.optimize.linprog", lambda *args, **options: SimpleNamespace(success=False))
    assert bound_completion_h((Need(1e9, 0.0, 2.0, 1.0, (0.5,)), Need(1.0, 0.0, 1e-7, 1.0, (0.5,))), (1.0,)) == pytest.approx(
        2, abs=1e-6
    )


def test_the_bound_has_no_more_columns_than_it_needs_and_the_same_optimum() -> None:
    """An overloaded fleet, on which columns have to be added: a job of weight 9 comes first."""
    heavy, light = Need(9.0, 0.0, 40.0, 1.0, (1.0,)), Need(1.0, 0.0, 40.0, 1.0, (1.0,))
    mean_busy_h = 9 * 19.5 + 59.5 + 99.5  # in turn; each hour counts at its beginning
    assert bound_completion_h((heavy, light, light), (1.0,)) == pytest.approx((mean_busy_h + 11 * 20) / 11, abs=1e-6)


def test_the_buckets_of_the_bound_follow_the_horizon() -> None:
    """A job of 32 years beside two short ones: hours as buckets would take minutes."""
    short, long = Need(1.0, 0.0, 5.0, 1.0, (1.0,)), Need(1.0, 1.0, 1e7 * 100 / 3600, 1.0, (1.0,))
    assert bound_completion_h((short, long, short), (1.0,)) == pytest.approx((2 * 5 + long.work_h) / 3, abs=1e-3)
