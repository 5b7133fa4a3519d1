from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rollmux_env.kernel.tables import Floats
from rollmux_env.keys.job import Job
from rollmux_env.replay.sampling import Durations
from rollmux_env.scenario import parse_scenario


def job(name: str = "a", **changes: Any) -> Job:
    entry = {
        "id": name,
        "arrival_s": 0,
        "iterations": 10,
        "slo": 1.5,
        "rollout": {"worst_case_s": 10, "actual": {"mean_fraction": 0.6, "cv": 0.4, "cap": False}},
        "training": {"worst_case_s": 10, "actual": {"mean_fraction": 0.5, "cv": 0.25}},
        **changes,
    }
    pool = {"gpus_per_node": 8, "usd_per_gpu_hour": 1}
    return parse_scenario({"version": 1, "cluster": {"rollout": pool, "training": pool}, "jobs": [entry]}).jobs[0]


def drawn(job: Job, seed: int, count: int) -> tuple[Floats, Floats]:
    durations = Durations(job, seed)
    while len(durations.rollout) < count:
        durations.extend()
    return np.array(durations.rollout[:count]), np.array(durations.training[:count])


def test_mean_and_coefficient_of_variation() -> None:
    rollout, training = drawn(job(), 0, 200_000)
    assert rollout.mean() == pytest.approx(0.6, rel=0.005)
    assert rollout.std() / rollout.mean() == pytest.approx(0.4, rel=0.01)
    assert np.log(rollout).std() == pytest.approx(np.sqrt(np.log1p(0.4**2)), rel=0.01)
    assert training.mean() == pytest.approx(0.5, rel=0.005)
    assert training.std() / training.mean() == pytest.approx(0.25, rel=0.01)
    assert abs(np.corrcoef(rollout, training)[0, 1]) < 0.01


def test_the_cap_holds_what_would_pass_the_worst_case_at_it() -> None:
    free = drawn(job(), 0, 5000)[0]
    entry = {"worst_case_s": 10, "actual": {"mean_fraction": 0.6, "cv": 0.4}}
    capped = drawn(job(rollout=entry), 0, 5000)[0]
    assert free.max() > 1
    assert np.array_equal(capped, np.minimum(free, 1.0))


def test_without_actual_every_iteration_takes_the_worst_case() -> None:
    plain = {"worst_case_s": 10}
    rollout, training = drawn(job(rollout=plain, training=plain), 3, 1000)
    assert set(rollout) == set(training) == {1.0}


def test_draws_depend_on_seed_job_phase_and_iteration_alone() -> None:
    first = drawn(job(), 7, 100)
    later = drawn(job(arrival_s=5000, sync_s=3, slo=2), 7, 3000)
    assert np.array_equal(first[0], later[0][:100])
    assert np.array_equal(first[1], later[1][:100])
    same_law = job(training={"worst_case_s": 10, "actual": {"mean_fraction": 0.6, "cv": 0.4, "cap": False}})
    streams = [*drawn(same_law, 7, 100), drawn(same_law, 8, 100)[0], drawn(job("b"), 7, 100)[0], drawn(job("a0"), 7, 100)[0]]
    for i, a in enumerate(streams):
        for b in streams[:i]:
            assert not np.any(a == b)


def test_drift_takes_the_last_entry_that_has_begun_and_may_pass_the_worst_case() -> None:
    drift = [{"iteration": 2, "rollout": 1.5}, {"iteration": 300, "rollout": 0.5, "training": 3.0}]
    plain = {"worst_case_s": 10}
    rollout, training = drawn(job(rollout=plain, training=plain, drift=drift), 0, 600)
    assert list(rollout) == [1.0] * 2 + [1.5] * 298 + [0.5] * 300
    assert list(training) == [1.0] * 300 + [3.0] * 300


def test_a_solo_run_starts_cold_once() -> None:
    rollout = {"worst_case_s": 10, "switch": {"warm_s": 1, "cold_s": 20}}
    training = {"worst_case_s": 5, "switch": {"warm_s": 1, "cold_s": 30}}
    durations = Durations(job(rollout=rollout, training=training, sync_s=2), 0)
    durations.extend()
    assert durations.solo_s(4) == 4 * 17 + 50
