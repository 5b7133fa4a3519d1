"""The client of a RollMux service, for jobs under launchers of their own: they take turns with others on the service's nodes.

    with rollmux_client.attach() as job:
        for k in job.iterations(100):
            with job.phase("rollout") as phase:
                phase.report(reward=sample())
            with job.phase("training"):
                train()

`async with` works the same. Where ROLLMUX_URL is not set, nobody is asked and nothing waits: the script runs as it would alone.

A job with a `staleness` in its entry may have a rollout and a training at once: `Job.side_by_side` runs both sides, or threads of
the script's own name the iteration, as in `job.phase("rollout", k)`.

Environment: ROLLMUX_URL and ROLLMUX_TOKEN of the service, ROLLMUX_JOB, the job's id. `rollmux exec` sets them, and the lease that
it holds for its command: ROLLMUX_LEASE, ROLLMUX_TTL_S, ROLLMUX_ITERATION, and ROLLMUX_NODES as JSON.

A client fences itself. A thread of it asks the service several times in each `ttl_s` of the lease. Without an answer for half of
that it warns; without one for `ttl_s`, or where the service says that the lease is lost, it ends all processes of the job by
SIGKILL, since other jobs may be given the devices. Under `rollmux exec` that is the part of its process, which keeps the lease: a
script that is silent inside one long call lives. Time goes on while a process is stopped or its machine sleeps, and it is looked
at before and after every phase.
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
import signal
import socket
import threading
import time
import urllib.parse
from collections.abc import Callable, Collection, Iterable, Iterator
from types import TracebackType
from typing import Any, Literal, NamedTuple, TypeVar

__all__ = ["Interrupted", "Job", "Mismatch", "Phase", "Refused", "Service", "attach"]

ITERATION: dict[str, dict[str, str]] = {
    "due": {"ask rollout": "rollout asked"},
    "rollout asked": {"grant rollout": "rollout"},
    "rollout": {"release rollout": "sampled"},
    "sampled": {"ask training": "training asked"},
    "training asked": {"grant training": "training"},
    "training": {"release training": "trained"},
    "trained": {"ask sync": "sync asked", "synced": "synced", "next": "over"},
    "sync asked": {"grant sync": "sync"},
    "sync": {"release sync": "synced", "synced": "synced"},
    "synced": {"synced": "synced", "next": "over"},
    "over": {},
    "new": {"ask init": "init asked", "ask sync": "first sync asked"},
    "init asked": {"grant init": "init"},
    "init": {"release init": "made"},
    "made": {"ask sync": "first sync asked"},
    "first sync asked": {"grant sync": "first sync"},
    "first sync": {"release sync": "seeded"},
    "seeded": {},
    "begun": {},
    "no evaluation": {"ask extra": "evaluation asked"},
    "evaluation asked": {"grant extra": "evaluation"},
    "evaluation": {"release extra": "no evaluation"},
}
"""The states of an iteration, of what may come once before an owner's first one, and of evaluations, which no iteration counts:
what may be said in each, and the state that follows. The rules for several iterations together are those of `Turns`."""
ATTACHMENT: dict[str, dict[str, str]] = {
    "away": {"attach": "attached"},
    "attached": {"move": "to move", "stay": "attached", "stop": "to stop", "leave": "away", "finish": "done", "lose": "lost"},
    "to move": {"move": "to move", "stay": "attached", "stop": "to stop", "leave": "away", "finish": "done", "lose": "lost"},
    "to stop": {"move": "to stop", "stay": "to stop", "stop": "to stop", "leave": "away", "finish": "done", "lose": "lost"},
    "lost": {"free": "away"},
    "done": {},
}
"""The states of an owner as the service knows it, in the same way. What a lost one held is used by nobody until it is free."""

ENDED = frozenset({"done", "failed", "cancelled", "over_budget"})
"""States of a job that has ended."""
LEASE, JOB, URL, KEEPER = "ROLLMUX_LEASE", "ROLLMUX_JOB", "ROLLMUX_URL", "ROLLMUX_KEEPER"
"""Variables that a command of `rollmux exec` has in its environment. `KEEPER` names the process that keeps the lease, as
`keeper_of` writes it."""
_READ = (LEASE, JOB, URL, KEEPER)  # never the token
_T = TypeVar("_T")

_LOG = logging.getLogger("rollmux_client")
_ending = threading.Lock()
_WAIT_S = 30.0  # that a request stays open at most
_FIRST_S = 1.0  # that the first request for a place waits: why the job waits is said soon
_LOOK_S = 10.0  # that the following ones wait: what has changed is said
_LATER_S = 60.0  # by which an expected time has to change to be said again
_ANSWERS_S = 10.0  # beyond that the answer is lost
_TTL_S = 30.0  # of a lease, until the service has said it
_SOON_S = 1.0  # an answer in less time has waited for nothing
_OLD_LEASE_S = 45.0  # in which the lease of a process that has died runs out
_UNHEARD_S = 600.0  # for which an owner without a lease asks a service that does not answer
_AGAIN = frozenset({429, 500, 502, 503, 504})  # the same request may be granted later
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # goes on while the machine sleeps
_ENDS = 100  # looks for processes that are to end
_BACKOFF_S = 2.0  # longest pause between repetitions
_MOST_AFTER_S = 10.0  # that a service may ask for: a lease lasts longer


class Refused(Exception):
    """The service has said no.

    Attributes:
        status: of HTTP: 400 malformed, 401 wrong token, 403 not allowed, 404 unknown, 409 not possible now, 422 cannot be, 429
            above a limit.
        retry_after_s: the service wants to hear nothing of it for so long, seconds; 0 where it does not say.
    """

    def __init__(self, status: int, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.status, self.retry_after_s = status, retry_after_s


class Interrupted(SystemExit):
    """The service wants this process to end between two phases; with status 75, unless it is caught.

    Attributes:
        reason: `stop`: the job or the service is being stopped. `move`: the job goes on on other nodes.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(75)
        self.reason = reason


