"""A run from the outside: Ray is started or joined, the coordinator works, and whatever happens nothing is left behind."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rollmux_env.complaint import one_line
from rollmux_env.errors import InputError, InvariantError, PlanError
from rollmux_env.files import write_whole
from runtime.execution.coordinator import Coordinator
from runtime.execution.members import RunPlan
from runtime.execution.nodes import find_nodes
from runtime.execution.own_ray import ENVIRONMENT, MARK, OBJECTS, PREFIX, SHORT, end_processes
from runtime.facts import Node, Pool
from runtime.presses import allowing, heard, look, undisturbed

_WATCH_S = 0.2
_GRACE_S = 5.0


@contextlib.contextmanager
def ray_session(address: str | None, wanted: Mapping[Pool, int], note: Path | None = None) -> Iterator[tuple[Node, ...]]:
    """Ray for the time of a run: one of our own on this machine, or a cluster that is there.

    Args:
        address: of a cluster to join; None starts one here and ends it afterwards, with all of its processes.
        wanted: nodes of each pool, where this machine is carved up.
        note: a file that says which Ray of ours is running, for whoever has to end it should this process be killed (`end_left`).

    Returns:
        The nodes.

    Raises:
        InputError: there is no such cluster, or it has not the nodes; one line.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    folder = tempfile.mkdtemp(prefix=PREFIX, dir=SHORT if SHORT.is_dir() else None) if address is None else None
    os.environ[MARK] = str(folder)
    options: dict[str, Any] = {"address": address or "local", "log_to_driver": False, "logging_level": logging.ERROR}
    if folder:
        options |= {"include_dashboard": False, "object_store_memory": OBJECTS, "_temp_dir": folder}
    try:
        if note is not None:
            write_whole(note, f"{folder or ''}\n")
        try:
            with heard():
                ray.init(**options)
                look()
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise InputError(f"--address {address or 'local'}: {one_line(str(error), 500)}") from None
        machines = ray.nodes()  # type: ignore[no-untyped-call]
        yield find_nodes(machines, wanted, ray.get_runtime_context().get_node_id())
    finally:
        with undisturbed():
            ray.shutdown()
            if folder:
                end_processes(folder, _GRACE_S)
                shutil.rmtree(folder, ignore_errors=True)
            if note is not None:
                note.unlink(missing_ok=True)


def end_left(note: Path) -> None:
    """End what a run that was killed has left on this machine: the processes of a Ray of its own, and that one's folder."""
    if not note.is_file():
        return
    folder = note.read_text(errors="replace").strip()
    if Path(folder).name.startswith(PREFIX) and Path(folder).parent in (SHORT, Path(tempfile.gettempdir())):
        end_processes(folder, 0.0)
        shutil.rmtree(folder, ignore_errors=True)
    note.unlink(missing_ok=True)


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
    except ray.exceptions.RayActorError as error:
        cause = getattr(error, "cause", None)
        raise InputError(f"the coordinator could not be started or has died: {cause or error}") from None


def coordinator_options() -> dict[str, Any]:
    """How the actor of a coordinator is made: where the run's folder is."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return {"num_cpus": 0, "max_concurrency": 1000, "scheduling_strategy": here}


def watch(coordinator: Any, outcome: Any, say: Callable[[str], None], told: int = 0) -> str:
    """Wait for the end of what a coordinator does, and stop it when the user asks, by Ctrl-C or SIGTERM.

    Args:
        outcome: the call that ends with it. told: lines that were said before.

    Raises:
        As `execute`; RayActorError: the coordinator has died.
    """
    stopping = False
    try:
        with allowing(1) as presses:
            while not ray.wait([outcome], timeout=_WATCH_S)[0]:
                look()
                told = _tell(coordinator, told, say)
                if presses() and not stopping:
                    stopping = True
                    say("stopping at the next phase boundary; Ctrl-C again stops at once")
                    coordinator.stop.remote()
            _tell(coordinator, told, say)
            return str(ray.get(outcome))
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, InputError | PlanError | InvariantError):
            raise error.cause from None
        raise


def _tell(coordinator: Any, told: int, say: Callable[[str], None]) -> int:
    lines = ray.get(coordinator.news.remote(told))
    for line in lines:
        say(line)
    return told + len(lines)
