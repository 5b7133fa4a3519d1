"""Client of a RollMux service, for jobs that run under their own launcher and share the service's nodes with other jobs.

    with rollmux_client.attach() as job:
        for k in job.iterations(100):
            with job.phase("rollout") as phase:
                phase.report(reward=sample())
            with job.phase("training"):
                train()

A phase waits until the service grants the job its nodes, and gives them back at its end. `async with` works the same. If
ROLLMUX_URL is not set, no service is asked and nothing waits, so the script runs as it would without RollMux.

A job with a `staleness` in its entry may run a rollout and a training at the same time. `Job.side_by_side` runs both in two
threads. A script with its own threads names the iteration, as in `job.phase("rollout", k)`.

Environment variables: ROLLMUX_URL and ROLLMUX_TOKEN of the service, and ROLLMUX_JOB, the job's id. `rollmux exec` sets them, and
also the lease that it holds for its command: ROLLMUX_LEASE, ROLLMUX_TTL_S, ROLLMUX_ITERATION, and ROLLMUX_NODES as JSON. A script
that attaches without it sets ROLLMUX_LEASE and ROLLMUX_ATTACHED for its children, so that they are known as processes of its lease.

A client fences itself, because another job may get the devices when a lease expires. A thread sends several heartbeats in each
`ttl_s` of the lease. After half of `ttl_s` without an answer it logs a warning. After `ttl_s` without an answer, or if the service
reports that the lease is lost, it kills all processes of the job with SIGKILL. Under `rollmux exec` this is done by the process of
`rollmux exec`, which keeps the lease, so a script that is busy in one long call is not killed. The clock also runs while a process
is stopped or its machine is suspended, and it is checked before and after every phase.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import itertools
import json
import logging
import math
import os
import queue
import random
import re
import socket
import threading
import time
import urllib.parse
from collections.abc import Callable, Collection, Iterable, Iterator
from types import TracebackType
from typing import Any, TypeVar, cast

from rollmux_processes import JOB, KEEPER, LEASE, LeaseProcesses, end_own_processes, is_keeper_alive, pid_space, processes
from rollmux_protocol import ATTACHMENT, ITERATION, IterationStates, OutOfOrder, PhaseName, Turn, following

__all__ = ["Interrupted", "Job", "Mismatch", "PhaseContext", "Refused", "Service", "attach"]

ENDED = frozenset({"done", "failed", "cancelled", "over_budget"})
"""States of a job that has ended."""
AGAIN = frozenset({408, 429, 500, 502, 503, 504})
"""Statuses after which the same request may succeed."""
ATTACHED = "ROLLMUX_ATTACHED"
"""Environment variable of the children of a script that has attached by itself: its lease, which they carry, but do not use."""
_T = TypeVar("_T")

_LOG = logging.getLogger("rollmux_client")
_WAIT_S = 30.0  # longest time that a request stays open
_FIRST_S = 1.0  # longest wait for a placement of the first request, short so that the reason for waiting is shown soon
_LOOK_S = 10.0  # longest wait for a placement of each later request, after which a changed reason is shown
_LATER_S = 60.0  # smallest change of an expected time that is shown
_ANSWERS_S = 10.0  # time after which an answer counts as lost
_TTL_S = 30.0  # length of a lease until the service has stated it
_SOON_S = 1.0  # an answer within this time did not wait for a turn
_OLD_LEASE_S = 45.0  # time in which the lease of a process that has died expires
_UNHEARD_S = 600.0  # time for which a client without a lease keeps asking a service that does not answer
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # continues while the machine is suspended
_REPEATS_S = 1.0  # time after which a fence that has returned is called again
_BACKOFF_S = 2.0  # longest pause between repetitions
_MOST_PIDS = 4096  # processes that a request may name
_MOST_METRICS, _LONGEST_NAME = 256, 200  # in a request; the service keeps 64, with names of 64 letters
_MOST_AFTER_S = 10.0  # longest pause that a service may ask for, shorter than a lease


class Refused(Exception):
    """The service has refused a request.

    Attributes:
        status: HTTP status: 400 malformed, 401 wrong token, 403 not allowed, 404 unknown, 409 not possible now, 422 never possible,
            429 above a limit.
        retry_after_s: Seconds for which the service wants no repetition, or 0 if it does not say.
    """

    def __init__(self, status: int, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.status, self.retry_after_s = status, retry_after_s


class Interrupted(SystemExit):
    """A request of the service that this process end, between two phases. Unless it is caught, the process ends with status 75.

    Attributes:
        reason: `stop` if the job or the service is being stopped, `move` if the job continues on other nodes.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(75)
        self.reason = reason


class Mismatch(SystemExit):
    """A disagreement of the script and the service about the iterations of the job.

    Unless it is caught, the process ends with status 1 and a message of one line.
    """


