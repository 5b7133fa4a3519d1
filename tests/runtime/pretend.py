"""The coordinator without Ray. Processes of jobs are tasks of the same loop, or the test speaks for them; owners of attached jobs
call it, or ask it over HTTP; and it can be killed at any write to its journal.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import subprocess
import threading
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

from rollmux_processes import pid_space

from rollmux_env.cluster.state import State
from rollmux_env.keys.cluster import Cluster
from rollmux_env.keys.cluster import Pool as PoolSpec
from rollmux_env.scheduler.view import HoldName
from runtime.checkpoints import begin_checkpoint, drop, place_of
from runtime.coordinator import run_log
from runtime.coordinator.job_handle import JobHandle
from runtime.coordinator.lifecycle import ProcessBackend
from runtime.coordinator.run_plan import RunPlan
from runtime.jobs.file import parse_jobs
from runtime.jobs.spec import ClassJob, JobSpec
from runtime.jobside.messages import Checkpoint, IterationResult, JobEnd, PhaseReport, Stopped
from runtime.journal.audit import audit
from runtime.journal.commits import Commits
from runtime.journal.facts import Fact, SchedulerRestored
from runtime.journal.replay import replay_journal
from runtime.journal.write import JOURNAL, Journal, Row, read_facts, record_of
from runtime.machine import Node, Pool
from runtime.machines import nodes
from runtime.owners.http import leases
from runtime.owners.http.leases import Leases
from runtime.owners.http.patrol import check_leases
from runtime.residency.choice import STAY, OffloadLevel, OffloadLevels
from runtime.run.driver import RunDriver
from runtime.service.address import Listen
from runtime.service.http.app import make_app
from runtime.service.http.server import HttpServer, bind
from runtime.service.operations_log import OperationsLog
from runtime.service.service import RunService
from runtime.service.tokens import Right, Tokens

HERE, ELSEWHERE = os.uname().nodename, "another-host"
PATIENCE_S = 120.0
T = TypeVar("T")


def node(name: str, host: str = HERE) -> Node:
    pool, _, number = name.partition("-")
    return Node(name, pool, host, (int(number),), (), 8.0, "1 core", host)  # type: ignore[arg-type]


PAIR = (node("rollout-0"), node("training-0"))
PAIRS = (*PAIR, node("rollout-1"), node("training-1"))
NODES = tuple(replace(PAIRS[k], machine="m", host="") for k in (0, 2, 1, 3))


def job(job_id: str, **more: Any) -> dict[str, Any]:
    """A job to attach, as in a job file."""
    stated = {"worst_case_s": 10.0, "host_memory_gb": 1.0}
    return {"id": job_id, "attach": True, "iterations": 3, "slo": 1000.0, "rollout": stated, "training": stated} | more


def specs_of(*jobs: dict[str, Any], **defaults: Any) -> tuple[JobSpec, ...]:
    return parse_jobs({"version": 1, "defaults": defaults, "jobs": [*jobs]}, "test", Path("/")).jobs if jobs else ()


def cluster_with(nodes: tuple[Node, ...], memory_gb: float = 8.0) -> Cluster:
    """The cluster of some nodes, at 1 $/h each, where moves take no time."""
    count = {pool: sum(node.pool == pool for node in nodes) for pool in ("rollout", "training")}
    pools = {
        pool: PoolSpec(gpus_per_node=1, usd_per_gpu_hour=1.0, max_nodes=most or None, node_memory_gb=memory_gb)
        for pool, most in count.items()
    }
    return Cluster(rollout=pools["rollout"], training=pools["training"], migration_s=0.0, one_device=not count["rollout"])


def plan_of(folder: Path, jobs: list[dict[str, Any]], nodes: tuple[Node, ...] = NODES, **more: Any) -> RunPlan:
    """A run of jobs with a class, given as in a job file; `more` is for `RunPlan`."""
    specs = specs_of(*jobs, slo=1000.0, **{"class": "a:B"})
    policy, dispatch = more.pop("policy", "rollmux"), more.pop("dispatch", "round-robin")
    return RunPlan(specs, cluster_with(nodes), nodes, policy, dispatch, 0, str(folder), **more)


def continued_plan(folder: Path) -> RunPlan:
    """That of the service that left this folder, as another one goes on with it."""
    record = record_of(read_facts(folder / JOURNAL))
    start, specs = record.started, tuple(fact.spec for fact in record.submitted)
    return RunPlan(specs, start.cluster, start.nodes, start.policy, start.dispatch, start.seed, str(folder), resume=True)


def attached_plan(folder: Path, *jobs: dict[str, Any], nodes: tuple[Node, ...] = PAIR, **more: Any) -> RunPlan:
    """The same of attached jobs."""
    return replace(plan_of(folder, [], nodes, **{"dispatch": "fifo", **more}), specs=specs_of(*jobs))


class Killed(BaseException):
    """The process of the coordinator is no more."""


class Waiting(ProcessBackend):
    """Processes of jobs that the test speaks for."""

    def start(self, handle: JobHandle) -> object:
        return object()

    async def wait(self, handle: JobHandle) -> JobEnd:
        await asyncio.Event().wait()
        raise AssertionError

    async def kill(self, handle: JobHandle) -> None: ...


class Pretended(ProcessBackend):
    """The jobs of a run are tasks of this process.

    Args:
        loses: id of the job that loses a process in its third iteration, once.
        stops_after: iterations, of all jobs together, after which the user stops the run.
        then: what an operator does after so many iterations of all jobs together.
        runs_out: Id of a job whose trainings find too little memory of a GPU where other state stays.
    """

    def __init__(
        self,
        loses: str = "",
        stops_after: int = -1,
        then: Mapping[int, Callable[[RunDriver], None]] | None = None,
        runs_out: str = "",
    ) -> None:
        self.driver: RunDriver | None = None
        self.loses, self.stops_after, self.runs_out = loses, stops_after, runs_out
        self.then, self.done = then or {}, 0
        self.died = False
        self.joining: tuple[Node, ...] = ()
        self.living: dict[JobHandle, asyncio.Task[JobEnd]] = {}
        self.staying: dict[JobHandle, set[Pool]] = {}
        self.made: dict[str, int] = {}  # how often a job's processes were started
        self.passes: dict[str, int] = {}  # of the profiler, that a job has made

    def start(self, handle: JobHandle) -> object:
        self.living[handle] = asyncio.ensure_future(self._live(handle))
        return object()

    async def wait(self, handle: JobHandle) -> JobEnd:
        task = self.living[handle]
        await asyncio.wait([task])
        return JobEnd("died", "step", "its controller has died") if task.cancelled() else task.result()

    async def kill(self, handle: JobHandle) -> None:
        self.staying.pop(handle, None)
        if handle in self.living:
            self.living[handle].cancel()

    async def joined_nodes(self, known: Sequence[Node]) -> tuple[Node, ...]:
        return tuple(node for node in self.joining if node not in known)

    async def dead_machines(self, machines: Collection[str]) -> set[str]:
        return await asyncio.to_thread(nodes.dead_machines, machines) if self.died else set()

    async def _live(self, handle: JobHandle) -> JobEnd:
        assert self.driver is not None
        calls, run = self.driver.calls, self.driver.run
        self.made[handle.id] = self.made.get(handle.id, 0) + 1
        loaded: set[Pool] = set()
        interval = _spec(handle).checkpoint.every
        every = interval if isinstance(interval, int) else 1
        keeps = bool(_spec(handle).options.get("keeps", True)) and _spec(handle).checkpoint.is_wanted
        job_id, done, state, taken, writes = handle.id, None, -1, 0, False
        folder = Path()
        try:
            while True:
                order = await calls.order(handle, done)
                if done is not None and done.checkpoint is not None:
                    drop(folder, _spec(handle).checkpoint.keep)
                if order is None:
                    return JobEnd("done")
                folder, done = Path(order.folder), None
                if state < 0:
                    state = taken = int((Path(order.checkpoint) / "count").read_text()) if order.checkpoint else 0
                if order.keep:
                    await self._leave(handle, ("rollout", "training"))
                if order.keep or (keeps and state - taken >= every):
                    writes = True
                    await self._keep(handle, folder, state)
                    taken, writes = state, False
                if order.keep:
                    continue
                await asyncio.sleep(0)
                if self.loses == job_id and order.iteration == 2:
                    self.loses, self.died = "", True
                    return JobEnd("died", "step", "its process has died")
                for pool in ("rollout", "training"):
                    leaves = await calls.acquire(handle, pool)
                    while leaves:
                        await self._leave(handle, leaves)
                        leaves = await calls.permit(handle, pool)
                    beside = any(pool in pools for other, pools in self.staying.items() if other is not handle)
                    if beside and (job_id, pool) == (self.runs_out, "training"):
                        return JobEnd("failed", pool, "CUDA out of memory", out_of_memory=True)
                    begun_s = run.log.now()
                    await asyncio.sleep(_spec(handle).options.get("phase_s", 0.0))
                    stays = not order.profile and await calls.may_stay(handle, pool)
                    waits = waits_of(handle)
                    host_gb = waits.levels[0 if stays else -1].host_gb if waits else 0.1
                    self.staying.setdefault(handle, set()).discard(pool)
                    if stays:
                        self.staying[handle].add(pool)
                    report = PhaseReport(pool, False, begun_s, begun_s, run.log.now(), host_gb=host_gb, stays=stays, waits=waits)
                    device_gb = _spec(handle).options.get("device_gb", 0.0)
                    if not order.profile:
                        device_gb = _spec(handle).options.get("later_gb", device_gb)
                    report = replace(report, device_gb=device_gb, cold=pool not in loaded)
                    report = self._timed(handle, report, order.profile)
                    loaded.add(pool)
                    await self._leave(handle, await calls.release(handle, report))
                await self._leave(handle, await calls.synced(handle, run.log.now(), run.log.now()))
                if order.profile:
                    self.passes[job_id] = self.passes.get(job_id, 0) + 1
                    movable = _spec(handle).options.get("profiled", keeps)
                    done = IterationResult({}, movable, has_checkpoints=keeps, is_state_kept=True)
                    continue
                if handle.is_over:  # it was measured alone
                    done = IterationResult({})
                    continue
                state += 1
                self._iterated()
                turns = _spec(handle).options.get("turns", False)  # it could be moved, until it is to be
                movable = keeps or (turns and not handle.life.is_moving)
                is_last = keeps and state == handle.spec.iterations
                done = IterationResult({"count": float(state)}, movable, keeps, write(folder, state) if is_last else None)
                self.stops_after -= 1
                if self.stops_after == 0:
                    asyncio.get_running_loop().call_soon(self.driver.stop)
        except Stopped:
            if keeps and state > taken and not writes:
                await self._keep(handle, folder, state)
            return JobEnd("stopped")

    def _timed(self, handle: JobHandle, report: PhaseReport, profile: bool) -> PhaseReport:
        """A phase of a job with the options `cold_s`, seconds of its cold start each time that it is made, `runs_s`, and `waits_s`,
        seconds without a core in each of its passes, by phase."""
        options = _spec(handle).options
        colds_s, passes = options.get("cold_s", [0.0]), self.passes.get(handle.id, 0)
        run_s = report.run_s + (colds_s[min(self.made[handle.id], len(colds_s)) - 1] if report.cold else 0.0)
        waits_s = options.get("waits_s", {}).get(report.phase, []) if profile else []
        done_s = run_s + options["runs_s"] if "runs_s" in options else max(run_s, report.done_s)
        return replace(report, run_s=run_s, done_s=done_s, core_wait_s=waits_s[passes] if passes < len(waits_s) else 0.0)

    async def _leave(self, handle: JobHandle, pools: tuple[Pool, ...]) -> None:
        assert self.driver is not None
        waits = waits_of(handle)
        for pool in self.staying.get(handle, set()) & {*pools}:
            assert waits is not None
            self.staying[handle].discard(pool)
            await self.driver.calls.offloaded(handle, pool, 0.0, waits.least.host_gb, 0.0)

    def _iterated(self) -> None:
        """A job has done an iteration."""
        assert self.driver is not None
        self.done += 1
        if self.done in self.then:
            asyncio.get_running_loop().call_soon(self.then[self.done], self.driver)

    async def _keep(self, handle: JobHandle, folder: Path, state: int) -> None:
        assert self.driver is not None
        await self.driver.calls.checkpointed(handle, write(folder, state))
        drop(folder, _spec(handle).checkpoint.keep)


def _spec(handle: JobHandle) -> ClassJob:
    assert isinstance(handle.spec, ClassJob)
    return handle.spec


def waits_of(handle: JobHandle) -> OffloadLevels | None:
    """Of a job with the option `stay_gb`: it keeps 1 GB of a node when it is offloaded, and so much when it stays.

    With the option `peak_gb` as well it has GPUs of 80 GB, and so much of each while it runs.
    """
    stay_gb, peak_gb = _spec(handle).options.get("stay_gb"), _spec(handle).options.get("peak_gb", 0.0)
    levels = (OffloadLevel(STAY, 0.0, stay_gb if peak_gb else 0.0, stay_gb), OffloadLevel("keep", 1.0, 0.0, 1.0)) if stay_gb else ()
    return OffloadLevels(levels, peak_gb, 80.0 if peak_gb else 0.0) if levels else None


def write(folder: Path, state: int) -> Checkpoint:
    """A checkpoint is on the disk."""

    def fill(place: Path) -> None:
        (place / "count").write_text(str(state))

    begin_checkpoint(folder, state, fill)()
    return Checkpoint(state, str(place_of(folder, state)))


class Dying:
    """Kills a driver at a write to its journal.

    Args:
        dies_at: the write's number. before: just before it, else just after it.
    """

    def __init__(self, driver: RunDriver, dies_at: int, before: bool) -> None:
        self.writes_left, self.before, self.dead = dies_at, before, False
        self.driver = driver
        self.store = driver.run.log.journal.store
        driver.run.log.journal.store = self._store  # type: ignore[method-assign]

    def _store(self, rows: list[Row]) -> None:
        if self.dead:
            raise Killed
        if rows:
            self.writes_left -= 1
        if self.writes_left == 0 and self.before:
            self._die()
        self.store(rows)
        if self.writes_left == 0:
            self._die()

    def _die(self) -> None:
        self.dead = True
        self.last = self.driver.run.scheduler.state.copy()
        raise Killed


class CommitsAtOnce(Commits):
    """Commits are made in the loop, at the end of each turn, so that what has been decided at each of them is known."""

    def _hand_over(self, rows: list[Row], asides: list[Callable[[], None]]) -> None:
        self._end(rows, self._carry_out(rows))
        for aside in asides:
            aside()


def lose(journal: Journal) -> None:
    """Its process is no more, and what was in memory is lost."""
    journal._unwritten.clear()
    if journal._database is not None:
        journal._database.close()
    journal._lock.close()


def carry_out(plan: RunPlan, dies_at: int = -1, before: bool = False, states: list[State] | None = None, **more: Any) -> str:
    """`done`, `stopped` or, where it was killed, `killed`; `states` gets the state that it had then."""

    async def main() -> str:
        pretended = Pretended(**more)
        driver = pretended.driver = RunDriver(plan, pretended)
        dying = Dying(driver, dies_at, before)
        journal = driver.run.log.journal
        try:
            with patch.object(run_log, "Commits", CommitsAtOnce):
                return await driver.carry_out()
        except Killed:
            return "killed"
        finally:
            for task in (*driver.run.tasks, *pretended.living.values()):
                task.cancel()
            if states is not None and dying.dead:
                states.append(dying.last)
            lose(journal)

    return asyncio.run(main())


@cache
def owner_pid() -> int:
    """The id of a process that lives as long as this one, as of an owner."""
    process = subprocess.Popen(["sleep", "infinity"])
    atexit.register(process.kill)
    return process.pid


class Served:
    """A coordinator of attached jobs, owners that ask it, and a clock that tests move on."""

    def __init__(self, plan: RunPlan) -> None:
        self.plan = plan
        self.driver = RunDriver(plan, None, keeps_running=True)
        self.outcome = asyncio.ensure_future(self.driver.carry_out())

    @property
    def leases(self) -> Leases:
        return self.driver.leases

    async def place(self, job_id: str, host: str = HERE, pids: tuple[int, ...] = ()) -> str:
        """Attach to a job that has a place, or is about to have one."""
        answer = await self.leases.attach(job_id, 60.0, host, pids or (owner_pid(),), pid_space())
        return str(answer["lease"])

    async def phase(self, lease: str, phase: HoldName, iteration: int, **metrics: float) -> None:
        answer = await self.leases.acquire(lease, phase, iteration, 60.0)
        assert answer["granted"], answer
        await self.leases.release(lease, phase, iteration, metrics, None)

    async def iterate(self, lease: str, iteration: int, **metrics: float) -> None:
        await self.phase(lease, "rollout", iteration)
        await self.phase(lease, "training", iteration, **metrics)

    def pass_time(self, seconds: float) -> None:
        """It is later, and the coordinator has looked."""
        self.driver.run.log.zero_s -= seconds
        check_leases(self.leases.ledger)

    async def settle(self) -> None:
        """Let what has been decided be written and carried out."""
        for _ in range(20):
            await asyncio.sleep(0)
            await self.driver.run.log.durable()

    async def kill(self) -> None:
        """The coordinator is no more: what it had not written is lost, and its commands go on."""
        commands = self.driver.commands._running
        for task in (*self.driver.run.tasks, self.outcome, *commands.values()):
            task.cancel()
        commands.clear()
        await asyncio.gather(self.outcome, return_exceptions=True)
        lose(self.driver.run.log.journal)

    async def replaced(self) -> Served:
        """Kill it, and let another one go on."""
        await self.kill()
        known = {fact.spec.id: fact.spec for fact in read_facts(Path(self.plan.folder) / JOURNAL) if hasattr(fact, "spec")}
        other = Served(replace(self.plan, specs=tuple(known.values()), resume=True))
        await other.settle()
        return other

    async def stop(self, permits: bool = True, resumed: bool = False) -> list[Fact]:
        """Stop it; its journal proves that nothing was lost or doubled, and is decided again as it was.

        Args:
            permits: also who got them first; not where jobs died that had asked for one, which the journal does not know.
            resumed: Whether it is decided again from its last resumption on only, because an earlier version decided otherwise.
        """
        self.driver.stop()
        assert await self.outcome == "stopped"
        facts = read_facts(Path(self.plan.folder) / JOURNAL)
        assert audit(facts).problems == ()
        resumptions = [number for number, fact in enumerate(facts) if isinstance(fact, SchedulerRestored)]
        lines = replay_journal(facts, resumptions[-1] if resumed else 0).lines
        assert [line for line in lines if permits or not line.startswith("permits ")] == []
        return facts


@contextmanager
def just_before_attaching(act: Callable[[], None]) -> Iterator[None]:
    """Something happens when the service has looked for the processes of an owner, and not yet for its job's place."""
    loop = asyncio.get_running_loop()

    def no_processes(*_: Any) -> tuple[()]:
        loop.call_soon_threadsafe(act)
        return ()

    with patch.object(leases, "own_processes", no_processes):
        yield


