"""The process outside a run: it starts or joins Ray, waits for the coordinator, and cleans up however the run ends."""

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
from rollmux_env.report.loggers import MakeLogger
from rollmux_env.validation_errors import one_line
from runtime.coordinator.actor import Coordinator, named
from runtime.coordinator.ray_processes import RayProcesses
from runtime.coordinator.run_plan import RunPlan
from runtime.jobside.worker import on_machine
from runtime.machine import Node, Pool
from runtime.machines.nodes import find_nodes
from runtime.machines.own_ray import ENVIRONMENT, MARK, OBJECTS, asking_for_token, check_address, end_processes
from runtime.machines.ray_health import RayDied, RayHealth, quieten_ray, shut_down, started_in_vain, trim_ray, wait_for_ends
from runtime.own_folder import OwnFolder, left_folders, make_own_folder
from runtime.run.driver import RunDriver
from runtime.run.loggers import IterationPoint, IterationPoints, JobLoggers
from runtime.signals import allowing, check_signals, masked, result_of, shielded

RAY = "ray"  # file in a run's folder that names the run's own Ray on this machine
_WATCH_S = 0.2
_ANSWERS_S = 10.0  # time after which a coordinator is asked again
_GRACE_S = 5.0


@contextlib.contextmanager
def ray_session(address: str | None, counts: Mapping[Pool, int], note: Path | None = None) -> Iterator[tuple[Node, ...]]:
    """Yield the nodes of a Ray for the time of a run: one started on this machine, or a cluster that is joined.

    Args:
        address: Address of a cluster to join, or None to start Ray here and end it afterwards with all of its processes.
        counts: Number of nodes in each pool, if this machine is divided into nodes.
        note: File that names the running Ray, so that `end_left` can end it if this process is killed, or None.

    Yields:
        The nodes.

    Raises:
        InputError: If there is no such cluster, or it has too few nodes; one line.
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
            trim_ray()
            token.enter_context(asking_for_token(folder))
        try:
            quieten_ray()
            with masked():
                ray.init(**options)
            check_signals()
        except Exception as error:  # Ray raises this when one of its processes does not start
            left = started_in_vain(error)
            check_signals()  # SIGTERM may have ended that process too
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
    """End the processes of the Ray that a killed run has left on this machine, and remove Ray's folder.

    Args:
        note: File that names the Ray.
        say: Callback for a line about a folder that is not certainly RollMux's, and is left alone.
    """
    if not note.is_file() or note.is_symlink():
        return
    text = read_file(note).decode(errors="replace").strip()
    try:
        folder = TypeAdapter(OwnFolder).validate_json(text, strict=True)
    except ValidationError:  # an older RollMux wrote only the path
        folder = OwnFolder(text)
    end_processes(folder, 0.0)
    if line := folder.leftover():
        say(line)
    folder.remove()
    note.unlink(missing_ok=True)


def end_all_left(folder: Path, say: Callable[[str], None]) -> None:
    """End the processes that killed runs have left on this machine: the run of a folder, and runs without a folder.

    Args:
        folder: Folder of the run, which is locked.
        say: Callback as in `end_left`.
    """
    end_left(folder / RAY, say)
    for left in left_folders():
        end_left(Path(left.path) / RAY, say)
        left.remove()


def execute(plan: RunPlan, say: Callable[[str], None], make_logger: MakeLogger | None = None) -> str:
    """Carry out a run. The first Ctrl-C stops it at the next phase boundary, the second at once.

    Args:
        plan: Plan of the run.
        say: Callback for a line about an event.
        make_logger: Function that makes the logger of a job from a folder, or None.

    Returns:
        Outcome: `done` or `stopped`.

    Raises:
        InputError: If it cannot be carried out; one line.
        PlanError: If the policy broke an invariant.
        InvariantError: If the scheduler broke an invariant.
        KeyboardInterrupt: If the user asked twice to stop.
    """
    try:
        with contextlib.ExitStack() as ends:
            loggers = None
            if make_logger:
                loggers = JobLoggers(make_logger, Path(plan.folder), [spec.id for spec in plan.specs], say)
                ends.callback(loggers.close)
            coordinator: Any = (
                ray.remote(Coordinator).options(**coordinator_options()).remote(named(RunCoordinator), plan, loggers is not None)
            )
            ends.callback(ray.kill, coordinator)
            return watch(coordinator, coordinator.call.remote("run"), say, loggers=loggers)
    except RayDied as error:
        raise InputError(f"{error}; with --out DIR, `rollmux run --resume DIR` continues it") from error
    except ray.exceptions.RayTaskError:
        raise
    except ray.exceptions.RayError as error:
        problem = one_line(" ".join(str(getattr(error, "cause", None) or error).split()), 500)
        raise InputError(f"the coordinator could not be started or has died: {problem}") from error


def coordinator_options() -> dict[str, Any]:
    """Return the options of a coordinator's actor: it runs on this machine, where the run's folder is."""
    return {**on_machine(ray.get_runtime_context().get_node_id()), "max_concurrency": 1000}


def watch(
    coordinator: Any, outcome: Any, say: Callable[[str], None], lines_said: int = 0, loggers: JobLoggers | None = None
) -> str:
    """Wait for the end of a coordinator's call, and stop the coordinator when the user asks by Ctrl-C or SIGTERM.

    Args:
        coordinator: Handle of the coordinator's actor.
        outcome: Reference of the call that ends with the run.
        say: Callback for a line about an event.
        lines_said: Number of lines that were printed before.
        loggers: Loggers of the jobs, or None.

    Raises:
        InputError: As in `execute`, likewise PlanError, InvariantError and KeyboardInterrupt.
        RayDied: If a process of Ray has died.
        RayActorError: If the coordinator has died.
    """
    stopping, logged = False, 0
    health = RayHealth()
    try:
        with allowing(1) as interrupts:
            while not ray.wait([outcome], timeout=_WATCH_S)[0]:
                check_signals()
                health.check()
                with contextlib.suppress(ray.exceptions.GetTimeoutError):
                    lines_said = _print_new_lines(coordinator, lines_said, say)
                    logged = _write_new_points(coordinator, logged, loggers)
                if interrupts() and not stopping:
                    stopping = True
                    say("stopping at the next phase boundary; Ctrl-C again stops at once")
                    coordinator.call.remote("stop")
            _print_new_lines(coordinator, lines_said, say)
            _write_new_points(coordinator, logged, loggers)
            return str(result_of(outcome))
    except ray.exceptions.RayTaskError as error:
        raise (error.cause or error) from error
    except ray.exceptions.RayError as error:
        if (dead := health.dead()) is not None:
            raise RayDied(dead) from error
        raise


def _print_new_lines(coordinator: Any, lines_said: int, say: Callable[[str], None]) -> int:
    lines = result_of(coordinator.call.remote("news", lines_said), _ANSWERS_S)
    for line in lines:
        say(line)
    return lines_said + len(lines)


def _write_new_points(coordinator: Any, logged: int, loggers: JobLoggers | None) -> int:
    if loggers is None:
        return logged
    count, points = result_of(coordinator.call.remote("points", logged), _ANSWERS_S)
    loggers.write(points)
    return int(count)


class RunCoordinator:
    """A run in the process of its actor.

    Args:
        plan: Plan of the run.
        has_loggers: Whether the figures of iterations are kept for loggers.
    """

    def __init__(self, plan: RunPlan, has_loggers: bool = False) -> None:
        self._plan = plan
        self._driver: RunDriver | None = None
        self._points = IterationPoints() if has_loggers else None

    async def run(self) -> str:
        """Run all jobs to their end; see `RunDriver.carry_out`."""
        processes = RayProcesses(self._plan.folder, ray.get_runtime_context().current_actor, self._plan.models)
        self._driver = RunDriver(self._plan, processes, observer=self._points)
        return await self._driver.carry_out()

    async def ask(self, method: str, *arguments: Any) -> Any:
        """Call a method of `JobCalls` for a job's controller.

        Args:
            method: Name of the method.
            *arguments: Arguments of the method.
        """
        assert self._driver is not None
        return await self._driver.calls.ask(method, *arguments)

    async def stop(self) -> None:
        """Give no more permits: every job stops at its next phase boundary."""
        if self._driver is not None:
            self._driver.stop()

    async def news(self, behind: int) -> list[str]:
        """Return the lines about events after the first `behind` ones."""
        return self._driver.run.log.lines(behind) if self._driver is not None else []

    async def points(self, behind: int) -> tuple[int, list[IterationPoint]]:
        """Return the number of iterations so far, and the figures of those after the first `behind` ones."""
        assert self._points is not None
        return self._points.after(behind)