class Service:
    """HTTP connections to a service, with JSON requests and answers. Several threads may use one object.

    Args:
        url: URL of the service, http:// or https://, possibly with a path.
        token: Token of the user.

    Raises:
        ValueError: The URL or the token is not valid.
    """

    def __init__(self, url: str, token: str) -> None:
        parts = _parts_of(url)
        token = token.strip()
        if not token or not all("!" <= letter <= "~" for letter in token):
            raise ValueError("ROLLMUX_TOKEN: is empty, or contains a blank or another character that no token has")
        self.url, self.token = url.strip(), token
        self._kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._host, self._port, self._path = parts.hostname or "", parts.port, parts.path.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._idle: list[http.client.HTTPConnection] = []
        self._closings = 0  # number of calls of `close`
        self._pid = os.getpid()

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None, timeout_s: float = _ANSWERS_S) -> dict[str, Any]:
        """Send a request whose answer is a JSON object.

        Args:
            method: HTTP method.
            path: Path from the root of the service.
            body: Object to send as JSON, or None.
            timeout_s: Longest time to wait for data, seconds.

        Returns:
            The object in the answer, empty if the answer has no content.

        Raises:
            Refused: The service has refused the request.
            OSError: No valid answer came.
        """
        text, _ = self.request(method, path, body, timeout_s)
        try:
            answer = json.loads(text) if text.strip() else {}
        except (ValueError, RecursionError) as error:
            raise ConnectionError(f"{self._host}: the answer is no JSON") from error
        if not isinstance(answer, dict):
            raise ConnectionError(f"{self._host}: the answer is no object")
        return answer

    def request(
        self, method: str, path: str, body: Any = None, timeout_s: float = _ANSWERS_S
    ) -> tuple[bytes, http.client.HTTPMessage]:
        """Send a request and return its answer in any format.

        Args:
            method: HTTP method.
            path: Path from the root of the service.
            body: Value to send as JSON, or None.
            timeout_s: Longest time to wait for data, seconds.

        Returns:
            Content and headers of the answer.

        Raises:
            Refused: The service has refused the request.
            OSError: No valid answer came.
        """
        if self._pid != os.getpid():  # a forked child, whose parent uses the same connections
            self._idle, self._pid = [], os.getpid()
        closings = self._closings
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._kind(self._host, self._port)
        content = None if body is None else json.dumps(body).encode()
        try:
            response, text = self._exchange_anew(connection, method, path, content, timeout_s)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise ConnectionError(f"{self._host}: {str(error) or type(error).__name__}") from error
        except (ValueError, OverflowError) as error:  # http.client's message may quote headers, and so the token
            connection.close()
            raise ConnectionError(f"{self._host}: the request or its answer is no HTTP") from error.__cause__
        except BaseException:  # an interrupt, after which half an answer may be unread
            connection.close()
            raise
        self._idle.append(connection)
        if closings != self._closings:  # another thread has closed the client meanwhile
            self.close()
        if response.status >= 300:
            raise self._refusal(response, text, method, path)
        return text, response.headers

    def _refusal(self, response: http.client.HTTPResponse, text: bytes, method: str, path: str) -> Exception:
        """Return the exception for an answer with an error or a redirection."""
        if response.status < 400:
            return Refused(response.status, self._redirected(response, path))
        try:
            said = json.loads(text).get("error")
        except (ValueError, AttributeError):  # not JSON, or not an object
            said = None
        if not said and response.status in (*AGAIN, 404):  # a proxy's, so the service has not been heard
            return ConnectionError(f"{self._host}: answers {response.status}, and no service does so: is it behind a proxy?")
        after = response.headers.get("Retry-After", "")
        after_s = min(_MOST_AFTER_S, float(after)) if after.isdecimal() else 0.0
        return Refused(response.status, str(said or f"{method} {path}: status {response.status}"), after_s)

    def _redirected(self, response: http.client.HTTPResponse, path: str) -> str:
        """Explain a redirection and the URL to set instead. It is not followed, so that no other server gets the token."""
        place = (response.headers.get("Location") or "").strip()
        base = place[: -len(self._path + path)] + self._path if place.endswith(self._path + path) else ""
        if re.fullmatch(r"https?://[\w.:~%/\[\]-]+", base, re.ASCII):
            return f"{self.url} answers {response.status} to {base}: set ROLLMUX_URL={base}"
        return f"{self.url} answers {response.status}, which no service does: set ROLLMUX_URL to the URL of the service itself"

    def _exchange_anew(
        self, connection: http.client.HTTPConnection, method: str, path: str, content: bytes | None, timeout_s: float
    ) -> tuple[http.client.HTTPResponse, bytes]:
        """Send a request, and send it again on a new connection if the server has closed an idle one."""
        reused = connection.sock is not None
        try:
            return self._exchange(connection, method, path, content, timeout_s)
        except (ConnectionResetError, BrokenPipeError):  # RemoteDisconnected too
            if not reused:
                raise
            connection.close()
            return self._exchange(connection, method, path, content, timeout_s)

    def _exchange(
        self, connection: http.client.HTTPConnection, method: str, path: str, content: bytes | None, timeout_s: float
    ) -> tuple[http.client.HTTPResponse, bytes]:
        connection.timeout = timeout_s
        if connection.sock is not None:
            connection.sock.settimeout(timeout_s)
        connection.request(method, self._path + path, content, self._headers)
        response = connection.getresponse()
        return response, response.read()

    def close(self) -> None:
        """Close the connections, those of requests under way when these have their answers. A later request opens a new one."""
        self._closings += 1
        while self._idle:
            self._idle.pop().close()


def _parts_of(url: str) -> urllib.parse.SplitResult:
    """Split and check the URL of a service.

    Raises:
        ValueError: The URL is not valid. The message does not quote a URL that may contain a secret.
    """
    try:
        parts = urllib.parse.urlsplit(url.strip())
        fits = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        fits = False
    if not fits or parts.username is not None or parts.query or parts.fragment or not url.strip().isprintable():
        shown = "" if re.search(r"[@?#]", url) else f", not {url!r}"
        raise ValueError(f"ROLLMUX_URL: must be http://HOST:PORT or https://HOST:PORT{shown}")
    return parts


def _now() -> float:
    return time.clock_gettime(_CLOCK)


