"""A service takes so many jobs, with descriptions of so many bytes, and none of a request that has more."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollmux_env.errors import InputError, Unprocessable
from runtime.jobs.file import parse_jobs
from runtime.jobs.spec import JobSpec
from runtime.service import plan
from runtime.service.service import RunService
from tests.runtime.pretend import NODES, Pretended, plan_of


def specs(count: int, first: int = 0, **more: Any) -> tuple[JobSpec, ...]:
    jobs = [{"id": f"j{first + k}", "class": "a:B", "iterations": 1, "slo": 1, **more} for k in range(count)]
    return parse_jobs({"version": 1, "jobs": jobs}, "test", Path("/")).jobs


def test_a_job_with_a_long_description_is_refused() -> None:
    plan.check_limits(specs(1, options={"text": "x" * 60_000}), 0)
    with pytest.raises(InputError, match=r"^job j0: its description has \d+ bytes; a service takes 65536 at most$"):
        plan.check_limits(specs(1, options={"text": "é" * 40_000}), 0)


def test_the_jobs_of_a_request_count_beside_those_that_are_there() -> None:
    plan.check_limits(specs(3), plan.MOST_JOBS - 3)
    with pytest.raises(InputError, match=r"^4 jobs are too many: 9997 wait or run, and a service takes 3 more at most$"):
        plan.check_limits(specs(4), plan.MOST_JOBS - 3)


def test_of_a_request_with_too_many_jobs_none_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "MOST_JOBS", 5)

    async def main() -> set[str]:
        service, processes = RunService(plan_of(tmp_path, [{"id": "first", "iterations": 1, "arrival_s": 1e6}])), Pretended()
        await service.serve(processes)
        processes.driver = service.driver
        await service.submit(specs(3))
        with pytest.raises(InputError, match="2 jobs are too many"):
            await service.submit(specs(2, first=3))
        await service.submit(specs(1, first=3))
        known = {job["id"] for job in (await service.report())["jobs"]}
        await service.stop()
        assert await service.ended() == "stopped"
        return known

    assert asyncio.run(main()) == {"first", "j0", "j1", "j2", "j3"}


def test_a_job_whose_checkpoints_the_disk_has_no_room_for_is_refused_alone(tmp_path: Path) -> None:
    async def main() -> set[str]:
        service, processes = RunService(plan_of(tmp_path, [{"id": "first", "iterations": 1, "arrival_s": 1e6}])), Pretended()
        await service.serve(processes)
        processes.driver = service.driver
        large = {"id": "large", "iterations": 1, "slo": 1, "task": "echo", "checkpoint": {"keep": 1 << 30}}
        with pytest.raises(InputError, match=r"^job large: .* is on a disk with .* GB free; checkpoints need \d+.\d GB: those"):
            await service.submit(parse_jobs({"version": 1, "jobs": [large]}, "test", Path("/")).jobs)
        await service.submit(specs(1))
        known = {job["id"] for job in (await service.report())["jobs"]}
        await service.stop()
        await service.ended()
        return known

    assert asyncio.run(main()) == {"first", "j0"}


def test_a_job_for_which_no_node_has_memory_is_refused_before_anything_starts(tmp_path: Path) -> None:
    async def main() -> set[str]:
        nodes = tuple(replace(node, memory_gb=0.5) for node in NODES)
        plan = plan_of(tmp_path, [{"id": "first", "iterations": 1, "arrival_s": 1e6}], nodes)
        service, processes = RunService(plan), Pretended()
        await service.serve(processes)
        model = {"name": "tiny", "hidden_size": 1024, "layers": 16}
        large = {"id": "large", "iterations": 1, "slo": 1, "task": "echo", "model": model, "checkpoint": None}
        parsed = parse_jobs({"version": 1, "jobs": [large]}, "test", Path("/")).jobs
        problem = r"^job large: training on a rank takes \d+\.\d GB at least; there are \d+\.\d"
        with pytest.raises(Unprocessable, match=problem):
            await service.preview(parsed)
        with pytest.raises(Unprocessable, match=problem):
            await service.submit(parsed)
        known = {job["id"] for job in (await service.report())["jobs"]}
        await service.stop()
        await service.ended()
        return known

    assert asyncio.run(main()) == {"first"}
