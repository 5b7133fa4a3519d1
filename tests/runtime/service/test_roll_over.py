"""A service whose journal is rolled over: it continues although its next start fails, and commands wait for it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rollmux_env.errors import InputError
from runtime.coordinator.run_loop import RunLoop
from runtime.journal.facts import RunEnded
from runtime.journal.rollover import ROLLED_OVER
from runtime.run.driver import RunDriver
from runtime.service import client, patience
from runtime.service import service as run_service
from runtime.service.address import RayAddress, find
from runtime.service.client import NoService, connected
from runtime.service.plan import ServiceOptions
from runtime.service.service import RunService
from tests.runtime.pretend import PAIRS, attached_plan


class Idle(RunService):
    """A service that has begun, without jobs and notices."""

    def __init__(self, run: RunLoop, driver: RunDriver) -> None:
        self.run, self.driver = run, driver
        self._senders = cast("Any", [SimpleNamespace(is_idle=True)])

    async def roll_over(self) -> None:
        await self._roll_over()


def slept_s(ended: RunEnded | None, monkeypatch: pytest.MonkeyPatch) -> float:
    """Seconds until a service without jobs rolls its journal over, if its part ended in some way before it began."""
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    def roll_over() -> None:
        run.stopping = True

    monkeypatch.setattr(run_service, "asyncio", SimpleNamespace(sleep=sleep))
    log = SimpleNamespace(journal=SimpleNamespace(length=5000), problem=None, say=lambda line: None)
    run = SimpleNamespace(stopping=False, handles={}, log=log)
    driver = SimpleNamespace(is_quiet=True, record=SimpleNamespace(ended=ended), roll_over=roll_over)
    asyncio.run(Idle(cast("Any", run), cast("Any", driver)).roll_over())
    return sum(waits)


def test_a_next_part_that_could_not_begin_is_tried_an_hour_later(monkeypatch: pytest.MonkeyPatch) -> None:
    assert slept_s(None, monkeypatch) == slept_s(RunEnded(9.0, "stopped"), monkeypatch) == 300.0
    assert slept_s(RunEnded(9.0, ROLLED_OVER), monkeypatch) == 3900.0


def test_a_run_that_has_lost_the_nodes_of_a_pool_is_not_quiet(tmp_path: Path) -> None:
    async def main() -> list[bool]:
        driver = RunDriver(attached_plan(tmp_path, nodes=PAIRS[:2]), None, keeps_running=True)
        quiet = [driver.is_quiet]
        driver.run.nodes.missing = {"rollout-0"}
        driver.run.nodes.lose(1.0)
        driver.run.log.journal.close()
        return [*quiet, driver.is_quiet]

    assert asyncio.run(main()) == [True, False]


def test_commands_wait_for_a_service_that_is_about_to_continue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([False, False, True])
    address = SimpleNamespace(url="http://127.0.0.1:1", token="x", answers=lambda: next(answers))
    monkeypatch.setattr(client, "find", lambda folder: address)
    monkeypatch.setattr(client, "is_beginning", lambda folder: True)
    monkeypatch.setattr(client, "_LOOKS_S", 0.001)
    with connected(tmp_path):
        assert next(answers, None) is None
    answers = iter([False, False])
    monkeypatch.setattr(client, "is_beginning", lambda folder: False)
    with pytest.raises(NoService), connected(tmp_path):
        pass


def test_a_start_on_ray_after_a_roll_over_is_repeated_under_other_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve_loop = pytest.importorskip("runtime.service.serve_loop", reason="no Ray")
    begun: list[str] = []
    ends = iter([ROLLED_OVER, "stopped"])

    def start(folder: Path, address: Any, wish: ServiceOptions, say: Any) -> Any:
        announced = find(folder)
        assert announced is not None and announced.ray == address  # the next command finds the actor whenever this one is killed
        begun.append(address.actor)
        if len(begun) == 2:
            raise InputError("the disk is full")
        return SimpleNamespace(call=SimpleNamespace(remote=lambda *asked: 0))

    for name, value in {
        "ray": SimpleNamespace(
            get_runtime_context=lambda: SimpleNamespace(gcs_address="127.0.0.1:1"),
            kill=lambda actor: None,
            exceptions=serve_loop.ray.exceptions,
        ),
        "_join": lambda address: None,
        "_find": lambda folder, address: None,
        "_start": start,
        "_listen": lambda *_: "http://127.0.0.1:1",
        "watch": lambda *_: next(ends),
        "result_of": lambda call: call,
        "shut_down": lambda: None,
    }.items():
        monkeypatch.setattr(serve_loop, name, value)
    monkeypatch.setattr(patience, "_AGAIN_S", 0.001)
    lines: list[str] = []
    serve_loop.serve_loop(tmp_path, RayAddress("127.0.0.1:1", "first"), ServiceOptions(), lines.append)
    assert len({*begun}) == 3 and "the disk is full; the start is repeated every 0.001 s" in lines
    del begun[1:]  # the second start fails again, and is the first one of its command
    with pytest.raises(InputError, match=r"^the disk is full$"):
        serve_loop.serve_loop(tmp_path, RayAddress("127.0.0.1:1", "first"), ServiceOptions(), lines.append)
    begun.clear()
    taken = serve_loop.ray.exceptions.RayTaskError("listen", "a traceback\nof Ray", InputError("--http: is in use"))

    def refuse(*_: Any) -> str:
        raise taken.as_instanceof_cause()

    monkeypatch.setattr(serve_loop, "_listen", refuse)
    with pytest.raises(InputError, match=r"^--http: is in use$"):
        serve_loop.serve_loop(tmp_path, RayAddress("127.0.0.1:1", "first"), ServiceOptions(), lines.append)
