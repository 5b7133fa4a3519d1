"""Worst cases of shapes that nobody has profiled, and what iterations say of them."""

from __future__ import annotations

from typing import Any

from policies.dispatch import make_dispatch
from rollmux_env.cluster.events import Event, Placement, Reprofiled, Ticked
from rollmux_env.cluster.plan import Move, Place, Plan
from rollmux_env.cluster.state import State
from rollmux_env.keys.job import Job
from rollmux_env.scheduler import facts
from rollmux_env.scheduler.facts import PhaseOfShape
from rollmux_env.scheduler.review import MIN_ITERATIONS, Estimates
from tests.rollmux_env.scheduler.driver import Driver

JOB = Job.model_validate(
    {
        "id": "a",
        "arrival_s": 0.0,
        "iterations": 60,
        "slo": 9.0,
        "rollout": {"worst_case_s": 10.0},
        "training": {"worst_case_s": 8.0},
        "shapes": [{"training": {"nodes": 2, "worst_case_s": 4.0}}, {"rollout": {"nodes": 2, "worst_case_s": 7.0}}],
    }
)
OPEN: frozenset[PhaseOfShape] = frozenset({(1, "training")})


def worst_s(job: Job, shape: int) -> tuple[float, float]:
    phases = job.phases(shape)
    return phases.rollout.worst_case_s, phases.training.worst_case_s


def test_an_estimate_becomes_the_profile_times_what_a_phase_takes_there_of_what_it_takes_in_the_own_shape() -> None:
    estimates = Estimates()
    estimates.add("a", OPEN)
    assert estimates.measured(JOB, 0, {"rollout": 5.0, "training": 6.0}) is JOB
    assert estimates.measured(JOB, 1, {"rollout": 5.0}) is JOB
    known = estimates.measured(JOB, 1, {"rollout": 5.0, "training": 4.5})
    assert worst_s(known, 1) == (10.0, 6.0) and worst_s(known, 2) == (7.0, 8.0) and worst_s(known, 0) == (10.0, 8.0)
    assert estimates.measured(known, 1, {"rollout": 5.0, "training": 1.0}) is known  # it is a measurement now


def test_what_a_file_states_is_not_measured_and_nothing_is_where_the_own_shape_is_not_known() -> None:
    estimates = Estimates()
    estimates.add("a", OPEN)
    assert estimates.measured(JOB, 1, {"rollout": 5.0, "training": 4.5}) is JOB
    assert estimates.measured(JOB, 2, {"rollout": 1.0, "training": 6.0}) is JOB
    assert worst_s(estimates.measured(JOB, 0, {"training": 9.0}), 1) == (10.0, 4.0)  # 8 x 4.5 / 9, and so it was


def test_an_estimate_grows_with_the_profile_that_it_comes_from() -> None:
    estimates = Estimates()
    estimates.add("a", OPEN)
    known = JOB.known_anew(0, "training", worst_case_s=12.0).known_anew(0, "rollout", worst_case_s=20.0)
    assert worst_s(estimates.scaled(JOB, known), 1) == (20.0, 6.0)
    assert worst_s(estimates.scaled(JOB, known), 2) == (7.0, 12.0)  # stated
    estimates.forget("a")
    assert estimates.scaled(JOB, known) is known


class MovesTo:
    """Places a job alone, and moves it to another shape when it is told to."""

    keeps_slo = False
    wakes_every_s = 1.0

    def __init__(self) -> None:
        self.shape = 0

    def decide(self, state: State, event: Event) -> Plan:
        if not isinstance(event, Ticked):
            return (Place("a", Placement(None, (), 1, 1)),) if state.waiting else ()
        if state.shape("a") == self.shape or state.is_paused("a"):
            return ()
        return (Move("a", Placement(None, (), 1, state.job("a").phases(self.shape).training.nodes, shape=self.shape)),)


def test_a_job_that_has_moved_to_a_shape_is_planned_with_what_it_takes_there() -> None:
    policy = MovesTo()
    driver = Driver(policy, make_dispatch("round-robin"), 3, MovesTo)
    driver.scheduler.jobs.estimated("a", OPEN)
    driver.submit(JOB)
    seconds = {0: {"rollout": 5.0, "training": 4.0}, 1: {"rollout": 5.0, "training": 3.0}}
    seen: list[Any] = []
    for k in range(60):
        worker = driver.workers["a"]
        told = driver.goes_on("a")
        size = len(worker.nodes["training"])
        for number, fact in enumerate(told):
            if isinstance(fact, facts.Finished):
                told[number] = fact._replace(seconds=seconds[size - 1][fact.phase])
            if isinstance(fact, facts.Iterated):
                told[number] = fact._replace(seconds=9.0)
        driver.tell(*told)
        if worker.done == MIN_ITERATIONS + 1:
            policy.shape = 1
        seen.append((k, size))
    known = [entry.job for entry in driver.entries if isinstance(entry, Reprofiled)]
    assert [worst_s(job, 1) for job in known] == [(10.0, 6.0)]  # 8 x 3 / 4
    assert {size for _, size in seen} == {1, 2}
