"""A run from the outside: Ray is started or joined, the coordinator works, and whatever happens nothing is left behind."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rollmux_env.complaint import one_line
from rollmux_env.errors import InputError, PlanError
from rollmux_env.files import write_whole
from rollmux_env.replay.checks import InvariantError
from runtime.execution.coordinator import Coordinator
from runtime.execution.members import RunPlan
from runtime.execution.nodes import find_nodes
from runtime.record import Node, Pool

_OBJECTS = 512 << 20  # bytes of Ray's object store: responses and small models
_WATCH_S = 0.2
_GRACE_S = 5.0
_MARK = "ROLLMUX_RAY"  # in the environment of all processes of a Ray of ours: its folder
_PREFIX = "rollmux-ray-"
_SHORT = Path("/tmp")  # paths of Ray's sockets must stay below 108 characters, which a user's TMPDIR may use up
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # actors of ours choose their GPUs themselves
    "RAY_DEDUP_LOGS": "0",
    "OMP_NUM_THREADS": "1",
}


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
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    folder = tempfile.mkdtemp(prefix=_PREFIX, dir=_SHORT if _SHORT.is_dir() else None) if address is None else None
    os.environ[_MARK] = str(folder)
    options: dict[str, Any] = {"include_dashboard": False, "object_store_memory": _OBJECTS, "_temp_dir": folder}
    try:
        if note is not None:
            write_whole(note, f"{folder or ''}\n")
        try:
            ray.init(address=address or "local", log_to_driver=False, logging_level=logging.ERROR, **(options if folder else {}))
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise InputError(f"--address {address or 'local'}: {one_line(str(error), 500)}") from None
        machines = ray.nodes()  # type: ignore[no-untyped-call]
        yield find_nodes(machines, wanted, ray.get_runtime_context().get_node_id())
    finally:
        with _undisturbed():
            ray.shutdown()
            if folder:
                _end(folder, _GRACE_S)
                shutil.rmtree(folder, ignore_errors=True)
            if note is not None:
                note.unlink(missing_ok=True)


def end_left(note: Path) -> None:
    """End what a run that was killed has left on this machine: the processes of a Ray of its own, and that one's folder."""
    if not note.is_file():
        return
    folder = note.read_text(errors="replace").strip()
    if Path(folder).name.startswith(_PREFIX) and Path(folder).parent in (_SHORT, Path(tempfile.gettempdir())):
        _end(folder, 0.0)
        shutil.rmtree(folder, ignore_errors=True)
    note.unlink(missing_ok=True)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Let no Ctrl-C interrupt what cleans up."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


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
    asked = 0

    def interrupted(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked += 1
        if asked > 1:
            raise KeyboardInterrupt

    try:
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)  # where the run's folder is
        options: dict[str, Any] = {"num_cpus": 0, "max_concurrency": 1000, "scheduling_strategy": here}
        coordinator: Any = ray.remote(Coordinator).options(**options).remote(plan)
        before = signal.signal(signal.SIGINT, interrupted)
        told, stopping = 0, False
        try:
            outcome = coordinator.run.remote()
            while not ray.wait([outcome], timeout=_WATCH_S)[0]:
                told = _tell(coordinator, told, say)
                if asked and not stopping:
                    stopping = True
                    say("stopping at the next phase boundary; Ctrl-C again stops at once")
                    coordinator.stop.remote()
            _tell(coordinator, told, say)
            return str(ray.get(outcome))
        finally:
            signal.signal(signal.SIGINT, before)
            ray.kill(coordinator)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, InputError | PlanError | InvariantError):
            raise error.cause from None
        raise
    except ray.exceptions.RayActorError as error:
        cause = getattr(error, "cause", None)
        raise InputError(f"the coordinator could not be started or has died: {cause or error}") from None


def _tell(coordinator: Any, told: int, say: Callable[[str], None]) -> int:
    lines = ray.get(coordinator.news.remote(told))
    for line in lines:
        say(line)
    return told + len(lines)


def _started(folder: str) -> list[int]:
    """The living processes of a Ray of ours: those that were started with its folder in their environment."""
    mark = f"{_MARK}={folder}\0".encode()
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes() and _alive(entry):
                found.append(int(entry.name))
    return found


def _end(folder: str, grace_s: float) -> None:
    """Wait for the processes of a Ray of ours, and end those that do not end."""
    until_s = time.monotonic() + grace_s
    while pids := _started(folder):
        if time.monotonic() > until_s:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _alive(entry: Path) -> bool:
    return (entry / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
