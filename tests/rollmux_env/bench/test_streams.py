from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

from rollmux_env.bench.streams import asynchronous, drifting, repriced, sampled, with_actual, with_drift, workload
from rollmux_env.errors import InputError
from rollmux_env.scenario import Scenario, parse_scenario
from rollmux_env.timing.drift import FACTORS, drift

STREAM = workload("production", 0, jobs=12)


def test_only_what_is_named_changes() -> None:
    for changed, names in (
        (with_actual(STREAM, 0.6, 0.25), {"rollout", "training"}),
        (with_drift(STREAM, "increasing", 0), {"drift"}),
    ):
        assert changed.cluster == STREAM.cluster
        for before, after in zip(STREAM.jobs, changed.jobs, strict=True):
            same = set(type(before).model_fields) - names
            assert all(getattr(before, name) == getattr(after, name) for name in same)
            assert before.solo_s == after.solo_s
        assert parse_scenario(changed.model_dump(mode="json", exclude_none=True)) == changed
        assert changed.sha256 != STREAM.sha256
    assert workload("production", 0, jobs=12) == STREAM


def test_a_law_for_both_phases() -> None:
    changed = with_actual(STREAM, 0.6, 0.25)
    for job in changed.jobs:
        for phase in (job.rollout, job.training):
            assert phase.actual is not None
            assert (phase.actual.mean_fraction, phase.actual.cv, phase.actual.cap) == (0.6, 0.25, True)


def test_every_job_gets_the_staleness_and_a_sync_and_does_the_same_iterations() -> None:
    changed = asynchronous("production", 2, 0, jobs=12)
    for before, after in zip(STREAM.jobs, changed.jobs, strict=True):
        assert (after.staleness, after.iterations) == (2, before.iterations)
        assert after.sync_s == pytest.approx(before.solo_s / 5, abs=1e-3)
        assert after.solo_s == pytest.approx(
            max(before.rollout.worst_case_s, before.training.worst_case_s, before.solo_s / 5), 1e-3
        )


def test_other_prices_leave_the_jobs_as_they_are() -> None:
    changed = repriced("production", 0.5, 0, jobs=12)
    prices = [scenario.cluster.pools["training"].usd_per_gpu_hour for scenario in (STREAM, changed)]
    assert changed.jobs == STREAM.jobs and prices[0] == 2 * prices[1]


def templates(scenario: Scenario, *directions: str) -> list[tuple[str, float] | None]:
    """Which template each job drew; None for no drift."""
    kinds = [(direction, factor) for direction in directions for factor in FACTORS]
    drawn: list[tuple[str, float] | None] = []
    for job in scenario.jobs:
        own = {kind for kind in kinds if drift(*kind, int(job.id.split("B")[0])) == job.drift}
        assert len(own) == bool(job.drift)
        drawn.append(own.pop() if own else None)
    return drawn


def test_every_job_draws_its_template() -> None:
    stream = workload("production", 1)
    for template, directions in {
        "increasing": ["increasing"],
        "decreasing": ["decreasing"],
        "mixed": ["increasing", "decreasing"],
    }.items():
        drawn = templates(with_drift(stream, template, 3), *directions)
        counts = Counter(drawn)
        assert set(counts) == {None, *((direction, factor) for direction in directions for factor in FACTORS)}
        assert 35 <= counts[None] <= 65  # 50 of 200 are expected
        for factor in FACTORS:
            assert 35 <= sum(counts[direction, factor] for direction in directions) <= 65
        assert drawn != templates(with_drift(stream, template, 4), *directions)
    changed = with_drift(stream, "mixed", 3)
    assert all(job.drift == () for job in with_drift(changed, "none", 3).jobs)


def test_the_size_of_a_model_is_read_off_the_id() -> None:
    renamed = STREAM.model_copy(update={"jobs": (STREAM.jobs[0].model_copy(update={"id": "mine"}),)})
    with pytest.raises(InputError, match=r"^drift: job mine: the size of its model is not known$"):
        with_drift(renamed, "increasing", 0)


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(InputError, match="sideways"):
        with_drift(STREAM, "sideways", 0)


@pytest.mark.parametrize(
    "stream",
    [
        partial(workload, "mixed", stays="fixed", jobs=5),
        partial(sampled, "production", jobs=5),
        partial(drifting, "production", "mixed", jobs=5),
    ],
)
def test_streams_travel_to_other_processes(stream: Callable[[int], Scenario]) -> None:
    assert pickle.loads(pickle.dumps(stream))(3) == stream(3) != stream(4)  # noqa: S301


def test_quick_streams_are_shorter() -> None:
    assert len(drifting("production", "none", 0, quick=True).jobs) == 50
    assert len(sampled("production", 0, quick=True, jobs=7).jobs) == 7
