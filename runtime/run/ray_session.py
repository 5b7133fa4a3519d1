"""A run from the outside: Ray is started or joined, the coordinator works, and whatever happens nothing is left behind."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from subprocess import Popen
from typing import Any

import ray
from pydantic import TypeAdapter, ValidationError

from rollmux_env.errors import InputError
from rollmux_env.files import read_file, write_whole
from rollmux_env.validation_errors import one_line
from runtime.coordinator.ray_processes import RayProcesses
from runtime.coordinator.run_plan import RunPlan
from runtime.jobside.worker import on_machine
from runtime.machine import Node, Pool
from runtime.machines.nodes import find_nodes
from runtime.machines.own_ray import ENVIRONMENT, MARK, OBJECTS, asking_for_token, check_address, end_processes
from runtime.machines.ray_health import RayDied, RayHealth, quieten_ray, shut_down, started_in_vain, wait_for_ends
from runtime.own_folder import OwnFolder, left_folders, make_own_folder
from runtime.run.driver import RunDriver
from runtime.signals import allowing, check_signals, masked, result_of, shielded

RAY = "ray"  # note in a run's folder of the Ray of its own that it has on this machine
_WATCH_S = 0.2
_ANSWERS_S = 10.0  # a coordinator that does not answer in time is asked again
_GRACE_S = 5.0


@contextlib.contextmanager
def ray_session(address: str | None, counts: Mapping[Pool, int], note: Path | None = None) -> Iterator[tuple[Node, ...]]:
    """Ray for the time of a run: one of our own on this machine, or a cluster that is there.

    Args:
        address: of a cluster to join; None starts one here and ends it afterwards, with all of its processes.
        counts: nodes of each pool, where this machine is carved up.
        note: a file that says which Ray of ours is running, for whoever has to end it should this process be killed (`end_left`).

    Returns:
        The nodes.

    Raises:
        InputError: there is no such cluster, or it has not the nodes; one line.
    """
    if address is not None:
        check_address(address)
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    folder = make_own_folder() if address is None else None
    os.environ[MARK] = folder.path if folder else ""
    options: dict[str, Any] = {"address": address or "local", "log_to_driver": False, "logging_level": logging.CRITICAL}
    if folder:
        options |= {"include_dashboard": False, "object_store_memory": OBJECTS, "_temp_dir": folder.inside}
    token, left = contextlib.ExitStack(), list[Popen[bytes]]()
    try:
        check_signals()
        if note is not None and folder is not None:
            write_whole(note, json.dumps(asdict(folder)), private=True)
        if folder is not None:
            token.enter_context(asking_for_token(folder))
        try:
            quieten_ray()
            with masked():
                ray.init(**options)
            check_signals()
        except Exception as error:  # which is what Ray raises when a process of its own does not come
            left = started_in_vain(error)
            check_signals()  # one that SIGTERM has ended too
            raise InputError(f"--address {address or 'local'}: {one_line(str(error), 500)}") from None
        machines = ray.nodes()  # type: ignore[no-untyped-call]
        yield find_nodes(machines, counts, ray.get_runtime_context().get_node_id())
    finally:
        with shielded():
            left += shut_down()
            token.close()
            if folder:
                end_processes(folder, _GRACE_S)
                wait_for_ends(left)
                folder.remove()
            if note is not None:
                note.unlink(missing_ok=True)


def end_left(note: Path, say: Callable[[str], None]) -> None:
    """End what a run that was killed has left on this machine: the processes of a Ray of its own, and that one's folder.

    Args:
        say: takes a line, where the note does not prove that a folder is ours, and it is left alone.
    """
    if not note.is_file() or note.is_symlink():
        return
    text = read_file(note).decode(errors="replace").strip()
    try:
        folder = TypeAdapter(OwnFolder).validate_json(text, strict=True)
    except ValidationError:  # an older RollMux wrote the path alone
        folder = OwnFolder(text)
    end_processes(folder, 0.0)
    if line := folder.leftover():
        say(line)
    folder.remove()
    note.unlink(missing_ok=True)


def end_all_left(folder: Path, say: Callable[[str], None]) -> None:
    """End what runs that were killed have left on this machine: one in a folder, and those that were to keep nothing.

    Args:
        folder: of a run, locked. say: as for `end_left`.
    """
    end_left(folder / RAY, say)
    for left in left_folders():
        end_left(Path(left.path) / RAY, say)
        left.remove()


def execute(plan: RunPlan, say: Callable[[str], None]) -> str:
    """Carry out a run, and stop it when the user asks: at the next phase boundary, and at once when asked again.

    Args:
        say: takes a line about what happens.

    Returns:
        `done` or `stopped`.

    Raises:
        InputError, PlanError, InvariantError: it cannot be carried out.
        KeyboardInterrupt: the user asked twice.
    """
    try:
        coordinator: Any = ray.remote(Coordinator).options(**coordinator_options()).remote(plan)
        try:
            return watch(coordinator, coordinator.run.remote(), say)
        finally:
            ray.kill(coordinator)
    except RayDied as error:
        raise InputError(f"{error}; with --out DIR, `rollmux run --resume DIR` goes on") from error
    except ray.exceptions.RayTaskError:
        raise
    except ray.exceptions.RayError as error:
        problem = one_line(" ".join(str(getattr(error, "cause", None) or error).split()), 500)
        raise InputError(f"the coordinator could not be started or has died: {problem}") from error


def coordinator_options() -> dict[str, Any]:
    """How the actor of a coordinator is made: where the run's folder is."""
    return {**on_machine(ray.get_runtime_context().get_node_id()), "max_concurrency": 1000}


def watch(coordinator: Any, outcome: Any, say: Callable[[str], None], lines_said: int = 0) -> str:
    """Wait for the end of what a coordinator does, and stop it when the user asks, by Ctrl-C or SIGTERM.

    Args:
        outcome: the call that ends with it. lines_said: lines that were said before.

    Raises:
        As `execute`; RayDied: a process of Ray's has died; RayActorError: the coordinator has.
    """
    stopping = False
    health = RayHealth()
    try:
        with allowing(1) as interrupts:
            while not ray.wait([outcome], timeout=_WATCH_S)[0]:
                check_signals()
                health.check()
                with contextlib.suppress(ray.exceptions.GetTimeoutError):
                    lines_said = _tell(coordinator, lines_said, say)
                if interrupts() and not stopping:
                    stopping = True
                    say("stopping at the next phase boundary; Ctrl-C again stops at once")
                    coordinator.stop.remote()
            _tell(coordinator, lines_said, say)
            return str(result_of(outcome))
    except ray.exceptions.RayTaskError as error:
        raise (error.cause or error) from error
    except ray.exceptions.RayError as error:
        if (dead := health.dead()) is not None:
            raise RayDied(dead) from error
        raise


def _tell(coordinator: Any, lines_said: int, say: Callable[[str], None]) -> int:
    lines = result_of(coordinator.news.remote(lines_said), _ANSWERS_S)
    for line in lines:
        say(line)
    return lines_said + len(lines)


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
        return await self._driver.calls.ask(method, *arguments)

    async def stop(self) -> None:
        """Give no more permits: every job ends at its next phase boundary."""
        if self._driver is not None:
            self._driver.stop()

    async def news(self, behind: int) -> list[str]:
        """Lines about what has happened, those after the first `behind`."""
        return self._driver.run.log.lines(behind) if self._driver is not None else []
