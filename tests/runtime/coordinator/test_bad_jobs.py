"""A job that hangs, takes too much memory or says too much fails alone, once; processes are pretended, or watched from here."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runtime import memory
from runtime.coordinator import lifecycle
from runtime.coordinator.job_handle import JobHandle
from runtime.coordinator.run_plan import Timeouts
from runtime.jobside import worker
from runtime.jobside.job_session import plain
from runtime.journal.audit import audit
from runtime.journal.write import JOURNAL, read_facts, record_of
from runtime.run.driver import RunDriver
from tests.runtime.pretend import Pretended, plan_of


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ROLLMUX_CACHE", str(tmp_path / "cache"))


class Hanging(Pretended):
    """The job `bad` does not come back from its profile, or tells that it has too much memory."""

    hangs = True

    async def _keep(self, handle: JobHandle, folder: Path, state: int) -> None:
        if handle.id == "bad" and state == 2:
            assert self.driver is not None
            await self.driver.calls.exceeded(handle, "its own process", 9.125, 8.0)
            await asyncio.sleep(1000)
        await super()._keep(handle, folder, state)

    async def _live(self, handle: JobHandle) -> Any:
        assert self.driver is not None
        if handle.id == "bad" and self.hangs:
            await self.driver.calls.order(handle, None)
            await self.driver.calls.acquire(handle, "rollout")
            await asyncio.sleep(1000)
        return await super()._live(handle)


def run(folder: Path, processes: Hanging) -> tuple[str, str]:
    """Carry it out beside two healthy jobs, which lose nothing: where the bad job has failed, and why."""
    bad = {"id": "bad", "iterations": 4, "options": {"of": "its own"}}
    plan = plan_of(folder, [{"id": "a", "iterations": 9}, bad, {"id": "b", "iterations": 9}], timeouts=Timeouts(profile_s=0.2))

    async def main() -> str:
        driver = processes.driver = RunDriver(plan, processes)
        return await driver.carry_out()

    assert asyncio.run(main()) == "done"
    facts = read_facts(folder / JOURNAL)
    record = record_of(facts)
    assert audit(facts).problems == () and not record.restarted and not record.repeated
    for name in "ab":
        assert [done.number for done in record.iterations if done.job_id == name] == [*range(9)]
    (failed,) = record.failed
    assert failed.job_id == "bad"
    return failed.where, failed.problem


def test_a_job_that_hangs_in_its_profile_fails_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "_PATROL_S", 0.01)
    assert run(tmp_path, Hanging()) == ("rollout", "its rollout hangs: it has not ended after 0 s")


def test_a_job_with_more_memory_than_a_node_has_fails_and_is_not_tried_again(tmp_path: Path) -> None:
    processes = Hanging()
    processes.hangs = False
    where, problem = run(tmp_path, processes)
    assert (where, problem) == ("step", "its own process has 9.12 GB of host memory; a node has 8.00 GB for jobs")


def test_the_memory_of_a_process_is_that_of_those_that_it_has_started_too() -> None:
    waiting = "import os; os.pwrite(os.memfd_create('rollmux'), bytes(100_000_000), 0)"  # unmapped
    code = f"{waiting}; import sys; kept = b'x' * 200_000_000; print('there', flush=True); sys.stdin.read()"
    starts = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}])"
    with subprocess.Popen([sys.executable, "-c", starts], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdin is not None and child.stdout.readline() == b"there\n"
        assert 0.3 < memory.tree_gb(child.pid) < 0.45
        child.stdin.close()
    assert memory.tree_gb(child.pid) == 0.0


@pytest.mark.parametrize("limit_gb", [None, 2.0])
def test_a_process_that_has_too_much_tells_it_and_ends_itself(monkeypatch: pytest.MonkeyPatch, limit_gb: float | None) -> None:
    sizes, told = iter([1.0, 1.5, 2.5]), []

    def remote(ask: str, method: str, *arguments: Any) -> Any:
        told.append((method, *arguments))
        return limit_gb

    monkeypatch.setattr(worker, "ray", SimpleNamespace(get=lambda answer: answer, exceptions=SimpleNamespace(RayError=OSError)))
    monkeypatch.setattr(worker, "tree_gb", lambda pid: next(sizes))
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    monkeypatch.setattr("os.kill", lambda pid, signal: told.append((pid,)))
    worker.CoordinatorLink(SimpleNamespace(call=SimpleNamespace(remote=remote)), "a", "")._watch_memory("its process", "rollout")
    pid = os.getpid()
    more = [("exceeded", "a", "its process", 2.5, 2.0), (pid,)]
    assert told == [("memory_limit", "a", "rollout"), *(more if limit_gb is not None else [])]


def test_what_a_job_tells_has_its_limits() -> None:
    assert plain({"reward": 1.0}) == {"reward": 1.0} and plain("x" * 10_000)
    for much in ("x" * 10_001, [0.0] * 10_001, {str(k): 0.0 for k in range(10_001)}):
        with pytest.raises(ValueError, match="a job can tell the run 10000 values or characters at a time, not 10001"):
            plain(much)
