"""The run, as the process of one job sees it: what stands behind `@phase` and `runtime_hook`."""

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
from rollmux_client import OutOfOrder as CannotBeNext
from rollmux_client import Turn, Turns
from rollmux_segment import Footprint

from runtime.jobs.spec import ClassJob, TaskJob
from runtime.jobside.messages import Checkpoint, Done, Nodes, OutOfOrder, Report
from runtime.jobside.worker import BESIDE, Handle, Voice, Worker, on_machine, results
from runtime.machine import Node, Pool, boot_id, core_wait_s
from runtime.machines.nodes import move_process, prepare_process
from runtime.memory import resident_gb
from runtime.phases import POOL_OF, PhaseOfJob, WorkerHandle, runtime_hook
from runtime.residency.choice import STAY, Level, Waits

_MOST = 10_000
_Usage = dict[Handle, tuple[float, float]]

Used = tuple[float, float, float]  # GB of a node's host memory, of each of its GPUs, and what of each GPU is not free


Parked = tuple[Any, dict[str, Any]]
"""What became of a job's state behind a phase: the footprint that the job says, or None, and fields of its `Report`."""


def timed(job: Any, method: str, phase: PhaseOfJob) -> tuple[float, Any]:
    """Call a method of a job with a phase, if it has one: seconds, and what it returns."""
    if not hasattr(job, method):
        return 0.0, None
    began = monotonic()
    result = getattr(job, method)(phase)
    return monotonic() - began, result


def park(job: Any, phase: PhaseOfJob, stays: bool) -> Parked:
    """Let the state stay, or offload it."""
    seconds, footprint = timed(job, "stay" if stays else "offload", phase)
    return footprint, {"offload_s": seconds, "stays": stays}


def measure(job: Any, phase: PhaseOfJob, used: Callable[[Any], Used], gpus: int) -> Parked:
    """Try every way in which the state may wait, and offload it in the end.

    Args:
        used: what the job uses of a node, with the footprint given. gpus: of a node.
    """
    levels, peak_gb, gpu_gb = [], 0.0, 0.0
    first_s, here = timed(job, "stay", phase)
    if isinstance(here, Footprint):
        host_gb, device_gb, _ = used(here)
        first_s += timed(job, "load", phase)[0]
        stay_s = timed(job, "stay", phase)[0] + timed(job, "load", phase)[0]  # as often as it is offloaded
        levels.append(Level(STAY, min(first_s, stay_s), device_gb, host_gb))
        first_s += stay_s
        if gpus:
            peak_gb, gpu_gb = here.peak / 1e9 / gpus, here.capacity / 1e9 / gpus
    first_s += timed(job, "offload", phase)[0]
    load_s, _ = timed(job, "load", phase)  # a warm switch, beside the cold one
    again_s, footprint = timed(job, "offload", phase)
    host_gb, device_gb, _ = used(footprint)
    levels.append(Level("keep", load_s + again_s, device_gb, host_gb))
    warm_s = load_s + again_s  # of a switch
    return footprint, {"offload_s": first_s + warm_s, "warm_s": warm_s, "waits": Waits(tuple(levels), peak_gb, gpu_gb)}