class PhaseContext:
    """A turn on the nodes of one pool or of both, as a context manager, also for `async with`. An exception leaves it unfinished.

    Attributes:
        name: Name of the phase: `init`, `rollout`, `training` or `sync`.
        iteration: Number of the iteration.
        extra: Whether it is a rollout that counts as no iteration.
        switched: Whether other jobs have used the nodes since this job's last turn there. Known once the phase is entered.
        device_gb: Memory that the job keeps on each GPU after the phase, GB. The script may set it during the phase; None reports
            nothing.
        metrics: Values to report at the end of the phase, by name. `report` adds to them.
    """

    def __init__(self, job: Job, name: str, iteration: int, extra: bool) -> None:
        self.name, self.iteration, self.extra = name, iteration, extra
        self.switched = False
        self.asked_s = 0.0
        self.device_gb: float | None = None
        self.metrics: dict[str, float] = {}
        self.given_up = False  # whether the task that waits for the phase was cancelled
        self.is_held = False  # whether the service has granted it, and it was not released
        self._job = job

    @property
    def named(self) -> dict[str, Any]:
        """Fields that identify the phase in requests."""
        return {"phase": self.name} | ({} if self.name == "init" else {"iteration": self.iteration})

    def in_protocol(self, begins: int) -> Turn:
        """Return the phase as a `rollmux_protocol.Turn`.

        Args:
            begins: Number of the first iteration after this process attached, which an `init` precedes.
        """
        return Turn(cast(PhaseName, self.name), begins if self.name == "init" else self.iteration, self.extra)

    def report(self, **metrics: float) -> None:
        """Add values of this phase, such as reward and loss, that are reported to the service when it ends.

        Args:
            **metrics: Values by name. A value that is not finite is not sent.
        """
        self.metrics.update(metrics)

    def __enter__(self) -> PhaseContext:
        self._job.acquire(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self._job.release(self)

    async def __aenter__(self) -> PhaseContext:
        loop = asyncio.get_running_loop()
        waiting = loop.run_in_executor(None, self._job.acquire, self)  # not a task, which SystemExit breaks

        def give_back(future: asyncio.Future[None]) -> None:
            if not (future.cancelled() or future.exception()) and self.is_held:  # granted before the thread could notice
                loop.run_in_executor(None, self._job.release, self)

        try:
            await asyncio.shield(waiting)
        except asyncio.CancelledError:
            self.given_up = True  # the thread notices it after its present request
            waiting.add_done_callback(give_back)
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            await asyncio.to_thread(self._job.release, self)


class _Lease:
    """The lease of a job: its requests, its heartbeats, and the fence, which kills the job's processes if the lease may be lost.

    Args:
        service: Service that has the job, or None.
        name: Id of the job.
        pids: Function that returns the ids of the job's processes on this machine, or None to search for them.
        fence: Function that ends the job's processes and gets the reason, or None to kill them.
    """

    def __init__(
        self,
        service: Service | None,
        name: str,
        pids: Callable[[], Collection[int]] | None,
        fence: Callable[[str], None] | None,
    ) -> None:
        self.name = name
        self.lease: str | None = None
        self.ttl_s = _TTL_S
        self.leave_by_s: float | None = None
        self._mine = LeaseProcesses()
        self.pids = pids or self._own_pids
        self._fence = fence or (lambda why: end_own_processes(why, self._own_pids))
        self._service = service
        self._owner = "away"  # state in `ATTACHMENT`
        self._keeper = ""  # process of `rollmux exec` that keeps the lease
        self._pid = os.getpid()  # process that sends the heartbeats
        self._lost = ""  # reason why the lease is lost, if a fence has returned
        self._answered_s = _now()
        self._progress: dict[str, int] | None = None
        self._wake, self._over = threading.Event(), threading.Event()
        self._heart: threading.Thread | None = None

    @property
    def stopping(self) -> bool:
        """Whether the service has asked the job to end."""
        return self._owner == "to stop"

    def _keep(self, lease: str, ttl_s: float) -> None:
        """Begin to send heartbeats for a lease."""
        self.lease, self.ttl_s, self._pid, self._lost = lease, ttl_s, os.getpid(), ""
        self._mine.leases.add(lease)
        self._owner = following(ATTACHMENT, "away", "attach")
        self._answered_s, self._over = _now(), threading.Event()
        self._ask("heartbeat", self._own_process_ids())  # the answer may have been delayed, so the lease counts from this request
        self._heart = threading.Thread(target=self._beat, name="rollmux-heartbeat", daemon=True)
        self._heart.start()
        threading.Thread(target=self._watch, name="rollmux-fence", daemon=True).start()

    def _state(self) -> str | None:
        """Return the job's state, or None if the service does not say it."""
        assert self._service is not None
        try:
            return self._service.ask("GET", _path_of(self.name)).get("state")
        except (OSError, Refused):
            return None

    def _let_go(self) -> None:
        self._over.set()
        self._wake.set()
        if self._heart is not None and self._heart is not threading.current_thread():
            self._heart.join()
        self.lease = self.leave_by_s = None

    def _check_stop(self) -> None:
        if self.stopping:
            raise Interrupted("stop")

    def _ask(self, request: str, body: dict[str, Any], wait_s: float = 0.0) -> dict[str, Any]:
        """Send a request until it is answered. Repetitions of a request have the same answer. Does nothing without a lease."""
        if self.lease is None or self._service is None:
            return {}
        try:
            answer = _until_answered(lambda: self._once(request, body, wait_s + _ANSWERS_S))
        except Refused as error:
            if error.status == 409 and request != "heartbeat":  # perhaps because the job has to stop
                self._ask("heartbeat", self._own_process_ids())
                self._check_stop()
            raise
        self._check_fence()  # the process may have been suspended before it read the answer
        return answer

    def _once(self, request: str, body: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        assert self._service is not None
        asked_s, lease = _now(), self.lease
        self._check_fence(asked_s)  # a later answer does not make up for a time in which this process was suspended
        if lease is None or self._lost:
            raise Refused(409, self._lost or f"job {self.name}: its lease has been given back")
        try:
            answer = self._service.ask("POST", f"/v1/leases/{lease}/{request}", body, timeout_s)
        except Refused as error:
            if error.status == 404:
                self._lose(f"the service has no lease of job {self.name} any more")
            raise
        self._answered_s = max(self._answered_s, asked_s)  # the service counts from the request's arrival, which is not earlier
        if answer.get("stop") and self._owner in ("attached", "to move"):
            self._owner = following(ATTACHMENT, self._owner, "stop")
        if request == "heartbeat":
            if answer.get("lost"):
                self._lose(f"the lease of job {self.name} is over: {answer['lost']}")
            self._take_deadline(answer.get("leave_by_s"))
        if self._lost:
            raise Refused(409, self._lost)
        return answer

    def _take_deadline(self, leave_by_s: float | None) -> None:
        """Take the time by which the job has to have left its nodes, in seconds since 1970, or None if there is none."""
        self.leave_by_s = leave_by_s

    def _own_process_ids(self) -> dict[str, Any]:
        pids = sorted(self.pids(), key=lambda pid: (pid != os.getpid(), pid))
        return {"pids": pids[:_MOST_PIDS], "pid_space": pid_space()}

    def _own_pids(self) -> set[int]:
        """Return the processes of this process group, those that have a lease of the job, and all descendants of both."""
        return {os.getpid()} | self._mine.find(processes(), {os.getpid()}, os.getpgrp())

    def _check_fence(self, now_s: float | None = None) -> None:
        """Kill the job's processes if its lease may be lost.

        Where `rollmux exec` keeps the lease, or a parent from which this process was forked, that process does it.
        """
        silent_s = (_now() if now_s is None else now_s) - self._answered_s
        if silent_s >= self.ttl_s and self._pid == os.getpid() and not is_keeper_alive(self._keeper, False):
            self._lose(f"no answer from the service for {silent_s:.0f} s, and the lease of job {self.name} lasts {self.ttl_s:g} s")

    def _beat(self) -> None:
        """Send heartbeats and progress, as the main function of the heartbeat thread."""
        period_s, warned, next_s = self.ttl_s / 6, False, _now()
        while not self._over.is_set():
            silent_s = _now() - self._answered_s
            if silent_s < self.ttl_s / 2:
                warned = False
            elif not warned:
                warned = True
                _LOG.warning("no answer from the service for %.0f s; at %g s this process ends", silent_s, self.ttl_s)
            self._check_fence()
            timeout_s = min(period_s, max(0.05, self.ttl_s - silent_s))
            progress, self._progress = self._progress, None
            try:
                if _now() >= next_s:
                    self._once("heartbeat", self._own_process_ids(), timeout_s)
                    next_s = _now() + period_s
            except (OSError, Refused) as error:
                next_s = _now() + min(max(1.0, _after(error)), period_s)
            if progress is not None:
                with contextlib.suppress(OSError, Refused):  # no heartbeat waits because of it
                    self._once("progress", progress, timeout_s)
            silent_s = _now() - self._answered_s
            self._wake.wait(max(0.05, min(next_s - _now(), self.ttl_s - silent_s)))
            if self._progress is not None:
                time.sleep(0.05)  # combine several calls of `progress` into one request
            self._wake.clear()

    def _watch(self) -> None:
        """Check the lease's clock, as the main function of a thread beside the one that sends heartbeats.

        A request may take longer than its timeout, which counts for each address and each part of the answer, and not for the
        resolution of the name; and a warning may wait for whatever reads standard error.
        """
        over = self._over
        while True:
            left_s = self.ttl_s - (_now() - self._answered_s)
            if over.wait(_REPEATS_S if self._lost else max(0.05, min(self.ttl_s / 6, left_s))):
                return
            if self._lost:
                self._fence(self._lost)  # again, because the processes that it has ended may have started others
            else:
                self._check_fence()

    def _lose(self, why: str) -> None:
        """End the job's processes, because other jobs may get its nodes."""
        with contextlib.suppress(OutOfOrder):  # another thread has recorded it already
            self._owner = following(ATTACHMENT, self._owner, "lose")
        self._lost = why
        self._fence(why)


class Job(_Lease):
    """A job that is attached to the service while its context is open. Created by `attach`, and also usable with `async with`.

    Args:
        service: Service that has the job, or None to run without a service and without waiting.
        name: Id of the job.
        host: Name of this machine as the service knows it, or None for the host name.
        pids: Function that returns the ids of the job's processes on this machine, or None to search for them.
        fence: Function that ends the job's processes when the lease is lost, called with the reason. None to kill them.
        say: Function that shows the user a line, such as the reason for waiting.
        moved: Function that brings the job's state to its new nodes, as for `attach`, or None.

    Attributes:
        name: Id of the job.
        host: Name of this machine as the service knows it.
        iteration: Number of the present iteration, from 0. `iterations` and `side_by_side` increase it.
        nodes: Nodes on which the job runs, by pool: `{"rollout": [{"name", "host", "gpus", "cores"}], "training": [...]}`.
        lease: Id of the lease, or None without a service or while the job is not attached.
        ttl_s: Length of the lease, seconds.
        leave_by_s: Time by which the job has to have left its nodes, because one of them is taken away then, in seconds since 1970,
            or None. A job that cannot move saves a checkpoint before it.
        stopping: Whether the service has asked the job to end.
        pids: Function that returns the ids of the job's processes on this machine.
    """

    def __init__(
        self,
        service: Service | None,
        name: str,
        host: str | None = None,
        pids: Callable[[], Collection[int]] | None = None,
        fence: Callable[[str], None] | None = None,
        say: Callable[[str], None] = _LOG.warning,
        moved: Callable[[Job], None] | None = None,
    ) -> None:
        super().__init__(service, name, pids, fence)
        self._moved = moved
        self.iteration = 0
        self.nodes: dict[str, list[dict[str, Any]]] = {}
        self.host, self._say = host or socket.gethostname(), say
        self._marks_children = False  # whether new children carry the lease in their environment
        self._handed_over = False  # whether the lease belongs to `rollmux exec`, which gives it back
        self._phases: IterationStates | None = None  # None if another process may have begun phases with this lease
        self._other_thread_error: BaseException | None = None  # error of the other thread of `side_by_side`
        self._sampler: threading.Thread | None = None  # that thread, if it has not ended its rollout after an error
        self._given_up = False  # whether the task that waits for the lease was cancelled

    # The lease.

    def __enter__(self) -> Job:
        if self._service is not None:
            if _is_under_exec():
                self._take_over(os.environ)
            else:
                self._marks_children = True
                try:
                    self.attach()
                except BaseException:
                    self.end(done=False)  # it may have got the lease
                    self._service.close()
                    raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.end(done=kind is None)

    async def __aenter__(self) -> Job:
        self._given_up = False
        try:
            return await asyncio.to_thread(self.__enter__)
        except asyncio.CancelledError:
            self._given_up = True  # the thread notices it after its present request
            raise

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await asyncio.to_thread(self.__exit__, kind, error, trace)

    def attach(self) -> None:
        """Wait for a placement, and take the job's lease.

        Raises:
            Refused: The service does not know the job, the job has ended, or another process keeps its lease.
            ConnectionError: The service has not answered for ten minutes.
        """
        assert self._service is not None
        path, reason, pause_s = _path_of(self.name), "", 0.0
        heard_s, wait_s, expected = _now(), _FIRST_S, _ExpectedPlacement()
        since_s = math.inf  # time of the first 409 in a row
        while True:
            body = {"wait_s": wait_s, "host": self.host, **self._own_process_ids()}
            when = ""
            try:
                answer = self._service.ask("POST", path + "/attach", body, _WAIT_S + _ANSWERS_S)
            except OSError as error:
                self._check_heard(heard_s, error)
                why, pause_s, since_s = str(error), _longer(pause_s), math.inf
            except Refused as error:
                heard_s = _now()
                since_s = min(since_s, heard_s) if error.status == 409 else math.inf
                if not self._may_attach_later(error, heard_s - since_s):
                    raise
                why, pause_s = str(error), max(1.0, _longer(pause_s), _after(error))
            else:
                if "lease" in answer:
                    self._begin(answer, handed_over=False)
                    if self._given_up:
                        self.end(done=False)
                    return
                heard_s, since_s = _now(), math.inf
                pause_s, wait_s = 0.0, _LOOK_S
                why, when = _reason_in(answer), expected.describe(answer)
            if self._given_up:
                return
            words = _lasting_words(why)
            if words != reason or when:
                self._say(f"job {self.name} waits: {why}{when or expected.said}")
                reason = words
            time.sleep(pause_s)

    def _check_heard(self, heard_s: float, error: OSError) -> None:
        """Check that the service has been silent for less than ten minutes.

        Args:
            heard_s: Time of its last answer.
            error: Error of the last request.

        Raises:
            ConnectionError: It has been silent for longer.
        """
        if _now() - heard_s > _UNHEARD_S:
            assert self._service is not None
            silent = f"{self._service.url} has not answered for {_UNHEARD_S:g} s"
            raise ConnectionError(f"job {self.name}: {silent}: {error}") from error

    def _may_attach_later(self, error: Refused, refused_s: float) -> bool:
        """Return whether a refused attachment may succeed later, as when the lease of a process that has died expires.

        Args:
            error: The refusal.
            refused_s: Seconds since the first 409 in a row.
        """
        may_expire = error.status == 409 and refused_s < _OLD_LEASE_S
        return error.status in AGAIN or (may_expire and self._state() not in ENDED)

    def _take_over(self, environment: Any) -> None:
        """Use the lease of `rollmux exec`, which keeps it after this process has ended."""
        nodes = json.loads(environment.get("ROLLMUX_NODES") or "{}")
        ttl_s, iteration = float(environment.get("ROLLMUX_TTL_S") or _TTL_S), int(environment.get("ROLLMUX_ITERATION") or 0)
        answer = {"lease": environment["ROLLMUX_LEASE"], "ttl_s": ttl_s, "iteration": iteration, "nodes": nodes}
        self._keeper = environment.get(KEEPER) or ""
        self._begin(answer, handed_over=True)
        counted = self._asked().get("iteration")  # an earlier process of the same command may have done some
        self.iteration = counted if isinstance(counted, int) else iteration

    def _begin(self, answer: dict[str, Any], handed_over: bool) -> None:
        self._handed_over, self.iteration = handed_over, int(answer.get("iteration", 0))
        self.nodes = answer.get("nodes") or {}
        self._phases = None if handed_over else IterationStates(self.iteration)
        self._keep(str(answer["lease"]), float(answer.get("ttl_s", _TTL_S)))
        if self._marks_children:
            os.environ |= {LEASE: str(self.lease), ATTACHED: str(self.lease)}

    def _let_go(self) -> None:
        if self._marks_children and os.environ.get(LEASE) == self.lease:
            os.environ.pop(LEASE)
            os.environ.pop(ATTACHED, None)
        super()._let_go()

    def _take_deadline(self, leave_by_s: float | None) -> None:
        if leave_by_s not in (None, self.leave_by_s) and not self._keeper:  # else `rollmux exec` says it
            when = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(leave_by_s))
            self._say(f"job {self.name}: one of its nodes is taken away at {when}; save a checkpoint before")
        super()._take_deadline(leave_by_s)

    def end(self, done: bool) -> None:
        """Give the lease back.

        Args:
            done: Whether the job is complete. Otherwise it may attach again, and continues after its last complete iteration.

        Raises:
            Refused: `done` was not recorded, because the lease no longer exists and the job had not ended before.
            ConnectionError: For ten minutes the service could not be told that the job is complete.
        """
        if self.lease is None or self._service is None or self._pid != os.getpid():  # a forked child has its parent's lease
            return
        if self._sampler is not None and self._sampler.is_alive():
            self.abandon()
            return
        path = f"/v1/leases/{self.lease}{'?done=true' if done else ''}"
        self._let_go()
        message = "free" if self._owner == "lost" else "finish" if done else "leave"
        try:
            self._owner = following(ATTACHMENT, self._owner, message)
            if not self._handed_over:
                self._report_end(self._service, path, done)
        except Refused:  # the lease has already ended
            if done and self._state() not in ENDED:
                raise
        finally:
            self._service.close()

    def _report_end(self, service: Service, path: str, done: bool) -> None:
        """Report the end of a lease, as long as it lasts, or for ten minutes that the job is complete. Raises as `end` does."""
        left_s = self.ttl_s - (_now() - self._answered_s)  # afterwards there is no lease to end, only a completion to report
        patience_s = _UNHEARD_S if done else left_s

        def tell(error: Exception) -> None:
            self._say(f"job {self.name}: its end is reported again for up to {patience_s:.0f} s: {error}")

        try:
            if done or left_s > 0:
                _until_answered(lambda: service.ask("DELETE", path), patience_s, tell)
        except OSError as error:
            if done:
                what = f"{service.url} could not be told for {_UNHEARD_S:g} s that it is done: start it again to say so"
                raise ConnectionError(f"job {self.name}: {what}: {error}") from error

    def check_lease(self) -> None:
        """End the job's processes if its lease may be lost, as after a time in which this process was stopped."""
        if self.lease is not None:
            self._check_fence()

    def abandon(self) -> None:
        """Stop the heartbeats without giving the lease back, because a process of the job cannot be killed and may use its nodes.

        When the lease expires, the service grants the nodes of the job's unfinished phases to no other job until they are cleared.
        """
        if self.lease is not None and self._service is not None:
            self._let_go()
            self._service.close()

    # The interface for scripts.

    def add_processes(self, pids: Iterable[int]) -> None:
        """Name processes of this machine that belong to the job, and that are no children of this one.

        The ranks of a launcher such as torchrun are such processes: one of them attaches, and the others use the devices, too.

        Args:
            pids: Ids of the processes. Their descendants belong to the job with them.
        """
        self._mine.add(pids)
        self._ask("heartbeat", self._own_process_ids())

    def iterations(self, total: int | None = None) -> Iterator[int]:
        """Iterate over the job's iterations, from the one that the service expects next.

        Args:
            total: Number of iterations of the whole job. None for the number in the job's entry, or without end if no service is
                used.

        Raises:
            Interrupted: The service asks the job to stop, between two iterations.
            Mismatch: `total` is larger than the number in the job's entry.
        """
        if self.lease is not None:
            total = self._total_of(total)
        for k in itertools.count(self.iteration) if total is None else range(self.iteration, total):
            self._check_stop()
            self.iteration = k
            yield k
            self.iteration = k + 1

    def continue_from(self, iteration: int) -> None:
        """State how many iterations this process has done, according to its checkpoint.

        Call it after `init` and before the first phase of an iteration. If the checkpoint is older than the service's count, the
        service takes the iterations since then back, and they are done again. If the checkpoint contains one iteration more than
        the service has counted, that iteration is counted by two empty phases.

        Args:
            iteration: Number of iterations that are in the checkpoint, and of the iteration to do next.

        Raises:
            Mismatch: The checkpoint contains at least two iterations more than the service has counted, or the service is too old
                to take iterations back.
        """
        counted = self.iteration
        if self.lease is None or iteration == counted:
            self.iteration = iteration
        elif iteration < counted:
            self._go_back(iteration)
            again = f"{iteration + 1} to {counted} are done again" if iteration + 1 < counted else f"{counted} is done again"
            self._say(f"job {self.name}: continues after {iteration} of the {counted} iterations that were counted: {again}")
        elif iteration == counted + 1:
            self._say(f"job {self.name}: iteration {iteration} was done before, and is counted now")
            for name in ("rollout", "training"):
                with self.phase(name):
                    pass
            self.iteration = iteration
        else:
            raise Mismatch(
                f"job {self.name}: this process has done {iteration} iterations, and the service has counted {counted}: "
                "continue from an older checkpoint, or submit the job under another name"
            )

    def _go_back(self, iteration: int) -> None:
        """Ask the service to take back the iterations from this number on."""
        path, lease = _path_of(self.name), self.lease
        body = {"lease": lease, "from_iteration": iteration, "wait_s": 0.0}

        def once() -> dict[str, Any]:
            assert self._service is not None
            self._check_fence()
            return self._service.ask("POST", path + "/attach", body)

        try:
            self.iteration = int(_until_answered(once)["iteration"])
            if self._phases is not None:
                self._phases.go_back(self.iteration)
        except Refused as error:
            if error.status != 400:
                raise
            assert self._service is not None
            raise Mismatch(
                f"job {self.name}: continues after {iteration} of {self.iteration} iterations, and {self._service.url} is an older "
                "service, which takes none back: upgrade the service"
            ) from None

    def check_total(self, total: int) -> None:
        """Check that the script is going to do as many iterations as the job's entry says. Without a service, do nothing.

        Args:
            total: Number of iterations of the whole job, according to the script.

        Raises:
            Mismatch: The job's entry says another number.
        """
        if self.lease is not None and (stated := self._total()) != total:
            raise Mismatch(
                f"job {self.name}: its entry says iterations: {stated}, and this process does {total}: make them the same"
            )

    def _total_of(self, total: int | None) -> int:
        """Return the number of iterations of the whole job, from the script or else from the job's entry.

        Raises:
            Mismatch: The script's number is larger. The service would refuse the additional iterations.
        """
        if self.lease is None and total is not None:
            return total
        stated = self._total()
        if total is not None and total > stated:
            self.check_total(total)
        return stated if total is None else total

    def _total(self) -> int:
        """Return the number of iterations in the job's entry."""
        return int(self._asked()["iterations"])

    def _asked(self) -> dict[str, Any]:
        """Return the job as the service describes it, and wait until it does."""

        def once() -> dict[str, Any]:
            assert self._service is not None
            self._check_fence()
            return self._service.ask("GET", _path_of(self.name))

        return _until_answered(once)

    def side_by_side(
        self,
        sample: Callable[[int], Any],
        train: Callable[[int, Any], None],
        sync: Callable[[int], None] | None = None,
        staleness: int = 1,
        total: int | None = None,
    ) -> None:
        """Run the iterations of a job with `staleness`: rollouts in a separate thread, trainings in this one.

        Args:
            sample: Function of the iteration that runs during the rollout, in the separate thread. Its result may come from weights
                up to `staleness` versions older than those that `train` updates with it.
            train: Function of the iteration and the result of `sample` that runs during the training, in this thread.
            sync: Function of the iteration that brings the new weights to the engines, outside of any turn. Its duration is
                reported. None if there is nothing to do.
            staleness: Staleness of the job, as in its entry.
            total: Number of iterations of the whole job, or None for the number in the job's entry.

        Raises:
            Interrupted: The service asks the job to stop or to move, between two trainings or two rollouts.
            Exception: Any error of `sample`, `train` or `sync`, raised when the other thread has ended its phase, or a minute
                later: the lease is then not given back, and the nodes are free when this process has ended.
        """
        first, last = self.iteration, self._total_of(total)
        room, over = threading.Semaphore(staleness + 1), threading.Event()  # room: rollouts that may still be ahead of trainings
        samples: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

        def rollouts() -> None:
            try:
                for k in range(first, last):
                    room.acquire()
                    if over.is_set():
                        return
                    with self.phase("rollout", k):
                        result = sample(k)
                    samples.put((result, None))
            except BaseException as error:
                self._other_thread_error = error
                samples.put((None, error))

        sampler = threading.Thread(target=rollouts, name="rollmux-rollouts", daemon=True)
        sampler.start()
        try:
            for k in range(first, last):
                result, error = samples.get()
                if error is not None:
                    raise error
                self._check_stop()
                with self.phase("training", k):
                    train(k, result)
                if sync is not None:
                    began_s = _now()
                    sync(k)
                    self.synced(_now() - began_s, k)
                self.iteration = k + 1
                room.release()
        except BaseException as error:
            self._other_thread_error = error
            over.set()
            room.release()
            self._sampler = sampler
            sampler.join(2 * _WAIT_S)  # until its phase or its request ends
            raise
        else:
            sampler.join()
        finally:
            self._other_thread_error = None

    def phase(self, name: str, iteration: int | None = None, extra: bool = False) -> PhaseContext:
        """Return a phase as a context manager. Entering it waits for the turn.

        Args:
            name: `rollout`, `training`, or `sync` for the nodes of both at once.
            iteration: Number of the iteration, or None for the present one.
            extra: Whether it is a rollout that counts as no iteration, such as an evaluation.
        """
        return PhaseContext(self, name, self.iteration if iteration is None else iteration, extra)

    def init(self) -> PhaseContext:
        """Return the phase in which models are loaded and engines started, on all nodes of the job.

        It comes once after each attachment, before all other phases. At its end nothing may be left on the devices. The first
        weights can then be sent to the engines in `phase("sync", job.iteration - 1)`.
        """
        return self.phase("init")

    def synced(self, seconds: float, iteration: int | None = None) -> None:
        """Report that the new weights have reached the engines. A phase `sync` reports it itself.

        Args:
            seconds: Duration of the sync, seconds.
            iteration: Number of the iteration whose training made the weights, or None for the present one.
        """
        body = {"iteration": self.iteration if iteration is None else iteration, "seconds": seconds}
        self._ask("synced", body)

    def progress(self, done: int, total: int, tokens: int = 0) -> None:
        """Report the progress of the present rollout. The heartbeat thread sends it, so this returns at once.

        Args:
            done: Number of finished responses.
            total: Number of responses of the rollout.
            tokens: Number of tokens sampled so far.
        """
        if self.lease is not None:
            self._progress = {"done": int(done), "total": int(total), "tokens": int(tokens)}  # they may be numbers of NumPy
            self._wake.set()

    def acquire(self, phase: PhaseContext) -> None:
        """Wait for a turn. Entering a phase calls this.

        Args:
            phase: Phase to begin, from `phase` or `init`.

        Raises:
            Interrupted: The job has to stop or to move.
            Refused: The phase cannot be the next one of the job.
        """
        if self.lease is None:
            return
        self._check_next(phase)
        body = {**phase.named, "wait_s": _WAIT_S}
        if phase.extra:
            body["extra"] = True
        phase.asked_s, said = _now(), ""
        while True:
            self._check_stop()
            if self.lease is None:
                raise Refused(409, f"job {self.name}: its lease has been given back")
            asked_s = _now()
            answer = self._ask("acquire", body, _WAIT_S)
            if answer.get("move"):
                self._owner = following(ATTACHMENT, self._owner, "move")
                self._move()
            elif answer.get("granted"):
                break
            elif answer.get("reason") and (words := _lasting_words(why := _reason_in(answer))) != said:
                said = words
                self._say(f"job {self.name} waits for its {phase.name}: {why}")
            if phase.given_up:
                return
            if self._other_thread_error is not None:  # that thread keeps its nodes, which jobs before this turn may wait for
                raise self._other_thread_error
            if _now() - asked_s < _SOON_S:  # a service that is shutting down answers without waiting
                time.sleep(_SOON_S)
        self._check_next(phase, granted=True)
        phase.is_held = True
        phase.switched = bool(answer.get("switched"))
        self.nodes = answer.get("nodes") or self.nodes
        if phase.given_up:
            self.release(phase)

    def release(self, phase: PhaseContext) -> None:
        """Give the nodes back for the next job, and report the phase's metrics. Leaving a phase calls this.

        Args:
            phase: Phase that is over.

        Raises:
            Interrupted: The service is stopping the job and has already ended its lease, so this phase does not count.
            Refused: The job does not hold the phase.
        """
        if self.lease is None:
            return
        finite = ((name, float(value)) for name, value in phase.metrics.items() if math.isfinite(value))  # JSON has no inf and nan
        metrics = itertools.islice((pair for pair in finite if len(pair[0]) <= _LONGEST_NAME), _MOST_METRICS)
        body: dict[str, Any] = {**phase.named, "metrics": dict(metrics)}
        if phase.extra:  # otherwise a late repetition of the request would end the rollout that follows
            body["extra"] = True
        if phase.device_gb is not None:
            body["device_gb"] = phase.device_gb
        self._ask("release", body)
        phase.is_held = False
        if self._phases is not None and phase.name in self._phases.open:
            self._phases.release(phase.name)
        if phase.name == "sync":
            self.synced(_now() - phase.asked_s, phase.iteration)

    def _check_next(self, phase: PhaseContext, granted: bool = False) -> None:
        """Check that a phase follows what this process has done of its iteration. The service checks the rest.

        Args:
            phase: The phase.
            granted: Whether the service has granted it, so that the process holds it from now on.

        Raises:
            Refused: It does not, as the service would say.
        """
        if self._phases is None:
            return
        turn = phase.in_protocol(self._phases.begins)
        if self._phases.open.get(turn.phase) == turn:  # an exception has left it unfinished
            return
        try:
            after = following(ITERATION, self._phases.state(turn), f"ask {turn.name}")
            following(ITERATION, after, f"grant {turn.name}")
            if granted:
                self._phases.follow(turn, f"ask {turn.name}")
                self._phases.grant(turn.phase)
        except OutOfOrder as wrong:
            what = "init" if turn.phase == "init" else f"{turn.name} of iteration {turn.iteration}"
            raise Refused(409, f"job {self.name}: cannot begin the {what}: {wrong}") from None

    def _move(self) -> None:
        """Continue on other nodes: in this process if the script can move its state, otherwise in a new one."""
        if self._moved is None or self._handed_over:
            raise Interrupted("move")
        self.end(done=False)
        self.attach()
        self._moved(self)


class _ExpectedPlacement:
    """Expected time of the placement of a waiting job, as the service predicts it.

    Attributes:
        said: Last text that was shown, empty while no time is known.
    """

    def __init__(self) -> None:
        self.said = ""
        self._at_s: float | None = None  # in seconds of this machine's clock

    def describe(self, answer: dict[str, Any]) -> str:
        """Return a text for the time in an answer, or an empty string if it has not changed much.

        Args:
            answer: Answer to a request for a placement. `eta_s` and `now_s` are seconds of the service's clock.
        """
        eta_s, now_s = answer.get("eta_s"), answer.get("now_s")
        if not (isinstance(eta_s, int | float) and isinstance(now_s, int | float)):
            self.said, self._at_s = "", None
            return ""
        at_s = time.time() + max(0.0, eta_s - now_s)
        if self._at_s is not None and abs(at_s - self._at_s) < _LATER_S:
            return ""
        self._at_s, left_s = at_s, at_s - time.time()
        about = f"{left_s / 3600:.1f} h" if left_s >= 3600 else f"{left_s / 60:.0f} min" if left_s >= 60 else f"{left_s:.0f} s"
        self.said = f"; a place is expected at {time.strftime('%H:%M:%S', time.localtime(at_s))}"
        return f"{self.said}, in {about}"


def _path_of(job: str) -> str:
    return f"/v1/jobs/{urllib.parse.quote(job, safe='')}"


def _until_answered(
    once: Callable[[], _T], patience_s: float = math.inf, tell: Callable[[Exception], None] = lambda error: None
) -> _T:
    """Repeat a request until it is answered or finally refused, or until patience ends.

    Args:
        once: Function that sends the request once.
        patience_s: Seconds after which the last error is raised.
        tell: Function that is called with the first error before the request is repeated.
    """
    began_s, pause_s = _now(), 0.0
    while True:
        try:
            return once()
        except (OSError, Refused) as error:
            if (isinstance(error, Refused) and error.status not in AGAIN) or _now() - began_s > patience_s:
                raise
            if not pause_s:
                tell(error)
            pause_s, after_s = _longer(pause_s), _after(error)
        time.sleep(max(pause_s, after_s))


def _after(error: Exception) -> float:
    """Return the pause that a refusal asks for, plus up to half of it at random so that clients do not return all at once."""
    return error.retry_after_s * random.uniform(1.0, 1.5) if isinstance(error, Refused) else 0.0


def _reason_in(answer: dict[str, Any]) -> str:
    """Return the reason for waiting in an answer, with the job's place in the queue."""
    place = answer.get("position")
    return str(answer.get("reason") or "no nodes yet") + (f" (place {place} in the queue)" if place else "")


def _lasting_words(reason: str) -> str:
    """Return a reason without its seconds, which change while a job waits for the same thing."""
    return re.sub(r"[0-9.]+ s\b", "", reason)


def _longer(pause_s: float) -> float:
    """Return the next pause between repetitions in seconds, partly random so that clients do not return all at once."""
    return min(_BACKOFF_S, max(0.05, 2 * pause_s)) * random.uniform(0.7, 1.0)


def attach(job: str | None = None, host: str | None = None, moved: Callable[[Job], None] | None = None) -> Job:
    """Return the job as a context manager that attaches to the service whose URL and token are in ROLLMUX_URL and ROLLMUX_TOKEN.

    Without ROLLMUX_URL no service is used and nothing waits, so the script runs as it would without RollMux.

    Args:
        job: Id of the job, or None for the value of ROLLMUX_JOB.
        host: Name of this machine if it differs from the host name, as in a container, or None.
        moved: Function that brings the job's state to its new `nodes` after a move, or None. Without it, and under `rollmux exec`,
            a move ends this process with `Interrupted`, and the next process continues.

    Raises:
        ValueError: ROLLMUX_URL is set, and is no valid URL, or the token or the job's id is missing; or `rollmux exec` has started
            this process for another job.
    """
    url, token, name = os.environ.get("ROLLMUX_URL"), os.environ.get("ROLLMUX_TOKEN"), job or os.environ.get("ROLLMUX_JOB")
    if not url:
        return Job(None, name or "")
    if not token or not token.strip():
        raise ValueError("ROLLMUX_URL is set, and ROLLMUX_TOKEN is not")
    if not name:
        raise ValueError("ROLLMUX_URL is set: the job's id is missing, as ROLLMUX_JOB or attach(job)")
    if _is_under_exec() and name != (leased := os.environ.get(JOB, name)):
        raise ValueError(f"job {name}: this process runs under `rollmux exec`, which has the lease of job {leased}")
    return Job(Service(url, token), name, host, moved=moved)


def _is_under_exec() -> bool:
    """Return whether this process has the lease of `rollmux exec`, and not that of a parent that has attached without it."""
    return LEASE in os.environ and os.environ[LEASE] != os.environ.get(ATTACHED)
