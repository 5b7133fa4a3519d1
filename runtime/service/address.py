"""The address of a service, for the service and its clients: two files in its folder, readable by its owner alone.

`service.json` holds the address of a running service. `http.json` remains when the service stops: the service that continues or
replaces it listens at the same place with the same token. A service listens beyond loopback only if the user allows it.

This module does not import Ray: Ray reads its environment when it is imported, and `prepare_environment` has to set it before that.
"""

from __future__ import annotations

import ipaddress
import json
import os
import shlex
import socket
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from rollmux_env.errors import InputError
from rollmux_env.files import read_text, write_whole
from rollmux_env.validation_errors import describe, format_error, one_line, problems
from runtime.machines.own_ray import answers, ask_for_token, stay_on_loopback
from runtime.own_folder import OwnFolder
from runtime.service.tokens import Holder, Right, Tokens

SERVICE = "service.json"
HTTP = "http.json"
VARIABLE = "ROLLMUX_SERVICE"
DEFAULT = "rollmux-service"
NAMESPACE = "rollmux"
LOOPBACK = "127.0.0.1"
_TOKEN = "token"
_LISTENS = "0A"


@dataclass(frozen=True)
class RayAddress:
    """Address of the Ray cluster that a service uses.

    Attributes:
        address: Address of Ray's head, as HOST:PORT.
        actor: Name of the coordinator's actor.
        namespace: Ray namespace of that actor.
        token: Path of the file with Ray's authentication token, `token` in the service's folder, or None if Ray asks for none or
            the user's environment has it.
        ray: Folder of the Ray that was started for the service, or None if the service has joined another one.
        device: Device number of that folder, to recognise it.
        inode: Inode of that folder, to recognise it.
    """

    address: str
    actor: str
    namespace: str = NAMESPACE
    token: str | None = None
    ray: str | None = None
    device: int = 0
    inode: int = 0

    @property
    def home(self) -> OwnFolder | None:
        """The folder of the Ray that was started for the service, or None if it has joined another one."""
        return None if self.ray is None else OwnFolder(self.ray, self.device, self.inode)

    def answers(self) -> bool:
        """Return whether a process listens at the address; for a Ray of the service's own, only a process of this user counts.

        Another user may have taken the port of a Ray that has died, and a process that joins a Ray runs the code that it sends.
        """
        return answers(self.address) and (self.ray is None or listeners(int(self.address.rpartition(":")[2])) == {os.geteuid()})


@dataclass(frozen=True)
class ServiceAddress:
    """Address of a service that was started.

    Attributes:
        url: URL of the service, without a slash at the end, or "" before it listens.
        token: Token of the service itself, which has every right.
        ray: Address of its Ray, or None if it runs without Ray.
    """

    url: str
    token: str
    ray: RayAddress | None

    def answers(self) -> bool:
        """Return whether a process listens at the URL; on this machine, only a process of this user counts.

        Another user's process must not receive the token.
        """
        try:
            where = urlsplit(self.url)
            host, port = where.hostname, where.port
        except ValueError:
            return False
        if not host or port is None or not answers(where.netloc):
            return False
        return not _is_loopback(host) or listeners(port) == {os.geteuid()}


@dataclass(frozen=True)
class Listen:
    """A place to listen.

    Attributes:
        host: Name or address of this machine.
        port: Number of the port, or 0 for any free one.
        beyond_loopback: Whether other machines may connect.
    """

    host: str = LOOPBACK
    port: int = 0
    beyond_loopback: bool = False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def resolve(self) -> tuple[int, Any]:
        """Return the family and the address of the socket.

        Raises:
            InputError: If there is no such host, or it is beyond loopback and the user has not allowed that; one line.
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
    """Return the value of `--http` as a place to listen, or None if the option is absent.

    Args:
        text: Value of the option, HOST:PORT, or None.
        beyond_loopback: Whether other machines may connect.

    Raises:
        InputError: If the text is not HOST:PORT, or as in `Listen.resolve`; one line.
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
    """Place and token with which a service listens.

    Attributes:
        where: Place at which it listens.
        token: Token of the service itself, which has every right.
        has_ray: Whether the service has a Ray, or was started by `--no-ray`.
    """

    where: Listen
    token: str
    has_ray: bool = True


_SERVICE: TypeAdapter[ServiceAddress] = TypeAdapter(ServiceAddress)
_HTTP: TypeAdapter[Listening] = TypeAdapter(Listening)


def folder_of(at: Path | None) -> Path:
    """Return the folder that a command means: the argument, else that of the environment, else the default.

    Args:
        at: Folder that the user names, or None.

    Raises:
        InputError: If it is a file; one line.
    """
    folder = at if at is not None else Path(os.environ.get(VARIABLE) or DEFAULT)
    if os.path.isfile(folder):
        raise InputError(f"--at {one_line(str(folder), 4096)}: is a file, not the folder of a service")
    return folder


