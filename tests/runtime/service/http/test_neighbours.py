"""What one user can do to another's jobs over HTTP: nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from rollmux_processes import pid_space

from runtime.journal.facts import IterationSlice, LeaseEnded, OwnerAttached, PhaseGranted, PhaseSlice
from runtime.journal.read import JOURNAL
from runtime.journal.write import read_facts
from runtime.owners.http import owner_processes
from runtime.owners.http.owner_processes import known_processes, own_processes
from runtime.service import forecast
from runtime.service.http.endpoint import MOST_OF_A_LEASE
from runtime.service.tokens import Right
from tests.runtime.pretend import PATIENCE_S
from tests.runtime.service.http.conftest import Answer, Served
from tests.runtime.service.http.test_leases import SHARED, attach
from tests.runtime.service.http.test_strangers import answer_to, request


@pytest.fixture(scope="module")
def ann(served: Served) -> str:
    return served.tokens.make("ann", Right.ATTACH)


@pytest.fixture(scope="module")
def bob(served: Served) -> str:
    return served.tokens.make("bob", Right.ATTACH)


@pytest.fixture
def children() -> Iterator[list[int]]:
    """Processes of this user, in groups of their own."""
    started = [subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, process_group=0) for _ in range(3)]
    yield [child.pid for child in started]
    for child in started:
        child.communicate(b"\n")


@contextmanager
def unfinished(served: Served, lease: str, token: str) -> Iterator[bytes]:
    """More heartbeats of a lease than it may have open, whose bodies never come; what each of them is."""
    slow = request(served, f"POST /v1/leases/{lease}/heartbeat", "Content-Length: 100", token=token) + b"{"
    with ExitStack() as clients:
        for _ in range(2 * MOST_OF_A_LEASE):
            clients.enter_context(served.raw()).sendall(slow)
        yield slow


def test_requests_of_others_that_never_end_take_no_room_of_a_lease(served: Served, ann: str, bob: str) -> None:
    lease = attach(served, "anns", ann)
    with unfinished(served, lease, bob) as slow:
        for _ in range(20):
            assert served.ask("POST", f"/v1/leases/{lease}/heartbeat", {}, ann).value == {"stop": False}
        assert answer_to(served, slow) == (403, {"error": "job anns: is another user's"})  # its body is not waited for
    served.ask("DELETE", f"/v1/leases/{lease}?done=true", token=ann)


def test_a_body_that_does_not_come_takes_no_room_of_its_lease(served: Served, ann: str) -> None:
    lease = attach(served, "slow", ann)
    with unfinished(served, lease, ann):
        for _ in range(20):
            assert served.ask("POST", f"/v1/leases/{lease}/heartbeat", {}, ann).status == 200
    served.ask("DELETE", f"/v1/leases/{lease}?done=true", token=ann)


def test_ids_of_leases_are_shown_to_their_owner_and_to_operators(served: Served, ann: str, bob: str) -> None:
    lease = attach(served, "private", ann)
    acquired = {"phase": "rollout", "iteration": 0}
    assert served.ask("POST", f"/v1/leases/{lease}/acquire", acquired, ann).value["granted"]
    look = served.tokens.make("ann", Right.LOOK)
    told = {}
    for name, token in {"operator": served.token, "ann": ann, "ann looks": look, "bob": bob}.items():
        answer = served.ask("GET", "/v1/events?after=0", token=token)
        told[name] = [(entry["kind"], entry["body"]["lease"]) for entry in answer.value["events"] if "lease" in entry["body"]]
    assert ("Attached", lease) in told["operator"] and ("Granted", lease) in told["operator"]
    assert lease in {one for _, one in told["ann"]} and told["ann"] == told["ann looks"]
    assert {one for _, one in told["bob"]} == {""} and [kind for kind, _ in told["bob"]] == [kind for kind, _ in told["operator"]]
    assert lease not in served.ask("GET", "/v1/status", token=bob).value.__repr__()
    served.ask("DELETE", f"/v1/leases/{lease}?done=true", token=ann)


def test_processes_that_are_not_there_are_not_kept(served: Served, ann: str, children: list[int]) -> None:
    served.ask("POST", "/v1/jobs", {"id": "many", **SHARED}, ann)
    here = {"wait_s": 30, "host": os.uname().nodename, "pids": children[:1], "pid_space": pid_space()}
    lease = served.ask("POST", "/v1/jobs/many/attach", here, ann).value["lease"]
    most = int(Path("/proc/sys/kernel/pid_max").read_text())
    far = 300 + (children[0] + most // 2) % (most - 4_300)  # where no process will be soon
    free = [pid for pid in range(far, far + 4_000) if not os.path.exists(f"/proc/{pid}")]
    for pids in (free, [*children, 1], children[:1], [os.getpid()]):
        assert served.ask("POST", f"/v1/leases/{lease}/heartbeat", {"pids": pids, "pid_space": pid_space()}, ann).value == {
            "stop": False
        }
    served.ask("DELETE", f"/v1/leases/{lease}?done=true", token=ann)
    facts = read_facts(served.folder / JOURNAL)
    named = [{one.pid for one in fact.processes} for fact in facts if isinstance(fact, OwnerAttached) and fact.lease == lease]
    assert named[0] == {*children[:1]} and {*children} <= named[-1] and len(named) <= 3
    assert not {*free} & set().union(*named)


def test_processes_of_other_users_are_none_of_a_lease(monkeypatch: pytest.MonkeyPatch, children: list[int]) -> None:
    monkeypatch.setattr(owner_processes, "user_of", lambda pid: 0 if pid == children[2] else 1000)
    here = pid_space()
    owner = OwnerAttached(0.0, "job", "lease", os.uname().nodename, here, own_processes(children[:1], here, "job"), ())
    assert [one.pid for one in known_processes(owner, children)] == children[:2]
    monkeypatch.setattr(owner_processes, "MOST_PROCESSES", 1)
    assert known_processes(owner, children) == owner.processes


def test_numbers_that_the_journal_does_not_take_are_refused_at_the_door(served: Served, ann: str) -> None:
    lease = attach(served, "numbers", ann)
    for number in (1e300, 1.1e15):
        for ask, body in (
            ("synced", {"iteration": 0, "seconds": number}),
            ("release", {"phase": "rollout", "iteration": 0, "device_gb": number}),
        ):
            answer = served.ask("POST", f"/v1/leases/{lease}/{ask}", body, ann)
            key = [*body][-1]
            assert (answer.status, answer.value) == (400, {"error": f"{key}: must be at most 1e+15, not {number}"})
    served.ask("DELETE", f"/v1/leases/{lease}?done=true", token=ann)


def test_a_dry_run_keeps_nobody_from_looking(served: Served, ann: str, bob: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ends, over = threading.Event(), threading.Event(), threading.Event()

    def look(*_: object, **__: object) -> tuple[()]:
        begun.set()
        ends.wait(5.0)
        over.set()
        return ()

    monkeypatch.setattr(forecast, "forecast_arrivals", look)
    with ThreadPoolExecutor(1) as asking:
        asking.submit(served.ask, "POST", "/v1/jobs?dry_run=true", {"id": "tried", **SHARED}, bob)
        assert begun.wait(PATIENCE_S)
        assert served.ask("GET", "/v1/status", token=ann).status == 200
        assert not over.is_set()
        ends.set()


def test_a_dry_run_looks_at_so_many_jobs_at_most(served: Served, bob: str) -> None:
    jobs = [{"id": f"tried-{number}", **SHARED} for number in range(101)]
    answer = served.ask("POST", "/v1/jobs?dry_run=true", jobs, bob)
    assert (answer.status, answer.value) == (429, {"error": "101 jobs are too many: a dry run looks at 100 at most"})


def test_of_a_hundred_threads_that_own_one_job_one_does(served: Served, ann: str) -> None:
    served.ask("POST", "/v1/jobs", {"id": "raced", **SHARED}, ann)
    with ThreadPoolExecutor(100) as threads:

        def all_ask(method: str, path: str, body: object = None) -> list[Answer]:
            return [*threads.map(lambda _: served.ask(method, path, body, ann), range(100))]

        attached = [one for one in all_ask("POST", "/v1/jobs/raced/attach", {"wait_s": 30}) if one.status != 409]
        assert [one.status for one in attached] == [200]
        at = f"/v1/leases/{attached[0].value['lease']}"
        for iteration in range(2):
            for phase in ("rollout", "training"):
                turn = {"phase": phase, "iteration": iteration}
                asked = all_ask("POST", f"{at}/acquire", {**turn, "wait_s": 30})
                assert {one.status for one in asked} <= {200, 429} and all(one.value.get("granted", True) for one in asked)
                assert {one.status for one in all_ask("POST", f"{at}/release", {**turn, "metrics": {}})} <= {200, 429}
        assert {one.status for one in all_ask("DELETE", f"{at}?done=true")} <= {200, 429}
    facts = read_facts(served.folder / JOURNAL)
    mine = [
        fact
        for fact in facts
        if isinstance(fact, PhaseGranted | PhaseSlice | IterationSlice | LeaseEnded) and fact.job_id == "raced"
    ]
    assert Counter(type(fact) for fact in mine) == {PhaseGranted: 4, PhaseSlice: 4, IterationSlice: 2, LeaseEnded: 1}


def test_one_users_open_requests_leave_room_for_others(tmp_path_factory: pytest.TempPathFactory) -> None:
    one = Served(tmp_path_factory.mktemp("few"), most_open=4)
    try:
        bob = one.tokens.make("bob", Right.LOOK)
        clients = [one.raw() for _ in range(2)]
        for client in clients:
            client.sendall(request(one, "GET /v1/events?after=1000000&wait_s=30", token=bob))
        while (answer := one.ask("GET", "/v1/status", token=bob)).status == 200:
            pass
        assert (answer.status, answer.headers["retry-after"]) == (429, "1")
        assert answer.value == {"error": "2 requests of this user are open; there is room for no more"}
        assert one.ask("GET", "/v1/status").status == 200
        for client in clients:
            client.close()
    finally:
        one.close()
