"""The session of a job with its run, in the job's own process: the implementation of `@phase` and `runtime_hook`."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from copy import copy
from numbers import Integral, Real
from threading import RLock
from time import monotonic
from typing import Any

import ray
from rollmux_protocol import OutOfOrder as CannotBeNext
from rollmux_protocol import Turn, Turns
from rollmux_segment import Footprint

from runtime.jobs.spec import ClassJob, TaskJob
from runtime.jobside.messages import CallOutOfOrder, Checkpoint, IterationResult, Nodes, PhaseReport
from runtime.jobside.meter import ProcessMeter, Used
from runtime.jobside.worker import CONCURRENT, ActorHandle, CoordinatorLink, Worker, on_machine, results
from runtime.machine import Node, Pool, boot_id
from runtime.machines.nodes import move_process, prepare_process
from runtime.phases import POOL_OF, PhaseOfJob, WorkerHandle, close_together, runtime_hook
from runtime.residency.choice import STAY, OffloadLevel, OffloadLevels

_MOST = 10_000


OffloadOutcome = tuple[Any, dict[str, Any]]
"""Where a job's state is after a phase: the footprint that the job reports, or None, and fields of its `Report`."""


def timed(job: Any, method: str, phase: PhaseOfJob) -> tuple[float, Any]:
    """Call a method of a job with a phase, if the job has it; return its seconds and its result."""
    if not hasattr(job, method):
        return 0.0, None
    began = monotonic()
    result = getattr(job, method)(phase)
    return monotonic() - began, result


def offload_or_stay(job: Any, phase: PhaseOfJob, stays: bool) -> OffloadOutcome:
    """Leave the job's state on the devices, or offload it."""
    seconds, footprint = timed(job, "stay" if stays else "offload", phase)
    return footprint, {"offload_s": seconds, "stays": stays}


def measure(job: Any, phase: PhaseOfJob, used: Callable[[Any], Used], gpus: int) -> OffloadOutcome:
    """Measure every way in which the job's state may wait between phases, and offload it in the end.

    Args:
        job: Instance of the job's class.
        phase: Phase that has just ended.
        used: Function that returns the memory that the job uses on a node, given its footprint.
        gpus: Number of GPUs of a node.
    """
    levels, peak_gb, gpu_gb = [], 0.0, 0.0
    first_s, here = timed(job, "stay", phase)
    if isinstance(here, Footprint):
        host_gb, device_gb, _ = used(here)
        first_s += timed(job, "load", phase)[0]
        stay_s = timed(job, "stay", phase)[0] + timed(job, "load", phase)[0]  # measured twice, as the offload is
        levels.append(OffloadLevel(STAY, min(first_s, stay_s), device_gb, host_gb))
        first_s += stay_s
        if gpus:
            peak_gb, gpu_gb = here.peak / 1e9 / gpus, here.capacity / 1e9 / gpus
    first_s += timed(job, "offload", phase)[0]
    load_s, _ = timed(job, "load", phase)  # the load of a warm switch; the first one was cold
    again_s, footprint = timed(job, "offload", phase)
    host_gb, device_gb, _ = used(footprint)
    levels.append(OffloadLevel("keep", load_s + again_s, device_gb, host_gb))
    warm_s = load_s + again_s  # a warm switch
    return footprint, {"offload_s": first_s + warm_s, "warm_s": warm_s, "waits": OffloadLevels(tuple(levels), peak_gb, gpu_gb)}


