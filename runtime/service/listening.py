"""What a service listens with: HOST:PORT as a user writes it, and a token. Beyond loopback nothing listens unless the user says so.

A service that is replaced, or goes on after a stop, listens with the same again, so that its clients find it.
"""

from __future__ import annotations

import ipaddress
import json
import socket
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from rollmux_env.errors import InputError
from rollmux_env.files import read_file, write_whole
from rollmux_env.validation_errors import describe, one_line
from runtime.service.tokens import Holder, Right, Tokens

HTTP = "http.json"  # stays in the folder when the service stops

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Listen:
    """A place to listen.

    Attributes:
        host: a name or an address of this machine. port: 0 is any that is free. beyond_loopback: others than this machine may come.
    """

    host: str = LOOPBACK
    port: int = 0
    beyond_loopback: bool = False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def resolve(self) -> tuple[int, Any]:
        """Family and address of the socket.

        Raises:
            InputError: there is no such host, or it is beyond loopback and nobody has said that it may be; one line.
        """
        try:
            family, _, _, _, address = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[0]
        except (OSError, UnicodeError) as error:
            raise InputError(f"--http {one_line(str(self), 300)}: {getattr(error, 'strerror', None) or error}") from None
        if not self.beyond_loopback and not ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback:
            raise InputError(
                f"--http {self}: others than this machine could come; --listen-beyond-loopback allows it, "
                "behind a proxy with TLS (docs/guides/security.md)"
            )
        return int(family), address


def parse_listen(text: str | None, beyond_loopback: bool) -> Listen | None:
    """What `--http` says; None where nothing is said.

    Raises:
        InputError: it is not HOST:PORT, or as `Listen.resolve`; one line.
    """
    if text is None:
        return None
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    if not host or not port.isascii() or not port.isdigit() or int(port[:6]) > 65535:
        raise InputError(f"--http {describe(text)}: must be HOST:PORT, as 127.0.0.1:8800")
    where = Listen(host, int(port), beyond_loopback)
    where.resolve()
    return where


@dataclass(frozen=True)
class Listening:
    """What a service listens with.

    Attributes:
        token: its own, which may do everything.
    """

    where: Listen
    token: str


_FILE = TypeAdapter(Listening)


def listening_of(folder: Path, wish: Listen | None, beyond_loopback: bool) -> Listening:
    """What a service in a folder is to listen with: as it did before, where nothing else is wished.

    Args:
        wish: where, if the user has said so. beyond_loopback: a port that others than this machine can reach may be used again.

    Raises:
        InputError: its tokens cannot be written; one line.
    """
    before = _before(folder)
    tokens = Tokens(folder)
    known = before is not None and tokens.holder(before.token) == Holder("", Right.OPERATE)
    token = before.token if before is not None and known else tokens.make("", Right.OPERATE)
    where = wish or (replace(before.where, beyond_loopback=beyond_loopback) if before is not None else Listen())
    return Listening(where, token)


def remember(folder: Path, listening: Listening) -> None:
    """Write down what it listens with, for its owner alone.

    Raises:
        InputError: it cannot be written; one line.
    """
    path = folder / HTTP
    write_whole(path, json.dumps(asdict(listening)), private=True)
    path.chmod(0o600)


def _before(folder: Path) -> Listening | None:
    """What it last listened with; None where that is not known."""
    try:
        return _FILE.validate_json(read_file(folder / HTTP))
    except (InputError, ValidationError):
        return None


def continuing(folder: Path) -> str:
    """The command that continues what has ended in a folder with a journal: a service, which has listened, or else a run."""
    return f"rollmux serve {folder}" if (folder / HTTP).exists() else f"rollmux run --resume {folder}"
