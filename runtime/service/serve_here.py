"""A service in this process, without Ray: for attached jobs and jobs with a command."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rollmux_env.errors import InputError
from runtime.coordinator.run_plan import RunPlan
from runtime.jobs.file import load_cluster
from runtime.journal.parts import newest_part
from runtime.journal.rollover import ROLLED_OVER, begin_next_part
from runtime.journal.write import name_in_errors, record_of
from runtime.machine import Node, Pool
from runtime.machines.hosts import HostsFile, load_hosts, more_nodes, nodes_here, nodes_of_hosts
from runtime.service.address import SERVICE, claim, in_shell, let_in, listening_of, withdraw
from runtime.service.http.listening import ListeningService
from runtime.service.patience import Patience
from runtime.service.plan import ServiceOptions, past_facts, service_plan, unused_keys
from runtime.service.service import RunService
from runtime.signals import allowing, check_signals, hangups

_LOOKS_S = 0.1


class _NotBegun(InputError):
    """Error: a service cannot begin or continue."""


def serve_here(folder: Path, wish: ServiceOptions, file: Path | None, say: Callable[[str], None]) -> None:
    """Serve until the user stops the service.

    Args:
        folder: Folder of the service, which is locked.
        wish: Options of the command.
        file: Cluster file with the hosts of the nodes, read again at SIGHUP, or None for nodes of this machine or of the journal.
        say: Callback for a line about an event.

    Raises:
        InputError: If the service cannot begin or continue; one line.
        PlanError: If a policy broke an invariant.
        InvariantError: If the scheduler broke an invariant.
        KeyboardInterrupt: If the user asked twice to stop.
    """
    hosts = load_hosts(file) if file is not None else None
    outcome, patience = "", Patience(say)
    with hangups() as take_hangups:
        while outcome in ("", ROLLED_OVER):
            try:
                with _beginning():
                    begin_next_part(folder, say)
                    plan = _plan(folder, wish, hosts, say)
                    claim(folder, has_ray=False)
                outcome = asyncio.run(_serve(folder, wish, plan, file if hosts is not None else None, take_hangups, say))
                wish = replace(wish, policy=None, dispatch=None, cluster=None)
            except _NotBegun as error:
                if outcome != ROLLED_OVER:
                    raise
                patience.wait(error)


@contextmanager
def _beginning() -> Iterator[None]:
    """Mark errors as those of a service that has not begun."""
    try:
        yield
    except InputError as error:
        raise _NotBegun(str(error)) from error


def _plan(folder: Path, wish: ServiceOptions, hosts: HostsFile | None, say: Callable[[str], None]) -> RunPlan:
    facts, record, before = past_facts(folder), None, tuple[Node, ...]()
    if facts is not None:
        with name_in_errors(newest_part(folder)):
            record = record_of(facts)
        before = tuple(record.nodes.values())
        own = next((fact.spec.id for fact in record.submitted if not fact.spec.is_attached), None)
        if own is not None:
            raise InputError(f"--no-ray: the service in {folder} has had job {own}, which needs Ray")
        if hosts is not None:
            before += more_nodes(hosts, record.started.cluster, before)

    def find(counts: dict[Pool, int]) -> tuple[Node, ...]:
        if before:
            return before
        return nodes_of_hosts(hosts, wish.cluster) if hosts is not None and wish.cluster is not None else nodes_here(counts)

    return replace(service_plan(folder, wish, record, find, say), facts=facts)


def add_hosts(service: RunService, plan: RunPlan, file: Path | None) -> None:
    """Add the nodes of hosts that were added to the cluster file; errors in the file are logged, and keys that do not hold.

    Args:
        service: The service.
        plan: Plan of the service, with the cluster.
        file: Cluster file with hosts, or None if the service has none.
    """
    try:
        hosts = load_hosts(file) if file is not None else None
        if file is None or hosts is None:
            raise InputError("SIGHUP: this `rollmux serve` was given no cluster file with hosts")
        changes = service.driver.lifecycle.node_changes
        changes.join(more_nodes(hosts, plan.cluster, [*changes.known.values()]), compares=False)
        for line in unused_keys(load_cluster(file), service.run.scheduler.state.cluster):
            service.run.log.say(line)
    except InputError as error:
        service.run.log.say(str(error))


async def _serve(
    folder: Path,
    wish: ServiceOptions,
    plan: RunPlan,
    file: Path | None,
    take_hangups: Callable[[], int],
    say: Callable[[str], None],
) -> str:
    """Serve until the service ends, and return its outcome; `stopped` if the user has asked for its end."""
    service = ListeningService(plan)
    lines_said = 0
    stopping = False
    outcome = ""
    with allowing(1) as interrupts:
        try:
            with _beginning():
                await service.serve(None)
                listening = listening_of(folder, wish.listen, wish.beyond_loopback)
                url, port = await service.listen(listening.where)
                let_in(folder, listening, url, port, None)
            await service.give_access(listening.token)
            say(f"listening at {url}; the token is in {folder / SERVICE}")
            say(f"serving from {folder}, without Ray: rollmux submit FILE --at {in_shell(folder)}")
            ended = asyncio.ensure_future(service.ended())
            while not ended.done():
                await asyncio.wait((ended,), timeout=_LOOKS_S)
                check_signals()
                if take_hangups():
                    add_hosts(service, plan, file)
                lines = await service.news(lines_said)
                for line in lines:
                    say(line)
                lines_said += len(lines)
                if interrupts() and not stopping:
                    stopping = True
                    say("stopping; leases go on when the service does")
                    await service.stop()
            outcome = await ended
            if stopping:
                outcome = "stopped"
            return outcome
        finally:
            if outcome != ROLLED_OVER:  # else clients find the next part's service at this address
                withdraw(folder)
