"""What a service is asked to be, and goes on being; and how much it takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rollmux_env.errors import InputError, TooMany, Unprocessable
from rollmux_env.keys.cluster import Cluster
from runtime.coordinator.run_plan import DISPATCH, LeaseRules, RunPlan, planning_switches
from runtime.jobs.spec import JobSpec
from runtime.journal.record import RunRecord
from runtime.journal.write import JOURNAL, is_begun, read_record
from runtime.machine import Node, Pool
from runtime.machines.nodes import keep_names
from runtime.machines.pools import check_pools, cluster_of, gpu_memory_gb, nodes_wanted
from runtime.service.address import Listen

MOST_JOBS = 10_000  # that wait or run
MOST_BYTES = 64 << 10  # of a job's description, which the journal keeps


@dataclass(frozen=True)
class ServiceOptions:
    """What a user asks a new service to be; what is None is as the journal says, or else as usual.

    Attributes:
        listen: where. beyond_loopback: others than this machine may reach it.
        grace_s, max_hold: As of `runtime.coordinator.run_plan.LeaseRules`.
    """

    policy: str | None = None
    dispatch: str | None = None
    seed: int = 0
    cluster: Cluster | None = None
    listen: Listen | None = None
    beyond_loopback: bool = False
    grace_s: float | None = None
    max_hold: float | None = None


def past(folder: Path) -> RunRecord | None:
    """The service that was in a folder before; None: there was none.

    Raises:
        InputError: its journal is damaged; one line.
    """
    return read_record(folder) if is_begun(folder / JOURNAL) else None


def service_plan(
    folder: Path, wish: ServiceOptions, before: RunRecord | None, find: Callable[[dict[Pool, int]], tuple[Node, ...]]
) -> RunPlan:
    """A new service, or what a journal says of the one that was here before.

    Args:
        before: what that one was, as `past` says.
        find: so many nodes of each pool.

    Raises:
        InputError: there is not what is wished, or the journal says otherwise; one line.
    """
    rules = LeaseRules(grace_s=wish.grace_s, max_hold=wish.max_hold)
    if before is None:
        nodes = find(nodes_wanted(wish.cluster, ()))
        one_machine = len({node.machine for node in nodes}) == 1
        cluster = cluster_of(wish.cluster, (), nodes, gpu_gb=gpu_memory_gb(nodes, one_machine))
        names = planning_switches(wish.policy), wish.dispatch or DISPATCH
        return RunPlan((), cluster, nodes, *names, wish.seed, str(folder), models=True, leases=rules)
    start = before.started
    for option in ("policy", "dispatch"):
        value, recorded = getattr(wish, option), getattr(start, option)
        if value not in (None, recorded) and (option, planning_switches(value)) != ("policy", recorded):
            raise InputError(f"--{option} {value}: the service in {folder} was begun with {recorded} and goes on with it")
    if wish.cluster is not None:
        raise InputError(f"--cluster: the service in {folder} was begun with a cluster of its own and goes on with it")
    nodes = keep_names(find(nodes_wanted(start.cluster, ())), before.nodes.values())
    check_pools(start.cluster, nodes)
    specs, names = tuple(fact.spec for fact in before.submitted), (start.policy, start.dispatch)
    return RunPlan(specs, start.cluster, nodes, *names, start.seed, str(folder), resume=True, models=True, leases=rules)


def check_limits(specs: Sequence[JobSpec], present: int) -> None:
    """Make sure that a service can take jobs.

    Args:
        present: jobs that it has, those aside that have ended.

    Raises:
        TooMany: they are too many. Unprocessable: one is too long. One line.
    """
    for spec in specs:
        size = len(spec.model_dump_json().encode())
        if size > MOST_BYTES:
            raise Unprocessable(f"job {spec.id}: its description has {size} bytes; a service takes {MOST_BYTES} at most")
    if present + len(specs) > MOST_JOBS:
        room = max(0, MOST_JOBS - present)
        raise TooMany(f"{len(specs)} jobs are too many: {present} wait or run, and a service takes {room} more at most")
