"""A service of leases for tests of clients: the requests of jobs that run elsewhere, over HTTP, with one node for each pool.

It has the states of the protocol (who holds a node, who waits for it, what of an iteration is over, how long a lease lasts), and
answers from them. It plans nothing and forgets everything at its end.
"""

from __future__ import annotations

import json
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

TOKEN = "secret"
POOLS = {"rollout": ("rollout",), "training": ("training",), **dict.fromkeys(("init", "sync"), ("rollout", "training"))}
NODES = {pool: [{"name": f"{pool}-0", "host": socket.gethostname(), "gpus": [], "cores": [0]}] for pool in ("rollout", "training")}
FIRST_KEYS = {
    "attach": ("wait_s", "host", "pids", "pid_space"),
    "acquire": ("phase", "iteration", "wait_s", "extra"),
    "release": ("phase", "iteration", "metrics", "device_gb", "extra"),
    "synced": ("iteration", "seconds"),
    "progress": ("done", "total", "tokens"),
    "heartbeat": ("pids", "pid_space"),
}
"""Keys of each request that the first services knew; they refused all others."""
Answer = tuple[int, dict[str, Any]]


class Turn(NamedTuple):
    """A phase that holds its nodes, or waits for them."""

    job: str
    phase: str
    iteration: int
    extra: bool


@dataclass
class Job:
    """What there is to know of a job.

    Attributes:
        over: phases of the present iteration that are over. begun: of what comes before the first one, likewise.
        heard_s: the last request of its lease.
        entry: Entry of the job file with which it was submitted, or None if it was there from the start.
    """

    iterations: int
    lease: str | None = None
    heard_s: float = 0.0
    iteration: int = 0
    over: set[str] = field(default_factory=set)
    begun: set[str] = field(default_factory=set)
    state: str = "queued"
    entry: dict[str, Any] | None = None


