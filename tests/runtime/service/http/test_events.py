"""The journal over HTTP: numbered, followed, and waited for."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from runtime.journal.read import entries_after
from runtime.journal.write import JOURNAL
from tests.runtime.service.http.conftest import Served
from tests.runtime.service.http.test_jobs import JOB
from tests.runtime.service.http.test_strangers import parsed, request


def events(served: Served, after: int, wait_s: float = 0.0) -> list[dict[str, Any]]:
    answer = served.ask("GET", f"/v1/events?after={after}&wait_s={wait_s}")
    assert answer.status == 200
    found: list[dict[str, Any]] = answer.value["events"]
    return found


def test_entries_have_the_numbers_of_the_journal(served: Served) -> None:
    served.ask("POST", "/v1/jobs", {"id": "one", **JOB})
    served.until("/v1/jobs/one", lambda job: job["state"] == "done")
    every: list[dict[str, Any]] = []
    while "Departed" not in {entry["kind"] for entry in every}:
        every += events(served, len(every), 5.0)
    assert [entry["number"] for entry in every] == [*range(1, len(every) + 1)]
    assert (every[0]["kind"], every[1]["kind"], every[1]["body"]["spec"]["id"]) == ("Started", "Submitted", "one")
    assert sum(entry["kind"] == "Iteration" for entry in every) == 3
    assert events(served, 2)[0] == every[2]
    assert [row[0] for row in entries_after(served.folder / JOURNAL, 2, 3)] == [3, 4, 5]


def test_who_waits_gets_what_comes(served: Served) -> None:
    last = len(events(served, 0))
    while more := events(served, last, 0.5):
        last += len(more)
    assert events(served, last) == [] and events(served, last + 1000, 0.1) == []
    came: list[list[dict[str, Any]]] = []
    waits = threading.Thread(target=lambda: came.append(events(served, last, 30.0)))
    waits.start()
    served.ask("POST", "/v1/jobs", {"id": "late", **JOB, "arrival_s": 1e6})
    waits.join()
    assert (came[0][0]["number"], came[0][0]["kind"]) == (last + 1, "Submitted")


def test_who_waits_when_the_service_stops_is_told_so(tmp_path: Path) -> None:
    one = Served(tmp_path, most_open=1)
    with one.raw() as client:
        client.sendall(request(one, "GET /v1/events?after=1000&wait_s=30"))
        while one.ask("GET", "/v1/status").status == 200:
            pass
        one.close()
        assert parsed(client) == (503, {"error": "the service is stopping"})
