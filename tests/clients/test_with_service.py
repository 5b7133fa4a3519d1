"""The client and the service that it is for: turns, evaluations, syncs, ends, and journals without a gap."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import rollmux_client

from runtime.coordinator.run_plan import LeaseRules
from runtime.journal.audit import audit
from runtime.journal.facts import Fact, NodesSuspected, PhaseSlice
from runtime.journal.write import JOURNAL, read_facts
from runtime.machine import Node
from tests.fixtures import FIXTURES
from tests.runtime.pretend import PAIR, PAIRS, Listening, attached_plan, job

CLIENT = str(Path(rollmux_client.__file__).parent)


class RealService(Listening):
    """A service with one node of each pool, or with those given, and a client that asks it."""

    def __init__(self, folder: Path, ttl_s: float = 30.0, nodes: tuple[Node, ...] = PAIR) -> None:
        super().__init__(attached_plan(folder, nodes=nodes, leases=LeaseRules(ttl_s)))
        self.client = rollmux_client.Service(self.url, self.token)

    def submit(self, *jobs: str, **more: Any) -> None:
        """Submit jobs of three iterations, to attach."""
        for name in jobs:
            self.client.ask("POST", "/v1/jobs", job(name, **more))

    def state(self, name: str) -> dict[str, Any]:
        """A job as the service describes it."""
        return self.client.ask("GET", f"/v1/jobs/{name}")

    def end(self) -> list[Fact]:
        """Its journal proves that nothing was lost or doubled."""
        self.client.close()
        self.close()
        facts = read_facts(self.folder / JOURNAL)
        assert audit(facts).problems == ()
        return facts


@contextmanager
def real_service(folder: Path, **more: Any) -> Iterator[RealService]:
    """A service in a folder; audited at its end."""
    service = RealService(folder, **more)
    try:
        yield service
    finally:
        service.end()


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RealService]:
    with real_service(tmp_path) as real:
        monkeypatch.setenv("ROLLMUX_URL", real.url)
        monkeypatch.setenv("ROLLMUX_TOKEN", real.token)
        monkeypatch.delenv("ROLLMUX_LEASE", raising=False)
        yield real


def test_jobs_take_turns_and_their_journal_says_so(service: RealService) -> None:
    service.submit("a", "b")

    def run(name: str) -> None:
        with rollmux_client.attach(name) as job:
            for k in job.iterations():
                with job.phase("rollout") as phase:
                    phase.report(reward=k)
                with job.phase("training"):
                    pass
                with job.phase("rollout", extra=True):
                    pass

    threads = [threading.Thread(target=run, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {name: service.state(name)["state"] for name in ("a", "b")} == {"a": "done", "b": "done"}
    assert service.state("a")["metrics"]["reward"] == 2.0
    slices = [fact for fact in service.end() if isinstance(fact, PhaseSlice)]
    for pool in ("rollout-0", "training-0"):
        mine = sorted((fact.start_s, fact.end_s) for fact in slices if pool in fact.nodes)
        assert len(mine) == (12 if pool == "rollout-0" else 6)
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(mine))


OLDER = """
import rollmux_client
assert not hasattr(rollmux_client, "Mismatch")
with rollmux_client.attach("a") as job:
    with job.init():
        pass
    for k in job.iterations():
        for phase in ("rollout", "training"):
            with job.phase(phase):
                pass