def served(work: Callable[[Served], Awaitable[T]], plan: RunPlan) -> T:
    """Do something with a coordinator."""

    async def main() -> T:
        return await work(Served(plan))

    return asyncio.run(main())


class Listening:
    """A service over HTTP, in a thread of this process, without jobs at first.

    Args:
        plan: whose jobs do not count. processes: of jobs with a class; None: it takes attached jobs alone. more: for the app.
    """

    def __init__(self, plan: RunPlan, processes: Pretended | None = None, **more: Any) -> None:
        self.folder = Path(plan.folder)
        self.folder.mkdir(exist_ok=True)
        self.tokens = Tokens(self.folder)
        self.token = self.tokens.make("", Right.OPERATE)
        self.service = RunService(replace(plan, specs=()))
        self._begun: Future[None] = Future()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(processes, more),))
        self._thread.start()
        self._begun.result(PATIENCE_S)

    async def _serve(self, processes: Pretended | None, more: dict[str, Any]) -> None:
        try:
            await self.service.serve(processes)
            if processes is not None:
                processes.driver = self.service.driver
            app = make_app(self.service, self.tokens, OperationsLog(self.folder), **more)
            self.server = HttpServer(app, await bind(Listen()))
            await self.server.begin()
            self._stops = asyncio.Event()
        except BaseException as error:
            self._begun.set_exception(error)
            raise
        self._begun.set_result(None)
        await self._stops.wait()
        await self.server.close()
        await self.service.stop()
        await self.service.ended()

    def in_loop(self, work: Callable[[], T]) -> T:
        """Do something where the service does everything."""

        async def call() -> T:
            return work()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(PATIENCE_S)

    @property
    def url(self) -> str:
        return self.server.url

    def close(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stops.set)
        self._thread.join(PATIENCE_S)
        self._loop.close()
