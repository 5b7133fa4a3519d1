"""What a run decides follows from its state, the time and what has happened: no event loop, clock, file or process is needed."""

from __future__ import annotations

from pathlib import Path

from policies.registry import observed_state
from rollmux_env.scheduler.commands import Evict, Grant, StartJob
from rollmux_env.scheduler.nodes import NodePool
from runtime.checkpoints import ResumePoint
from runtime.coordinator.consequences import Consequences, Errand
from runtime.coordinator.profiles import PhaseProfile, Profile
from runtime.coordinator.profiling import enlisted, learned
from runtime.coordinator.restarts import cleared, failed
from runtime.coordinator.run_state import RunState, Step
from runtime.coordinator.slices import slice_of
from runtime.jobside.messages import IterationResult, JobEnd, PhaseReport
from runtime.journal.facts import JobFailed, SharingBound
from runtime.owners import protocol
from tests.runtime.pretend import PAIR, plan_of

PART = PhaseProfile(seconds=10.0, warm_s=0.1, cold_s=1.0, host_gb=0.5)
POINT = ResumePoint(0, None, ())
PROFILE = Profile(rollout=PART, training=PART, sync_s=1.0, movable=True, has_checkpoints=True)


def kinds(step: Step) -> list[str]:
    return [type(entry).__name__ for entry in step.entries]


def new_run() -> RunState:
    plan = plan_of(Path("/nowhere"), [{"id": "a", "iterations": 1}], PAIR, dispatch="fifo")
    return RunState(plan, observed_state(plan.policy, plan.cluster), NodePool(plan.nodes), keeps_running=False)


def life() -> list[Step]:
    """The steps in the life of a job that dies in its first training, and then does its only iteration."""
    run = new_run()
    steps: list[Step] = []
    errands: list[Errand] = []

    def happens(now_s: float, happened: Consequences) -> Step:
        step = run.step(now_s, happened)
        steps.append(step)
        for command in step.commands:
            errands.extend(run.carry_out(command, now_s).errands)
        return step

    def phase(name: str, now_s: float) -> None:
        handle = run.handles["a"]
        assert [type(one) for one in happens(now_s, protocol.asked(handle, name, 0, now_s)).commands] == [Grant]  # type: ignore[arg-type]
        report = PhaseReport(name, False, now_s, now_s, now_s + 9.0)
        done = slice_of(handle, report, now_s + 9.0)
        assert kinds(happens(now_s + 9.0, protocol.released(handle, report, done)))[0] == "PhaseSlice"

    handle = run.handles["a"]
    step = happens(0.0, learned(run, handle, PROFILE, True, 0.0).then(enlisted(run, handle, 0.0)))
    assert kinds(step) == ["JobProfiled", "SchedulerInformed", "Arrived", "Admitted", "Assigned", "Assigned"]
    assert [type(one) for one in step.commands] == [StartJob] and errands == [Errand(handle, ends=False)]
    (order,) = handle.processes.ready
    assert order is not None and order.iteration == 0
    phase("rollout", 1.0)

    step = happens(11.0, failed(run, handle, JobEnd("died", "training", "a process has gone"), True, (), 11.0))
    assert [type(one) for one in step.commands] == [Evict] and errands[-1] == Errand(handle, ends=True)
    (follows,) = cleared(run, handle, POINT, lambda: 12.0)
    step = happens(12.0, follows)
    assert kinds(step)[:2] == ["JobRestarted", "SchedulerInformed"] and "Admitted" in kinds(step)
    assert step.lines[0] == "a: a process has gone; continues at iteration 1"

    handle = run.handles["a"]
    phase("rollout", 13.0)
    phase("training", 23.0)
    done = protocol.iterated(handle, IterationResult({}, movable=True), 33.0, asked_for=1)
    step = happens(33.0, done.then(protocol.carried_out(run, handle, protocol.next_step_of(handle, False, False), 33.0)))
    assert "Departed" in kinds(step) and not run.scheduler.members.seats
    return steps


def test_a_job_lives_without_an_event_loop_and_always_alike() -> None:
    assert repr(life()) == repr(life())


def test_a_job_that_has_no_nodes_left_when_it_restarts_is_refused_after_the_scheduler_has_decided() -> None:
    run, clock = new_run(), iter((12.0, 13.0))
    handle = run.handles["a"]
    run.step(0.0, learned(run, handle, PROFILE, True, 0.0).then(enlisted(run, handle, 0.0)))
    machines = {node.machine for node in run.capacity.nodes()}
    run.step(11.0, failed(run, handle, JobEnd("died", "training", "its node has gone"), True, machines, 11.0))
    instants = zip((12.5, 13.5), cleared(run, handle, POINT, clock.__next__), strict=True)
    steps = [run.step(now_s, follows) for now_s, follows in instants]
    times_s = [entry.at_s for step in steps for entry in step.entries if not isinstance(entry, SharingBound)]
    assert times_s == sorted(times_s) and isinstance(steps[1].entries[0], JobFailed)
