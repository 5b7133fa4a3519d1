"""A server through which language models ask a service (Model Context Protocol). It is read-only by default.

Every tool connects as the commands do, with the user's own token and its rights, and returns their JSON.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

from rollmux_env.errors import InputError, PlanError
from rollmux_env.files import find_file
from rollmux_env.validation_errors import describe

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

    from runtime.jobs.spec import JobSpec
    from runtime.service.client import ServiceClient

_MOST_BYTES, _MOST_JOBS, _LIMIT_S = 200_000, 100, 60.0  # of a scenario that `bench` replays, and of a replay
_MOST_ENDED = 20  # jobs that have ended, in `status`
_INSTRUCTIONS = (
    "RollMux schedules RL post-training jobs that share a rollout pool and a training pool. "
    "`status` and `explain_job` say why a job waits, `dry_run` what would become of a new one, "
    "`what_if` what more nodes, another policy or order, or fewer jobs would do. Quote what an answer assumes."
)

Parameters = ParamSpec("Parameters")


class Tools:
    """The tools, as functions of JSON values.

    Args:
        at: Folder of the service, or None for that of the environment.
    """

    def __init__(self, at: Path | None) -> None:
        self._at = at

    def status(self) -> dict[str, Any]:
        """Show the jobs, groups, pools and queue of the service: states, reasons, expected times in seconds of `now_s`, dollars."""
        from rollmux_client import ENDED

        with self._service() as service:
            report = service.status()
        ended = sorted((job for job in report["jobs"] if job["state"] in ENDED), key=lambda job: job.get("ended_s") or 0.0)
        present = [job for job in report["jobs"] if job["state"] not in ENDED]
        return report | {"jobs": [*present, *ended[-_MOST_ENDED:]]}

    def explain_job(self, job: str) -> dict[str, Any]:
        """Explain one job: why it waits and until when (`reason`, `position`, `eta_s`), or where it runs, how fast, for how much.

        Args:
            job: Id of the job.
        """
        with self._service() as service:
            return service.job(job) | {"now_s": service.status()["now_s"]}

    def dry_run(self, jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Say which place each job would get if all were submitted now, in this order, or why it would wait. Submits nothing.

        Args:
            jobs: Entries of a job file, such as {"id": "next", "attach": true, "slo": 2, "iterations": 100,
                "rollout": {"worst_case_s": 60, "nodes": 1}, "training": {"worst_case_s": 20, "nodes": 1}}.
        """
        with self._service() as service:
            return service.preview(_specs(jobs))

    def what_if(
        self,
        nodes: dict[str, str] | None = None,
        policy: str | None = None,
        order: str | None = None,
        without: list[str] | None = None,
        arrives: list[dict[str, Any]] | None = None,
        since_s: float | None = None,
    ) -> dict[str, Any]:
        """Say what a change would do to completion, waits, dollars and SLOs of every job of the service. Changes nothing.

        Args:
            nodes: Number of nodes by pool after the change, or the difference, as in {"training": "+2"}.
            policy: Placement policy after the change, such as "consolidate".
            order: Order of the queue after the change: fcfs, shortest, area, attained, gittins, learned or fair.
            without: Ids of jobs that leave now.
            arrives: Entries of a scenario file for jobs that arrive too; their `arrival_s` count from now.
            since_s: Length of a past whose arrivals repeat from now on, in seconds; without it no other job arrives.
        """
        question = {"nodes": nodes, "policy": policy, "order": order, "without": without, "arrives": arrives, "since_s": since_s}
        with self._service() as service:
            return service.what_if({key: value for key, value in question.items() if value})

    def bench(self, file: str, policies: list[str]) -> dict[str, Any]:
        """Replay a small scenario file under placement policies, and compare dollars, completion and SLOs.

        Args:
            file: Scenario file of up to 100 jobs, or name of an example such as "queue".
            policies: Policies that come with RollMux, such as "solo", "rollmux" or "fleet,order=area"; savings are relative to the
                first one.
        """
        from policies.experiments import bench
        from policies.named import is_own
        from rollmux_env.scenario import load_scenario

        for policy in policies:
            if is_own(policy) or ":" in policy.replace("learned:default", ""):
                raise InputError(f"policy {describe(policy)}: must be one that comes with RollMux")
        if find_file(file).stat().st_size > _MOST_BYTES or len(load_scenario(file).jobs) > _MOST_JOBS:
            raise InputError(f"{file}: has more than {_MOST_BYTES:,} bytes or {_MOST_JOBS} jobs; `rollmux bench` takes it")
        benched = bench(file, policies, limit_s=_LIMIT_S).as_dict()
        return {key: benched[key] for key in ("scenario", "baseline", "summary", "differences", "left_out")}

    def submit(self, jobs: list[dict[str, Any]]) -> str:
        """Submit jobs to the service, all or none.

        Args:
            jobs: Entries of a job file, as for `dry_run`.
        """
        specs = _specs(jobs)
        with self._service() as service:
            service.submit(specs)
        return f"submitted: {', '.join(spec.id for spec in specs)}"

    def cancel(self, job: str) -> str:
        """End a job now, for good: it cannot be resumed.

        Args:
            job: Id of the job.
        """
        with self._service() as service:
            waits = service.cancel(job)
        return f"{job} is being ended: {waits}" if waits else f"cancelled: {job}"

    def _service(self) -> AbstractContextManager[ServiceClient]:
        from runtime.service.client import connected

        return connected(self._at)


def make_server(at: Path | None, writes: bool) -> MCPServer:
    """Return the server.

    Args:
        at: Folder of the service, or None for that of the environment.
        writes: Whether it also submits and cancels jobs.
    """
    from mcp.server.mcpserver import MCPServer
    from mcp_types import ToolAnnotations

    tools, server = Tools(at), MCPServer("rollmux", instructions=_INSTRUCTIONS)
    reading = (tools.status, tools.explain_job, tools.dry_run, tools.what_if, tools.bench)
    for reads, functions in ((True, reading), (False, (tools.submit, tools.cancel) if writes else ())):
        hints = ToolAnnotations(read_only_hint=reads, destructive_hint=not reads, open_world_hint=False)
        for function in functions:
            server.add_tool(_refusing(function), annotations=hints)
    return server


def _refusing(function: Callable[Parameters, Any]) -> Callable[Parameters, Any]:
    """Return a tool whose refusals are one line that a model reads."""
    from mcp.server.mcpserver.exceptions import ToolError

    @wraps(function)
    def tool(*arguments: Parameters.args, **named: Parameters.kwargs) -> Any:
        try:
            return function(*arguments, **named)
        except (InputError, PlanError) as error:
            raise ToolError(str(error)) from None

    return tool


def _specs(entries: list[dict[str, Any]]) -> tuple[JobSpec, ...]:
    from runtime.jobs.file import parse_jobs

    return parse_jobs({"version": 1, "jobs": entries}, "jobs", Path()).jobs