class JobSession(Voice):
    """The run, as the job sees it (see `runtime.phases.Session`)."""

    def __init__(self, spec: TaskJob | ClassJob, coordinator: Any, logs: str) -> None:
        super().__init__(coordinator, spec.id, "job")
        self.iteration = 0
        self.worst_case = False
        self.in_step = False  # the iteration in hand has begun
        self.where = ""  # what is being done, for whoever asks where it failed
        self.workers: list[Handle] = []
        self._spec = spec
        self._logs = logs
        self._nodes: Nodes = {}
        self._offset_s = 0.0
        self._has_permit = False  # the permit of a rollout, by `initialise`
        self.turns = Turns()  # of the iteration in hand, by numbers of its own
        self._left_s = monotonic()  # when it last gave nodes back
        self._prepared = False
        self._pools_loaded: set[str] = set()  # pools on which the job's state has been since it was made
        self._staying: dict[Pool, Any] = {}  # the job, by the pool of nodes on which its state has stayed
        self._waited_s: dict[Handle | None, float] = {}  # what was last known of how long workers, or this process, had no core
        self.parts: tuple[int, ...] = ()
        self._devices: dict[Pool, Any] = {"rollout": RLock(), "training": RLock()}  # held while state goes onto them or off
        self._wakes: int | None = None  # finished responses at which the rollout in hand is to stop
        self._own_gb: dict[Pool, float] = {}  # of this process, by the pool that it counts for

    def ask(self, method: str, *arguments: Any) -> Any:
        """Call a method of the coordinator, as this job, and wait for the answer."""
        try:
            return ray.get(self.begin(method, *(plain(argument) for argument in arguments)))
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
        if changed:
            self._staying.clear()  # what was there ends, or comes along
        self._nodes = nodes
        return changed

    def beside(self) -> JobSession:
        """For the rollouts of an asynchronous job, in a thread of their own: they go by their own iterations."""
        other = copy(self)
        other.in_step, other.where, other.turns = False, "", Turns()
        return other

    def pause(self, pauses: bool) -> None:
        """See `JobCalls.pause`."""
        self.ask("pause", pauses)

    def is_between(self, job: Any) -> bool:
        """Whether a job that waits is as it was after its last iteration."""
        if getattr(job, "checkpoint_before_training", False):
            return self._due != "sync"
        return self._due == "rollout" and not (self.in_step and hasattr(job, "step"))

    def iteration_done(self) -> None:
        """Make sure that an iteration had its phases."""
        if self._due == "train" or self._has_permit:
            raise OutOfOrder("the step ended without a training; an iteration is a rollout, a training and a sync")
        self.turns, self.in_step = Turns(), False

    @contextlib.contextmanager
    def initialise(self, keeps: bool) -> Iterator[None]:
        """Hold the permit of a rollout while the job is made.

        Args:
            keeps: keep it for the first rollout; else that asks for its own when it may begin.
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
        self._has_permit = keeps
        self._pools_loaded.clear()
        self._release(Report("init", keeps, begun_s, begun_s, done_s, stages=dict(runtime_hook.reported.stages), cold=True))
        self.where = ""

    @contextlib.contextmanager
    def hold(self, job: Any, phase: PhaseOfJob) -> Iterator[None]:
        """A phase of the job: permit, load, the method, offload, nodes given back."""
        self._check_order(phase)
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
        with self._devices[pool]:
            load_s = timed(job, "load", phase)[0]
            load_wait_s = self._waited(self._usage(pool)) if self.worst_case else 0.0
            run_s = self.now()
            yield
            done_s = self.now()
            self.flush()
            if self.worst_case:
                run_wait_s = self._waited(self._usage(pool))  # what follows is no part of the phase
                footprint, parked = measure(job, phase, lambda footprint: self._used(pool, footprint), self._gpus(pool))
            else:
                footprint, parked = park(job, phase, hasattr(job, "stay") and self.ask("may_stay", pool))
            usage = self._usage(pool)
            waited_s, (host_gb, device_gb, taken_gb) = self._waited(usage), self._used(pool, footprint, usage)
            self._staying.pop(pool, None)
            if parked.get("stays"):
                self._staying[pool] = job
        waited_s = run_wait_s if self.worst_case else waited_s
        parked |= {"load_s": load_s, "load_wait_s": load_wait_s, "core_wait_s": waited_s, "own_s": own_s}
        parked |= {"host_gb": host_gb, "device_gb": device_gb, "taken_gb": taken_gb, "stages": dict(runtime_hook.reported.stages)}
        self._release(Report(pool, False, begun_s, run_s, done_s, cold=cold, **parked))
        self._left_s = monotonic()
        self.turns.restore(self.turns.trainings + 1, self.turns.trainings + (phase == "train"), self.turns.syncs)
        self.where = ""

    def _begin_phase(self, job: Any, phase: PhaseOfJob) -> None:
        """Have the permit of a phase, and know which parts of its nodes it may use; all of them, unless others were asked for."""
        parts = tuple(job.parts()) if phase == "rollout" and hasattr(job, "parts") else ()
        self.parts = tuple(range(len(parts)))
        if self._has_permit or self.worst_case or len(parts) < 2:  # the first rollout, and a measured one, have all of their nodes
            parts = ()
        if not self._has_permit:
            self._acquire(POOL_OF[phase], parts)
        if parts:
            self.parts = self.ask("parts")
            self.renew()
        self._has_permit = False

    def leave_devices(self) -> None:
        """Take off its devices what has stayed there: the job may wait for long."""
        self._leave(tuple(self._staying))

    def _acquire(self, pool: Pool, parts: tuple[Node, ...]) -> None:
        """Wait for a permit; on other nodes of the job somebody may need the room meanwhile that its state there takes."""
        pools = self.ask("acquire", pool, parts, self.iteration)
        while pools:
            self._leave(pools)
            pools = self.ask("permit", pool)

    def _leave(self, pools: tuple[Pool, ...]) -> None:
        """Offload what has stayed on the nodes of some pools."""
        for pool in pools:
            with self._devices[pool]:
                if (job := self._staying.pop(pool, None)) is not None:
                    seconds, footprint = timed(job, "offload", "rollout" if pool == "rollout" else "train")
                    self.ask("offloaded", pool, seconds, *self._used(pool, footprint))

    def nodes(self, pool: Pool) -> tuple[Node, ...]:
        return self._nodes.get(pool, ())

    def start_worker(self, node: Node, target: str, *arguments: Any, **options: Any) -> WorkerHandle:
        remote: Any = ray.remote
        beside = self._spec.is_asynchronous or (isinstance(self._spec, TaskJob) and self._spec.rewards.workers)
        made = remote(concurrency_groups={BESIDE: 1})(Worker) if beside else remote(Worker)
        actor = made.options(**on_machine(node.machine)).remote(
            node, self._coordinator, self._spec.id, self._logs, target, self._spec.folder, arguments, options
        )
        handle = Handle(actor, node, target, self.where)
        self.workers.append(handle)
        self.ask("started_worker", handle.actor)
        return handle

    def wait(self, calls: Any) -> Any:
        return results(calls)

    def regroup(self, leave: Callable[[tuple[int, ...]], None]) -> tuple[int, ...]:
        parts: tuple[int, ...] = self.ask("parts")
        self.renew()
        if not parts or parts == self.parts:  # it has all of its nodes, or these; it has stopped for a `wake`
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
        for handle in self.workers:
            handle.close()
        self.workers.clear()

    def _usage(self, pool: Pool) -> _Usage:
        """Of the job's processes for a phase on its nodes: memory of their own, GB, and seconds that they were without a core."""
        names, others = ({node.name for node in self._nodes[one]} for one in (pool, _OTHER[pool]))
        mine = []
        for handle in self.workers:
            started_for: Pool = "training" if handle.where == "training" else "rollout"
            name = handle.node.name  # a worker may have a part of a node, and a node may run both phases
            if name in names and (name not in others or started_for == pool):
                mine.append(handle)
        return dict(zip(mine, ray.get([handle.actor.usage.remote() for handle in mine]), strict=True))

    def _used(self, pool: Pool, footprint: Any, usage: _Usage | None = None) -> Used:
        """Host memory of the job on a node: what its processes there have, and what they keep for the next phase; and memory of
        each GPU, where the node has any: else the device is host memory; and memory of the fullest GPU that is not free."""
        by_node: dict[str, float] = {}
        for handle, (own_gb, _) in (self._usage(pool) if usage is None else usage).items():
            by_node[handle.node.name] = by_node.get(handle.node.name, 0.0) + own_gb
        own_gb = max(by_node.values(), default=0.0)
        if not by_node and not self.workers:
            counted = self._own_gb.get(_OTHER[pool], 0.0) if self._nodes[pool] == self._nodes[_OTHER[pool]] else 0.0
            own_gb = self._own_gb[pool] = max(0.0, resident_gb() - counted)
        if not isinstance(footprint, Footprint):
            return own_gb, 0.0, 0.0
        gpus = self._gpus(pool)
        device_gb = footprint.device / 1e9 / gpus if gpus else 0.0
        return own_gb + (footprint.host - footprint.mapped) / 1e9, device_gb, footprint.taken / 1e9

    def _gpus(self, pool: Pool) -> int:
        """GPUs of a node of a phase."""
        return min(len(node.gpus) for node in self._nodes[pool])

    def _waited(self, usage: _Usage) -> float:
        """How long one of those processes has been without a core since this was last asked, at most, seconds."""
        waits_s: dict[Handle | None, float] = {handle: waited_s for handle, (_, waited_s) in usage.items()}
        waits_s = waits_s or {None: core_wait_s()}
        longest_s = max(waited_s - self._waited_s.get(who, 0.0) for who, waited_s in waits_s.items())
        self._waited_s |= waits_s
        return longest_s

    @property
    def _due(self) -> PhaseOfJob:
        """The phase that comes next; a sync may be left out."""
        turns = self.turns
        if turns.rollouts > turns.trainings:
            return "train"
        return "sync" if turns.trainings > turns.syncs else "rollout"

    def _check_order(self, phase: PhaseOfJob) -> None:
        turns = self.turns
        if self._spec.is_asynchronous and not self.worst_case and phase != "sync":  # its rollouts are of iterations of their own
            return
        number = {"rollout": turns.rollouts, "train": turns.trainings, "sync": turns.trainings - 1}[phase]
        try:
            turns.check(Turn("training" if phase == "train" else phase, number))
        except CannotBeNext:
            problem = f"the phase '{phase}' came where '{self._due}' was due; an iteration is rollout, train, sync"
            raise OutOfOrder(problem) from None

    def _release(self, report: Report) -> None:
        self._leave(self.ask("release", report))  # and wait, since calls of an asynchronous actor may overtake each other


_OTHER: dict[Pool, Pool] = {"rollout": "training", "training": "rollout"}


def plain(value: Any) -> Any:
    """The same without anything of a user's classes: numbers that look like floats or integers become these.

    Raises:
        TypeError, ValueError: it is something else, or too much; one line.
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
    if kind in (Checkpoint, Done, Report, Node, Level, Waits):
        return kind(**{field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)})
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    raise TypeError(f"a job can tell the run numbers and text, not {kind.__name__}")