class Mismatch(SystemExit):
    """The script and the service do not agree about the iterations of the job. Unless it is caught, the process ends with one line
    and status 1."""


class Service:
    """A service as its clients see it: requests and answers of JSON, over as many connections as are used at a time.

    Args:
        url: http:// or https://, maybe with a path. token: of the user.

    Raises:
        ValueError: the URL is none.
    """

    def __init__(self, url: str, token: str) -> None:
        parts = _parts_of(url)
        token = token.strip()
        if not token or not all("!" <= letter <= "~" for letter in token):
            raise ValueError("ROLLMUX_TOKEN: is empty, or has a blank or another character within it that no token has")
        self.url, self.token = url.strip(), token
        self._kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._host, self._port, self._path = parts.hostname or "", parts.port, parts.path.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._idle: list[http.client.HTTPConnection] = []

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None, timeout_s: float = _ANSWERS_S) -> dict[str, Any]:
        """Make one request that an object answers.

        Args:
            path: from the root of the service. body: sent as JSON. timeout_s: that nothing may come for.

        Returns:
            The answer's object; empty where it has none.

        Raises:
            Refused: the answer says no. OSError: no answer came, or it was none.
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
        """Make one request, whatever answers it; arguments and errors as of `ask`.

        Returns:
            What has come, and its headers.
        """
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._kind(self._host, self._port)
        content = None if body is None else json.dumps(body).encode()
        reused = connection.sock is not None
        try:
            try:
                response, text = self._exchange(connection, method, path, content, timeout_s)
            except (ConnectionResetError, BrokenPipeError):  # RemoteDisconnected too: the server has closed it, being idle
                if not reused:
                    raise
                connection.close()
                response, text = self._exchange(connection, method, path, content, timeout_s)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise ConnectionError(f"{self._host}: {str(error) or type(error).__name__}") from error
        except (ValueError, OverflowError) as error:  # of http.client: what it says may hold headers, and so the token
            connection.close()
            raise ConnectionError(f"{self._host}: the request or its answer is no HTTP") from error.__cause__
        except BaseException:  # an interrupt, with half an answer on the way
            connection.close()
            raise
        self._idle.append(connection)
        if 300 <= response.status < 400:
            raise Refused(response.status, self._redirected(response, path))
        if response.status >= 400:
            try:
                said = json.loads(text).get("error")
            except (ValueError, AttributeError):  # no JSON, or no object
                said = None
            after = response.headers.get("Retry-After", "")
            after_s = min(_MOST_AFTER_S, float(after)) if after.isdecimal() else 0.0
            raise Refused(response.status, str(said or f"{method} {path}: status {response.status}"), after_s)
        return text, response.headers

    def _redirected(self, response: http.client.HTTPResponse, path: str) -> str:
        """Say where the service is, as an answer to a request for a path tells it; nobody is sent the token there."""
        place = (response.headers.get("Location") or "").strip()
        base = place[: -len(self._path + path)] + self._path if place.endswith(self._path + path) else ""
        if re.fullmatch(r"https?://[\w.:~%/\[\]-]+", base, re.ASCII):
            return f"{self.url} answers {response.status} to {base}: set ROLLMUX_URL={base}"
        return f"{self.url} answers {response.status}, which no service does: set ROLLMUX_URL to the URL of the service itself"

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
        """Close what is open; the next request opens it again."""
        while self._idle:
            self._idle.pop().close()


def _parts_of(url: str) -> urllib.parse.SplitResult:
    """Return the parts of a service's URL.

    Raises:
        ValueError: It is none; one line, without what may be a secret in it.
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


class OutOfOrder(Exception):
    """A phase that cannot be the next one; one line."""


_PhaseName = Literal["init", "rollout", "training", "sync"]
_ALL_NODES = ("init", "sync")  # which have all nodes of the job


class Turn(NamedTuple):
    """A phase of an iteration, as an owner asks for it.

    Attributes:
        iteration: of an `init` the one that the owner begins with; of a sync before that the one before it, -1 at first.
        extra: a rollout that counts no iteration.
    """

    phase: _PhaseName
    iteration: int
    extra: bool = False


