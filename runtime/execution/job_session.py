"""The run, as the process of one job sees it: what stands behind `@phase` and `runtime_hook`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any

import ray

from runtime.execution.messages import Nodes, OutOfOrder, Report
from runtime.execution.nodes import move_process, prepare_process
from runtime.execution.plain import plain
from runtime.execution.worker import ProgressReporter, Warner, Watch, Worker
from runtime.facts import Node, Pool
from runtime.jobs.spec import JobSpec
from runtime.machine import boot_id, core_wait_s
from runtime.memory import resident_gb
from runtime.phases import POOL_OF, PhaseOfJob, WorkerDied, WorkerError, WorkerHandle, runtime_hook
from runtime.residency.footprint import Footprint


class JobSession:
    """The run, as the job sees it (see `runtime.phases.Session`)."""

    def __init__(self, spec: JobSpec, coordinator: Any, logs: str) -> None:
        self.iteration = 0
        self.worst_case = False
        self.in_step = False  # the iteration in hand has begun
        self.where = ""  # what is being done, for whoever asks where it failed
        self.workers: list[_Handle] = []
        self._spec = spec
        self._coordinator = coordinator
        self._logs = logs
        self._nodes: Nodes = {}
        self._offset_s = 0.0
        self._has_permit = False  # the permit of a rollout, by `initialise`
        self._next: PhaseOfJob = "rollout"
        self._prepared = False
        self._pools_loaded: set[str] = set()  # pools on which the job's state has been since it was made
        self._waited_s: dict[_Handle | None, float] = {}  # what was last known of how long workers, or this process, had no core
        self.parts: tuple[int, ...] = ()
        self._reporter, self._watch = ProgressReporter(coordinator, spec.id, "job"), Watch(coordinator, spec.id)
        self.progress, self.stops = self._reporter.tell, self._watch.stops
        self.warn = Warner(coordinator, spec.id).warn

    def ask(self, method: str, *arguments: Any) -> Any:
        """Call a method of the coordinator, as this job, and wait for the answer."""
        values = [plain(argument) for argument in arguments]
        try:
            return ray.get(self._coordinator.ask.remote(method, self._spec.id, *values))
        except ray.exceptions.RayTaskError as error:
            raise (error.cause or error) from None

    def align_clocks(self) -> None:
        """Learn the coordinator's clock: on its machine it differs by a constant, elsewhere by what a round trip tells."""
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
        """Take up a placement; whether it is another one."""
        changed = nodes != self._nodes
        self._nodes = nodes
        return changed

    def is_between(self, job: Any) -> bool:
        """Whether a job that waits is as it was after its last iteration."""
        if getattr(job, "checkpoint_before_training", False):
            return self._next in ("rollout", "train")
        return self._next == "rollout" and not (self.in_step and hasattr(job, "step"))

    def iteration_done(self) -> None:
        """Make sure that an iteration had its phases."""
        if self._next == "train" or self._has_permit:
            raise OutOfOrder("the step ended without a training; an iteration is a rollout, a training and a sync")
        self._next, self.in_step = "rollout", False

    @contextlib.contextmanager
    def initialise(self) -> Iterator[None]:
        """Hold the permit of the first rollout while the job is made, and keep it for that rollout."""
        self.where = "init"
        self.ask("acquire", "rollout")
        begun_s = self.now()
        here = self._nodes["rollout"]
        if not self._prepared:
            prepare_process(here)
            self._prepared = True
        move_process(here)
        runtime_hook.stages = {}
        yield
        done_s = self.now()
        self._has_permit = True
        self._pools_loaded.clear()
        self._release(Report("init", True, begun_s, begun_s, done_s, stages=dict(runtime_hook.stages), cold=True))
        self.where = ""

    @contextlib.contextmanager
    def hold(self, job: Any, phase: PhaseOfJob) -> Iterator[None]:
        """A phase of the job: permit, load, the method, offload, nodes given back."""
        self._check_order(phase)
        self.where = "training" if phase == "train" else phase
        if phase == "sync":
            start_s = self.now()
            yield
            self.ask("synced", start_s, self.now())
            self._next = "rollout"
            self.where = ""
            return
        pool = POOL_OF[phase]
        parts = tuple(job.parts()) if phase == "rollout" and hasattr(job, "parts") else ()
        self.parts = tuple(range(len(parts)))
        if self._has_permit or self.worst_case or len(parts) < 2:  # the first rollout, and a measured one, have all of their nodes
            parts = ()
        if not self._has_permit:
            self.ask("acquire", pool, parts)
        if parts:
            self.parts = self.ask("parts")
            self._watch.renew()
        self._has_permit = False
        begun_s = self.now()
        if not self.workers:
            move_process(self._nodes[pool])
        runtime_hook.stages = {}
        cold = pool not in self._pools_loaded
        self._pools_loaded.add(pool)
        load_s = self._timed(job, "load", phase)[0]
        run_s = self.now()
        yield
        done_s = self.now()
        self._reporter.flush()
        offload_s, footprint = self._timed(job, "offload", phase)
        warm_s = 0.0
        if self.worst_case:  # a warm switch is measured, beside the cold one
            warm_s = self._timed(job, "load", phase)[0]
            again_s, footprint = self._timed(job, "offload", phase)
            warm_s += again_s
            offload_s += warm_s
        host_gb, waited_s = self._usage(pool, footprint)
        stages, device_gb = dict(runtime_hook.stages), self._device_gb(pool, footprint)
        switch = (load_s, offload_s, warm_s)
        self._release(Report(pool, False, begun_s, run_s, done_s, *switch, cold, stages, host_gb, device_gb, waited_s))
        self._next = "train" if phase == "rollout" else "sync"
        self.where = ""

    def nodes(self, pool: Pool) -> tuple[Node, ...]:
        return self._nodes.get(pool, ())

    def start_worker(self, node: Node, target: str, *arguments: Any, **options: Any) -> WorkerHandle:
        actor = ray.remote(Worker).options(
            num_cpus=0,
            scheduling_strategy=ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node.machine, soft=False),
        )
        handle = _Handle(
            actor.remote(node, self._coordinator, self._spec.id, self._logs, target, self._spec.folder, arguments, options),
            node,
            target,
        )
        self.workers.append(handle)
        self.ask("started_worker", handle.actor)
        return handle

    def wait(self, calls: Any) -> Any:
        several = isinstance(calls, list | tuple)
        results = []
        for call in calls if several else (calls,):
            try:
                results.append(ray.get(call.reference))
            except ray.exceptions.RayTaskError as error:
                cause = error.cause
                if cause is None:
                    raise
                raise cause from None
            except ray.exceptions.RayActorError as error:
                where = f"its process on {call.handle.node.name} ({call.handle.target})"
                if "creation task" in str(error):
                    raise WorkerError(f"{where} could not be made: {_lines(error)[-1]}") from None
                raise WorkerDied(f"{where} has died{_how(error)}") from None
        return results if several else results[0]

    def regroup(self, leave: Callable[[tuple[int, ...]], None]) -> tuple[int, ...]:
        parts: tuple[int, ...] = self.ask("parts")
        self._watch.renew()
        leave(tuple(part for part in self.parts if part not in parts))
        self.ask("left")
        self.parts = parts
        return parts

    def close_workers(self) -> None:
        """End all workers of the job."""
        for handle in self.workers:
            handle.close()
        self.workers.clear()

    def _usage(self, pool: Pool, footprint: Any) -> tuple[float, float]:
        """Host memory of the job on a node, GB: what its processes there have, and what they keep for the next phase; and how long
        one of them has been without a core since this was last asked, at most, seconds."""
        names = {node.name for node in self._nodes[pool]}
        mine = [handle for handle in self.workers if handle.node.name in names]  # a worker may have a part of a node
        by_node = {handle.node.name: 0.0 for handle in mine}
        waits_s: dict[_Handle | None, float] = {} if mine else {None: core_wait_s()}
        for handle, (own_gb, waited_s) in zip(mine, ray.get([handle.actor.usage.remote() for handle in mine]), strict=True):
            by_node[handle.node.name] += own_gb
            waits_s[handle] = waited_s
        longest_s = max(waited_s - self._waited_s.get(who, 0.0) for who, waited_s in waits_s.items())
        self._waited_s |= waits_s
        kept_gb = (footprint.host - footprint.mapped) / 1e9 if isinstance(footprint, Footprint) else 0.0
        return kept_gb + (max(by_node.values()) if by_node else resident_gb()), longest_s

    def _device_gb(self, pool: Pool, footprint: Any) -> float:
        """Memory of a node's GPUs that the job keeps; on a node without any, the device is host memory."""
        gpus = isinstance(footprint, Footprint) and any(node.gpus for node in self._nodes[pool])
        return footprint.device / 1e9 if gpus else 0.0

    def _check_order(self, phase: PhaseOfJob) -> None:
        expected = self._next
        if phase == expected or (expected == "sync" and phase == "rollout"):
            return
        raise OutOfOrder(f"the phase '{phase}' came where '{expected}' was due; an iteration is rollout, train, sync")

    @staticmethod
    def _timed(job: Any, method: str, phase: PhaseOfJob) -> tuple[float, Any]:
        if not hasattr(job, method):
            return 0.0, None
        began = monotonic()
        result = getattr(job, method)(phase)
        return monotonic() - began, result

    def _release(self, report: Report) -> None:
        self.ask("release", report)  # and wait, since calls of an asynchronous actor may overtake each other


def _how(error: Exception) -> str:
    """How a process ended, from what Ray says about it."""
    return next((f": {line}" for line in _lines(error) if "exit" in line or "killed" in line.lower()), "")


def _lines(error: Exception) -> list[str]:
    return [line.strip() for line in str(error).splitlines() if line.strip()]


class _Call:
    """A call of a worker that is under way; as an argument of another call it stands for its result."""

    def __init__(self, handle: _Handle, reference: Any) -> None:
        self.handle = handle
        self.reference = reference


class _Handle:
    """A worker, as the job sees it (see `runtime.phases.WorkerHandle`)."""

    def __init__(self, actor: Any, node: Node, target: str) -> None:
        self.actor = actor
        self.node = node
        self.target = target

    def call(self, method: str, *arguments: Any) -> _Call:
        values = [argument.reference if isinstance(argument, _Call) else argument for argument in arguments]
        return _Call(self, self.actor.call.remote(method, *values))

    def close(self) -> None:
        with contextlib.suppress(ray.exceptions.RayError):
            ray.get(self.actor.close.remote(), timeout=10)
        ray.kill(self.actor)
