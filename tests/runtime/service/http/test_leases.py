"""Leases over HTTP: a job that runs elsewhere takes its turns, and nobody else in its name."""

from __future__ import annotations

import json
import os
import socket
from select import select
from threading import Semaphore
from unittest.mock import patch

from rollmux_processes import pid_space

from runtime.journal.write import Row, Unwritable
from runtime.service.http.endpoint import MOST_OF_A_LEASE
from runtime.service.tokens import Right
from tests.runtime.pretend import PATIENCE_S
from tests.runtime.service.http.conftest import Served
from tests.runtime.service.http.test_jobs import ATTACHED
from tests.runtime.service.http.test_strangers import parsed, request

SHARED = ATTACHED | {"slo": 100, "iterations": 2}


def attach(served: Served, job_id: str, token: str | None = None, **more: object) -> str:
    served.ask("POST", "/v1/jobs", {"id": job_id, **SHARED, **more}, token)
    answer = served.ask("POST", f"/v1/jobs/{job_id}/attach", {"wait_s": 30}, token)
    assert answer.status == 200, answer
    return str(answer.value["lease"])


def test_a_job_takes_its_turns_and_repeats_what_it_has_asked(served: Served) -> None:
    lease = attach(served, "turns")
    at = f"/v1/leases/{lease}"
    assert served.ask("POST", "/v1/jobs/turns/attach", {"wait_s": 0}).status == 409
    for iteration in range(2):
        for phase in ("rollout", "training"):
            ask = {"phase": phase, "iteration": iteration}
            granted = served.ask("POST", f"{at}/acquire", ask).value
            assert granted["granted"] and granted["nodes"], granted
            assert served.ask("POST", f"{at}/acquire", ask).value["granted"]
            assert served.ask("POST", f"{at}/progress", {"done": 1, "total": 2}).value == {}
            assert served.ask("POST", f"{at}/heartbeat", {}).value == {"stop": False}
            done = served.ask("POST", f"{at}/release", {**ask, "metrics": {"reward": 0.5}})
            assert (done.status, done.value) == (200, {}), done
            assert served.ask("POST", f"{at}/release", ask).status == 200
    assert served.ask("DELETE", f"{at}?done=true").status == 200
    job = served.ask("GET", "/v1/jobs/turns").value
    assert (job["state"], job["iteration"], job["metrics"]) == ("done", 2, {"reward": 0.5})
    replay = served.ask("POST", f"{at}/acquire", {"phase": "rollout", "iteration": 0, "wait_s": 0})
    assert replay.status == 409, replay


def test_what_is_malformed_is_said_to_be_so(served: Served) -> None:
    lease = attach(served, "malformed")
    for request_, body in (
        ("acquire", {"phase": "nap", "iteration": 0}),
        ("acquire", {"phase": "rollout", "iteration": -1}),
        ("acquire", {"phase": "rollout", "iteration": 0.5}),
        ("acquire", {"phase": "rollout", "iteration": "0"}),
        ("acquire", {"phase": "rollout"}),
        ("acquire", {"phase": "rollout", "iteration": 0, "wait_s": 1e9}),
        ("acquire", {"phase": "rollout", "iteration": 0, "wat_s": 1}),
        ("acquire", []),
        ("release", {"phase": "rollout", "iteration": 0, "metrics": {"a": "b"}}),
        ("heartbeat", {"pids": [0]}),
        ("synced", {"iteration": 0, "seconds": -1}),
        ("progress", {"done": 1}),
    ):
        answer = served.ask("POST", f"/v1/leases/{lease}/{request_}", body)
        assert answer.status == 400 and answer.value.keys() == {"error"}, (request_, body, answer)
    assert served.ask("POST", f"/v1/leases/{lease}/acquire", {"phase": "training", "iteration": 0, "wait_s": 0}).status == 409
    assert served.ask("POST", "/v1/leases/none/heartbeat", {}).status == 404
    served.ask("DELETE", f"/v1/leases/{lease}?done=true")


def test_a_lease_is_of_use_to_its_jobs_user_alone(served: Served) -> None:
    ann, ben = served.tokens.make("ann", Right.ATTACH), served.tokens.make("ben", Right.ATTACH)
    lease = attach(served, "anns-own", ann)
    assert served.ask("GET", "/v1/jobs/anns-own").value["user"] == "ann"
    for method, path in (
        ("POST", "/v1/jobs/anns-own/attach"),
        ("POST", f"/v1/leases/{lease}/heartbeat"),
        ("DELETE", f"/v1/leases/{lease}"),
        ("DELETE", "/v1/jobs/anns-own"),
    ):
        answer = served.ask(method, path, {} if method == "POST" else None, ben)
        assert (answer.status, answer.value) == (403, {"error": "job anns-own: is another user's"})
    other = served.ask("POST", "/v1/jobs", {"id": "for-ann", **SHARED, "user": "ann"}, ben)
    assert other.status == 403
    assert served.ask("POST", f"/v1/leases/{lease}/heartbeat", {}, ann).status == 200
    assert served.ask("DELETE", f"/v1/leases/{lease}?done=true", token=ann).status == 200


