"""Ctrl-C at a service without Ray: who waits is answered, and leases go on with the next start."""

from __future__ import annotations

import http.client
import json
import os
import signal
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from runtime.journal.check import audit_parts
from runtime.journal.parts import read_parts
from runtime.journal.rollover import begin_next_part
from runtime.journal.write import Journal, Row, Unwritable
from runtime.report.usage import past_usage
from runtime.run.driver import RunDriver
from runtime.service import patience
from runtime.service import serve_here as served_here
from runtime.service import service as run_service
from runtime.service.address import ServiceAddress, find
from runtime.service.http.listening import ListeningService
from runtime.service.plan import ServiceOptions
from tests.runtime.pretend import job

_PATIENCE_S = 60.0


class Clients:
    """Asks a service from a thread of this process, the main thread of which serves."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.lines: list[str] = []
        self.said = threading.Condition()
        self.services: list[ListeningService] = []
        self.address: ServiceAddress | None = None
        made = self.services

        class Known(ListeningService):
            async def serve(self, processes: Any) -> None:
                await super().serve(processes)
                made.append(weakref.proxy(self))  # an earlier one is not kept in memory

        monkeypatch.setattr(served_here, "ListeningService", Known)

    def serve(self, work: Callable[[], None]) -> None:
        """Serve until the work has stopped the service; one that goes on all the same is stopped, and is an error."""
        wrong: list[BaseException] = []

        def ask() -> None:
            try:
                assert self.hears("serving from "), self.lines
                self.address = find(self.folder)
                work()
                assert self.hears("stopping; "), "it has not heard that it is to stop"
            except BaseException as error:
                wrong.append(error)
                driver = self.services[-1].driver
                assert driver is not None
                driver.run.over.get_loop().call_soon_threadsafe(driver.stop)

        thread = threading.Thread(target=ask)
        self.lines.clear()
        thread.start()
        served_here.serve_here(self.folder, ServiceOptions(dispatch="fifo"), None, self._say)
        thread.join(_PATIENCE_S)
        assert wrong == []

    def hears(self, part: str) -> bool:
        """Wait until the service has said something."""
        with self.said:
            return self.said.wait_for(lambda: any(part in line for line in self.lines), _PATIENCE_S)

    def ask(self, path: str, body: Any, method: str = "POST") -> Any:
        assert self.address is not None
        connection = http.client.HTTPConnection(urlsplit(self.address.url).netloc, timeout=_PATIENCE_S)
        try:
            connection.request(method, path, json.dumps(body), {"Authorization": f"Bearer {self.address.token}"})
            response = connection.getresponse()
            value = json.loads(response.read())
            assert response.status < 300, value
            return value
        finally:
            connection.close()

    def _say(self, line: str) -> None:
        with self.said:
            self.lines.append(line)
            self.said.notify_all()


def test_ctrl_c_answers_who_waits_and_leases_go_on_with_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clients = Clients(tmp_path, monkeypatch)
    rollout = {"phase": "rollout", "iteration": 0}
    leases: list[str] = []
    answers: dict[str, Any] = {}

    def poll(name: str, path: str, body: Any) -> threading.Thread:
        thread = threading.Thread(target=lambda: answers.update({name: clients.ask(path, {**body, "wait_s": 30})}))
        thread.start()
        return thread

    def first() -> None:
        for entry in (job("a"), job("b"), job("c", slo=1.0)):
            clients.ask("/v1/jobs", entry)
        leases.extend(clients.ask(f"/v1/jobs/{name}/attach", {})["lease"] for name in ("a", "b"))
        assert clients.ask(f"/v1/leases/{leases[0]}/acquire", rollout)["granted"]
        threads = [poll("b", f"/v1/leases/{leases[1]}/acquire", rollout), poll("c", "/v1/jobs/c/attach", {})]
        ledger = clients.services[-1].driver.leases.ledger
        while not ledger.leases[leases[1]].turns.open or ledger.run.handles["c"].changed._rings is None:
            pass
        os.kill(os.getpid(), signal.SIGINT)
        for thread in threads:
            thread.join(_PATIENCE_S)

    clients.serve(first)
    assert answers["b"] == {"granted": False, "reason": "the service is stopping"}
    assert answers["c"]["reason"] == "the service is stopping"

    def again() -> None:
        assert clients.ask(f"/v1/leases/{leases[0]}/heartbeat", {}) == {"stop": False}
        assert clients.ask(f"/v1/leases/{leases[0]}/acquire", rollout)["granted"]
        assert clients.ask(f"/v1/leases/{leases[0]}/release", rollout) == {}
        assert clients.ask(f"/v1/leases/{leases[1]}/acquire", rollout)["granted"]
        os.kill(os.getpid(), signal.SIGHUP)
        assert clients.hears("SIGHUP: this `rollmux serve` was given no cluster file")
        os.kill(os.getpid(), signal.SIGTERM)

    clients.serve(again)


def test_a_service_without_jobs_continues_in_the_next_part_of_its_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rolls_over_soon(monkeypatch)
    clients = Clients(tmp_path, monkeypatch)
    handlers: list[Any] = []

    def begin(folder: Path, say: Callable[[str], None]) -> None:
        handlers.append(signal.getsignal(signal.SIGHUP))
        assert not clients.services or find(folder) == clients.address  # clients find the next part's service there
        begin_next_part(folder, say)

    monkeypatch.setattr(served_here, "begin_next_part", begin)

    def work() -> None:
        for _ in range(2):  # before the journal is rolled over, and under the same name after it
            clients.ask("/v1/jobs", job("a"))
            lease = clients.ask("/v1/jobs/a/attach", {})["lease"]
            clients.ask(f"/v1/leases/{lease}/acquire", {"phase": "rollout", "iteration": 0})
            assert not (tmp_path / f"journal-{len(clients.services) + 1}.sqlite").exists()  # a job is present
            clients.ask(f"/v1/leases/{lease}?done=true", None, "DELETE")
            assert clients.hears(f"the journal continues in journal-{len(clients.services) + 1}.sqlite")
            clients.lines.clear()
            assert clients.hears("serving from ")
        for earlier in clients.services[:-1]:
            with pytest.raises(ReferenceError):
                assert earlier.driver
        os.kill(os.getpid(), signal.SIGTERM)

    clients.serve(work)
    assert audit_parts(read_parts(tmp_path)).problems == ()
    assert [row["jobs"] for row in past_usage(tmp_path, ["job"])] == [2]
    assert len(handlers) == 3 and signal.SIG_DFL not in handlers  # a hang-up between two parts ends nothing
    assert find(tmp_path) is None


def rolls_over_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"MOST_FACTS": 10, "QUIET_S": 0.1, "_LOOKS_S": 0.05}.items():
        monkeypatch.setattr(run_service, name, value)


def test_a_roll_over_on_a_full_disk_goes_on_when_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rolls_over_soon(monkeypatch)
    monkeypatch.setattr(patience, "_AGAIN_S", 0.01)
    clients = Clients(tmp_path, monkeypatch)
    store, roll_over = Journal.store, RunDriver.roll_over
    fills, is_full = [True], threading.Event()

    def store_on_full_disk(self: Journal, rows: list[Row]) -> None:
        if rows and is_full.is_set():
            raise Unwritable("the disk is full")
        store(self, rows)

    def fill_and_roll_over(self: RunDriver) -> None:
        if fills and fills.pop():
            is_full.set()
        roll_over(self)

    monkeypatch.setattr(Journal, "store", store_on_full_disk)
    monkeypatch.setattr(RunDriver, "roll_over", fill_and_roll_over)

    def work() -> None:
        clients.ask("/v1/jobs", job("a"))
        lease = clients.ask("/v1/jobs/a/attach", {})["lease"]
        clients.ask(f"/v1/leases/{lease}/acquire", {"phase": "rollout", "iteration": 0})
        clients.ask(f"/v1/leases/{lease}?done=true", None, "DELETE")
        assert clients.hears("the disk is full; the start is repeated every 0.01 s")
        is_full.clear()
        assert clients.hears("the journal continues in journal-2.sqlite")
        clients.lines.clear()
        assert clients.hears("serving from ")
        os.kill(os.getpid(), signal.SIGTERM)

    clients.serve(work)
    assert audit_parts(read_parts(tmp_path)).problems == ()
