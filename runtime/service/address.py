"""Where a service listens, and how clients find it: two files in its folder, each for its owner alone.

`service.json` says where a service is that runs. `http.json` stays when it stops: a service that is replaced, or goes on, listens
with the same again. Beyond loopback nothing listens unless the user says so.

Nothing here imports Ray: what it finds in the environment when it is imported decides how it listens and what it lets in.
"""

from __future__ import annotations

import ipaddress
import json
import os
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
    """The Ray of a service.

    Attributes:
        address: of its head. actor, namespace: by which the coordinator is found there.
        token: the file that holds the token which Ray asks for, `token` in the service's folder; None where the user's own
            environment has it.
        ray: folder of the Ray that was started for the service; None where it has joined one. device, inode: which folder that is.
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
        """The folder of the Ray that was started for the service."""
        return None if self.ray is None else OwnFolder(self.ray, self.device, self.inode)

    def answers(self) -> bool:
        """Whether somebody listens at the address; on a port of this machine that a Ray of ours had, whether it is this user.

        Another user may have taken the port of a Ray that has died, and who joins a Ray runs what that one sends.
        """
        return answers(self.address) and (self.ray is None or listeners(int(self.address.rpartition(":")[2])) == {os.geteuid()})


@dataclass(frozen=True)
class ServiceAddress:
    """A service that was started.

    Attributes:
        url: where it answers, without a slash at the end; "" before it does. token: with which it can be asked for everything.
        ray: of its jobs' processes; None where it needs none.
    """

    url: str
    token: str
    ray: RayAddress | None

    def answers(self) -> bool:
        """Whether somebody listens there; on this machine, whether it is this user: others are not to be told the token."""
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
        where: Place at which it listens.
        token: Token of the service itself, which may do everything.
        has_ray: Whether the service has a Ray, or was started by `--no-ray`.
    """

    where: Listen
    token: str
    has_ray: bool = True


_SERVICE: TypeAdapter[ServiceAddress] = TypeAdapter(ServiceAddress)
_HTTP: TypeAdapter[Listening] = TypeAdapter(Listening)


def folder_of(at: Path | None) -> Path:
    """The folder that a command means: the one given, else that of the environment, else the usual one."""
    return at if at is not None else Path(os.environ.get(VARIABLE) or DEFAULT)


def find(folder: Path) -> ServiceAddress | None:
    """What the folder says of a service that was started and has not been stopped; None where it says nothing.

    The token of a Ray is the one in this folder, whatever the file says. A service that an older RollMux started has no URL.

    Raises:
        InputError: the file cannot be read; one line.
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
    """The file of a service's folder that holds the token of its Ray."""
    return folder.resolve() / _TOKEN


def announce(folder: Path, address: ServiceAddress) -> None:
    """Let clients find a service."""
    _write(folder / SERVICE, address)


def withdraw(folder: Path) -> None:
    """Let clients find nothing any more."""
    (folder / SERVICE).unlink(missing_ok=True)


def remember(folder: Path, listening: Listening) -> None:
    """Write down what a service listens with."""
    _write(folder / HTTP, listening)


def let_in(folder: Path, listening: Listening, url: str, port: int, ray: RayAddress | None) -> None:
    """Let clients find a service that listens now at a port, and let the next one listen there."""
    remember(folder, replace(listening, where=replace(listening.where, port=port), has_ray=ray is not None))
    announce(folder, ServiceAddress(url, listening.token, ray))


def _write(path: Path, content: ServiceAddress | Listening) -> None:
    """Write a file for its owner alone; raises InputError, one line, where it cannot be written."""
    write_whole(path, json.dumps(asdict(content)), private=True)
    path.chmod(0o600)


def listening_of(folder: Path, wish: Listen | None, beyond_loopback: bool) -> Listening:
    """What a service in a folder is to listen with: as it did before, where nothing else is wished.

    Args:
        wish: where, if the user has said so. beyond_loopback: a port that others than this machine can reach may be used again.

    Raises:
        InputError: its tokens cannot be written; one line.
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


def has_service(folder: Path) -> bool:
    """Return whether a folder with a journal is that of a service, which has listened, and not that of a run."""
    return (folder / HTTP).exists()


def continuing(folder: Path) -> str:
    """Return the command that continues the run or the service that has ended in a folder with a journal."""
    if not has_service(folder):
        return f"rollmux run --resume {folder}"
    before = _listened(folder)
    return f"rollmux serve {folder}{'' if before is None or before.has_ray else ' --no-ray'}"


def check_run(folder: Path, option: str = "") -> None:
    """Check that a folder is not that of a service.

    Args:
        folder: Folder of a run, as the user names it.
        option: Option that names the folder, with a blank at its end, or an empty string for an argument.

    Raises:
        InputError: It is; one line with the command that continues the service.
    """
    if has_service(folder):
        name = one_line(str(folder), 4096)
        raise InputError(f"{option}{name}: holds a service, and no run; `{continuing(Path(name))}` goes on with it")


def prepare_environment(address: RayAddress) -> None:
    """Set what Ray reads when it is imported: a Ray of a service's own listens on loopback alone, and asks for a token."""
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
    """The users that listen on a port of this machine, as the kernel lists them."""
    tables = [path for path in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")) if path.exists()]
    rows = [line.split() for path in tables for line in path.read_text().splitlines()[1:]]
    return {int(row[7]) for row in rows if row[3] == _LISTENS and int(row[1].rpartition(":")[2], 16) == port}
