"""The files of the packages through which the way to a permit leads. The lists are printed (`pytest -s`)."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

from runtime.run.driver import RunDriver
from tests.runtime.pretend import Waiting, plan_of
from tests.runtime.service.http.conftest import Served
from tests.runtime.service.http.test_leases import attach

ROOT = f"{Path(__file__).parents[4]}/"
PACKAGES = ("clients/", "policies/", "rollmux_env/", "runtime/")
FIRST, REPEATED, RUN = 36, 11, 98  # files at most: a change that needs more says why (the 98th: leases are patrolled by a module)


class Profile:
    """A profiler that counts calls by file of a package."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename.removeprefix(ROOT)
        if event == "call" and name.startswith(PACKAGES):
            self.calls[name] += 1

    def show(self, what: str, most: int) -> None:
        """Print the files, and check their number."""
        print(f"{what}: {len(self.calls)} files, {self.calls.total()} calls", *sorted(self.calls), sep="\n  ")
        assert len(self.calls) <= most, sorted(self.calls)


def test_files_of_a_permit_over_http(served: Served) -> None:
    before = f"/v1/leases/{attach(served, 'before')}"  # what a process computes once is not on a job's way
    assert served.ask("POST", f"{before}/acquire", {"phase": "rollout", "iteration": 0, "wait_s": 30}).value["granted"]
    served.ask("POST", f"{before}/release", {"phase": "rollout", "iteration": 0})
    served.ask("DELETE", before)
    at = f"/v1/leases/{attach(served, 'counted')}/acquire"
    for what, most in (("first permit", FIRST), ("repeated request", REPEATED)):
        profile = Profile()
        served.in_loop(lambda profile=profile: sys.setprofile(profile))  # type: ignore[misc]
        try:
            assert served.ask("POST", at, {"phase": "rollout", "iteration": 0, "wait_s": 30}).value["granted"]
        finally:
            served.in_loop(lambda: sys.setprofile(None))
        profile.show(what, most)


def test_files_of_a_run_to_its_first_permit(tmp_path: Path) -> None:
    async def main(folder: Path) -> Profile:
        folder.mkdir()
        profile = Profile()
        sys.setprofile(profile)
        try:
            driver = RunDriver(plan_of(folder, [{"id": "a", "iterations": 2}], cached=False), Waiting(), keeps_running=True)
            task = asyncio.ensure_future(driver.carry_out())
            await asyncio.sleep(0)
            handle = driver.run.handles["a"]
            await driver.calls.order(handle, None)
            await driver.calls.acquire(handle, "rollout")
        finally:
            sys.setprofile(None)
        driver.stop()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return profile

    asyncio.run(main(tmp_path / "first"))  # it loads what another test may have loaded before
    asyncio.run(main(tmp_path / "second")).show("run", RUN)
