"""Where a service listens: HOST:PORT as a user writes it. Outside loopback nothing listens unless the user says so."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from typing import Any

from rollmux_env.errors import InputError
from rollmux_env.validation_errors import describe, one_line

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
