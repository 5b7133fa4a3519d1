"""A service's own Ray on this machine: on loopback, with a token, and alive after the process that started it has ended."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import Any

from rollmux_env.errors import InputError
from rollmux_env.validation_errors import one_line
from runtime.machines.own_ray import ENVIRONMENT, MARK, OBJECTS, end_processes, started_processes, write_token
from runtime.own_folder import make_own_folder
from runtime.service.address import RayAddress, ServiceAddress, announce, find, prepare_environment, token_of, withdraw
from runtime.signals import check_signals, shielded

_PORTS = range(20_000, 32_000)  # above the ports of Ray's workers, below the ephemeral ports
_STARTS_S = 120.0
_WATCH_S = 0.2


def find_running(folder: Path, say: Callable[[str], None]) -> RayAddress | None:
    """Return the Ray of a service that was started in a folder and still runs, and prepare this process to join it.

    If it does not run, return None and remove what is left of it.

    Args:
        folder: Folder of the service.
        say: Callback for a line about a folder of Ray that cannot be removed safely.
    """
    service = find(folder)
    if service is None or service.ray is None:
        return None
    address = service.ray
    home = address.home
    if address.answers() and (home is None or not address.inode or started_processes(home)):  # 0: an older RollMux's, alive
        prepare_environment(address)
        return address
    _clean_up(folder, address, say)
    return None


def start_head(folder: Path, say: Callable[[str], None]) -> RayAddress:
    """Start Ray for the service of a folder, and prepare this process to join it.

    Args:
        folder: Folder of the service.
        say: Callback as in `find_running`.

    Raises:
        InputError: If Ray does not start; one line.
    """
    token = token_of(folder)
    write_token(token)
    own = make_own_folder()
    home = own.path
    port, clients, metrics, agent = _free_ports(4)
    address = RayAddress(f"127.0.0.1:{port}", actor_name(), token=str(token), ray=home, device=own.device, inode=own.inode)
    announce(folder, ServiceAddress("", "", address))  # after an abrupt end, the next command knows what to clean up
    prepare_environment(address)
    os.environ.update({MARK: home, **{name: os.environ.get(name, value) for name, value in ENVIRONMENT.items()}})
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--node-ip-address=127.0.0.1", f"--port={port}"]
    command += [f"--temp-dir={own.inside}", "--include-dashboard=false", "--include-log-monitor=false", "--no-monitor"]
    command += ["--disable-usage-stats"]
    command += [f"--object-store-memory={OBJECTS}", f"--metrics-export-port={metrics}", f"--dashboard-agent-listen-port={agent}"]
    command += [f"--ray-client-server-port={clients}", "--min-worker-port=0", "--max-worker-port=0", "--log-style=record"]
    with tempfile.TemporaryFile() as output:  # not a pipe: Ray's own processes would keep it open
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
        try:
            check_signals()
            with subprocess.Popen(command, start_new_session=True, **streams) as starts:
                try:
                    has_started = _status(starts) == 0 and address.answers()
                finally:
                    starts.kill()
            if not has_started:
                output.seek(0)
                last = " ".join(output.read().decode(errors="replace").split())[-400:]
                raise InputError(f"Ray does not start: {one_line(last, 500)}")
        except BaseException:
            _clean_up(folder, address, say)
            raise
    return address


def _status(starts: subprocess.Popen[bytes]) -> int | None:
    """Return the exit status of the command that starts Ray, or None if it takes too long. The user may interrupt this wait."""
    until_s = monotonic() + _STARTS_S
    while monotonic() < until_s:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return starts.wait(_WATCH_S)
        check_signals()
    return None


def actor_name() -> str:
    """Return a random name for a service's coordinator, since several may share a cluster."""
    return f"service-{secrets.token_hex(4)}"


@contextlib.contextmanager
def head(folder: Path, address: str | None, say: Callable[[str], None]) -> Iterator[RayAddress]:
    """Yield the Ray of a service: the running one, the one at an address, or a new one. Clean up afterwards.

    Args:
        folder: Folder of the service.
        address: Address of the Ray that the user asks for, or None to start one.
        say: Callback as in `find_running`.

    Raises:
        InputError: If Ray does not start; one line.
    """
    service = find_running(folder, say) or (RayAddress(address, actor_name()) if address is not None else start_head(folder, say))
    try:
        check_signals()
        yield service
    finally:
        _clean_up(folder, service, say)


def _clean_up(folder: Path, address: RayAddress, say: Callable[[str], None]) -> None:
    """End a service's own Ray, and remove all files about it."""
    with shielded():
        stop_head(address, say)
        withdraw(folder)


def stop_head(address: RayAddress, say: Callable[[str], None]) -> None:
    """End all processes of a service's own Ray, and remove its files.

    Args:
        address: Address of the Ray. One that the service has joined is left alone.
        say: Callback as in `find_running`.
    """
    if (home := address.home) is not None:
        end_processes(home, grace_s=0.0)
        if line := home.leftover():
            say(line)
        home.remove()
    if address.token is not None:  # set by `find` or `start_head`: it is the file in the service's folder
        Path(address.token).unlink(missing_ok=True)


def _free_ports(count: int) -> list[int]:
    ports: list[int] = []
    while len(ports) < count:
        port = secrets.choice(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in ports:
            ports.append(port)
    return ports
