"""Attached jobs that do not state their worst case: their first iterations are measured, on lent nodes or as guests of a group.

These iterations count. The job is then planned with the longest seconds of each phase, and arrives as others do.
"""

from __future__ import annotations

from rollmux_env.scheduler import facts
from runtime.execution.job_handle import JobHandle
from runtime.execution.lifecycle import JobLifecycle
from runtime.execution.profiles import job_as_stated
from runtime.execution.run_state import RunState
from runtime.jobs.spec import JobSpec, nodes_asked
from runtime.journal.facts import Profiled


def ask_to_measure(run: RunState, handle: JobHandle) -> None:
    """The owner of a job that nobody knows has come: it wants nodes for its first iterations."""
    if handle.job is not None or handle.profile.asks or handle.ending.why is not None or run.stopping:
        return
    if problem := run.beyond(handle.spec):
        run.refuse(handle, problem)
        return
    handle.profile.asks = True
    run.tell(facts.Unprofiled({handle.id: nodes_asked(handle.spec, run.plan.cluster.sides)}))


def measure(handle: JobHandle, phase: str, seconds: float) -> None:
    """A phase of a job that is being measured has taken so long."""
    if handle.is_guest:
        handle.profile.longest_s[phase] = max(handle.profile.longest_s.get(phase, 0.0), seconds)


def measured(run: RunState, lifecycle: JobLifecycle, handle: JobHandle) -> bool:
    """A job has done an iteration as a guest: it goes on as one, or is known now and arrives. Whether it has got another place."""
    profile = handle.spec.profile
    assert profile is not None
    if handle.iteration < profile.iterations or not {"rollout", "training"} <= handle.profile.longest_s.keys():
        return False
    names = frozenset(node.name for node in handle.nodes_of("sync"))
    handle.job = job_as_stated(_stated(handle), run.log.now())
    handle.begins, handle.permits.busy_s = handle.iteration, {"rollout": 0.0, "training": 0.0}
    longest = handle.profile.longest_s
    run.log.say(f"{handle.id}: profiled: rollout {longest['rollout']:.2f} s, training {longest['training']:.2f} s")
    run.log.write(Profiled(run.log.now(), handle.job, False))
    if not handle.spec.movable:
        run.confine(handle, names)
    handle.stand()
    if problem := run.too_large(handle.job):
        run.tell(facts.Profiled(handle.id))
        run.refuse(handle, problem)
        return False
    run.tell(facts.Profiled(handle.id), *lifecycle.arrival(handle))
    return run.present(handle) and names != {node.name for node in handle.nodes_of("sync")}


def _stated(handle: JobHandle) -> JobSpec:
    """The entry of a job, as if it had stated what was measured."""
    spec, longest = handle.spec, handle.profile.longest_s
    phases = {
        "rollout": spec.rollout.model_copy(update={"worst_case_s": longest["rollout"]}),
        "training": spec.training.model_copy(update={"worst_case_s": longest["training"]}),
    }
    return spec.model_copy(update={**phases, "sync_s": max(spec.sync_s, longest.get("sync", 0.0))})
