from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial

import pytest

from rollmux_env.bench.streams import drifting, sampled, with_actual, with_drift, workload
from rollmux_env.errors import InputError
from rollmux_env.scenario import Scenario, parse_scenario
from rollmux_env.timing.drift import drift

STREAM = workload("production", 0, jobs=12)


def test_only_what_is_named_changes() -> None:
    for changed, names in (
        (with_actual(STREAM, 0.6, 0.25), {"rollout", "training"}),
        (with_drift(STREAM, "increasing"), {"drift"}),
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
    changed = with_actual(STREAM, 0.6, 0.25, cap=False)
    for job in changed.jobs:
        for phase in (job.rollout, job.training):
            assert phase.actual is not None
            assert (phase.actual.mean_fraction, phase.actual.cv, phase.actual.cap) == (0.6, 0.25, False)


def test_templates_of_the_models_size() -> None:
    changed = with_drift(STREAM, "decreasing", 1.5)
    assert [job.drift for job in changed.jobs] == [drift("decreasing", 1.5, int(job.id.split("B")[0])) for job in STREAM.jobs]
    assert all(job.drift == () for job in with_drift(changed, "none").jobs)


def test_mixed_is_increasing_and_decreasing_by_turns() -> None:
    both = [with_drift(STREAM, name).jobs for name in ("increasing", "decreasing")]
    assert [job.drift for job in with_drift(STREAM, "mixed").jobs] == [both[k % 2][k].drift for k in range(12)]


def test_sizes_are_passed_where_ids_do_not_tell() -> None:
    renamed = STREAM.model_copy(update={"jobs": (STREAM.jobs[0].model_copy(update={"id": "mine"}),)})
    assert with_drift(renamed, "increasing", billions={"mine": 32}).jobs[0].drift == drift("increasing", 1.0, 32)
    for sizes in (None, {"7B-8k-001": 7}):
        with pytest.raises(InputError, match=r"^drift: job mine: the size of its model is not known$"):
            with_drift(renamed, "increasing", billions=sizes)


@pytest.mark.parametrize(("template", "factor"), [("sideways", 1.0), ("increasing", 0.0)])
def test_what_makes_no_sense_is_refused(template: str, factor: float) -> None:
    with pytest.raises(InputError):
        with_drift(STREAM, template, factor)


@pytest.mark.parametrize(
    "stream",
    [
        partial(workload, "mixed", stays="fixed", jobs=5),
        partial(sampled, "production", jobs=5),
        partial(drifting, "production", "mixed", factor=0.5, jobs=5),
    ],
)
def test_streams_travel_to_other_processes(stream: Callable[[int], Scenario]) -> None:
    assert pickle.loads(pickle.dumps(stream))(3) == stream(3) != stream(4)  # noqa: S301


def test_quick_streams_are_shorter() -> None:
    assert len(drifting("production", "none", 0, quick=True).jobs) == 50
    assert len(sampled("production", 0, quick=True, jobs=7).jobs) == 7