class Turns:
    """How far an owner is with its iterations, and so what it may ask for next. `ITERATION` has the states of each iteration; here
    is how they go together:

    - Each phase takes the iterations in their order.
    - An `init`, and then a sync of the iteration before, may come once each, before all else that the owner asks for.
    - Without a staleness an owner has one phase at a time, and an iteration begins when the training of the one before is over.
    - With one, the owner may have a rollout and a training at once. What it asks for too early waits: rollout k for the end of
      iteration k - 1 - staleness, a training for its rollout, and a sync and what comes with it for each other.

    Args:
        iterations: that the job does; None: without an end. staleness: of the job. done: iterations that are over.

    Attributes:
        begins: the iteration that the owner begins with. made, seeded: its init, and its first sync, are over.
        rollouts, trainings, syncs: that are over. done: iterations that count. open: what the owner asks for or has, by phase.
        granted: the phases that it has. last: what it had before, by phase.
    """

    def __init__(self, iterations: int | None = None, staleness: int = 0, done: int = 0) -> None:
        self._last, self._staleness = math.inf if iterations is None else iterations, staleness
        self.rollouts = self.trainings = self.syncs = self.done = self.begins = done
        self.made = self.seeded = False
        self.open: dict[_PhaseName, Turn] = {}
        self.granted: set[_PhaseName] = set()
        self.last: dict[_PhaseName, Turn] = {}

    def restore(self, rollouts: int, trainings: int, syncs: int, made: bool = False, seeded: bool = False) -> None:
        """So many are over."""
        self.rollouts, self.trainings, self.syncs = rollouts, trainings, syncs
        self.made, self.seeded = made, seeded

    @property
    def is_fresh(self) -> bool:
        """Whether the owner holds nothing and has finished no phase of an iteration since it attached."""
        return not self.open and self.rollouts == self.trainings == self.begins

    def go_back(self, iteration: int) -> None:
        """Let a fresh owner continue with an earlier iteration; its init and its first sync stay as they are."""
        self.rollouts = self.trainings = self.syncs = self.done = self.begins = iteration

    def take_up(self, turn: Turn) -> None:
        """The owner has a phase that it asked for before; told after `restore`."""
        self.open[turn.phase] = turn
        self.granted.add(turn.phase)

    def must_wait(self, turn: Turn, measured: bool = False, leaves: bool = False) -> bool:
        """Whether a phase of a job with a staleness is the next one of its kind, and may not begin yet.

        Args:
            measured: the job is: one phase follows the other. leaves: it is to leave its place: nothing more begins before that.
        """
        if not self._staleness:
            return False
        if leaves and self.open:
            return True
        whole = turn.phase in _ALL_NODES
        if any(phase != turn.phase and (measured or whole or phase in _ALL_NODES) for phase in self.open):
            return True
        staleness, number = 0 if measured else self._staleness, turn.iteration
        if turn.phase == "rollout" and not turn.extra:
            return number == self.rollouts and self.done + staleness < number < self._last
        return turn.phase == "training" and number == self.trainings == self.rollouts < self._last

    def check(self, turn: Turn) -> None:
        """Make sure that a phase can be the next one.

        Raises:
            OutOfOrder: it cannot.
        """
        for other in self.open.values():
            if not self._staleness or other.phase == turn.phase:
                raise OutOfOrder(f"has asked for the {other.phase} of iteration {other.iteration}; release it first")
        if self.is_over(turn) and not turn.extra:
            raise OutOfOrder(f"the {turn.phase} of iteration {turn.iteration} is over")
        due = {"init": self.begins, "rollout": self.rollouts, "training": self.trainings, "sync": self.trainings - 1}[turn.phase]
        last = self._last + (turn.phase == "init")  # with all its iterations counted, an owner may load its models and go back
        fits = f"ask {_name(turn)}" in ITERATION[self._state(turn)] and (turn.extra or due == turn.iteration < last)
        if fits and (self._staleness or self.rollouts == self.trainings or turn.phase == "training"):
            return
        what = "init" if turn.phase == "init" else f"{'extra ' if turn.extra else ''}{turn.phase} of iteration {turn.iteration}"
        raise OutOfOrder(f"cannot begin the {what}; {self._next_one(due)}")

    def _next_one(self, due: int) -> str:
        """What comes in place of a phase that cannot, which is due in this iteration."""
        if self._staleness:
            return f"the next one is that of iteration {due}"
        if self.rollouts != self.trainings:
            return f"the next one is the training of iteration {self.trainings}"
        if self.rollouts >= self._last:
            return f"it has done its {self._last} iterations"
        return f"the next one is the rollout of iteration {self.rollouts}"

    @property
    def is_between(self) -> bool:
        """Whether the owner is between two iterations: it has nothing, and nothing waits for its training or its sync."""
        return not self.open and self.trainings == self.done and (self._staleness > 0 or self.rollouts == self.trainings)

    def may_leave(self, turn: Turn) -> bool:
        """Whether the owner may leave its place when it asks for a phase, and loses nothing: it has none."""
        return not self.open and (self._staleness > 0 or turn.phase in ("init", "rollout"))

    def may_end(self, turn: Turn) -> bool:
        """Whether the job may come to its end when a phase is asked for: an iteration begins, as far as anybody knows."""
        return (self._staleness > 0 and turn.phase != "sync") or self.is_next(turn)

    def is_next(self, turn: Turn) -> bool:
        """Whether the iteration before counts when a phase is asked for: nobody has said that its sync is over."""
        return self.trainings > self.done and turn.phase == ("training" if self._staleness else "rollout") and not turn.extra

    def ask(self, turn: Turn) -> None:
        """The owner asks for a phase; raises as `check`."""
        self.check(turn)
        self.open[turn.phase] = turn

    def grant(self, phase: _PhaseName) -> None:
        """It has what it has asked for."""
        self.granted.add(phase)

    def release(self, phase: _PhaseName) -> None:
        """What it has asked for is over; where it did not have it yet, nothing has been."""
        turn = self.last[phase] = self.open.pop(phase)
        if phase not in self.granted:
            return
        self.granted.discard(phase)
        self.rollouts += _name(turn) == "rollout"
        self.trainings += phase == "training"
        self.made |= phase == "init"
        self.seeded |= phase == "sync" and turn.iteration < self.begins
        self.syncs = turn.iteration + 1 if phase == "sync" else self.syncs

    def is_open(self, phase: _PhaseName, iteration: int, extra: bool = False) -> bool:
        """Whether the owner asks for a phase or has it; `extra` as of `may_release`."""
        turn = self.open.get(phase)
        return turn is not None and turn.iteration == iteration and (turn.extra or not extra)

    def may_release(self, phase: _PhaseName, iteration: int, extra: bool = False) -> bool:
        """Whether the owner has a phase; False: that is over already.

        Args:
            extra: it is known to be a rollout that counts no iteration; False: it may be either.

        Raises:
            OutOfOrder: it never had it, or has not been granted it yet.
        """
        last = self.last.get(phase)
        if self.is_open(phase, iteration, extra):
            if phase not in self.granted:
                raise OutOfOrder(f"the {phase} of iteration {iteration} has not been granted")
            return True
        if self.is_over(Turn(phase, iteration)) or (last is not None and last.iteration == iteration):
            return False
        raise OutOfOrder(f"does not hold the {phase} of iteration {iteration}")

    def check_synced(self, iteration: int) -> None:
        """Make sure that the weights of an iteration can be where they are sampled from.

        Raises:
            OutOfOrder: the training of that iteration is not over, or that of the next one is.
        """
        if "synced" not in ITERATION[self._state(Turn("sync", iteration))]:
            raise OutOfOrder(f"iteration {iteration} has no training that is over and waits for its sync")

    def synced(self, iteration: int) -> bool:
        """They are. Whether that is new; raises as `check_synced`."""
        self.check_synced(iteration)
        is_new = self.syncs <= iteration
        self.syncs = iteration + 1
        return is_new

    def is_over(self, turn: Turn) -> bool:
        """Whether a phase was asked for before, and is over."""
        if turn.phase == "init":
            return self.made
        if turn.phase == "sync" and turn.iteration == self.begins - 1:
            return self.seeded
        over = {"rollout": self.rollouts, "training": self.trainings, "sync": self.syncs}[turn.phase]
        return turn == self.last.get(turn.phase) or (not turn.extra and turn.iteration < over)

    def _state(self, turn: Turn) -> str:
        """Of the iteration of a turn, or of evaluations, in `ITERATION`."""
        for phase, other in self.open.items():
            if other.extra == turn.extra and (other.extra or other.iteration == turn.iteration):
                is_first = phase == "sync" and other.iteration < self.begins
                name = "evaluation" if other.extra else "first sync" if is_first else phase
                return name if phase in self.granted else f"{name} asked"
        if turn.extra:
            return "no evaluation"
        if turn.phase == "init" or (turn.phase == "sync" and turn.iteration == self.begins - 1):
            return self._start()
        if turn.iteration >= self.trainings:
            return "due" if turn.iteration >= self.rollouts else "sampled"
        if turn.iteration < max(self.trainings - 1, self.begins):
            return "over"
        return "synced" if turn.iteration < self.syncs else "trained"

    def _start(self) -> str:
        """Of what may come before the first iteration."""
        if self.rollouts > self.begins or not {*self.open, *self.last} <= {*_ALL_NODES}:
            return "begun"
        return "seeded" if self.seeded else "made" if self.made else "new"


