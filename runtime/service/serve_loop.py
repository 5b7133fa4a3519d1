"""The loop of `rollmux serve` once its Ray runs: it finds or starts the service, watches it, and stops it when the user asks."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import ray

from rollmux_env.errors import InputError
from rollmux_env.validation_errors import one_line
from runtime.coordinator.actor import Coordinator, named
from runtime.journal.rollover import ROLLED_OVER, begin_next_part
from runtime.machine import Node, Pool
from runtime.machines.nodes import find_nodes
from runtime.machines.own_ray import ENVIRONMENT, check_address
from runtime.machines.ray_health import RayDied, quieten_ray, shut_down
from runtime.run.ray_session import coordinator_options, watch
from runtime.service.address import (
    SERVICE,
    Listen,
    RayAddress,
    ServiceAddress,
    announce,
    claim,
    in_shell,
    let_in,
    listeners,
    listening_of,
)
from runtime.service.head import actor_name
from runtime.service.http.listening import ListeningService
from runtime.service.patience import Patience
from runtime.service.plan import ServiceOptions, past, service_plan
from runtime.signals import check_signals, masked, result_of, shielded

_SOCKET = Path("session_latest") / "sockets" / "raylet"
_DYING_S = 30.0  # longest time until an earlier coordinator has ended and its port is free
_SETTLED_S = 30.0  # a coordinator that dies sooner would die again


def serve_loop(folder: Path, address: RayAddress, wish: ServiceOptions, say: Callable[[str], None]) -> None:
    """Serve until the user stops the service. When this returns or raises, the service has ended.

    Args:
        folder: Folder of the service, which is locked.
        address: Ray of the service, which this process is prepared to join.
        wish: Options of the command.
        say: Callback for a line about an event.

    Raises:
        InputError: If the service cannot begin or continue; one line.
        PlanError: If a policy broke an invariant.
        InvariantError: If the scheduler broke an invariant.
        KeyboardInterrupt: If the user asked twice to stop, or asked before the service began.
    """
    service = None
    has_rolled_over, patience = False, Patience(say)
    try:
        _join(address)
        check_signals()
        address = replace(address, address=ray.get_runtime_context().gcs_address)
        service = _find(folder, address)
        if service is not None:
            say("the service that was started here before is alive; its own settings hold")
        while True:
            began_s = monotonic()
            try:
                lines_said, tell = 0, None
                if service is not None:
                    lines_said = result_of(service.call.remote("told"))
                else:
                    tell = say
                    address = replace(address, actor=actor_name())
                    announce(folder, ServiceAddress("", "", address))  # after an abrupt end, the next command finds the actor
                    service = _start(folder, address, wish, say)
                url = _listen(service, folder, address, wish, tell)
                say(f"listening at {url}; the token is in {folder / SERVICE}")
                say(f"serving from {folder}: rollmux submit FILE --at {in_shell(folder)}")
                has_rolled_over = False
                if watch(service, service.call.remote("ended"), say, lines_said) != ROLLED_OVER:
                    break
                ray.kill(service)
                service, has_rolled_over = None, True
                wish = replace(wish, policy=None, dispatch=None, cluster=None)
            except RayDied as error:
                raise InputError(f"{error}; `rollmux serve {in_shell(folder)}` continues from the journal") from error
            except InputError as error:
                cause = getattr(error, "cause", None) or error  # Ray's error about an InputError is one, too, with a traceback
                if not has_rolled_over:
                    raise cause from None
                if service is not None:
                    ray.kill(service)
                    service = None
                patience.wait(cause)
            except ray.exceptions.RayActorError:
                if (problem := _why_final(address, began_s)) is not None:
                    raise InputError(f"{problem}; `rollmux serve {in_shell(folder)}` continues from the journal") from None
                say("the coordinator has died; another one continues from the journal")
                service = None
    finally:
        with shielded():
            if service is not None and address.answers():
                ray.kill(service)
            shut_down()


def _why_final(address: RayAddress, began_s: float) -> str | None:
    """Return why no other coordinator can follow one that has died, or None if one can.

    Args:
        address: Ray of the service.
        began_s: Time at which the coordinator was started, in seconds of the monotonic clock.
    """
    if not address.answers():
        return "Ray has ended"
    return "the coordinator has died, soon after its start" if monotonic() - began_s < _SETTLED_S else None


def _join(address: RayAddress) -> None:
    """Join the Ray of a service.

    Raises:
        InputError: If Ray refuses, or its sockets are gone; one line.
    """
    check_address(address.address)
    if (
        address.home is not None and not (Path(address.home.inside) / _SOCKET).exists()
    ):  # Ray would wait for the socket, and then crash
        raise InputError(
            f"the sockets of its Ray in {one_line(address.home.path, 300)} have gone; stop `rollmux serve` and start it again"
        )
    quieten_ray()
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        with masked():
            ray.init(address=address.address, namespace=address.namespace, log_to_driver=False, logging_level=logging.CRITICAL)
    except Exception as error:  # Ray raises errors of many types here
        problem = one_line(" ".join(str(error).split()), 500)
        raise InputError(f"--address {address.address}: {problem}") from error


def _listen(service: Any, folder: Path, address: RayAddress, wish: ServiceOptions, say: Callable[[str], None] | None) -> str:
    """Let a service listen, write its address, and return its URL.

    Args:
        service: Handle of the service's actor.
        folder: Folder of the service.
        address: Address of its Ray.
        wish: Options of the command.
        say: Callback for a line about a port that is in use, or None if the service listens already.
    """
    listening = listening_of(folder, wish.listen, wish.beyond_loopback)
    patience_s = _DYING_S if say is not None and waits_for_port(listening.where, say) else 0.0
    try:
        url, port = result_of(service.call.remote("listen", listening.where, patience_s))
    except (AttributeError, TypeError):
        raise _older(folder) from None
    let_in(folder, listening, url, port, address)
    result_of(service.call.remote("give_access", listening.token))
    return str(url)


def waits_for_port(where: Listen, say: Callable[[str], None]) -> bool:
    """Return whether a port is in use by a process of this user and may soon be free, and say so.

    Args:
        where: Place at which to listen.
        say: Callback for a line.

    Raises:
        InputError: If another user's process has the port; one line.
    """
    users = listeners(where.port) if where.port else set()
    if not users:
        return False
    if users != {os.geteuid()}:
        raise InputError(f"--http {where}: Address already in use")
    say(f"{where} is in use, perhaps by the coordinator before this one: waiting {_DYING_S:g} s at most until it is free")
    return True


def _older(folder: Path) -> InputError:
    return InputError(f"the service in {folder} was started by an older RollMux; stop it with that one")


def _find(folder: Path, address: RayAddress) -> Any:
    try:
        service = ray.get_actor(address.actor, namespace=address.namespace)
        result_of(service.call.remote("told"), timeout_s=30)
    except ray.exceptions.RayTaskError:  # it has not begun: the command that started it was killed
        ray.kill(service)
        return None
    except AttributeError:
        raise _older(folder) from None
    except (ValueError, ray.exceptions.RayError):
        return None
    return service


def _start(folder: Path, address: RayAddress, wish: ServiceOptions, say: Callable[[str], None]) -> Any:
    begin_next_part(folder, say)
    plan = service_plan(folder, wish, past(folder), _nodes, say)
    claim(folder, has_ray=True)
    options = {**coordinator_options(), "name": address.actor, "namespace": address.namespace, "lifetime": "detached"}
    service: Any = ray.remote(Coordinator).options(**options).remote(named(ListeningService), plan)
    try:
        result_of(service.call.remote("begin"))
    except ray.exceptions.RayTaskError as error:
        ray.kill(service)
        raise (error.cause or error) from None
    except BaseException:
        ray.kill(service)  # it is detached, and its address is not written yet
        raise
    return service


def _nodes(counts: dict[Pool, int]) -> tuple[Node, ...]:
    machines = ray.nodes()  # type: ignore[no-untyped-call]
    return find_nodes(machines, counts, ray.get_runtime_context().get_node_id())
