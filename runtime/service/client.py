"""A service from the outside: where it is, and what is asked of it. Ray is imported only when its environment is prepared."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rollmux_env.errors import InputError
from rollmux_env.extras import require
from rollmux_env.validation_errors import one_line
from runtime.answers import result_of
from runtime.execution.own_ray import ENVIRONMENT
from runtime.execution.ray_address import check_address
from runtime.service.address import ServiceAddress, find, folder_of, prepare_environment
from runtime.signals import check_signals, masked

_ANSWERS_S = 60.0
_SOCKET = Path("session_latest") / "sockets" / "raylet"


class NoService(InputError):
    """No service runs in a folder.

    Attributes:
        has_journal: one has been there, which `rollmux serve` goes on with.
    """

    def __init__(self, folder: Path, has_journal: bool) -> None:
        name = one_line(str(folder), 4096)
        goes = "goes on with the one that is stopped" if has_journal else "starts one"
        super().__init__(f"--at {name}: no service runs there; `rollmux serve {name}` {goes}")
        self.has_journal = has_journal


class Client:
    """Asks a service.

    Args:
        folder: as errors name it. actor: the coordinator.
    """

    def __init__(self, folder: Path, actor: Any) -> None:
        self._folder = folder
        self._actor = actor

    def ask(self, method: str, *arguments: Any) -> Any:
        """Call a method of `runtime.service.service.Service`.

        Raises:
            InputError: it refuses, or (NoService) is there no more; one line.
        """
        import ray

        try:
            return result_of(getattr(self._actor, method).remote(*arguments), _ANSWERS_S)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, InputError):
                raise error.cause from None
            raise
        except (ray.exceptions.RayError, ConnectionError) as error:
            raise _nobody(self._folder) from error


@contextlib.contextmanager
def connected(at: Path | None) -> Iterator[Client]:
    """Be in touch with the service of a folder.

    Args:
        at: the folder; None for that of the environment, or the usual one.

    Raises:
        InputError: (NoService) no service runs there, or what it takes to ask is not installed; one line.
    """
    folder = folder_of(at)
    address = find(folder)
    if address is None or not address.answers():
        raise _nobody(folder)
    require("run", "a service")
    prepare_environment(address)
    import ray

    from runtime.execution.ray_health import shut_down

    join(address)
    check_signals()
    try:
        try:
            actor = ray.get_actor(address.actor, namespace=address.namespace)
        except ValueError:
            raise _nobody(folder) from None
        yield Client(folder, actor)
    finally:
        with masked():
            shut_down()


def join(address: ServiceAddress) -> None:
    """Join the Ray of a service.

    Raises:
        InputError: it lets nobody in; one line.
    """
    import logging

    import ray

    from runtime.execution.ray_health import quieten_ray

    check_address(address.address)
    if address.home is not None and not (Path(address.home.inside) / _SOCKET).exists():  # Ray would wait for it, and then crash
        raise InputError(
            f"the sockets of its Ray in {one_line(address.home.path, 300)} have gone; stop `rollmux serve` and start it again"
        )
    quieten_ray()
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        with masked():
            ray.init(address=address.address, namespace=address.namespace, log_to_driver=False, logging_level=logging.CRITICAL)
    except Exception as error:  # which is what Ray raises
        problem = one_line(" ".join(str(error).split()), 500)
        raise InputError(f"--address {address.address}: {problem}") from error


def _nobody(folder: Path) -> NoService:
    """That no service runs in a folder.

    Raises:
        InputError: and none could be started, since the extra is not installed.
    """
    from runtime.journal import JOURNAL, is_begun

    has_journal = is_begun(folder / JOURNAL)
    if not has_journal:
        require("run", "a service")
    return NoService(folder, has_journal)
