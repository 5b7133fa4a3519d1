"""Where a Ray listens, and whether anybody is there: Ray itself asks for most of a minute."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from rollmux_env.errors import InputError
from rollmux_env.validation_errors import one_line

_ANSWERS_S = 5.0  # who is there takes a connection within this time


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