def _name(turn: Turn) -> str:
    return "extra" if turn.extra else turn.phase


def _now() -> float:
    return time.clock_gettime(_CLOCK)


class Process(NamedTuple):
    """A process, as /proc/PID/stat describes it.

    Attributes:
        parent: Process id of its parent.
        group: Process group.
        session: Session.
        started: Time at which it was started, in clock ticks since the machine was booted. A process id is used again; the pair
            of both is not.
        is_zombie: Whether it has ended, and its parent has not read its status.
    """

    parent: int
    group: int
    session: int
    started: int
    is_zombie: bool


def process(pid: int) -> Process | None:
    """Return a process by its id, or None if there is none that can be read."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        state, parent, group, session, started = fields[0], *(int(fields[place]) for place in (1, 2, 3, 19))
    except (OSError, ValueError, IndexError):  # it has just ended
        return None
    return Process(parent, group, session, started, state in b"ZX")


def processes() -> dict[int, Process]:
    """Return all processes that can be read, zombies among them, by id; empty on systems without /proc."""
    try:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return {}
    return {pid: one for pid in pids if (one := process(pid)) is not None}


def marks(pid: int) -> dict[str, str]:
    """Return the variables of `rollmux exec` in the environment that a process was started with; empty if it cannot be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            text = file.read()
    except OSError:
        return {}
    if LEASE.encode() not in text:
        return {}
    pairs = (entry.decode(errors="replace").partition("=") for entry in text.split(b"\0"))
    return {name: value for name, _, value in pairs if name in _READ}


def carriers(leases: Collection[str], pids: Iterable[int]) -> set[int]:
    """Return those of some processes that carry one of some leases."""
    return {pid for pid in pids if marks(pid).get(LEASE) in leases} if leases else set()


def descendants(roots: Collection[int], table: dict[int, Process]) -> set[int]:
    """Return some processes and all that descend from them.

    Args:
        roots: Process ids.
        table: Processes, as `processes` returns them.
    """
    children: dict[int, list[int]] = {}
    for pid, one in table.items():
        children.setdefault(one.parent, []).append(pid)
    family, queue = set(roots), list(roots)
    while queue:
        fresh = [pid for pid in children.get(queue.pop(), ()) if pid not in family]
        family.update(fresh)
        queue += fresh
    return family


def keeper_of(pid: int) -> str:
    """Return the value of `KEEPER` for a process."""
    one = process(pid)
    return f"{pid} {one.started if one else 0}"


def keeper_lives(keeper: str) -> bool:
    """Return whether the process that a value of `KEEPER` names still runs on this machine."""
    pid, _, started = keeper.partition(" ")
    one = process(int(pid)) if pid.isdigit() else None
    return one is not None and not one.is_zombie and str(one.started) == started


