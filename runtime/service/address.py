"""Where a service is: the file in its folder by which clients find it.

Nothing here imports Ray: what it finds in the environment when it is imported decides how it listens and what it lets in.
"""

from __future__ import annotations

import ipaddress
import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import TypeAdapter, ValidationError

from rollmux_env.errors import InputError
from rollmux_env.files import read_file, write_whole
from rollmux_env.validation_errors import format_error, one_line, problems
from runtime.execution.own_ray import ask_for_token, stay_on_loopback
from runtime.execution.ray_address import answers
from runtime.own_folder import OwnFolder

SERVICE = "service.json"
VARIABLE = "ROLLMUX_SERVICE"
DEFAULT = "rollmux-service"
NAMESPACE = "rollmux"
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
        return answers(self.address) and (self.ray is None or _listeners(int(self.address.rpartition(":")[2])) == {os.geteuid()})


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
        return not _is_loopback(host) or _listeners(port) == {os.geteuid()}


_FILE = TypeAdapter(ServiceAddress)


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
        data = json.loads(read_file(path))
        older = isinstance(data, dict) and "address" in data
        service = _FILE.validate_python({"url": "", "token": "", "ray": data} if older else data)
    except (ValidationError, ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            if not os.path.lexists(path):
                return None
            raise
        problem = format_error(problems(error)[0], None) if isinstance(error, ValidationError) else "is not JSON"
        raise InputError(f"{one_line(str(path), 4096)}: cannot be read: {problem}") from None
    if service.ray is None or service.ray.token is None:
        return service
    return replace(service, ray=replace(service.ray, token=str(token_of(folder))))


def token_of(folder: Path) -> Path:
    """The file of a service's folder that holds the token of its Ray."""
    return folder.resolve() / _TOKEN


def announce(folder: Path, address: ServiceAddress) -> None:
    """Let clients find a service; only its owner may read how."""
    path = folder / SERVICE
    write_whole(path, json.dumps(asdict(address)), private=True)
    path.chmod(0o600)


def withdraw(folder: Path) -> None:
    """Let clients find nothing any more."""
    (folder / SERVICE).unlink(missing_ok=True)


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


def _listeners(port: int) -> set[int]:
    """The users that listen on a port of this machine, as the kernel lists them."""
    tables = [path for path in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")) if path.exists()]
    rows = [line.split() for path in tables for line in path.read_text().splitlines()[1:]]
    return {int(row[7]) for row in rows if row[3] == _LISTENS and int(row[1].rpartition(":")[2], 16) == port}
