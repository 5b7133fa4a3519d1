"""The coordinator without Ray: processes of jobs are tasks of the same loop, and it can be killed at any write to its journal."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path
from typing import Any

from rollmux_env.cluster.state import State
from rollmux_env.scenario import Cluster
from rollmux_env.scenario import Pool as PoolSpec
from runtime.checkpoints import drop, place_of, write_checkpoint
from runtime.execution import nodes
from runtime.execution.driver import RunDriver
from runtime.execution.job_handle import JobHandle
from runtime.execution.messages import Done, End, Order, Report, Stopped
from runtime.execution.processes import Processes
from runtime.execution.run_plan import RunPlan
from runtime.facts import Node
from runtime.jobs.spec import parse_jobs

NODES = tuple(Node(f"{pool}-{k}", pool, "m", (k,), (), 8.0, "1 core") for pool in ("rollout", "training") for k in range(2))


class Killed(BaseException):
    """The process of the coordinator is no more."""


class Pretended(Processes):
    """The jobs of a run are tasks of this process.

    Args:
        loses: id of the job that loses a process in its third iteration, once.
        stops_after: iterations, of all jobs together, after which the user stops the run.
    """

    def __init__(self, loses: str = "", stops_after: int = -1) -> None:
        super().__init__("", None)
        self.driver: RunDriver | None = None
        self.loses, self.stops_after = loses, stops_after
        self.died = False
        self.living: dict[JobHandle, asyncio.Task[End]] = {}

    def start(self, handle: JobHandle) -> None:
        handle.controller = object()
        self.living[handle] = asyncio.ensure_future(self._live(handle))

    async def wait(self, handle: JobHandle) -> End:
        task = self.living[handle]
        await asyncio.wait([task])
        return End("died", "step", "its controller has died") if task.cancelled() else task.result()

    async def kill(self, handle: JobHandle) -> None:
        if handle in self.living:
            self.living[handle].cancel()

    async def drop(self, handle: JobHandle) -> None:
        return

    async def close(self) -> None:
        return

    async def dead_machines(self, machines: Collection[str]) -> set[str]:
        return await asyncio.to_thread(nodes.dead_machines, machines) if self.died else set()

    async def _live(self, handle: JobHandle) -> End:
        assert self.driver is not None
        calls, run = self.driver.calls, self.driver.run
        job_id, done, state = handle.id, None, -1
        try:
            while True:
                order = await calls.order(job_id, done)
                if done is not None and done.checkpoint is not None:
                    drop(Path(done.checkpoint).parent)
                if order is None:
                    return End("done")
                if state < 0:
                    state = int((Path(order.checkpoint) / "count").read_text()) if order.checkpoint else 0
                await asyncio.sleep(0)
                if self.loses == job_id and order.iteration == 2:
                    self.loses, self.died = "", True
                    return End("died", "step", "its process has died")
                for pool in ("rollout", "training"):
                    await calls.acquire(job_id, pool)
                    now_s = run.log.now()
                    await calls.release(job_id, Report(pool, False, now_s, now_s, run.log.now(), host_gb=0.1))
                await calls.synced(job_id, run.log.now(), run.log.now())
                if order.profile:
                    options = handle.spec.options
                    done = Done({}, movable=options.get("profiled", options.get("keeps", True)))
                    continue
                state += 1
                done = await self._keep(handle, order, state)
                self.stops_after -= 1
                if self.stops_after == 0:
                    asyncio.get_running_loop().call_soon(self.driver.stop)
        except Stopped:
            return End("stopped")

    async def _keep(self, handle: JobHandle, order: Order, state: int) -> Done:
        return self._kept(handle, order, state)

    def _kept(self, handle: JobHandle, order: Order, state: int) -> Done:
        folder = Path(order.folder)
        if not handle.spec.options.get("keeps", True):
            turns = handle.spec.options.get("turns", False)  # it could be moved, until it is to be
            return Done({"count": float(state)}, movable=turns and not handle.moving)

        def fill(place: Path) -> None:
            (place / "count").write_text(str(state))

        write_checkpoint(folder, order.iteration + 1, fill)
        return Done({"count": float(state)}, True, str(place_of(folder, order.iteration + 1)))


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


def plan_of(folder: Path, jobs: list[dict[str, Any]], nodes: tuple[Node, ...] = NODES, **more: Any) -> RunPlan:
    """A run of jobs given as in a job file; `more` is for `RunPlan`."""
    count = {pool: sum(node.pool == pool for node in nodes) for pool in ("rollout", "training")}
    pools = {
        pool: PoolSpec(gpus_per_node=1, usd_per_gpu_hour=1.0, max_nodes=most or None, node_memory_gb=8.0)
        for pool, most in count.items()
    }
    specs = parse_jobs({"version": 1, "defaults": {"slo": 1000.0, "class": "a:B"}, "jobs": jobs}, "test", Path("/")).jobs
    cluster = Cluster(rollout=pools["rollout"], training=pools["training"], migration_s=0.0, one_device=not count["rollout"])
    policy = more.pop("policy", "rollmux")
    return RunPlan(specs, cluster, nodes, policy, "round-robin", 0, str(folder), **more)


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