class LeaseProcesses:
    """The processes that belong to the leases of a job, on this machine.

    A process belongs to a lease when it carries `ROLLMUX_LEASE` with the lease's value in its environment, whatever its session or
    process group is: launchers such as torchrun give each rank a session of its own. So does every descendant of such a process,
    since engines that set a title overwrite their environment, and some programs start others with an empty one.

    A process that was found once is remembered: it still belongs to the job when its parent has ended and it has overwritten its
    environment since.

    Attributes:
        leases: Ids of all leases that the job has had here; children may carry an older one.
    """

    def __init__(self) -> None:
        self.leases: set[str] = set()
        self._known: dict[int, int] = {}  # time of start, by process id

    def find(self, table: dict[int, Process], roots: Collection[int] = (), group: int | None = None) -> set[int]:
        """Return the ids of the job's living processes.

        Args:
            table: Processes, as `processes` returns them.
            roots: Processes that belong to the job with their descendants.
            group: Process group that belongs to the job, or None.
        """
        living = {pid: one for pid, one in table.items() if not one.is_zombie}
        mine = {pid for pid, one in living.items() if self._known.get(pid) == one.started or one.group == group}
        mine |= carriers(self.leases, living.keys() - mine) | {*roots}
        mine = descendants(mine, living) & living.keys()
        self._known = {pid: living[pid].started for pid in mine}
        return mine


def same_host(one: str, other: str) -> bool:
    """Return whether two names may be of one machine: a short name is that of any domain, in capital or small letters."""
    first, second = one.casefold().rstrip("."), other.casefold().rstrip(".")
    if first == second or any(not name.strip("0123456789.") for name in (first, second)):  # addresses have no short form
        return first == second
    return first.partition(".")[0] == second.partition(".")[0] and ("." not in first or "." not in second)


