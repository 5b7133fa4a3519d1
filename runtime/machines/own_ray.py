"""The environment of a Ray that RollMux starts, the end of all of its processes, and whether a Ray answers at an address."""

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

_ANSWERS_S = 5.0  # time within which a listening process accepts a connection

OBJECTS = 512 << 20  # bytes of Ray's object store: responses and small models
MARK = "ROLLMUX_RAY"  # environment variable of all processes of RollMux's own Ray: its folder
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # RollMux's actors choose their GPUs themselves
    "RAY_DEDUP_LOGS": "0",
    "RAY_memory_monitor_refresh_ms": "0",  # it would kill arbitrary processes; a job's processes watch their own memory
    "RAY_enable_worker_prestart": "0",  # the processes that a job needs are started for it; more would be idle
    "RAY_prestart_worker_first_driver": "0",
    "OMP_NUM_THREADS": "1",
    "RAY_worker_niceness": "0",  # with Ray's default, 15, other programs on the machine would slow phases down
}
_TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": "", "RAY_AUTH_TOKEN": ""}  # the last would take precedence over a file


def stay_on_loopback() -> None:
    """Let a Ray that this process starts listen on loopback alone. It has no effect once Ray has been imported."""
    if "ray" not in sys.modules:
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # otherwise Ray replaces 127.0.0.1 by an address of the network


def write_token(path: Path) -> None:
    """Write a new token that only this user can read; an existing one is replaced."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32))


def ask_for_token(path: Path) -> None:
    """Let a Ray that is imported, joined or started from now on require the token in a file."""
    os.environ.update(_TOKEN | {"RAY_AUTH_TOKEN_PATH": str(path)})


@contextlib.contextmanager
def asking_for_token(folder: OwnFolder) -> Iterator[None]:
    """Let RollMux's own Ray require a token in its folder. Ray's default token is in the user's home, where others may read it."""
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
    """Let an imported Ray read the authentication mode and token of the environment again, as its `init` does."""
    from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]

    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


def started_processes(folder: OwnFolder) -> list[int]:
    """Return the living processes of RollMux's own Ray, or none if the folder is not certainly RollMux's.

    They are this user's processes that have its folder in their environment, or a file in it open. A process that sets its title
    may have overwritten its environment.
    """
    if folder.problem() is not None:
        return []
    return marked_processes(f"{MARK}={folder.path}\0", folder.path, (os.O_RDONLY, os.O_WRONLY, os.O_RDWR))


def end_processes(folder: OwnFolder, grace_s: float) -> None:
    """Wait for the processes of RollMux's own Ray, except this one, and kill those that do not end in time.

    Args:
        folder: Folder of the Ray.
        grace_s: Time for processes to end without a signal, in seconds.
    """
    end_all(lambda: started_processes(folder), grace_s)


def answers(address: str) -> bool:
    """Return whether a process listens at HOST:PORT."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWERS_S).close()
    except (OSError, ValueError, OverflowError):
        return False
    return True


def check_address(address: str) -> None:
    """Check that a process listens at the address of `--address`; `auto` is the Ray that was started on this machine.

    Raises:
        InputError: If none does; one line.
    """
    name = one_line(address, 300)
    where = _running() if address == "auto" else address
    if where is not None and "://" not in where and not answers(where):
        at = f" at {one_line(where, 300)}" if where != address else ""
        raise InputError(f"--address {name}: nobody answers{at}; is it HOST:PORT of a Ray that runs?")


def _running() -> str | None:
    """Return the address that `ray start` has recorded on this machine, or None."""
    if own := os.environ.get("RAY_ADDRESS"):
        return own
    note = Path(os.environ.get("RAY_TMPDIR") or "/tmp") / "ray" / "ray_current_cluster"
    try:
        return note.read_text().strip() or None
    except OSError:
        return None
