"""The coordinator without Ray: processes of jobs are tasks of the same loop, and it can be killed at any write to its journal."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from rollmux_env.cluster.state import State
from rollmux_env.scenario import Cluster
from rollmux_env.scenario import Pool as PoolSpec
from runtime.checkpoints import drop, place_of, write_checkpoint
from runtime.execution.coordinator import Coordinator
from runtime.execution.members import Runner, RunPlan
from runtime.execution.messages import Done, End, Order, Report, Stopped
from runtime.facts import Node
from runtime.jobs.spec import parse_jobs

NODES = tuple(Node(f"{pool}-{k}", pool, "m", (k,), (), 8.0, "1 core") for pool in ("rollout", "training") for k in range(2))


class Killed(BaseException):
    """The process of the coordinator is no more."""


class Pretended(Coordinator):
    """Carries out a run in this process.

    Args:
        dies_at: number of the write to the journal with which it is killed. before: just before it, else just after it.
        stops_after: iterations, of all jobs together, after which the user stops it.
        loses: id of the job that loses a process in its third iteration, once.
    """

    def __init__(self, plan: RunPlan, dies_at: int = -1, before: bool = False, stops_after: int = -1, loses: str = "") -> None:
        super().__init__(plan)
        self.writes_left, self.before, self.dead = dies_at, before, False
        self.stops_after, self.loses = stops_after, loses

    def _open(self) -> None:
        super()._open()
        flush = self._journal.flush

        def dying_flush() -> None:
            if self.dead:
                raise Killed
            if self._journal._unwritten:
                self.writes_left -= 1
            if self.writes_left == 0 and self.before:
                self._die_now()
            flush()
            if self.writes_left == 0:
                self._die_now()

        self._journal.flush = dying_flush  # type: ignore[method-assign]

    def _die_now(self) -> None:
        self.dead = True
        self.last = self._state.copy()
        raise Killed

    @staticmethod
    def _itself() -> Any:
        return None

    def _start(self, runner: Runner) -> None:
        runner.controller = object()
        self._spawn(self._live(runner))

    async def _live(self, runner: Runner) -> None:
        job_id, done, state = runner.spec.id, None, -1
        try:
            while True:
                order = await self.order(job_id, done)
                if done is not None and done.checkpoint is not None:
                    drop(Path(done.checkpoint).parent)
                if order is None:
                    break
                if state < 0:
                    state = int((Path(order.checkpoint) / "count").read_text()) if order.checkpoint else 0
                await asyncio.sleep(0)
                if self.loses == job_id and order.iteration == 2:
                    self.loses = ""
                    self._spawn(self._die(runner, End("died", "step", "its process has died")))
                    return
                for pool in ("rollout", "training"):
                    await self.acquire(job_id, pool)  # type: ignore[arg-type]
                    now_s = self._now()
                    await self.release(job_id, Report(pool, False, now_s, now_s, self._now(), host_gb=0.1))
                await self.synced(job_id, self._now(), self._now())
                if order.profile:
                    options = runner.spec.options
                    done = Done({}, movable=options.get("profiled", options.get("keeps", True)))
                    continue
                state += 1
                done = self._kept(runner, order, state)
                self.stops_after -= 1
                if self.stops_after == 0:
                    self._spawn(self.stop())
        except Stopped:
            end = End("stopped")
        else:
            end = End("done")
        if end.outcome == "stopped":
            self._quit(runner)
            runner.gone = True
            self._pass(runner)
        self._check_over()

    @staticmethod
    def _kept(runner: Runner, order: Order, state: int) -> Done:
        folder = Path(order.folder)
        if not runner.spec.options.get("keeps", True):
            turns = runner.spec.options.get("turns", False)  # it could be moved, until it is to be
            return Done({"count": float(state)}, movable=turns and runner.moves_to is None)

        def fill(place: Path) -> None:
            (place / "count").write_text(str(state))

        write_checkpoint(folder, order.iteration + 1, fill)
        return Done({"count": float(state)}, True, str(place_of(folder, order.iteration + 1)))

    async def _end_processes(self, runner: Runner) -> None:
        return

    async def _patrol(self) -> None:
        return


def plan_of(folder: Path, jobs: list[dict[str, Any]], nodes: tuple[Node, ...] = NODES, **more: Any) -> RunPlan:
    """A run of jobs given as in a job file; `more` is for `RunPlan`."""
    count = {pool: sum(node.pool == pool for node in nodes) for pool in ("rollout", "training")}
    pools = {
        pool: PoolSpec(gpus_per_node=1, usd_per_gpu_hour=1.0, max_nodes=most, node_memory_gb=8.0) for pool, most in count.items()
    }
    specs = parse_jobs({"version": 1, "defaults": {"slo": 1000.0, "class": "a:B"}, "jobs": jobs}, "test", Path("/")).jobs
    cluster = Cluster(rollout=pools["rollout"], training=pools["training"], migration_s=0.0)
    policy = more.pop("policy", "rollmux")
    return RunPlan(specs, cluster, nodes, policy, "round-robin", 0, str(folder), **more)


def carry_out(plan: RunPlan, dies_at: int = -1, before: bool = False, states: list[State] | None = None, **more: Any) -> str:
    """`done`, `stopped` or, where it was killed, `killed`; `states` gets the state that it had then."""

    async def main() -> str:
        coordinator = Pretended(plan, dies_at, before, **more)
        try:
            return await coordinator.run()
        except Killed:
            return "killed"
        finally:
            for task in coordinator._tasks:
                task.cancel()
            if states is not None and coordinator.dead:
                states.append(coordinator.last)
            coordinator._journal._unwritten.clear()  # what was in memory is lost
            coordinator._journal._database.close()
            coordinator._journal._lock.close()

    return asyncio.run(main())
