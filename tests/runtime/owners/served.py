"""A coordinator of attached jobs in memory: no Ray, no HTTP, and a clock that tests move on."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from rollmux_env.scheduler.view import HoldName
from runtime.execution.run_plan import RunPlan
from runtime.jobs.spec import JobSpec, parse_jobs
from runtime.journal.audit import audit
from runtime.journal.facts import Fact
from runtime.journal.replay import replay_journal
from runtime.journal.write import JOURNAL, read_facts
from runtime.machine import Node
from runtime.owners.http.leases import Leases
from runtime.run.driver import RunDriver
from tests.runtime.execution.pretend import cluster_with

HERE, ELSEWHERE = os.uname().nodename, "another-host"
T = TypeVar("T")


def node(name: str, host: str = HERE) -> Node:
    pool, _, number = name.partition("-")
    return Node(name, pool, host, (int(number),), (), 8.0, "1 core", host)  # type: ignore[arg-type]


PAIR = (node("rollout-0"), node("training-0"))
PAIRS = (*PAIR, node("rollout-1"), node("training-1"))


def job(job_id: str, **more: Any) -> dict[str, Any]:
    stated = {"worst_case_s": 10.0, "host_memory_gb": 1.0}
    return {"id": job_id, "attach": True, "iterations": 3, "slo": 1000.0, "rollout": stated, "training": stated} | more


def specs_of(*jobs: dict[str, Any]) -> tuple[JobSpec, ...]:
    return parse_jobs({"version": 1, "jobs": [*jobs]}, "test", Path("/")).jobs if jobs else ()


def plan_of(folder: Path, *jobs: dict[str, Any], nodes: tuple[Node, ...] = PAIR, **more: Any) -> RunPlan:
    policy, dispatch = more.pop("policy", "rollmux"), more.pop("dispatch", "fifo")
    return RunPlan(specs_of(*jobs), cluster_with(nodes), nodes, policy, dispatch, 0, str(folder), **more)


class Served:
    """A coordinator, and owners that ask it."""

    def __init__(self, plan: RunPlan) -> None:
        self.plan = plan
        self.driver = RunDriver(plan, None, stays=True)
        self.outcome = asyncio.ensure_future(self.driver.carry_out())

    @property
    def leases(self) -> Leases:
        return self.driver.leases

    async def place(self, job_id: str, host: str = HERE, pids: tuple[int, ...] = ()) -> str:
        """Attach to a job that has a place, or is about to have one."""
        answer = await self.leases.attach(job_id, 5.0, host, pids or (os.getpid(),))
        return str(answer["lease"])

    async def phase(self, lease: str, phase: HoldName, iteration: int, **metrics: float) -> None:
        answer = await self.leases.acquire(lease, phase, iteration, 5.0)
        assert answer["granted"], answer
        await self.leases.release(lease, phase, iteration, metrics, None)

    async def iterate(self, lease: str, iteration: int, **metrics: float) -> None:
        await self.phase(lease, "rollout", iteration)
        await self.phase(lease, "training", iteration, **metrics)

    def pass_time(self, seconds: float) -> None:
        """It is later, and the coordinator has looked."""
        self.driver.run.log.zero_s -= seconds
        self.leases.ledger.look()

    async def settle(self) -> None:
        """Let what has been decided be carried out."""
        for _ in range(20):
            await asyncio.sleep(0)

    async def kill(self) -> None:
        """The coordinator is no more: what it had not written is lost."""
        for task in (*self.driver.run.tasks, self.outcome):
            task.cancel()
        await asyncio.gather(self.outcome, return_exceptions=True)
        journal = self.driver.run.log.journal
        journal._unwritten.clear()
        journal._database.close()
        journal._lock.close()

    async def replaced(self) -> Served:
        """Kill it, and let another one go on."""
        await self.kill()
        known = {fact.spec.id: fact.spec for fact in read_facts(Path(self.plan.folder) / JOURNAL) if hasattr(fact, "spec")}
        other = Served(replace(self.plan, specs=tuple(known.values()), resume=True))
        await other.settle()
        return other

    async def stop(self, permits: bool = True) -> list[Fact]:
        """Stop it; its journal proves that nothing was lost or doubled, and is decided again as it was.

        Args:
            permits: also who got them first; not where jobs died that had asked for one, which the journal does not know.
        """
        self.driver.stop()
        assert await self.outcome == "stopped"
        facts = read_facts(Path(self.plan.folder) / JOURNAL)
        assert audit(facts).problems == ()
        assert [line for line in replay_journal(facts).lines if permits or not line.startswith("permits ")] == []
        return facts


def served(work: Callable[[Served], Awaitable[T]], plan: RunPlan) -> T:
    """Do something with a coordinator."""

    async def main() -> T:
        return await work(Served(plan))

    return asyncio.run(main())