class LittleService:
    """The states, and what tests do to them.

    Attributes:
        granted: turns in the order in which they began. requests: names of requests, with their bodies.
        silent: it answers nobody. lost_answers: so many of the next answers are not sent, though the request is carried out.
        stop, move: what heartbeats and requests for turns are told. retry_after: the header of refusals.
        leave_by_s: Deadline of the drain of a node, or None.
        is_older: Whether it knows only the keys of the first version, so that no owner can go back.
        redirect: where all requests are sent instead, "" for nowhere.
        proxy_status: Status with which a proxy answers all requests by itself, or 0 if there is none.
    """

    def __init__(self, jobs: dict[str, int], ttl_s: float) -> None:
        self.jobs, self.ttl_s = {name: Job(iterations) for name, iterations in jobs.items()}, ttl_s
        self.held: dict[str, Turn] = {}
        self.waiting: list[Turn] = []
        self.granted: list[Turn] = []
        self.redirect: str | None = None
        self.proxy_status = 0
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.leave_by_s: float | None = None
        self.changed = threading.Condition()
        self.silent, self.lost_answers, self.stop, self.move = threading.Event(), 0, False, False
        self.url = self.retry_after = ""
        self.is_older = False

    def answer(self, method: str, path: str, body: dict[str, Any]) -> Answer:
        """Carry a request out."""
        first_keys = FIRST_KEYS.get(path.rpartition("/")[2], body) if self.is_older and method == "POST" else body
        for key in body:
            if key not in first_keys:
                return 400, {"error": f"{key}: is no key here"}
        match method, path.partition("?")[0].split("/")[2:], path.partition("?")[2]:
            case "GET", ["jobs", name], _ if name in self.jobs:
                job = self.jobs[name]
                known = {"id": name, "state": job.state, "iteration": job.iteration, "iterations": job.iterations}
                return 200, known if job.entry is None else known | {"entry": job.entry}
            case "POST", ["jobs"], _ if (name := body["id"]) not in self.jobs:
                self.jobs[name] = Job(body["iterations"], entry=body)
                return 201, {"id": name}
            case "POST", ["jobs"], _:
                return 409, {"error": f"job {body['id']}: names are used once"}
            case "POST", ["jobs", name, "attach"], _ if name in self.jobs:
                if "lease" in body:
                    return self._go_back(self.jobs[name], body)
                return self._attach(self.jobs[name])
            case "POST", ["leases", lease, request], _ if (owner := self._name_of(lease)) is not None:
                self.requests.append((request, body))
                return self._ask(owner, request, body)
            case "DELETE", ["leases", lease], query if (owner := self._name_of(lease)) is not None:
                job = self.jobs[owner]
                job.lease, job.state = None, "done" if query == "done=true" else "queued"
                self._free([pool for pool, turn in self.held.items() if turn.job == owner])
                return 200, {}
        return 404, {"error": f"there is no {path}"}

    def _name_of(self, lease: str) -> str | None:
        for name, job in self.jobs.items():
            if job.lease == lease and time.monotonic() - job.heard_s < self.ttl_s:
                return name
        return None

    def _attach(self, job: Job) -> Answer:
        if job.state == "done":
            return 409, {"error": "the job is over"}
        if job.lease is not None and time.monotonic() - job.heard_s < self.ttl_s:
            return 409, {"error": "another lease of the job lives"}
        if "training" in job.over:  # the iteration is whole
            job.iteration += 1
        job.over, job.begun = set(), set()
        job.lease, job.heard_s, job.state = secrets.token_hex(16), time.monotonic(), "running"
        return 200, {"lease": job.lease, "ttl_s": self.ttl_s, "iteration": job.iteration, "nodes": NODES}

    def _go_back(self, job: Job, body: dict[str, Any]) -> Answer:
        assert body["lease"] == job.lease and not job.over
        job.iteration = min(job.iteration, body["from_iteration"])
        return 200, {"lease": job.lease, "ttl_s": self.ttl_s, "iteration": job.iteration, "nodes": NODES}

    def _ask(self, name: str, request: str, body: dict[str, Any]) -> Answer:
        job = self.jobs[name]
        job.heard_s = time.monotonic()
        match request:
            case "acquire":
                iteration = body.get("iteration", job.iteration)
                return self._acquire(job, Turn(name, body["phase"], iteration, body.get("extra", False)), body["wait_s"])
            case "release":
                phase, iteration = body["phase"], body.get("iteration", job.iteration)
                mine = [pool for pool, turn in self.held.items() if turn[:3] == (name, phase, iteration)]
                if not mine and not (iteration < job.iteration or phase in job.over):
                    return 409, {"error": f"the job does not hold {phase} of iteration {iteration}"}
                if mine and not self.held[mine[0]].extra:
                    (job.begun if phase == "init" or iteration < job.iteration else job.over).add(phase)
                self._free(mine)
            case "heartbeat":
                return 200, {"stop": self.stop} | ({} if self.leave_by_s is None else {"leave_by_s": self.leave_by_s})
        return 200, {}

    def _acquire(self, job: Job, turn: Turn, wait_s: float) -> Answer:
        if turn in self.held.values():
            return 200, {"granted": True, "iteration": turn.iteration, "switched": False, "nodes": NODES, "move": False}
        if any(turn.job == other.job for other in self.held.values()):
            return 409, {"error": "release what is held first"}
        if turn[1:] == ("rollout", job.iteration + 1, False) and "training" in job.over:
            job.iteration, job.over = turn.iteration, set()
        between = "rollout" not in job.over or "training" in job.over
        fits = {
            "rollout": between and (turn.extra or turn.phase not in job.over),
            "training": not between,
            "sync": "training" in job.over and turn.phase not in job.over,
        }
        if turn.phase == "init" or (turn.phase == "sync" and turn.iteration == job.iteration - 1):
            if job.over or turn.phase in job.begun or "sync" in job.begun:
                return 409, {"error": f"it is not the turn of the first {turn.phase}"}
        elif not fits[turn.phase] or (turn.iteration != job.iteration and not turn.extra):
            return 409, {"error": f"it is not the turn of {turn.phase} of iteration {turn.iteration}"}
        if turn not in self.waiting:
            self.waiting.append(turn)
            self.changed.notify_all()
        pools = POOLS[turn.phase]

        def is_free() -> bool:
            ahead = self.waiting[: self.waiting.index(turn)]
            return not any(pool in self.held or any(pool in POOLS[other.phase] for other in ahead) for pool in pools)

        if self.move:
            job.state = "moving"
        if self.move or not self.changed.wait_for(is_free, wait_s):
            return 200, {"granted": False, "move": self.move}
        self.waiting.remove(turn)
        self.held |= dict.fromkeys(pools, turn)
        self.granted.append(turn)
        self.changed.notify_all()
        job.heard_s = time.monotonic()
        switched = len(self.granted) > 1
        return 200, {"granted": True, "iteration": turn.iteration, "switched": switched, "nodes": NODES, "move": False}

    def _free(self, pools: list[str]) -> None:
        for pool in pools:
            del self.held[pool]
        self.changed.notify_all()


@contextmanager
def serving(jobs: dict[str, int], ttl_s: float = 30.0) -> Iterator[LittleService]:
    """A service with such jobs, by their iterations, on a port of its own."""
    service = LittleService(jobs, ttl_s)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _handle(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
            if service.silent.is_set():
                self.close_connection = True
                return
            if self.headers["Authorization"] != f"Bearer {TOKEN}":
                status, answer = 401, {"error": "the token is wrong"}
            else:
                with service.changed:
                    status, answer = service.answer(self.command, self.path, body)
                    if service.lost_answers and "leases" in self.path:
                        service.lost_answers -= 1
                        self.close_connection = True
                        return
            text = json.dumps(answer).encode()
            if service.proxy_status:
                status, text = service.proxy_status, b"<html>Bad Gateway</html>"
            if service.redirect is not None:
                status, text = 301, b"<html>Moved</html>"
            self.send_response(status)
            if service.redirect:
                self.send_header("Location", service.redirect + (self.path if service.redirect.startswith("https") else ""))
            self.send_header("Content-Length", str(len(text)))
            if status >= 400 and service.retry_after:
                self.send_header("Retry-After", service.retry_after)
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_DELETE = _handle

        def log_message(self, format: str, *arguments: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        service.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield service
        finally:
            server.shutdown()
            thread.join()
