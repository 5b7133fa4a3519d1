"""The Ray actor that a run is: jobs and the user's process ask it."""

from __future__ import annotations

from typing import Any

import ray

from runtime.execution.ray_processes import RayProcesses
from runtime.execution.run_plan import RunPlan
from runtime.run.driver import RunDriver


class Coordinator:
    """One run. A Ray actor whose methods are asynchronous.

    Args:
        plan: what is to be done.
    """

    def __init__(self, plan: RunPlan) -> None:
        self._plan = plan
        self._driver: RunDriver | None = None

    async def run(self) -> str:
        """Run all jobs to their end; see `RunDriver.carry_out`."""
        processes = RayProcesses(self._plan.folder, ray.get_runtime_context().current_actor, self._plan.models)
        self._driver = RunDriver(self._plan, processes)
        return await self._driver.carry_out()

    async def ask(self, method: str, *arguments: Any) -> Any:
        """A job calls a method of `JobCalls`."""
        assert self._driver is not None
        return await getattr(self._driver.calls, method)(*arguments)

    async def stop(self) -> None:
        """Give no more permits: every job ends at its next phase boundary."""
        if self._driver is not None:
            self._driver.stop()

    async def news(self, behind: int) -> list[str]:
        """Lines about what has happened, those after the first `behind`."""
        return self._driver.run.log.lines(behind) if self._driver is not None else []

    async def status(self) -> dict[str, dict[str, Any]]:
        """What every job does."""
        return self._driver.status() if self._driver is not None else {}