def pid_space() -> str:
    """Where the numbers of this process's neighbours mean the same processes: the machine since it was booted, and the namespace
    of process numbers, as of a container. Empty where the system does not say."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def end_own_processes(why: str, find: Callable[[], Collection[int]]) -> None:
    """Say why, and end this process and others at once by SIGKILL.

    Args:
        why: Reason, for standard error.
        find: Returns the ids of the processes to end; asked again until it finds no others, since they may be starting more.
    """
    _ending.acquire()  # for good: another thread of this process may see it, too
    os.write(2, f"rollmux_client: {why}: this process ends, with all that belong to the job\n".encode())
    for _ in range(_ENDS):
        others = {*find()} - {os.getpid()}
        if not others:
            break
        for pid in others:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    try:
        os.kill(0, signal.SIGKILL)  # not by the group's number: to group 1, that of a container's first process, it means everybody
    finally:
        os._exit(128 + signal.SIGKILL)  # that process is not ended by its own signal; all in the container end with it


class Phase:
    """A turn on the nodes of one pool, as a context; with `async with` too. Left by an exception, it is not over.

    Attributes:
        switched: whether others have used the nodes since this job's last turn there.
        device_gb: that the job keeps on each device afterwards; None where it has not been measured.
    """

    def __init__(self, job: Job, name: str, iteration: int, extra: bool) -> None:
        self.name, self.iteration, self.extra = name, iteration, extra
        self.switched = False
        self.asked_s = 0.0
        self.device_gb: float | None = None
        self.metrics: dict[str, float] = {}
        self.given_up = False  # the task that waits for it was cancelled
        self._job = job

    @property
    def named(self) -> dict[str, Any]:
        """How requests name it."""
        return {"phase": self.name} | ({} if self.name == "init" else {"iteration": self.iteration})

    def report(self, **metrics: float) -> None:
        """Give the service numbers of this phase, as reward and loss; they go with its end."""
        self.metrics.update(metrics)

    def __enter__(self) -> Phase:
        self._job.acquire(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self._job.release(self)

    async def __aenter__(self) -> Phase:
        waiting = asyncio.get_running_loop().run_in_executor(None, self._job.acquire, self)  # no task: it may raise SystemExit
        try:
            await asyncio.shield(waiting)
        except asyncio.CancelledError:
            self.given_up = True  # the thread sees it after its present request
            waiting.add_done_callback(lambda future: future.cancelled() or future.exception())
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            await asyncio.to_thread(self._job.release, self)


class Job:
    """A job that is attached between the start and the end of its context. Of `attach`; `async with` works too.

    Attributes:
        iteration: the one that the service waits for, from 0; `iterations` counts it on.
        nodes: by pool, where the job runs: `{"rollout": [{"name", "host", "gpus", "cores"}], "training": [...]}`.
        lease: None where there is no service, or it is not attached.
        stopping: the service has asked it to end.
        pids: Returns the ids of the job's processes on this machine.
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
        self._moved = moved
        self.name, self.iteration = name, 0
        self.nodes: dict[str, list[dict[str, Any]]] = {}
        self.lease: str | None = None
        self.stopping = False
        self.ttl_s = _TTL_S
        self._mine = LeaseProcesses()
        self.pids = pids or self._own_pids
        self._fence = fence or (lambda why: end_own_processes(why, self._own_pids))
        self._service, self._host, self._say = service, host, say
        self._handed_over = False  # the lease is that of `rollmux exec`, which ends it
        self._keeper = ""  # the process of `rollmux exec` that keeps it
        self._answered_s = _now()
        self._progress: dict[str, int] | None = None
        self._wake, self._over = threading.Event(), False
        self._beside: BaseException | None = None  # why the other thread of `side_by_side` ends
        self._heart: threading.Thread | None = None

    # the lease

    def __enter__(self) -> Job:
        if self._service is not None:
            if "ROLLMUX_LEASE" in os.environ:
                self._take_over(os.environ)
            else:
                try:
                    self.attach()
                except BaseException:
                    self._service.close()
                    raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.end(done=kind is None)

    async def __aenter__(self) -> Job:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await asyncio.to_thread(self.__exit__, kind, error, trace)

    def attach(self) -> None:
        """Wait for a placement, and take the job's lease.

        Raises:
            Refused: The service knows no such job, it is over, or another process has its lease and keeps it.
            ConnectionError: No service has answered for ten minutes; one line.
        """
        assert self._service is not None
        path, since_s, reason, pause_s = _path_of(self.name), _now(), "", 0.0
        heard_s, wait_s, expected = since_s, _FIRST_S, _Expected()
        while True:
            body = {"wait_s": wait_s, "host": self._host or socket.gethostname(), **self._who()}
            when = ""
            try:
                answer = self._service.ask("POST", path + "/attach", body, _WAIT_S + _ANSWERS_S)
            except OSError as error:
                why, pause_s = str(error), _longer(pause_s)
                if _now() - heard_s > _UNHEARD_S:
                    raise ConnectionError(
                        f"job {self.name}: {self._service.url} has not answered for {_UNHEARD_S:g} s: {why}"
                    ) from error
            except Refused as error:
                heard_s = _now()
                if error.status not in _AGAIN and not (error.status == 409 and self._lease_may_end(since_s)):
                    raise
                why, pause_s = str(error), max(1.0, _longer(pause_s), _after(error))
            else:
                if "lease" in answer:
                    return self._begin(answer, handed_over=False)
                since_s = heard_s = _now()
                pause_s, wait_s = 0.0, _LOOK_S
                place, when = answer.get("position"), expected.words(answer)
                why = str(answer.get("reason") or "no nodes yet") + (f" (place {place} in the queue)" if place else "")
            if why != reason or when:
                self._say(f"job {self.name} waits: {why}{when or expected.said}")
                reason = why
            time.sleep(pause_s)

    def _lease_may_end(self, since_s: float) -> bool:
        """Whether another lease may be that of a process of this job which has died."""
        return self._state() not in ENDED and _now() - since_s < _OLD_LEASE_S

    def _state(self) -> str | None:
        """Return the job's state, or None if the service does not say it."""
        assert self._service is not None
        try:
            return self._service.ask("GET", _path_of(self.name)).get("state")
        except (OSError, Refused):
            return None

    def _take_over(self, environment: Any) -> None:
        """Use the lease that `rollmux exec` has, and goes on with when this process has ended."""
        nodes = json.loads(environment.get("ROLLMUX_NODES") or "{}")
        ttl_s, iteration = float(environment.get("ROLLMUX_TTL_S") or _TTL_S), int(environment.get("ROLLMUX_ITERATION") or 0)
        answer = {"lease": environment["ROLLMUX_LEASE"], "ttl_s": ttl_s, "iteration": iteration, "nodes": nodes}
        self._keeper = environment.get(KEEPER) or ""
        self._begin(answer, handed_over=True)

    def _begin(self, answer: dict[str, Any], handed_over: bool) -> None:
        self.lease, self._handed_over = str(answer["lease"]), handed_over
        self._mine.leases.add(self.lease)
        self.ttl_s, self.iteration = float(answer.get("ttl_s", _TTL_S)), int(answer.get("iteration", 0))
        self.nodes = answer.get("nodes") or {}
        self._answered_s, self.stopping, self._over = _now(), False, False
        self._ask("heartbeat", self._who())  # the answer that has just come may have waited; the lease counts from here
        self._heart = threading.Thread(target=self._beat, name="rollmux-heartbeat", daemon=True)
        self._heart.start()

    def end(self, done: bool) -> None:
        """Give the lease back.

        Args:
            done: the job is over; else it may attach again, and goes on after its last whole iteration.

        Raises:
            Refused: The service does not know that the job is done, and does not take it from this process any more.
            ConnectionError: No service has been told for ten minutes that it is done; one line.
        """
        if self.lease is None or self._service is None:
            return
        service, path = self._service, f"/v1/leases/{self.lease}{'?done=true' if done else ''}"
        self._let_go()
        left_s = self.ttl_s - (_now() - self._answered_s)  # longer there is no lease to end, but the job's end is to be said
        try:
            if not self._handed_over and (done or left_s > 0):
                _until_answered(lambda: service.ask("DELETE", path), _UNHEARD_S if done else left_s)
        except Refused:  # the lease has ended already
            if done and self._state() not in ENDED:
                raise
        except OSError as error:
            if done:
                what = f"{service.url} could not be told for {_UNHEARD_S:g} s that it is done: start it again to say so"
                raise ConnectionError(f"job {self.name}: {what}: {error}") from error
        finally:
            service.close()

    def abandon(self) -> None:
        """Keep the lease no longer, and do not give it back: a process of the job cannot be ended, and may use what it held."""
        if self.lease is not None and self._service is not None:
            self._let_go()
            self._service.close()

    def _let_go(self) -> None:
        self._over = True
        self._wake.set()
        if self._heart is not None and self._heart is not threading.current_thread():
            self._heart.join()
        self.lease = None

    # what a script does with it

    def iterations(self, total: int | None = None) -> Iterator[int]:
        """Iterations from the one that the service waits for.

        Args:
            total: of the whole job; None: as many as its file says, without a service for ever.

        Raises:
            Interrupted: between two of them, the service wants the job to stop. Mismatch: they are more than its file says.
        """
        if self.lease is not None:
            total = self._total_of(total)
        for k in itertools.count(self.iteration) if total is None else range(self.iteration, total):
            self._check_stop()
            self.iteration = k
            yield k
        self.iteration += 1

    def continue_from(self, iteration: int) -> None:
        """Say after how many iterations this process continues; comes after `init`, and before its first phase of an iteration.

        A checkpoint may be older than the service's count: what was counted since is taken back, and done again. It may also have
        the one iteration whose end the service has not heard: its turns are had once more, with nothing in them.

        Args:
            iteration: Number of iterations that the process has done, as its checkpoint says.

        Raises:
            Mismatch: The process has more iterations than the service has counted, or the service is older than this client.
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
        """Let the service take back the iterations from this number on."""
        path, lease = _path_of(self.name), self.lease
        body = {"lease": lease, "from_iteration": iteration, "wait_s": 0.0}

        def once() -> dict[str, Any]:
            assert self._service is not None
            self._check_fence()
            return self._service.ask("POST", path + "/attach", body)

        try:
            self.iteration = int(_until_answered(once)["iteration"])
        except Refused as error:
            if error.status != 400:
                raise
            assert self._service is not None
            raise Mismatch(
                f"job {self.name}: continues after {iteration} of {self.iteration} iterations, and {self._service.url} is an older "
                "service, which takes none back: upgrade the service"
            ) from None

    def check_total(self, total: int) -> None:
        """Check that the job has as many iterations as the script is going to do in all.

        Args:
            total: Iterations of the whole job.

        Raises:
            Mismatch: The job's file says another number.
        """
        if self.lease is not None and (stated := self._total()) != total:
            raise Mismatch(
                f"job {self.name}: its entry says iterations: {stated}, and this process does {total}: make them the same"
            )

    def _total_of(self, total: int | None) -> int:
        """Return the iterations of the whole job: as many as a script says, or as its file does.

        Raises:
            Mismatch: The script says more; the service would refuse them when the others are done.
        """
        if self.lease is None and total is not None:
            return total
        stated = self._total()
        if total is not None and total > stated:
            self.check_total(total)
        return stated if total is None else total

    def _total(self) -> int:
        """The iterations of the job, as its file says them."""

        def once() -> int:
            assert self._service is not None
            self._check_fence()
            return int(self._service.ask("GET", _path_of(self.name))["iterations"])

        return _until_answered(once)

    def side_by_side(
        self,
        sample: Callable[[int], Any],
        train: Callable[[int, Any], None],
        sync: Callable[[int], None] | None = None,
        staleness: int = 1,
        total: int | None = None,
    ) -> None:
        """The iterations of a job with a `staleness`: rollouts go on in a thread of their own beside the trainings.

        Args:
            sample: under the rollout's turn, in that thread; what it returns is what `train` gets, and may be of weights that are
                up to `staleness` versions older than those it trains. train: under the training's turn, in this thread.
            sync: brings the new weights to where they are sampled from, under no turn; how long it took is reported.
            staleness: as in the job's entry. total: of iterations; None: as many as the job's file says.

        Raises:
            Interrupted: between two trainings, or two rollouts, the service wants the job to stop or to move.
            Exception: of either side; the other one has ended its phase then.
        """
        first, last = self.iteration, self._total_of(total)
        room, over = threading.Semaphore(staleness + 1), threading.Event()  # for rollouts that are not trained on yet
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
                self._beside = error
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
            self._beside = error
            over.set()
            room.release()
            sampler.join(2 * _WAIT_S)  # its phase ends, or its request
            raise
        else:
            sampler.join()
        finally:
            self._beside = None

    def phase(self, name: str, iteration: int | None = None, extra: bool = False) -> Phase:
        """A turn, as a context that is entered when the turn has come.

        Args:
            name: `rollout`, `training`, or `sync`: both sides at once. iteration: where it is not the present one.
            extra: a rollout that counts no iteration, as an evaluation.
        """
        return Phase(self, name, self.iteration if iteration is None else iteration, extra)

    def init(self) -> Phase:
        """The turn in which models are loaded and engines started, on all nodes of the job: once after each attachment, before all
        other phases. Everything has left the devices when it ends. Weights may then go to where they are sampled from, in a
        `phase("sync", job.iteration - 1)`.
        """
        return self.phase("init")

    def synced(self, seconds: float, iteration: int | None = None) -> None:
        """Say that new weights are where they are sampled from, and how long it took. The end of a phase `sync` says so itself."""
        body = {"iteration": self.iteration if iteration is None else iteration, "seconds": seconds}
        self._ask("synced", body)

    def progress(self, done: int, total: int, tokens: int = 0) -> None:
        """Say how far the rollout is: responses that are done, of how many, and tokens so far. Returns at once."""
        if self.lease is not None:
            self._progress = {"done": done, "total": total, "tokens": tokens}
            self._wake.set()

    def acquire(self, phase: Phase) -> None:
        """Wait for a turn; what entering a phase does.

        Raises:
            Interrupted: it has to stop or to move. Refused: it is not the job's turn for this phase.
        """
        if self.lease is None:
            return
        body = {**phase.named, "wait_s": _WAIT_S}
        if phase.extra:
            body["extra"] = True
        phase.asked_s = _now()
        while True:
            self._check_stop()
            asked_s = _now()
            answer = self._ask("acquire", body, _WAIT_S)
            if answer.get("move"):
                self._move()
            elif answer.get("granted"):
                break
            if phase.given_up:
                return
            if self._beside is not None:  # its phase keeps its nodes, and others may wait for them before this turn
                raise self._beside
            if _now() - asked_s < _SOON_S:  # a service that is about to end lets nobody wait
                time.sleep(_SOON_S)
        phase.switched = bool(answer.get("switched"))
        self.nodes = answer.get("nodes") or self.nodes
        if phase.given_up:
            self.release(phase)

    def release(self, phase: Phase) -> None:
        """Give the nodes to the next one; what leaving a phase does.

        Raises:
            Interrupted: the service had given the job up, and this phase counts for nothing.
        """
        if self.lease is None:
            return
        metrics = {name: float(value) for name, value in phase.metrics.items() if math.isfinite(value)}  # JSON has no others
        body: dict[str, Any] = {**phase.named, "metrics": metrics}
        if phase.extra:  # else a repetition that comes late would end the rollout that follows
            body["extra"] = True
        if phase.device_gb is not None:
            body["device_gb"] = phase.device_gb
        self._ask("release", body)
        if phase.name == "sync":
            self.synced(_now() - phase.asked_s, phase.iteration)

    def _move(self) -> None:
        """Go on on other nodes: here where the script knows how, else in another process."""
        if self._moved is None or self._handed_over:
            raise Interrupted("move")
        self.end(done=False)
        self.attach()
        self._moved(self)

    def _check_stop(self) -> None:
        if self.stopping:
            raise Interrupted("stop")

    # requests of the lease

    def _ask(self, request: str, body: dict[str, Any], wait_s: float = 0.0) -> dict[str, Any]:
        """Ask until there is an answer: the same iteration and phase has the same one. Does nothing without a lease."""
        if self.lease is None or self._service is None:
            return {}
        try:
            answer = _until_answered(lambda: self._once(request, body, wait_s + _ANSWERS_S))
        except Refused as error:
            if error.status == 409 and request != "heartbeat":  # because it has to stop?
                self._ask("heartbeat", self._who())
                self._check_stop()
            raise
        self._check_fence()  # the process may have been stopped with the answer on its way
        return answer

    def _once(self, request: str, body: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        assert self._service is not None
        asked_s = _now()
        self._check_fence(asked_s)  # an answer that comes after this process was stopped does not make up for that
        try:
            answer = self._service.ask("POST", f"/v1/leases/{self.lease}/{request}", body, timeout_s)
        except Refused as error:
            if error.status == 404:
                self._fence(f"the service has no lease of job {self.name} any more")
            raise
        self._answered_s = max(self._answered_s, asked_s)  # the service counts from then, or from later
        self.stopping = self.stopping or bool(answer.get("stop"))
        if request == "heartbeat" and answer.get("lost"):
            self._fence(f"the lease of job {self.name} is over: {answer['lost']}")
        return answer

    def _who(self) -> dict[str, Any]:
        return {"pids": sorted(self.pids()), "pid_space": pid_space()}

    def _own_pids(self) -> set[int]:
        """Return the processes of this process's group, those that carry a lease of the job, and all descendants of both."""
        return {os.getpid()} | self._mine.find(processes(), {os.getpid()}, os.getpgrp())

    def _check_fence(self, now_s: float | None = None) -> None:
        """End the job's processes if its lease may be lost; while `rollmux exec` keeps the lease, that is its part alone."""
        silent_s = (_now() if now_s is None else now_s) - self._answered_s
        if silent_s >= self.ttl_s and not keeper_lives(self._keeper):
            self._fence(f"no answer from the service for {silent_s:.0f} s, and the lease of job {self.name} lasts {self.ttl_s:g} s")

    def _beat(self) -> None:
        """Keep the lease; in a thread of its own."""
        period_s, warned, next_s = self.ttl_s / 6, False, _now()
        while not self._over:
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
                if progress is not None:
                    self._once("progress", progress, timeout_s)
                if _now() >= next_s:
                    self._once("heartbeat", self._who(), timeout_s)
                    next_s = _now() + period_s
            except (OSError, Refused) as error:
                next_s = _now() + min(max(1.0, _after(error)), period_s)
            silent_s = _now() - self._answered_s
            self._wake.wait(max(0.05, min(next_s - _now(), self.ttl_s - silent_s)))
            if self._progress is not None:
                time.sleep(0.05)  # several words of progress are one
            self._wake.clear()


