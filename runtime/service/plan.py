"""The plan of a service, from the user's options or from its journal, and the limits on its jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rollmux_env.errors import TooMany, Unprocessable
from rollmux_env.keys.cluster import Cluster
from runtime.coordinator.run_plan import LeaseRules, RunPlan, dispatch_name, placement_name
from runtime.jobs.spec import JobSpec
from runtime.journal.facts import Fact
from runtime.journal.parts import newest_part
from runtime.journal.record import RunRecord
from runtime.journal.write import is_begun, read_facts, read_record
from runtime.machine import Node, Pool
from runtime.machines.nodes import keep_names
from runtime.machines.pools import check_pools, cluster_of, gpu_memory_gb, nodes_wanted
from runtime.service.address import Listen
from runtime.service.quotas import cluster_differences

MOST_JOBS = 10_000  # waiting or running jobs
MOST_BYTES = 64 << 10  # size of a job's description, which the journal records


@dataclass(frozen=True)
class ServiceOptions:
    """Options of `rollmux serve`. None means the value in the journal, or the default of a new service.

    Attributes:
        policy: Name of the placement policy of a new service.
        dispatch: Name of the dispatch policy of a new service.
        seed: Seed of the policies of a new service.
        cluster: Cluster of a new service, or None for the nodes that are present.
        listen: Place at which to listen.
        beyond_loopback: Whether other machines may connect.
        grace_s: Grace period of lost leases, as in `runtime.coordinator.run_plan.LeaseRules`.
        max_hold_worst_cases: Limit on holding nodes, as in `runtime.coordinator.run_plan.LeaseRules`.
    """

    policy: str | None = None
    dispatch: str | None = None
    seed: int | None = None
    cluster: Cluster | None = None
    listen: Listen | None = None
    beyond_loopback: bool = False
    grace_s: float | None = None
    max_hold_worst_cases: float | None = None


def past_facts(folder: Path) -> list[Fact] | None:
    """Return the facts of the service that was in a folder before, since the last roll-over, or None if there was none.

    Raises:
        InputError: If its journal is damaged; one line.
    """
    path = newest_part(folder)
    return read_facts(path) if is_begun(path) else None


def past(folder: Path) -> RunRecord | None:
    """Return the record of the service that was in a folder before, or None if there was none.

    Raises:
        InputError: If its journal is damaged; one line.
    """
    return read_record(folder) if is_begun(newest_part(folder)) else None


def service_plan(
    folder: Path,
    wish: ServiceOptions,
    before: RunRecord | None,
    find: Callable[[dict[Pool, int]], tuple[Node, ...]],
    say: Callable[[str], None],
) -> RunPlan:
    """Return the plan of a new service, or of one that continues from its journal.

    Args:
        folder: Folder of the service.
        wish: Options of the command.
        before: Record of the service that was in the folder before, or None for a new one.
        find: Function that returns nodes for a number of nodes in each pool.
        say: Callback for a line about an option that differs from the journal.

    Raises:
        InputError: If nodes are missing; one line.
    """
    rules = LeaseRules(grace_s=wish.grace_s, max_hold_worst_cases=wish.max_hold_worst_cases)
    if before is None:
        nodes = find(nodes_wanted(wish.cluster, ()))
        cluster = cluster_of(wish.cluster, (), nodes, gpu_gb=gpu_memory_gb(nodes))
        names = placement_name(wish.policy), dispatch_name(wish.dispatch)
        return RunPlan((), cluster, nodes, *names, wish.seed or 0, str(folder), models=True, leases=rules)
    start = before.started
    for line in _unused_options(wish, before):
        say(line)
    nodes = keep_names(find(nodes_wanted(start.cluster, ())), before.nodes.values())
    check_pools(start.cluster, nodes)
    specs, names = tuple(fact.spec for fact in before.submitted), (start.policy, start.dispatch)
    return RunPlan(specs, start.cluster, nodes, *names, start.seed, str(folder), resume=True, models=True, leases=rules)


def _unused_options(wish: ServiceOptions, before: RunRecord) -> Iterator[str]:
    """Yield a line for each option that differs from the journal. A service that is restarted at boot is given them again."""
    start = before.started
    if wish.policy is not None and start.policy not in (wish.policy, placement_name(wish.policy)):
        yield f"--policy {wish.policy}: the service was begun with {start.policy}, which holds"
    if wish.dispatch is not None and start.dispatch not in (wish.dispatch, dispatch_name(wish.dispatch)):
        yield f"--dispatch {wish.dispatch}: the service was begun with {start.dispatch}, which holds"
    if wish.seed not in (None, start.seed):
        yield f"--seed {wish.seed}: the service was begun with {start.seed}, which holds"
    if wish.cluster is not None:
        yield from unused_keys(wish.cluster, before.cluster)


def unused_keys(file: Cluster, known: Cluster) -> Iterator[str]:
    """Yield a line for each key of a cluster file that is not as the service has it, which holds."""
    for words in cluster_differences(file, known):
        yield f"--cluster: cluster.{words}, which holds{' (`rollmux quota` changes it)' if words.startswith('quotas') else ''}"


def check_limits(specs: Sequence[JobSpec], present: int) -> None:
    """Check that a service can take jobs.

    Args:
        specs: Jobs to be taken.
        present: Number of jobs that wait or run.

    Raises:
        TooMany: If the service would have more than `MOST_JOBS`; one line.
        Unprocessable: If a job's description is longer than `MOST_BYTES`; one line.
    """
    for spec in specs:
        size = len(spec.model_dump_json().encode())
        if size > MOST_BYTES:
            raise Unprocessable(f"job {spec.id}: its description has {size} bytes; a service takes {MOST_BYTES} at most")
    if present + len(specs) > MOST_JOBS:
        room = max(0, MOST_JOBS - present)
        raise TooMany(f"{len(specs)} jobs are too many: {present} wait or run, and a service takes {room} more at most")