def find(folder: Path) -> ServiceAddress | None:
    """Return the address that a folder has of a service that has not been stopped, or None if there is none.

    Ray's token is the file in this folder, whatever `service.json` says. A service that an older RollMux started has no URL.

    Args:
        folder: Folder of a service.

    Raises:
        InputError: If the file cannot be read; one line.
    """
    path = folder / SERVICE
    try:
        data = read_text(path)
    except InputError:
        if not os.path.lexists(path):
            return None
        raise
    try:
        value = from_json(data)
        older = isinstance(value, dict) and "address" in value
        service = _SERVICE.validate_python({"url": "", "token": "", "ray": value} if older else value)
    except ValueError as error:
        problem = format_error(problems(error)[0], None) if isinstance(error, ValidationError) else "is not JSON"
        raise InputError(f"{one_line(str(path), 4096)}: cannot be read: {problem}") from None
    if service.ray is None or service.ray.token is None:
        return service
    return replace(service, ray=replace(service.ray, token=str(token_of(folder))))


def token_of(folder: Path) -> Path:
    """Return the path of the file in a service's folder that holds the token of its Ray."""
    return folder.resolve() / _TOKEN


def announce(folder: Path, address: ServiceAddress) -> None:
    """Write the address at which clients find a service."""
    _write(folder / SERVICE, address)


def withdraw(folder: Path) -> None:
    """Remove the address of a service that has stopped."""
    (folder / SERVICE).unlink(missing_ok=True)


def remember(folder: Path, listening: Listening) -> None:
    """Write the place and the token with which a service listens."""
    _write(folder / HTTP, listening)


def let_in(folder: Path, listening: Listening, url: str, port: int, ray: RayAddress | None) -> None:
    """Write the address of a service that listens now, and the port at which the next one is to listen.

    Args:
        folder: Folder of the service.
        listening: Place and token with which the service was asked to listen.
        url: URL of the service.
        port: Port at which it listens.
        ray: Address of its Ray, or None if it runs without Ray.
    """
    remember(folder, replace(listening, where=replace(listening.where, port=port), has_ray=ray is not None))
    announce(folder, ServiceAddress(url, listening.token, ray))


def _write(path: Path, content: ServiceAddress | Listening) -> None:
    """Write a file readable by its owner alone.

    Raises:
        InputError: If it cannot be written; one line.
    """
    write_whole(path, json.dumps(asdict(content)), private=True)
    path.chmod(0o600)


def listening_of(folder: Path, wish: Listen | None, beyond_loopback: bool) -> Listening:
    """Return the place and the token with which a service is to listen.

    They are those of the service that was in the folder before, unless the user asks for another place.

    Args:
        folder: Folder of the service.
        wish: Place that the user asks for, or None.
        beyond_loopback: Whether a recorded place that other machines can reach may be used again.

    Raises:
        InputError: If its tokens cannot be written; one line.
    """
    before = _listened(folder)
    tokens = Tokens(folder)
    known = before is not None and tokens.holder(before.token) == Holder("", Right.OPERATE)
    token = before.token if before is not None and known else tokens.make("", Right.OPERATE)
    where = wish or (replace(before.where, beyond_loopback=beyond_loopback) if before is not None else Listen())
    return Listening(where, token)


def _listened(folder: Path) -> Listening | None:
    """Return what the last service in a folder listened with, or None if that cannot be read."""
    try:
        return _HTTP.validate_json(read_text(folder / HTTP))
    except (InputError, ValidationError):
        return None


def claim(folder: Path, has_ray: bool) -> None:
    """Mark a folder as that of a service before its journal begins: else it would look like a run's if the service cannot listen.

    Args:
        folder: Folder of the service.
        has_ray: Whether the service has a Ray.

    Raises:
        InputError: If a file cannot be written; one line.
    """
    if not has_service(folder):
        remember(folder, replace(listening_of(folder, None, False), has_ray=has_ray))


def has_service(folder: Path) -> bool:
    """Return whether a folder is that of a service, and not that of a run."""
    return (folder / HTTP).exists()


def continuing(folder: Path) -> str:
    """Return the command that continues the run or the service that has ended in a folder with a journal."""
    name = in_shell(folder)
    if not has_service(folder):
        return f"rollmux run --resume {name}"
    before = _listened(folder)
    return f"rollmux serve {name}{'' if before is None or before.has_ray else ' --no-ray'}"


def in_shell(folder: Path) -> str:
    """Return a folder as a word of a command that the user may copy into a shell."""
    return shlex.quote(one_line(str(folder), 4096))


def check_run(folder: Path, option: str = "") -> None:
    """Check that a folder is not that of a service.

    Args:
        folder: Folder of a run, as the user names it.
        option: Option that names the folder, with a blank at its end, or an empty string for an argument.

    Raises:
        InputError: If it is; one line with the command that continues the service.
    """
    if has_service(folder):
        name = one_line(str(folder), 4096)
        raise InputError(f"{option}{name}: holds a service, and no run; `{continuing(folder)}` continues it")


def prepare_environment(address: RayAddress) -> None:
    """Set the variables that Ray reads when it is imported.

    A service's own Ray listens on loopback alone, and asks for a token.
    """
    if address.ray is not None:
        stay_on_loopback()
    if address.token is not None:
        ask_for_token(Path(address.token))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listeners(port: int) -> set[int]:
    """Return the user ids of the sockets that listen on a TCP port of this machine, as the kernel lists them."""
    tables = [path for path in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")) if path.exists()]
    rows = [line.split() for path in tables for line in path.read_text().splitlines()[1:]]
    return {int(row[7]) for row in rows if row[3] == _LISTENS and int(row[1].rpartition(":")[2], 16) == port}