class _Expected:
    """The time at which a waiting job is expected to have a place, as a service says it.

    Attributes:
        said: The words that were said last; empty where no time is known.
    """

    def __init__(self) -> None:
        self.said = ""
        self._at_s: float | None = None  # of the machine's clock

    def words(self, answer: dict[str, Any]) -> str:
        """Return the words for the time in an answer, or an empty string if they are no news.

        Args:
            answer: Answer to a request for a place; `eta_s` and `now_s` are seconds of the service's clock.
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


def _until_answered(once: Callable[[], _T], patience_s: float = math.inf) -> _T:
    """Ask again and again, until there is an answer or a refusal that stays one, or until patience ends.

    Args:
        once: Asks once.
        patience_s: Time after which the last error is raised, seconds.
    """
    began_s, pause_s = _now(), 0.0
    while True:
        try:
            return once()
        except (OSError, Refused) as error:
            if (isinstance(error, Refused) and error.status not in _AGAIN) or _now() - began_s > patience_s:
                raise
            pause_s, after_s = _longer(pause_s), _after(error)
        time.sleep(max(pause_s, after_s))


def _after(error: Exception) -> float:
    """The pause that a refusal asks for, seconds, and up to half of it more, so that clients do not come back all at once."""
    return error.retry_after_s * random.uniform(1.0, 1.5) if isinstance(error, Refused) else 0.0


def _longer(pause_s: float) -> float:
    """The next pause between repetitions, seconds; some of them drawn, so that clients do not come back all at once."""
    return min(_BACKOFF_S, max(0.05, 2 * pause_s)) * random.uniform(0.7, 1.0)


def attach(job: str | None = None, host: str | None = None, moved: Callable[[Job], None] | None = None) -> Job:
    """Attach to the service of the environment, as a context.

    Args:
        job: its id; None: that of ROLLMUX_JOB. host: the machine's name where it is not this one's host name, as in a container.
        moved: brings the job's state to its new `nodes`, after a move; without it, and under `rollmux exec`, a move ends this
            process by `Interrupted`, and the next one goes on.

    Raises:
        ValueError: ROLLMUX_URL is set, and it is no URL, or there is no ROLLMUX_TOKEN, or no id.
    """
    url, token, name = os.environ.get("ROLLMUX_URL"), os.environ.get("ROLLMUX_TOKEN"), job or os.environ.get("ROLLMUX_JOB")
    if not url:
        return Job(None, name or "")
    if not token or not token.strip():
        raise ValueError("ROLLMUX_URL is set, and ROLLMUX_TOKEN is not")
    if not name:
        raise ValueError("ROLLMUX_URL is set: the job's id is missing, as ROLLMUX_JOB or attach(job)")
    return Job(Service(url, token), name, host, moved=moved)
