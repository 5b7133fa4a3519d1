"""Services of toy jobs on the Ray of the execution tests, in this process's hands."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray

from rollmux_env.keys.cluster import Cluster
from rollmux_env.keys.cluster import Pool as PoolSpec
from runtime.coordinator.actor import Coordinator, named
from runtime.coordinator.run_plan import RunPlan, Timeouts
from runtime.jobs.file import parse_jobs
from runtime.journal.record import RunRecord
from runtime.journal.write import read_run
from runtime.machine import Node
from runtime.service.service import RunService
from tests.runtime.coordinator.conftest import nodes as nodes  # the fixture

TOYS = Path(__file__).parents[1]
_PATIENCE_S = 600.0  # that a machine with other work may take for what takes seconds
_USUAL = Timeouts()


class Served:
    """A service, and what it has said of itself."""

    def __init__(self, plan: RunPlan) -> None:
        self.folder = Path(plan.folder)
        self.reports: list[dict[str, Any]] = []
        self._actor: Any = ray.remote(Coordinator).options(num_cpus=0, max_concurrency=1000).remote(named(RunService), plan)
        self.ask("begin")

    def ask(self, method: str, *arguments: Any) -> Any:
        try:
            return ray.get(self._actor.call.remote(method, *arguments), timeout=_PATIENCE_S)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None

    def submit(self, *jobs: dict[str, Any]) -> None:
        data = {"version": 1, "defaults": {"slo": 3.0, "iterations": 3}, "jobs": list(jobs)}
        self.ask("submit", parse_jobs(data, "test", TOYS).jobs)

    def until(self, holds: Callable[[dict[str, dict[str, Any]]], bool]) -> dict[str, dict[str, Any]]:
        """Look at the report again and again until something holds of its jobs."""
        until_s = time.monotonic() + _PATIENCE_S
        while True:
            self.reports.append(self.ask("report"))
            jobs = {job["id"]: job for job in self.reports[-1]["jobs"]}
            if holds(jobs):
                return jobs
            assert time.monotonic() < until_s, (jobs, self.ask("news", 0))
            time.sleep(0.05)

    def stop(self) -> RunRecord:
        self.ask("stop")
        assert self.ask("ended") == "stopped"
        self.kill()
        return read_run(self.folder)

    def kill(self) -> None:
        ray.kill(self._actor)


Serving = Callable[..., Served]


@pytest.fixture
def serve(nodes: tuple[Node, ...], tmp_path: Path) -> Iterator[Serving]:
    """Serve on so many pairs of nodes; with the folder of another one, go on with that."""
    made: list[Served] = []

    def serving(
        policy: str = "rollmux",
        pairs: int = 1,
        folder: Path | None = None,
        dispatch: str = "round-robin",
        rollout_usd: float = 1.0,
        memory_gb: float = 8.0,
        timeouts: Timeouts = _USUAL,
    ) -> Served:
        on = tuple(replace(node, name=node.name.replace("0", str(k))) for k in range(pairs) for node in nodes)
        pool = PoolSpec(gpus_per_node=1, usd_per_gpu_hour=1.0, max_nodes=pairs, node_memory_gb=memory_gb)
        rollout = pool.model_copy(update={"usd_per_gpu_hour": rollout_usd})
        cluster = Cluster(rollout=rollout, training=pool, migration_s=0.0)
        specs = tuple(fact.spec for fact in read_run(folder).submitted) if folder else ()
        home = folder or tmp_path / f"service{len(made)}"
        home.mkdir(exist_ok=True)
        plan = RunPlan(specs, cluster, on, policy, dispatch, 0, str(home), resume=folder is not None, timeouts=timeouts)
        made.append(Served(plan))
        return made[-1]

    yield serving
    for one in made:
        one.kill()
