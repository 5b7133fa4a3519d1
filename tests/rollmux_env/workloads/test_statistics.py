"""The streams have the statistics that the paper states, over seeds."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest

from rollmux_env.scenario import Scenario
from rollmux_env.workloads import make_workload
from rollmux_env.workloads.options import WorkloadOptions
from rollmux_env.workloads.production import TYPE_COUNTS
from rollmux_env.workloads.profiles import RANGES_S

SEEDS = range(20)


def streams(name: str, **options: object) -> list[Scenario]:
    return [make_workload(name, WorkloadOptions(seed=seed, stays="fixed", **options)) for seed in SEEDS]  # type: ignore[arg-type]


def stays_h(scenario: Scenario) -> np.ndarray:
    return np.array([job.duration_s for job in scenario.jobs], dtype=float) / 3600


def gaps_min(scenario: Scenario) -> np.ndarray:
    return np.diff([job.arrival_s for job in scenario.jobs]) / 60


@pytest.fixture(scope="module")
def production() -> list[Scenario]:
    return streams("production")


def test_production_has_exactly_the_published_types_in_another_order_a_seed(production: list[Scenario]) -> None:
    orders = [tuple(job.id.rpartition("-")[0] for job in scenario.jobs) for scenario in production]
    assert all(Counter(order) == TYPE_COUNTS for order in orders)
    assert len(set(orders)) == len(orders)


def test_another_number_of_jobs_draws_types_in_proportion() -> None:
    jobs = make_workload("production", WorkloadOptions(jobs=2000)).jobs
    share = Counter(job.id.rpartition("-")[0] for job in jobs)
    assert share["7B-8k"] / 2000 == pytest.approx(0.5, abs=0.04)
    assert share["8B-32k"] / 2000 == pytest.approx(0.165, abs=0.03)


def test_production_stays(production: list[Scenario]) -> None:
    """Published: mean 27.9 h, median 20.5 h, longest 155 h. One stream of 200 has a standard error of about 2 h."""
    assert np.mean([stays_h(s).mean() for s in production]) == pytest.approx(27.9, rel=0.08)
    assert np.mean([np.median(stays_h(s)) for s in production]) == pytest.approx(20.5, rel=0.18)
    assert 120 < np.median([stays_h(s).max() for s in production]) <= 155
    assert max(stays_h(s).max() for s in production) <= 155


def test_production_arrivals(production: list[Scenario]) -> None:
    """Published: gaps of mean 72 min, median 23 min, CV 2.1; last arrival at 238 h."""
    gaps = [gaps_min(s) for s in production]
    assert np.mean([g.mean() for g in gaps]) == pytest.approx(72, rel=0.02)
    assert np.mean([np.median(g) for g in gaps]) == pytest.approx(23, rel=0.12)
    assert np.mean([g.std() / g.mean() for g in gaps]) == pytest.approx(2.1, rel=0.08)
    assert all(s.jobs[-1].arrival_s / 3600 == pytest.approx(238, rel=0.02) for s in production)


def test_production_jobs_present_when_each_runs_alone(production: list[Scenario]) -> None:
    """Published: mean 15, peak 38."""
    means, peaks = zip(*(present(s) for s in production), strict=True)
    assert np.mean(means) == pytest.approx(15, rel=0.2)
    assert np.mean(peaks) == pytest.approx(38, rel=0.2)


def present(scenario: Scenario) -> tuple[float, int]:
    """Mean and largest number of jobs present."""
    marks = sorted(
        itertools.chain.from_iterable(
            ((job.arrival_s, 1), (job.arrival_s + float(job.duration_s or 0), -1)) for job in scenario.jobs
        )
    )
    return float(stays_h(scenario).sum() * 3600 / marks[-1][0]), max(itertools.accumulate(step for _, step in marks))


def test_paper_semantics_change_only_slos_and_training_nodes() -> None:
    ours = make_workload("production", WorkloadOptions(stays="fixed"))
    paper = make_workload("production", WorkloadOptions(stays="fixed", semantics="paper"))
    assert min(job.slo for job in paper.jobs) >= 1.1
    assert np.mean([job.slo for job in paper.jobs]) == pytest.approx(1.55, abs=0.06)
    for a, b in zip(ours.jobs, paper.jobs, strict=True):
        assert (a.id, a.arrival_s, a.duration_s, a.solo_s, a.rollout) == (b.id, b.arrival_s, b.duration_s, b.solo_s, b.rollout)
        assert b.training.nodes == 1
    assert {job.training.nodes for job in ours.jobs} == {1, 2}


@pytest.mark.parametrize("name", dict(RANGES_S))
def test_phase_times_lie_in_the_profiles_ranges(name: str) -> None:
    for job in make_workload(name, WorkloadOptions(seed=3)).jobs:
        size = job.id.split("-")[1]
        r_low, r_high, t_low, t_high = next(row[1:] for profile, row in RANGES_S if (profile, row[0]) == (name, size))
        assert r_low <= job.rollout.worst_case_s <= r_high
        assert t_low <= job.training.worst_case_s <= t_high
        assert (job.rollout.nodes, job.training.nodes) == (1, 1)


def test_rollout_and_training_are_drawn_independently() -> None:
    jobs = [job for job in make_workload("balanced", WorkloadOptions(jobs=3000)).jobs if job.id.startswith("BL-large")]
    pairs = np.array([(job.rollout.worst_case_s, job.training.worst_case_s) for job in jobs])
    assert abs(np.corrcoef(pairs.T)[0, 1]) < 0.08
    assert pairs.mean(axis=0) == pytest.approx([250, 250], abs=4)


def test_mixed_is_uniform_over_the_nine_ranges() -> None:
    cells = Counter(job.id.rpartition("-")[0] for job in make_workload("mixed", WorkloadOptions(jobs=4500)).jobs)
    assert len(cells) == 9
    assert all(count == pytest.approx(500, abs=90) for count in cells.values())


def test_profile_arrivals_and_stays_are_like_the_philly_segment() -> None:
    """Published: 300 arrivals over 580 h, mean stay 14.4 h, longest 142.9 h; bursty gaps, as in the public trace."""
    scenarios = streams("mixed")
    assert all(len(s.jobs) == 300 and s.jobs[-1].arrival_s == pytest.approx(580 * 3600, abs=1) for s in scenarios)
    assert np.mean([stays_h(s).mean() for s in scenarios]) == pytest.approx(14.4, rel=0.05)
    assert 115 < np.median([stays_h(s).max() for s in scenarios]) <= 142.9
    assert np.mean([g.std() / g.mean() for g in map(gaps_min, scenarios)]) == pytest.approx(1.83, rel=0.1)


@pytest.mark.parametrize("name", ["production", "mixed"])
def test_slos_are_uniform_in_their_range(name: str) -> None:
    slos = np.concatenate([[job.slo for job in s.jobs] for s in streams(name)])
    assert 1 <= slos.min() < 1.01 and 1.99 < slos.max() <= 2
    assert slos.mean() == pytest.approx(1.5, abs=0.02)
    narrow = make_workload(name, WorkloadOptions(slo=(1.2, 1.2)))
    assert {job.slo for job in narrow.jobs} == {1.2}


@pytest.mark.parametrize("name", ["production", "mixed"])
def test_iterations_hold_the_stay_of_the_job_alone(name: str) -> None:
    fixed = make_workload(name, WorkloadOptions(stays="fixed"))
    equal = make_workload(name, WorkloadOptions(stays="iterations"))
    for a, b in zip(fixed.jobs, equal.jobs, strict=True):
        assert a.duration_s is not None and b.iterations is not None and b.duration_s is None
        assert b.iterations == max(1, round(a.duration_s / a.solo_s))
        assert (a.id, a.arrival_s, a.slo, a.rollout, a.training) == (b.id, b.arrival_s, b.slo, b.rollout, b.training)
