"""Where a service is: the file in its folder by which clients find it.

Nothing here imports Ray: what it finds in the environment when it is imported decides how it listens and what it lets in.
"""

from __future__ import annotations

import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from rollmux_env.complaint import one_line
from rollmux_env.errors import InputError
from rollmux_env.files import write_whole
from runtime.execution.own_ray import stay_on_loopback

SERVICE = "service.json"
VARIABLE = "ROLLMUX_SERVICE"
DEFAULT = "rollmux-service"
NAMESPACE = "rollmux"
_ANSWERS_S = 2.0


@dataclass(frozen=True)
class Where:
    """A service that was started.

    Attributes:
        address: of its Ray. actor, namespace: by which the coordinator is found there.
        token: the file that holds the token which Ray asks for; None where the user's own environment has it.
        ray: folder of the Ray that was started for the service; None where it has joined one.
    """

    address: str
    actor: str
    namespace: str = NAMESPACE
    token: str | None = None
    ray: str | None = None

    def answers(self) -> bool:
        """Whether somebody listens at the address."""
        host, _, port = self.address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=_ANSWERS_S).close()
        except (OSError, ValueError):
            return False
        return True


def folder_of(at: Path | None) -> Path:
    """The folder that a command means: the one given, else that of the environment, else the usual one."""
    return at if at is not None else Path(os.environ.get(VARIABLE) or DEFAULT)


def find(folder: Path) -> Where | None:
    """What the folder says of a service that was started and has not been stopped; None where it says nothing.

    Raises:
        InputError: the file cannot be read; one line.
    """
    path = folder / SERVICE
    try:
        return TypeAdapter(Where).validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise InputError(f"{one_line(str(path), 4096)}: cannot be read: {one_line(str(error), 200)}") from None


def announce(folder: Path, where: Where) -> None:
    """Let clients find a service; only its owner may read how."""
    path = folder / SERVICE
    write_whole(path, TypeAdapter(dict[str, str | None]).dump_json(asdict(where)))
    path.chmod(0o600)


def withdraw(folder: Path) -> None:
    """Let clients find nothing any more."""
    (folder / SERVICE).unlink(missing_ok=True)


def prepare_environment(where: Where) -> None:
    """Set what Ray reads when it is imported: a Ray of a service's own listens on loopback alone, and asks for a token."""
    if where.ray is not None:
        stay_on_loopback()
    if where.token is not None:
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN_PATH"] = where.token