"""


def test_an_older_client_does_its_work(service: RealService, tmp_path: Path) -> None:
    shutil.copy(FIXTURES / "older-client" / "rollmux_client.txt", tmp_path / "rollmux_client.py")
    service.submit("a")
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    subprocess.run([sys.executable, "-c", OLDER], env=environment, cwd=tmp_path, check=True, timeout=120)
    assert service.state("a")["state"] == "done" and service.state("a")["iteration"] == 3


def test_a_script_that_ends_early_is_gone_on_with_after_its_last_whole_iteration(service: RealService) -> None:
    service.submit("a", sync_s=1.0)
    iterations = []
    for ends in (1, None):
        with rollmux_client.attach("a") as job:
            for k in job.iterations():
                with job.phase("rollout"):
                    iterations.append(k)
                if k == ends:
                    with pytest.raises(ZeroDivisionError), job.phase("training"):
                        assert 1 / 0
                    job.end(done=False)
                    break
                with job.phase("training"):
                    pass
                with job.phase("sync"):
                    pass
    assert iterations == [0, 1, 1, 2] and service.state("a")["state"] == "done"


def test_a_job_that_is_cancelled_ends_between_two_phases(service: RealService) -> None:
    service.submit("a")
    with pytest.raises(rollmux_client.Interrupted) as ended, rollmux_client.attach("a") as job:
        for _ in job.iterations():
            with job.phase("rollout"):
                service.client.ask("DELETE", "/v1/jobs/a")
            with job.phase("training"):
                raise AssertionError("it was cancelled")
    assert ended.value.reason == "stop"
    with pytest.raises(rollmux_client.Refused, match="has ended"), rollmux_client.attach("a"):
        pass


def test_a_job_whose_node_is_drained_goes_on_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with real_service(tmp_path, nodes=PAIRS) as service:
        monkeypatch.setenv("ROLLMUX_URL", service.url)
        monkeypatch.setenv("ROLLMUX_TOKEN", service.token)
        monkeypatch.delenv("ROLLMUX_LEASE", raising=False)
        service.submit("a", movable=True)
        places, states = [], []

        def bring(job: rollmux_client.Job) -> None:
            places.append(job.nodes["rollout"][0]["name"])

        with rollmux_client.attach("a", moved=bring) as job:
            bring(job)
            for k in job.iterations():
                with job.phase("rollout"):
                    states.append(service.state("a")["state"])
                with job.phase("training"):
                    if k == 0:
                        service.client.ask("POST", f"/v1/nodes/{places[0]}/drain")
        assert {*places} == {"rollout-0", "rollout-1"} and len(places) == 2
        assert service.state("a")["state"] == "done"


@pytest.mark.long
def test_what_a_stopped_process_held_is_granted_when_it_has_woken_and_ended(tmp_path: Path) -> None:
    turn = "with rollmux_client.attach() as job, job.phase('rollout'):"
    script = f"import time, rollmux_client\n{turn}\n    print('in', flush=True); time.sleep(60)"
    with real_service(tmp_path, ttl_s=2.0) as service:
        service.submit("a", "b")
        environment = os.environ | {"PYTHONPATH": CLIENT, "ROLLMUX_URL": service.url, "ROLLMUX_TOKEN": service.token}
        words = [sys.executable, "-c", script]
        start = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "start_new_session": True}
        with subprocess.Popen(words, env=environment | {"ROLLMUX_JOB": "a"}, **start) as process:  # type: ignore[call-overload]
            assert process.stdout.readline() == b"in\n"
            with rollmux_client.Job(service.client, "b") as job:
                turns: list[rollmux_client.PhaseContext] = []
                waiting = threading.Thread(target=lambda: turns.append(job.phase("rollout").__enter__()))
                waiting.start()
                os.killpg(process.pid, signal.SIGSTOP)
                while not any(isinstance(fact, NodesSuspected) for fact in read_facts(tmp_path / JOURNAL)):
                    assert not turns
                assert not turns
                os.killpg(process.pid, signal.SIGCONT)
                assert process.wait() == -signal.SIGKILL
                waiting.join()
                assert len(turns) == 1
                job.end(done=False)


def test_a_job_with_a_staleness_has_a_rollout_and_a_training_at_once(service: RealService) -> None:
    service.submit("a", staleness=1, sync_s=0.1)
    sampling = threading.Event()

    def sample(k: int) -> int:
        if k == 1:
            sampling.set()
        return k

    def train(k: int, result: int) -> None:
        assert sampling.wait(30) and result == k

    with rollmux_client.attach("a") as job:
        job.side_by_side(sample, train, lambda k: None)
    parts = [fact for fact in service.end() if isinstance(fact, PhaseSlice)]
    spans = {(part.phase, part.iteration): (part.start_s, part.end_s) for part in parts}
    assert spans.keys() == {(phase, k) for phase in ("rollout", "training") for k in range(3)}
    assert spans["rollout", 1][0] < spans["training", 0][1]


def test_a_job_that_waits_says_why_and_until_when(service: RealService, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = {"worst_case_s": 10.0, "host_memory_gb": 7.5}
    service.submit("holds", "waits", rollout=alone, training=alone)
    monkeypatch.setattr(rollmux_client, "_FIRST_S", 0.1)
    monkeypatch.setattr(rollmux_client, "_LOOK_S", 0.1)
    lines: list[str] = []
    holds = rollmux_client.Job(service.client, "holds")
    holds.attach()
    waits = rollmux_client.Job(rollmux_client.Service(service.url, service.token), "waits", say=lines.append)
    thread = threading.Thread(target=waits.attach)
    thread.start()
    try:
        while not any("1 rollout node" in line for line in lines):
            assert thread.is_alive()
        words = service.state("waits")["reason"]
    finally:
        holds.end(done=True)
        thread.join()
        waits.end(done=True)
    told = next(line for line in lines if "1 rollout node" in line)
    assert told.startswith(f"job waits waits: {words} (place 1 in the queue); a place is expected at ")
    assert len(lines) <= 3  # it is said again where it changes, not with each request