class JobSession(CoordinatorLink):
    """The session of a job with its run; see `runtime.phases.Session`.

    Args:
        spec: The job.
        coordinator: Handle of the coordinator's actor.
        logs: Folder of the logs of the job's processes.
    """

    def __init__(self, spec: TaskJob | ClassJob, coordinator: Any, logs: str) -> None:
        super().__init__(coordinator, spec.id, "job")
        self.iteration = 0
        self.worst_case = False
        self.in_step = False  # whether an iteration is in progress
        self.where = ""  # present activity, for error messages
        self.workers: list[ActorHandle] = []
        self._meter = ProcessMeter(self.workers)
        self._spec = spec
        self._logs = logs
        self._nodes: Nodes = {}
        self._offset_s = 0.0
        self._has_permit = False  # whether `initialise` has left the permit of a rollout
        self.turns = Turns()  # turns of the present iteration, counted from 0
        self._left_s = monotonic()  # time at which nodes were last given back
        self._prepared = False
        self._pools_loaded: set[str] = set()  # pools on which the job's state has been loaded since it was made
        self._staying: dict[Pool, Any] = {}  # the job's instance, by the pool on whose devices its state stays
        self.parts: tuple[int, ...] = ()
        self._devices: dict[Pool, Any] = {"rollout": RLock(), "training": RLock()}  # locked while state is loaded or offloaded
        self._wakes: int | None = None  # finished responses at which the present rollout stops

    def ask(self, method: str, *arguments: Any) -> Any:
        """Call a method of the coordinator as this job, and wait for the result."""
        try:
            return ray.get(self.begin(method, *(plain(argument) for argument in arguments)))
        except ray.exceptions.RayTaskError as error:
            raise (error.cause or error) from None

    def align_clocks(self) -> None:
        """Determine the offset of the coordinator's clock: exact on one machine, else by the shortest of several round trips."""
        boot, zero_s = self.ask("clock")
        if boot == boot_id():
            self._offset_s = -zero_s
            return
        best_s = float("inf")
        for _ in range(5):
            began_s = monotonic()
            now_s = self.ask("now")
            trip_s = monotonic() - began_s
            if trip_s < best_s:
                best_s, self._offset_s = trip_s, now_s - began_s - trip_s / 2

    def now(self) -> float:
        return monotonic() + self._offset_s

    def place(self, nodes: Nodes) -> bool:
        """Set the job's placement, and return whether it has changed."""
        changed = nodes != self._nodes
        if changed:
            self._staying.clear()  # processes there end, or move with the state
        self._nodes = self._meter.nodes = nodes
        return changed

    def second_session(self) -> JobSession:
        """Return a session for the rollouts of an asynchronous job, which run in another thread and have their own turns."""
        other = copy(self)
        other.in_step, other.where, other.turns = False, "", Turns()
        return other

    def pause(self, pauses: bool) -> None:
        """Let new rollouts of an asynchronous job raise instead of waiting for permits, or end that; see `JobCalls.pause`."""
        self.ask("pause", pauses)

    def is_between(self, job: Any) -> bool:
        """Return whether the state of a waiting job is that after its last iteration."""
        if getattr(job, "checkpoint_before_training", False):
            return self._due != "sync"
        return self._due == "rollout" and not (self.in_step and hasattr(job, "step"))

    def iteration_done(self) -> None:
        """Check that an iteration had its phases.

        Raises:
            OutOfOrder: If it had no training.
        """
        if self._due == "train" or self._has_permit:
            raise CallOutOfOrder("the step ended without a training; an iteration is a rollout, a training and a sync")
        self.turns, self.in_step = Turns(), False

    @contextlib.contextmanager
    def initialise(self, keeps_permit: bool) -> Iterator[None]:
        """Hold the permit of a rollout while the job is made.

        Args:
            keeps_permit: Whether the first rollout uses the same permit.
        """
        self.where = "init"
        self._acquire("rollout", ())
        begun_s = self.now()
        here = self._nodes["rollout"]
        if not self._prepared:
            prepare_process(here)
            self._prepared = True
        move_process(here)
        runtime_hook.reported.stages = {}
        yield
        done_s = self.now()
        self._has_permit = keeps_permit
        self._pools_loaded.clear()
        self._release(
            PhaseReport("init", keeps_permit, begun_s, begun_s, done_s, stages=dict(runtime_hook.reported.stages), cold=True)
        )
        self.where = ""

    @contextlib.contextmanager
    def hold(self, job: Any, phase: PhaseOfJob) -> Iterator[None]:
        """Run a phase of the job: get a permit, load, run the method, offload, and give the nodes back.

        Args:
            job: Instance of the job's class.
            phase: The phase.

        Raises:
            OutOfOrder: If it cannot be the next phase.
        """
        turn = self._turn(phase)
        self.where = "training" if phase == "train" else phase
        if phase == "sync":
            start_s = self.now()
            yield
            self._leave(self.ask("synced", start_s, self.now()))
            self.turns.synced(self.turns.trainings - 1)
            self.where = ""
            return
        pool = POOL_OF[phase]
        own_s = monotonic() - self._left_s if phase == "train" and self.worst_case else 0.0
        self._begin_phase(job, phase)
        begun_s = self.now()
        if not self.workers:
            move_process(self._nodes[pool])
        runtime_hook.reported.stages = {}
        cold = pool not in self._pools_loaded
        self._pools_loaded.add(pool)
        if self._is_ahead(phase):
            self.turns.restore_grant(turn)
        else:
            self.turns.ask(turn)
            self.turns.grant(turn.phase)
        with self.turns.holding(turn), self._devices[pool]:
            load_s = timed(job, "load", phase)[0]
            load_wait_s = self._meter.waited_s(self._meter.usage(pool)) if self.worst_case else 0.0
            run_s = self.now()
            yield
            done_s = self.now()
            self.flush()
            if self.worst_case:
                run_wait_s = self._meter.waited_s(self._meter.usage(pool))  # the measurement that follows is not part of the phase
                footprint, fields = measure(job, phase, lambda footprint: self._meter.used(pool, footprint), self._meter.gpus(pool))
            else:
                footprint, fields = offload_or_stay(job, phase, hasattr(job, "stay") and self.ask("may_stay", pool))
            usage = self._meter.usage(pool)
            waited_s, (host_gb, device_gb, taken_gb) = self._meter.waited_s(usage), self._meter.used(pool, footprint, usage)
            self._staying.pop(pool, None)
            if fields.get("stays"):
                self._staying[pool] = job
        waited_s = run_wait_s if self.worst_case else waited_s
        fields |= {"load_s": load_s, "load_wait_s": load_wait_s, "core_wait_s": waited_s, "own_s": own_s}
        fields |= {"host_gb": host_gb, "device_gb": device_gb, "taken_gb": taken_gb, "stages": dict(runtime_hook.reported.stages)}
        self._release(PhaseReport(pool, False, begun_s, run_s, done_s, cold=cold, **fields))
        self._left_s = monotonic()
        self.where = ""

    def _begin_phase(self, job: Any, phase: PhaseOfJob) -> None:
        """Get the permit of a phase, and the parts of the nodes that a rollout may use: all of them if the job has no parts."""
        parts = tuple(job.parts()) if phase == "rollout" and hasattr(job, "parts") else ()
        self.parts = tuple(range(len(parts)))
        if self._has_permit or self.worst_case or len(parts) < 2:  # the first rollout and a measured one use all nodes
            parts = ()
        if not self._has_permit:
            self._acquire(POOL_OF[phase], parts)
        if parts:
            self.parts = self.ask("parts")
            self.renew()
        self._has_permit = False

    def leave_devices(self) -> None:
        """Offload the state that stays on devices, since the job may wait for long."""
        self._leave(tuple(self._staying))

    def _acquire(self, pool: Pool, parts: tuple[Node, ...]) -> None:
        """Wait for a permit. Meanwhile, other jobs may need the memory of this job's state on its other nodes."""
        pools = self.ask("acquire", pool, parts, self.iteration)
        while pools:
            self._leave(pools)
            pools = self.ask("permit", pool)

    def _leave(self, pools: tuple[Pool, ...]) -> None:
        """Offload the state that stays on the nodes of some pools."""
        for pool in pools:
            with self._devices[pool]:
                if (job := self._staying.pop(pool, None)) is not None:
                    seconds, footprint = timed(job, "offload", "rollout" if pool == "rollout" else "train")
                    self.ask("offloaded", pool, seconds, *self._meter.used(pool, footprint))

    def nodes(self, pool: Pool) -> tuple[Node, ...]:
        return self._nodes.get(pool, ())

    def start_worker(self, node: Node, target: str, *arguments: Any, **options: Any) -> WorkerHandle:
        remote: Any = ray.remote
        is_concurrent = self._spec.is_asynchronous or (isinstance(self._spec, TaskJob) and self._spec.rewards.workers)
        made = remote(concurrency_groups={CONCURRENT: 1})(Worker) if is_concurrent else remote(Worker)
        actor = made.options(**on_machine(node.machine)).remote(
            node, self._coordinator, self._spec.id, self._logs, target, self._spec.folder, arguments, options
        )
        handle = ActorHandle(actor, node, target, self.where)
        self.workers.append(handle)
        self.ask("started_worker", handle.actor)
        return handle

    def wait(self, calls: Any) -> Any:
        return results(calls)

    def regroup(self, leave: Callable[[tuple[int, ...]], None]) -> tuple[int, ...]:
        parts: tuple[int, ...] = self.ask("parts")
        self.renew()
        if not parts or parts == self.parts:  # unchanged: it has stopped because of a `wake`
            return self.parts
        leave(tuple(part for part in self.parts if part not in parts))
        self.ask("left")
        self.parts = parts
        return parts

    def wake(self, responses: int | None) -> None:
        if responses != self._wakes:
            self._wakes = responses
            self.ask("wake", responses)

    def close_workers(self) -> None:
        """End all workers of the job."""
        close_together([handle.close for handle in self.workers])
        self.workers.clear()

    @property
    def _due(self) -> PhaseOfJob:
        """The phase that comes next; a sync is optional."""
        turns = self.turns
        if turns.rollouts > turns.trainings:
            return "train"
        return "sync" if turns.trainings > turns.syncs else "rollout"

    def _is_ahead(self, phase: PhaseOfJob) -> bool:
        """Return whether a phase follows no other one of this session, because rollouts of an asynchronous job have their own."""
        return self._spec.is_asynchronous and not self.worst_case and phase != "sync"

    def _turn(self, phase: PhaseOfJob) -> Turn:
        """Return a phase as a turn of the present iteration.

        Raises:
            OutOfOrder: If it cannot be the next phase.
        """
        turns = self.turns
        if self._is_ahead(phase):
            return Turn("training" if phase == "train" else phase, turns.trainings)
        number = {"rollout": turns.rollouts, "train": turns.trainings, "sync": turns.trainings - 1}[phase]
        turn = Turn("training" if phase == "train" else phase, number)
        try:
            turns.check(turn)
        except CannotBeNext:
            problem = f"the phase '{phase}' came where '{self._due}' was due; an iteration is rollout, train, sync"
            raise CallOutOfOrder(problem) from None
        return turn

    def _release(self, report: PhaseReport) -> None:
        self._leave(self.ask("release", report))  # wait, since calls of an asynchronous actor may overtake each other


def plain(value: Any) -> Any:
    """Return a value without objects of users' classes: numbers become floats or integers.

    Args:
        value: The value.

    Raises:
        TypeError: If it contains something else than numbers, texts and collections of them; one line.
        ValueError: If a collection or text is too long; one line.
    """
    kind = type(value)
    if kind in (tuple, list, dict, str) and len(value) > _MOST:
        raise ValueError(f"a job can tell the run {_MOST} values or characters at a time, not {len(value)}")
    if value is None or kind in (bool, int, float, str) or isinstance(value, ray.actor.ActorHandle):
        return value
    if kind in (tuple, list):
        return kind(plain(item) for item in value)
    if kind is dict:
        return {plain(key): plain(item) for key, item in value.items()}
    if kind in (Checkpoint, IterationResult, PhaseReport, Node, OffloadLevel, OffloadLevels):
        return kind(**{field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)})
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    raise TypeError(f"a job can tell the run numbers and text, not {kind.__name__}")
