"""The coordinator without Ray: processes of jobs are tasks of the same loop, and it can be killed at any write to its journal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rollmux_env.cluster.state import State
from rollmux_env.keys.cluster import Cluster
from rollmux_env.keys.cluster import Pool as PoolSpec
from runtime.checkpoints import begin_checkpoint, drop, place_of
from runtime.execution import nodes
from runtime.execution.job_handle import JobHandle
from runtime.execution.lifecycle import Processes
from runtime.execution.messages import Checkpoint, Done, End, Report, Stopped
from runtime.execution.run_plan import RunPlan
from runtime.jobs.spec import parse_jobs
from runtime.machine import Node, Pool
from runtime.residency.choice import STAY, Level, Waits
from runtime.run.driver import RunDriver

NODES = tuple(Node(f"{pool}-{k}", pool, "m", (k,), (), 8.0, "1 core") for pool in ("rollout", "training") for k in range(2))


class Killed(BaseException):
    """The process of the coordinator is no more."""


class Pretended(Processes):
    """The jobs of a run are tasks of this process.

    Args:
        loses: id of the job that loses a process in its third iteration, once.
        stops_after: iterations, of all jobs together, after which the user stops the run.
        then: what an operator does after so many iterations of all jobs together.
    """

    def __init__(
        self, loses: str = "", stops_after: int = -1, then: Mapping[int, Callable[[RunDriver], None]] | None = None
    ) -> None:
        self.driver: RunDriver | None = None
        self.loses, self.stops_after = loses, stops_after
        self.then, self.done = then or {}, 0
        self.died = False
        self.joining: tuple[Node, ...] = ()
        self.living: dict[JobHandle, asyncio.Task[End]] = {}
        self.staying: dict[JobHandle, set[Pool]] = {}
        self.made: dict[str, int] = {}  # how often a job's processes were started
        self.passes: dict[str, int] = {}  # of the profiler, that a job has made

    def start(self, handle: JobHandle) -> None:
        handle.actors.controller = object()
        self.living[handle] = asyncio.ensure_future(self._live(handle))

    async def wait(self, handle: JobHandle) -> End:
        task = self.living[handle]
        await asyncio.wait([task])
        return End("died", "step", "its controller has died") if task.cancelled() else task.result()

    async def kill(self, handle: JobHandle) -> None:
        if handle in self.living:
            self.living[handle].cancel()

    async def joined_nodes(self, known: Sequence[Node]) -> tuple[Node, ...]:
        return tuple(node for node in self.joining if node not in known)

    async def dead_machines(self, machines: Collection[str]) -> set[str]:
        return await asyncio.to_thread(nodes.dead_machines, machines) if self.died else set()

    async def _live(self, handle: JobHandle) -> End:
        assert self.driver is not None
        calls, run = self.driver.calls, self.driver.run
        self.made[handle.id] = self.made.get(handle.id, 0) + 1
        loaded: set[Pool] = set()
        every = handle.spec.checkpoint.every if isinstance(handle.spec.checkpoint.every, int) else 1
        keeps = bool(handle.spec.options.get("keeps", True)) and handle.spec.checkpoint.is_wanted
        job_id, done, state, taken, writes = handle.id, None, -1, 0, False
        folder = Path()
        try:
            while True:
                order = await calls.order(handle, done)
                if done is not None and done.checkpoint is not None:
                    drop(folder, handle.spec.checkpoint.keep)
                if order is None:
                    return End("done")
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
                    return End("died", "step", "its process has died")
                for pool in ("rollout", "training"):
                    leaves = await calls.acquire(handle, pool)
                    while leaves:
                        await self._leave(handle, leaves)
                        leaves = await calls.permit(handle, pool)
                    begun_s = run.log.now()
                    await asyncio.sleep(handle.spec.options.get("phase_s", 0.0))
                    stays = not order.profile and await calls.may_stay(handle, pool)
                    waits = waits_of(handle)
                    host_gb = waits.levels[0 if stays else -1].host_gb if waits else 0.1
                    self.staying.setdefault(handle, set()).discard(pool)
                    if stays:
                        self.staying[handle].add(pool)
                    report = Report(pool, False, begun_s, begun_s, run.log.now(), host_gb=host_gb, stays=stays, waits=waits)
                    device_gb = handle.spec.options.get("device_gb", 0.0)
                    if not order.profile:
                        device_gb = handle.spec.options.get("later_gb", device_gb)
                    report = replace(report, device_gb=device_gb, cold=pool not in loaded)
                    report = self._timed(handle, report, order.profile)
                    loaded.add(pool)
                    await self._leave(handle, await calls.release(handle, report))
                await self._leave(handle, await calls.synced(handle, run.log.now(), run.log.now()))
                if order.profile:
                    self.passes[job_id] = self.passes.get(job_id, 0) + 1
                    done = Done({}, movable=handle.spec.options.get("profiled", keeps), alive=True)
                    continue
                if handle.is_over:  # it was measured alone
                    done = Done({})
                    continue
                state += 1
                self._iterated()
                turns = handle.spec.options.get("turns", False)  # it could be moved, until it is to be
                movable = keeps or (turns and not handle.place.moving)
                is_last = keeps and state == handle.spec.iterations
                done = Done({"count": float(state)}, movable, keeps, write(folder, state) if is_last else None)
                self.stops_after -= 1
                if self.stops_after == 0:
                    asyncio.get_running_loop().call_soon(self.driver.stop)
        except Stopped:
            if keeps and state > taken and not writes:
                await self._keep(handle, folder, state)
            return End("stopped")

    def _timed(self, handle: JobHandle, report: Report, profile: bool) -> Report:
        """A phase of a job with the options `cold_s`, seconds of its cold start each time that it is made, `runs_s`, and `waits_s`,
        seconds without a core in each of its passes, by phase."""
        options = handle.spec.options
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
        drop(folder, handle.spec.checkpoint.keep)


def waits_of(handle: JobHandle) -> Waits | None:
    """Of a job with the option `stay_gb`: it keeps 1 GB of a node when it is offloaded, and so much when it stays."""
    stay_gb = handle.spec.options.get("stay_gb")
    return Waits((Level(STAY, 0.0, 0.0, stay_gb), Level("keep", 1.0, 0.0, 1.0))) if stay_gb else None


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
        self.flush = driver.run.log.journal.flush
        driver.run.log.journal.flush = self._flush  # type: ignore[method-assign]

    def _flush(self) -> None:
        if self.dead:
            raise Killed
        if self.driver.run.log.journal._unwritten:
            self.writes_left -= 1
        if self.writes_left == 0 and self.before:
            self._die()
        self.flush()
        if self.writes_left == 0:
            self._die()

    def _die(self) -> None:
        self.dead = True
        self.last = self.driver.run.scheduler.state.copy()
        raise Killed


def cluster_with(nodes: tuple[Node, ...], memory_gb: float = 8.0) -> Cluster:
    """The cluster of some nodes, at 1 $/h each, where moves take no time."""
    count = {pool: sum(node.pool == pool for node in nodes) for pool in ("rollout", "training")}
    pools = {
        pool: PoolSpec(gpus_per_node=1, usd_per_gpu_hour=1.0, max_nodes=most or None, node_memory_gb=memory_gb)
        for pool, most in count.items()
    }
    return Cluster(rollout=pools["rollout"], training=pools["training"], migration_s=0.0, one_device=not count["rollout"])


def plan_of(folder: Path, jobs: list[dict[str, Any]], nodes: tuple[Node, ...] = NODES, **more: Any) -> RunPlan:
    """A run of jobs given as in a job file; `more` is for `RunPlan`."""
    specs = parse_jobs({"version": 1, "defaults": {"slo": 1000.0, "class": "a:B"}, "jobs": jobs}, "test", Path("/")).jobs
    policy, dispatch = more.pop("policy", "rollmux"), more.pop("dispatch", "round-robin")
    return RunPlan(specs, cluster_with(nodes), nodes, policy, dispatch, 0, str(folder), **more)


def carry_out(plan: RunPlan, dies_at: int = -1, before: bool = False, states: list[State] | None = None, **more: Any) -> str:
    """`done`, `stopped` or, where it was killed, `killed`; `states` gets the state that it had then."""

    async def main() -> str:
        pretended = Pretended(**more)
        driver = pretended.driver = RunDriver(plan, pretended)
        dying = Dying(driver, dies_at, before)
        journal = driver.run.log.journal
        try:
            return await driver.carry_out()
        except Killed:
            return "killed"
        finally:
            for task in (*driver.run.tasks, *pretended.living.values()):
                task.cancel()
            if states is not None and dying.dead:
                states.append(dying.last)
            journal._unwritten.clear()  # what was in memory is lost
            journal._database.close()
            journal._lock.close()

    return asyncio.run(main())
