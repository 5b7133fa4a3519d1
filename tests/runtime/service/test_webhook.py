"""Notices of a service: which there are, and how they reach their receiver."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from time import sleep
from types import SimpleNamespace
from typing import Any

import pytest

from rollmux_env.cluster.apply import apply
from rollmux_env.cluster.events import Carried, CarriedUsage, OverBudget, QuotaSet
from rollmux_env.cluster.state import State
from rollmux_env.keys.queue import Quota
from runtime.journal.facts import JobFailed, NodesSuspected
from runtime.journal.write import read_record
from runtime.service.mail import MAIL, Mail, set_address
from runtime.service.notices import Notices
from runtime.service.webhook import WEBHOOK, Webhook, set_target, signature
from tests.conftest import Command
from tests.runtime.pretend import NODES, PATIENCE_S, cluster_with
from tests.runtime.service.http.conftest import Served
from tests.runtime.service.http.test_jobs import ATTACHED


class Receiver:
    """A server that answers notices with statuses, one after the other."""

    def __init__(self, *statuses: int) -> None:
        self.came: Queue[tuple[str, dict[str, str], bytes]] = Queue()
        left = [*statuses]
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                return

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                owner.came.put((self.path, dict(self.headers), body))  # before who asks goes on
                self.send_response(left.pop(0) if left else 204)
                self.end_headers()

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/hook?team=a"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def next(self) -> tuple[str, dict[str, str], bytes]:
        return self.came.get(timeout=PATIENCE_S)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def receivers() -> Iterator[list[Receiver]]:
    made: list[Receiver] = []
    yield made
    for one in made:
        one.close()


def test_a_notice_is_signed_and_repeated_until_it_is_taken(tmp_path: Path, receivers: list[Receiver]) -> None:
    receiver, lines = Receiver(503, 429, 204), Queue[str]()
    receivers.append(receiver)
    webhook = Webhook(tmp_path, lines.put, (0.0,) * 5)
    webhook.put({"kind": "failed", "text": "nobody is told"})
    secret = set_target(tmp_path, f"{receiver.url}%2f&name=ü")
    assert (tmp_path / WEBHOOK).stat().st_mode & 0o777 == 0o600
    webhook.put({"kind": "failed", "text": "é"})
    came = [receiver.next() for _ in range(3)]
    path, headers, body = came[-1]
    assert {one[2] for one in came} == {body} and json.loads(body) == {"kind": "failed", "text": "é"}
    assert path == "/hook?team=a%2f&name=%C3%BC"
    assert headers["X-RollMux-Signature"] == signature(secret, headers["X-RollMux-Timestamp"], body)
    assert signature(secret, "1", b"{}") != signature(secret, "2", b"{}")
    while not webhook.is_idle:
        sleep(0.01)
    webhook.close()
    assert lines.empty()


def test_a_notice_that_is_not_taken_is_dropped_and_said(tmp_path: Path, receivers: list[Receiver]) -> None:
    receiver, lines = Receiver(404, 500, 500, 500), Queue[str]()
    receivers.append(receiver)
    set_target(tmp_path, receiver.url)
    webhook = Webhook(tmp_path, lines.put, (0.0, 0.0))
    webhook.put({"text": "refused"})
    assert lines.get(timeout=PATIENCE_S) == "webhook: a notice is dropped: 127.0.0.1 answers 404"
    webhook.put({"text": "fails"})
    assert lines.get(timeout=PATIENCE_S) == "webhook: a notice is dropped: 127.0.0.1 answers 500"
    assert receiver.came.qsize() == 4
    receiver.close()
    webhook.put({"text": "nobody there"})
    assert "webhook: a notice is dropped: 127.0.0.1: " in lines.get(timeout=PATIENCE_S)
    (tmp_path / WEBHOOK).write_text("{}")
    webhook.put({"text": "damaged"})
    assert "cannot be read; `rollmux webhook set URL` writes it" in lines.get(timeout=PATIENCE_S)
    webhook.close()


def test_a_receiver_that_answers_byte_by_byte_does_not_hold_the_sender(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.service.webhook._ANSWERS_S", 1.0)
    lines, is_over = Queue[str](), threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def trickle() -> None:
            connection, _ = server.accept()
            with connection, contextlib.suppress(OSError):
                while not is_over.wait(0.05):
                    connection.sendall(b"0")

        receiver = threading.Thread(target=trickle)
        receiver.start()
        set_target(tmp_path, f"http://127.0.0.1:{server.getsockname()[1]}/")
        webhook = Webhook(tmp_path, lines.put, ())
        webhook.put({"text": "slow"})
        try:
            assert lines.get(timeout=PATIENCE_S).startswith("webhook: a notice is dropped: 127.0.0.1: ")
        finally:
            is_over.set()
            receiver.join()
            webhook.close()


def test_a_notice_that_is_to_be_repeated_is_not_over(tmp_path: Path, receivers: list[Receiver]) -> None:
    receiver = Receiver(503)
    receivers.append(receiver)
    set_target(tmp_path, receiver.url)
    webhook = Webhook(tmp_path, lambda _: None, (PATIENCE_S,))
    assert webhook.is_idle
    webhook.put({"text": "later"})
    receiver.next()
    assert not webhook.is_idle
    webhook.close()


def test_an_error_of_a_delivery_drops_one_notice(tmp_path: Path) -> None:
    class Breaks(Webhook):
        def send(self, body: bytes) -> tuple[str, bool]:
            if b"one" in body:
                raise RuntimeError("of a\nlibrary")
            return "", False

    lines = Queue[str]()
    set_target(tmp_path, "http://127.0.0.1:9/")
    webhook = Breaks(tmp_path, lines.put)
    webhook.put({"text": "one"})
    webhook.put({"text": "two"})
    assert lines.get(timeout=PATIENCE_S) == "webhook: a notice is dropped: RuntimeError: of a\\nlibrary"
    while not webhook.is_idle:
        sleep(0.01)
    webhook.close()


@pytest.mark.parametrize("resumes", [False, True])
def test_a_quota_that_was_reached_before_a_start_is_not_told_again(resumes: bool) -> None:
    state = State(cluster_with(NODES))
    apply(state, Carried(0.0, "2026-12", (CarriedUsage("ann", 3600.0, 3600.0),)))
    apply(state, QuotaSet(0.0, "ann", Quota(node_hours=1)))
    told = Queue[str]()
    run = SimpleNamespace(
        handles={},
        plan=SimpleNamespace(folder=""),
        log=SimpleNamespace(now=lambda: 100.0),
        scheduler=SimpleNamespace(state=state),
        nodes=SimpleNamespace(drained=()),
        spawn=lambda work: told.put(work.close()),
    )
    before = SimpleNamespace(last_s=100.0, wall_s=lambda at_s: at_s, drained_nodes=()) if resumes else None
    Notices(run, (), SimpleNamespace(reports=list), before).look()  # type: ignore[arg-type]
    assert told.qsize() == (not resumes)


def test_a_service_tells_what_happens_to_jobs_and_users(tmp_path: Path) -> None:
    served = Served(tmp_path / "service", with_classes=False)
    try:
        told = Queue[dict[str, Any]]()
        drains = served.service.driver.lifecycle.planned_drains
        notices = Notices(served.service.run, [SimpleNamespace(put=told.put)], drains)  # type: ignore[list-item]
        served.ask("POST", "/v1/jobs", {"id": "a", "user": "ann", **ATTACHED})
        lease = served.ask("POST", "/v1/jobs/a/attach", {"wait_s": 30}).value["lease"]
        assert served.ask("POST", f"/v1/leases/{lease}/acquire", {"phase": "rollout", "iteration": 0}).value["granted"]
        facts = (JobFailed(1.0, "a", "init", "no\nmodel"), OverBudget(2.0, "a"), NodesSuspected(3.0, "a", "l", ("rollout-0",)))
        for fact in facts:
            served.in_loop(lambda fact=fact: notices.follow(fact))  # type: ignore[misc]
        came = [told.get(timeout=PATIENCE_S) for _ in facts]
        assert [(one["kind"], one["job"], one["user"]) for one in came] == [
            (kind, "a", "ann") for kind in ("failed", "over_budget", "lost")
        ]
        assert came[0]["text"] == "failed in init: no\\nmodel" and "rollout-0" in came[2]["text"]
        served.ask("POST", "/v1/quotas", {"user": "ann", "quota": {"node_hours": 0}})

        def later() -> None:
            for _ in range(2):
                notices.look()

        served.in_loop(lambda: setattr(served.service.run.log, "zero_s", served.service.run.log.zero_s - 100))
        served.in_loop(later)
        came = [told.get(timeout=PATIENCE_S) for _ in range(2)]
        assert [(one["kind"], one["job"], one["user"]) for one in came] == [("overdue", "a", "ann"), ("quota_reached", None, "ann")]
        assert "its rollout has held rollout-0" in came[0]["text"] and "node-hours of this month" in came[1]["text"]
        assert float(came[1]["text"].split()[4]) > 2 * 100 / 3600  # up to now, in the middle of a phase
        run = served.service.run
        served.in_loop(lambda: setattr(run.log, "zero_s", run.log.zero_s - 100))
        before = read_record(tmp_path / "service")
        after_a_start = Notices(run, [SimpleNamespace(put=told.put)], drains, before)  # type: ignore[list-item]
        served.in_loop(after_a_start.look)
        assert told.empty()
    finally:
        served.close()


def test_the_commands_set_and_unset(command: Command, tmp_path: Path) -> None:
    status, secret, err = command("webhook", "set", "https://hooks.example.org/x", "--at", str(tmp_path))
    target = json.loads((tmp_path / WEBHOOK).read_text())
    assert (status, err, target) == (0, "", {"url": "https://hooks.example.org/x", "secret": secret.strip()})
    for url in ("ftp://x", "https://", "https://user:pass@x/", "http://x:y/", "http://a b/"):
        status, out, err = command("webhook", "set", url, "--at", str(tmp_path))
        assert (status, out) == (2, "") and "must be a URL" in err
    assert command("webhook", "unset", "--at", str(tmp_path)) == (0, "", "") and not (tmp_path / WEBHOOK).exists()


def sendmail(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program `sendmail` that ends with the statuses in a file, one after the other; the file that it writes."""
    program, told = folder / "sendmail", folder / "told"
    statuses = f"read -r status rest < {folder}/statuses; echo $rest > {folder}/statuses"
    program.write_text(f"#!/bin/sh\n(echo $@; cat) >> {told}\n{statuses}\necho no mailbox >&2\nexit $status\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return told


def test_a_notice_is_mailed_and_repeated_while_that_may_help(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, lines = sendmail(tmp_path, monkeypatch), Queue[str]()
    (tmp_path / "statuses").write_text("75 0 67 75 75")
    mail = Mail(tmp_path, lines.put, (0.0,))
    notice = {"kind": "over_budget", "job": "math", "user": "ann", "text": "é"}
    mail.put(notice)
    assert command("webhook", "set", "mailto:ops@example.org", "--at", str(tmp_path)) == (0, "", "")
    assert (tmp_path / MAIL).stat().st_mode & 0o777 == 0o600
    for _ in range(3):
        mail.put(notice)
    dropped = [lines.get(timeout=PATIENCE_S) for _ in range(2)]
    assert dropped == [f"mail: a notice is dropped: sendmail ends with status {status}: no mailbox" for status in (67, 75)]
    words = told.read_text()
    assert words.count("-i -- ops@example.org\n") == 5 and words.count("Subject: rollmux: over budget: math\n") == 5
    assert words.count("user: ann\n") == 5 and lines.empty()
    (tmp_path / MAIL).write_text("[]")
    mail.put(notice)
    assert "cannot be read; `rollmux webhook set mailto:ADDRESS` writes it" in lines.get(timeout=PATIENCE_S)
    mail.close()
    assert command("webhook", "unset", "--at", str(tmp_path)) == (0, "", "") and not (tmp_path / MAIL).exists()


@pytest.mark.parametrize("limit", ["_TAKES_S", "_CLOSES_S"])
def test_a_sendmail_that_hangs_is_killed_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    sendmail(tmp_path, monkeypatch)
    os.mkfifo(tmp_path / "held")
    writer = os.fdopen(os.open(tmp_path / "held", os.O_RDWR), "w")
    held = (tmp_path / "held").open()
    script = f"#!/bin/sh\nexec > {tmp_path}/held\necho begun\n(sleep 30; echo survived) &\nwait\n"
    (tmp_path / "sendmail").write_text(script)
    monkeypatch.setattr(f"runtime.service.mail.{limit}", 0.3)
    lines = Queue[str]()
    mail = Mail(tmp_path, lines.put, ())
    set_address(tmp_path, "ops@example.org")
    mail.put({"kind": "over_budget", "job": "math", "user": "ann"})
    with held, writer:
        if limit == "_CLOSES_S":
            assert held.readline() == "begun\n"
            mail.close()
        assert lines.get(timeout=PATIENCE_S).startswith("mail: a notice is dropped: sendmail")
        writer.close()
        assert held.read() in ("begun\n", "")  # the end comes when no process has the file open
    mail.close()


def test_a_mail_without_address_or_sendmail_is_refused(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sendmail(tmp_path, monkeypatch)
    for address in ("ops", "-bs@example.org", "a@b, c@d", "a@b\nBcc: c@d", "<a@b>", ""):
        status, out, err = command("webhook", "set", f"mailto:{address}", "--at", str(tmp_path))
        assert (status, out) == (2, "") and "must be an address" in err
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    status, out, err = command("webhook", "set", "mailto:ops@example.org", "--at", str(tmp_path))
    assert (status, out) == (2, "") and "this machine has no sendmail" in err and not (tmp_path / MAIL).exists()
