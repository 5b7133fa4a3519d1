"""What a Ray that RollMux starts is like, how all of its processes are ended, and whether a Ray listens where one is said to be."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

from rollmux_env.errors import InputError
from rollmux_env.validation_errors import one_line
from runtime.machines.job_processes import end_all, marked_processes
from runtime.own_folder import OwnFolder

_ANSWERS_S = 5.0  # who is there takes a connection within this time

OBJECTS = 512 << 20  # bytes of Ray's object store: responses and small models
MARK = "ROLLMUX_RAY"  # in the environment of all processes of a Ray of ours: its folder
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # actors of ours choose their GPUs themselves
    "RAY_DEDUP_LOGS": "0",
    "RAY_memory_monitor_refresh_ms": "0",  # it ends whom it likes; a job's own processes watch their memory
    "OMP_NUM_THREADS": "1",
    "RAY_worker_niceness": "0",  # Ray's default, 15, lets whatever else runs on the machine slow phases down
}
_TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": "", "RAY_AUTH_TOKEN": ""}  # the last would come before a file


def stay_on_loopback() -> None:
    """Let a Ray that is started by this process listen on loopback alone. Ray must not be imported yet: it would not notice."""
    if "ray" not in sys.modules:
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # else it takes 127.0.0.1 for the address of a network


def write_token(path: Path) -> None:
    """Write a new token that only this user can read; one that is there goes."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32))


def ask_for_token(path: Path) -> None:
    """Let a Ray that is imported, joined or started from now on ask for the token in a file."""
    os.environ.update(_TOKEN | {"RAY_AUTH_TOKEN_PATH": str(path)})


@contextlib.contextmanager
def asking_for_token(folder: OwnFolder) -> Iterator[None]:
    """Let a Ray of ours ask for a token that lies in its folder; Ray's own lies in the user's home, for others to read."""
    before = {name: os.environ.get(name) for name in _TOKEN}
    path = Path(folder.path) / "token"
    write_token(path)
    ask_for_token(path)
    _look_again()
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        _look_again()


def _look_again() -> None:
    """Let Ray, which has been imported, see the mode and the token that the environment has now, as its own `init` does."""
    from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]

    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


def started_processes(folder: OwnFolder) -> list[int]:
    """The living processes of a Ray of ours: this user's that were started with its folder in their environment, or keep a file in
    it open; none where the folder is not known to be ours. One that has given itself a title may have written it over its
    environment.
    """
    if folder.doubt() is not None:
        return []
    return marked_processes(f"{MARK}={folder.path}\0", folder.path, (os.O_RDONLY, os.O_WRONLY, os.O_RDWR))


def end_processes(folder: OwnFolder, grace_s: float) -> None:
    """Wait for the processes of a Ray of ours, this one aside, and end those that do not end in time."""
    end_all(lambda: started_processes(folder), grace_s)


def answers(address: str) -> bool:
    """Whether somebody listens at HOST:PORT."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWERS_S).close()
    except (OSError, ValueError, OverflowError):
        return False
    return True


def check_address(address: str) -> None:
    """Make sure that somebody listens where `--address` says; `auto` is the Ray that was started on this machine, if it is known.

    Raises:
        InputError: nobody does; one line.
    """
    name = one_line(address, 300)
    where = _running() if address == "auto" else address
    if where is not None and "://" not in where and not answers(where):
        at = f" at {one_line(where, 300)}" if where != address else ""
        raise InputError(f"--address {name}: nobody answers{at}; is it HOST:PORT of a Ray that runs?")


def _running() -> str | None:
    """The address of the Ray that a `ray start` on this machine has noted."""
    if own := os.environ.get("RAY_ADDRESS"):
        return own
    note = Path(os.environ.get("RAY_TMPDIR") or "/tmp") / "ray" / "ray_current_cluster"
    try:
        return note.read_text().strip() or None
    except OSError:
        return None
