"""What `rollmux serve` does once its Ray is there: it starts the service or finds it, and stops it when asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any

import ray

from rollmux_env.errors import InputError
from rollmux_env.scenario import Cluster
from runtime.answers import result_of
from runtime.commands.memory import gpu_memory_gb
from runtime.commands.options import DISPATCH, planning_switches
from runtime.commands.running import check_pools, cluster_of, nodes_wanted
from runtime.execution.nodes import find_nodes
from runtime.execution.ray_health import RayDied, shut_down
from runtime.execution.ray_session import coordinator_options, watch
from runtime.execution.run_plan import RunPlan
from runtime.facts import Node, Pool
from runtime.journal import JOURNAL, is_begun, read_run
from runtime.service.address import ServiceAddress, announce
from runtime.service.client import join
from runtime.service.service import Service
from runtime.signals import check_signals, shielded

_SETTLED_S = 30.0  # a coordinator that dies sooner would die again


@dataclass(frozen=True)
class ServiceOptions:
    """What a user asks a new service to be; what is None is as the journal says, or else as usual."""

    policy: str | None = None
    dispatch: str | None = None
    seed: int = 0
    cluster: Cluster | None = None


def serve_loop(folder: Path, address: ServiceAddress, wish: ServiceOptions, say: Callable[[str], None]) -> None:
    """Serve until the user stops it; the service has ended then, however that comes about.

    Args:
        folder: of the service, locked. address: its Ray, which this process was prepared for.
        say: takes a line about what happens.

    Raises:
        InputError, PlanError, InvariantError: it cannot go on; one line.
        KeyboardInterrupt: the user asked twice to stop, or before it was begun.
    """
    service = None
    try:
        join(address)
        check_signals()
        address = replace(address, address=ray.get_runtime_context().gcs_address)
        service = _find(address)
        if service is not None:
            say("the service that was started here before is alive; its own settings hold")
        while True:
            began_s = monotonic()
            try:
                lines_said = result_of(service.told.remote()) if service is not None else 0
                service = service or _start(folder, address, wish)
                announce(folder, address)
                say(f"serving from {folder}: rollmux submit FILE --at {folder}")
                watch(service, service.ended.remote(), say, lines_said)
                break
            except RayDied as error:
                raise InputError(f"{error}; `rollmux serve {folder}` goes on from the journal") from error
            except ray.exceptions.RayActorError:
                if not address.answers():
                    raise InputError(f"Ray has ended; `rollmux serve {folder}` goes on from the journal") from None
                if monotonic() - began_s < _SETTLED_S:
                    raise InputError(
                        "the coordinator has died, soon after its start; `rollmux serve` goes on from the journal"
                    ) from None
                say("the coordinator has died; another one goes on from the journal")
                service, address = None, replace(address, actor=f"{address.actor}-again")
    finally:
        with shielded():
            if service is not None and address.answers():  # else there is nobody to tell
                ray.kill(service)
            shut_down()


def _find(address: ServiceAddress) -> Any:
    try:
        service = ray.get_actor(address.actor, namespace=address.namespace)
        result_of(service.told.remote(), timeout_s=30)
    except (ValueError, ray.exceptions.RayError):
        return None
    return service


def _start(folder: Path, address: ServiceAddress, wish: ServiceOptions) -> Any:
    plan = _plan(folder, wish)
    options = {**coordinator_options(), "name": address.actor, "namespace": address.namespace, "lifetime": "detached"}
    service: Any = ray.remote(Service).options(**options).remote(plan)
    try:
        result_of(service.begin.remote())
    except ray.exceptions.RayTaskError as error:
        ray.kill(service)
        raise (error.cause or error) from None
    except BaseException:
        ray.kill(service)  # it is detached, and nobody knows of it yet
        raise
    return service


def _plan(folder: Path, wish: ServiceOptions) -> RunPlan:
    """A new service, or what a journal says of the one that was here before.

    Raises:
        InputError: there is not what is wished, or the journal says otherwise; one line.
    """
    if not is_begun(folder / JOURNAL):
        nodes = _nodes(nodes_wanted(wish.cluster, ()))
        one_machine = len({node.machine for node in nodes}) == 1
        cluster = cluster_of(wish.cluster, (), nodes, gpu_gb=gpu_memory_gb(nodes, one_machine))
        return RunPlan(
            (), cluster, nodes, planning_switches(wish.policy), wish.dispatch or DISPATCH, wish.seed, str(folder), models=True
        )
    record = read_run(folder)
    start = record.started
    for option in ("policy", "dispatch"):
        value, recorded = getattr(wish, option), getattr(start, option)
        if value not in (None, recorded) and (option, planning_switches(value)) != ("policy", recorded):
            raise InputError(f"--{option} {value}: the service in {folder} was begun with {recorded} and goes on with it")
    if wish.cluster is not None:
        raise InputError(f"--cluster: the service in {folder} was begun with a cluster of its own and goes on with it")
    nodes = _nodes(nodes_wanted(start.cluster, ()))
    check_pools(start.cluster, nodes)
    specs = tuple(fact.spec for fact in record.submitted)
    return RunPlan(specs, start.cluster, nodes, start.policy, start.dispatch, start.seed, str(folder), resume=True, models=True)


def _nodes(counts: dict[Pool, int]) -> tuple[Node, ...]:
    machines = ray.nodes()  # type: ignore[no-untyped-call]
    return find_nodes(machines, counts, ray.get_runtime_context().get_node_id())
