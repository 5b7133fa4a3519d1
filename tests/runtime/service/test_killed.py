"""A service that is ended by SIGKILL again and again, under load: what it has answered is in its journal each time."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rollmux_client import Refused, Service

from runtime.journal.audit import audit
from runtime.journal.facts import Fact, JobSubmitted, LeaseEnded, OwnerAttached, PhaseGranted, PhaseSlice
from runtime.journal.read import JOURNAL, read_facts
from runtime.journal.replay import replay_journal
from runtime.service.address import find
from tests.clients.test_two_trl_runs import COMMAND, ENVIRONMENT

pytestmark = pytest.mark.long
_USERS = 8
_KILLS = 12
_PHASE = {"worst_case_s": 5.0, "host_memory_gb": 1.0}
_ITERATIONS = 3

Told = tuple[Any, ...]


class User(threading.Thread):
    """Submits one job after the other, and owns it, until a request is not answered.

    Attributes:
        told: what was answered, as the journal is to have it.
    """

    def __init__(self, number: int, start: int, url: str, token: str) -> None:
        super().__init__()
        self.told: list[Told] = []
        self._name, self._service = f"{start}-{number}", Service(url, token)

    def run(self) -> None:
        try:
            for number in range(1000):
                self._own(f"job-{self._name}-{number}")
        except (OSError, Refused):
            return

    def _own(self, name: str) -> None:
        ask = self._service.ask
        entry = {"id": name, "iterations": _ITERATIONS, "slo": 100.0, "attach": True, "rollout": _PHASE, "training": _PHASE}
        ask("POST", "/v1/jobs", entry)
        self.told.append((JobSubmitted, name))
        lease = ask("POST", f"/v1/jobs/{name}/attach", {"wait_s": 20.0})["lease"]
        self.told.append((OwnerAttached, name, lease))
        for iteration in range(_ITERATIONS):
            for phase in ("rollout", "training"):
                turn = {"phase": phase, "iteration": iteration}
                if ask("POST", f"/v1/leases/{lease}/acquire", {**turn, "wait_s": 20.0})["granted"]:
                    self.told.append((PhaseGranted, lease, phase, iteration))
                ask("POST", f"/v1/leases/{lease}/release", {**turn, "metrics": {}})
                self.told.append((PhaseSlice, name, phase, iteration))
        ask("DELETE", f"/v1/leases/{lease}?done=true")
        self.told.append((LeaseEnded, name, lease))


def known(fact: Fact) -> Told:
    match fact:
        case JobSubmitted(spec=spec):
            return JobSubmitted, spec.id
        case OwnerAttached() | LeaseEnded():
            return type(fact), fact.job_id, fact.lease
        case PhaseGranted():
            return PhaseGranted, fact.lease, fact.phase, fact.iteration
        case PhaseSlice():
            return PhaseSlice, fact.job_id, fact.phase, fact.iteration
    return ()


@contextmanager
def serving(folder: Path, cluster: Path, begun: bool) -> Iterator[subprocess.Popen[str]]:
    """A service, which is killed in the end."""
    more = [] if begun else ["--cluster", str(cluster)]
    command = [*COMMAND, "serve", str(folder), "--no-ray", *more]
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=sys.stderr, text=True) as service:
        assert service.stdout is not None and "listening" in service.stdout.readline()
        try:
            yield service
        finally:
            service.kill()


def test_the_journal_has_what_was_answered_at_every_kill(tmp_path: Path) -> None:
    draw, folder, cluster, told = random.Random(0), tmp_path / "service", tmp_path / "cluster.json", set[Told]()
    pool = {"gpus_per_node": 1, "usd_per_gpu_hour": 1.0, "node_memory_gb": 8.0, "max_nodes": 20}
    hosts = {side: [f"{side}-host-{number}" for number in range(20)] for side in ("rollout", "training")}
    limits = {"max_group_size": 5, "migration_s": 1.0}
    cluster.write_text(json.dumps({"cluster": {"rollout": pool, "training": pool, **limits}, "hosts": hosts}))
    for start in range(_KILLS):
        with serving(folder, cluster, begun=start > 0) as service:
            address = find(folder)
            assert address is not None
            users = [User(number, start, address.url, address.token) for number in range(_USERS)]
            for user in users:
                user.start()
            threading.Event().wait(draw.uniform(0.2, 1.5))  # whatever is under way then is cut off
            service.kill()
            service.wait()
            for user in users:
                user.join()
        told |= {one for user in users for one in user.told}
        facts = read_facts(folder / JOURNAL)
        assert told - {known(fact) for fact in facts} == set()
        assert audit(facts).problems == ()
        assert [line for line in replay_journal(facts).lines if not line.startswith("permits ")] == []
    kinds = [one[0] for one in told]
    assert min(kinds.count(kind) for kind in (JobSubmitted, OwnerAttached, PhaseGranted, PhaseSlice, LeaseEnded)) > _KILLS