def test_a_lease_has_so_many_open_requests_at_most(served: Served) -> None:
    first, second = attach(served, "first"), attach(served, "second", rollout={**SHARED["rollout"], "nodes": 2})
    asked: list[socket.socket] = []
    body = b'{"phase": "rollout", "iteration": 0, "wait_s": 30}'
    try:
        held = served.ask("POST", f"/v1/leases/{first}/acquire", {"phase": "rollout", "iteration": 0}).value["granted"]
        waiting = second if held else first
        for _ in range(MOST_OF_A_LEASE):
            asked.append(served.raw())
            asked[-1].sendall(request(served, f"POST /v1/leases/{waiting}/acquire", f"Content-Length: {len(body)}") + body)
        while (answer := served.ask("POST", f"/v1/leases/{waiting}/progress", {"done": 0, "total": 1})).status == 200:
            pass
        assert (answer.status, answer.value) == (429, {"error": f"a lease has {MOST_OF_A_LEASE} open requests at most"})
        assert served.ask("POST", f"/v1/leases/{waiting}/heartbeat", {}).status == 200
    finally:
        for client in asked:
            client.close()
        for lease in (first, second):
            while served.ask("DELETE", f"/v1/leases/{lease}?done=true").status == 429:
                pass


def test_a_request_that_is_refused_shows_that_its_owner_lives(served: Served) -> None:
    lease = attach(served, "refused")
    known = served.service.driver.leases.ledger.lease(lease)
    for body in (b"{", {"phase": "rollout", "iteration": 7}, {"phase": "rollout", "number": 0}):
        before_s = known.last_heartbeat_s
        assert served.ask("POST", f"/v1/leases/{lease}/acquire", body).status in (400, 409)
        assert known.last_heartbeat_s > before_s
    assert served.ask("DELETE", f"/v1/leases/{lease}?done=true").status == 200


def test_a_refusal_waits_for_the_disk_as_an_answer_does(served: Served) -> None:
    """An owner who is told that its job has ended goes away; a service that comes back must know it, too."""
    served.ask("POST", "/v1/jobs", {"id": "over", **SHARED})
    log, body, attempts = served.service.run.log, b'{"wait_s": 0}', Semaphore(0)

    def full(rows: list[Row]) -> None:
        if "Cancelled" in dict(rows):  # what came before it may be written later, too
            attempts.release()
        if rows:
            raise Unwritable("the disk is full")

    with served.raw() as ends, served.raw() as owner:
        with patch.object(log.journal, "store", full):
            ends.sendall(request(served, "DELETE /v1/jobs/over"))
            assert attempts.acquire(timeout=PATIENCE_S)
            owner.sendall(request(served, "POST /v1/jobs/over/attach", f"Content-Length: {len(body)}") + body)
            assert attempts.acquire(timeout=PATIENCE_S)
            assert select([owner], [], [], 0.2)[0] == []
        assert parsed(owner)[0] == 409


def test_a_full_disk_ends_no_living_owner(served: Served) -> None:
    """Releases that clients have given up hold no place, and heartbeats are answered with new processes, too."""
    lease, log = attach(served, "owner"), served.service.run.log
    turn = {"phase": "rollout", "iteration": 0}
    assert served.ask("POST", f"/v1/leases/{lease}/acquire", turn).value["granted"]
    store, body = log.journal.store, json.dumps(turn).encode()

    def full(rows: list[Row]) -> None:
        if rows:
            raise Unwritable("the disk is full")

    with patch.object(log.journal, "store", full):
        given_up = [served.raw() for _ in range(MOST_OF_A_LEASE)]
        for client in given_up:
            client.sendall(request(served, f"POST /v1/leases/{lease}/release", f"Content-Length: {len(body)}") + body)
        while served.ask("POST", f"/v1/leases/{lease}/progress", {"done": 0, "total": 1}).status == 200:
            pass
        named = {"pids": [os.getpid()], "pid_space": pid_space()}
        assert served.ask("POST", f"/v1/leases/{lease}/heartbeat", named).value == {"stop": False}
        for client in given_up:
            client.close()
        while served.ask("POST", f"/v1/leases/{lease}/progress", {"done": 0, "total": 1}).status == 429:
            pass
    assert log.journal.store == store
    assert served.ask("POST", f"/v1/leases/{lease}/release", turn).status == 200
    assert served.ask("DELETE", f"/v1/leases/{lease}?done=true").status == 200
