"""What the last iterations of a job say: about its profile, and about its SLO."""

from __future__ import annotations

import pytest

from rollmux_env.keys.job import Job
from rollmux_env.keys.phases import Phase, Training
from rollmux_env.scheduler.review import MIN_ITERATIONS, WINDOW, Pace

JOB = Job(
    id="a", arrival_s=0.0, iterations=9, slo=2.0, rollout=Phase(worst_case_s=10.0), training=Training(worst_case_s=5.0), sync_s=1.0
)


def pace(rollout_s: float, training_s: float, iteration_s: float, times: int = MIN_ITERATIONS, sync_s: float = 1.0) -> Pace:
    found = Pace()
    for _ in range(times):
        found.phase("rollout", rollout_s, False)
        found.phase("training", training_s, False)
        found.phase("sync", sync_s, False)
        found.iteration(iteration_s)
    return found


def test_nothing_is_concluded_from_few_iterations_or_cold_ones() -> None:
    few = pace(90.0, 90.0, 900.0, MIN_ITERATIONS - 1)
    assert few.iteration_s is None and not few.is_late(JOB) and few.drifted(JOB, 0) is None
    few.phase("rollout", 90.0, True)
    few.iteration(900.0)
    assert few.iteration_s is None and few.drifted(JOB, 0) is None
    few.iteration(900.0)
    assert few.iteration_s == 900.0


def test_a_job_is_late_that_breaks_its_slo_as_it_goes_on() -> None:
    assert not pace(10.0, 5.0, 32.0).is_late(JOB)  # exactly twice its 16 s alone
    late = pace(10.0, 5.0, 33.0)
    assert late.is_late(JOB)
    for _ in range(WINDOW):
        late.iteration(20.0)
    assert not late.is_late(JOB)


def test_phases_that_stay_below_the_worst_case_change_nothing() -> None:
    assert pace(4.0, 2.0, 10.0).drifted(JOB, 0) is None
    assert pace(10.9, 5.4, 16.0).drifted(JOB, 0) is None


def test_a_worst_case_that_is_exceeded_again_and_again_is_replaced_by_the_longest() -> None:
    found = pace(12.0, 5.0, 18.0)
    found.phase("rollout", 14.0, False)
    known = found.drifted(JOB, 0)
    assert known is not None and known.rollout.worst_case_s == 14.0 and known.training == JOB.training and known.sync_s == 1.0
    assert known.solo_s == 20.0 and found.drifted(known, 0) is None
    once = pace(9.0, 5.0, 15.0, WINDOW)
    once.phase("rollout", 50.0, False)
    assert once.drifted(JOB, 0) is None  # once is not again and again


def test_what_is_small_beside_the_iteration_does_not_matter() -> None:
    tiny = JOB.model_copy(update={"sync_s": 0.001})
    assert pace(10.0, 5.0, 16.0, sync_s=0.1).drifted(tiny, 0) is None
    known = pace(10.0, 5.0, 16.0, sync_s=3.0).drifted(tiny, 0)
    assert known is not None and known.sync_s == 3.0


def test_alone_a_job_would_take_the_mean_of_its_phases() -> None:
    assert pace(4.0, 2.0, 99.0, MIN_ITERATIONS - 1).alone_s(JOB, 0) is None
    mixed = pace(4.0, 2.0, 99.0, sync_s=0.5)
    for _ in range(MIN_ITERATIONS):
        mixed.phase("rollout", 6.0, False)
    assert mixed.alone_s(JOB, 0) == pytest.approx(5.0 + 2.0 + 0.5)
