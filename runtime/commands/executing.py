"""What `rollmux exec` does once its arguments are in order: a command on the nodes that a service gives its job.

It is in a process group of its own, on cores of its own: signals are passed on to it, and nothing of it stays.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import rollmux_client

from rollmux_env.errors import InputError

_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)
_TERMINATES_S = 5.0  # that processes left behind have to end by themselves
_PAUSES_S = (1.0, 2.0, 4.0, 8.0, 15.0)  # between attempts to reach the service


def execute_command(url: str, token: str, entry: dict[str, Any], words: Sequence[str], say: Callable[[str], None]) -> int:
    """Attach a job and run a command on its nodes, again where it has to move.

    Args:
        url, token: of the service. entry: of a job file. say: takes lines about what is waited for.

    Returns:
        The command's exit status; 128 and the signal's number where one has ended it.

    Raises:
        InputError: the service refuses the job, or the command cannot be started; one line.
    """
    service, command = rollmux_client.Service(url, token), ProcessGroup(words)
    job = rollmux_client.Job(service, entry["id"], socket.gethostname(), command.pids, lambda why: command.kill(why, say), say)
    with command.signals():
        try:
            _submit(service, entry)
            while True:
                job.attach()
                say(f"job {job.name} runs on {' '.join(node['name'] for nodes in job.nodes.values() for node in nodes)}")
                status = command.run(_environment(job, service), _cores(job))
                moves = status != 0 and not job.stopping and _state(service, job.name) == "moving"
                job.end(done=status == 0)
                if not moves:
                    return status
                say(f"job {job.name} moves")
        except rollmux_client.Refused as error:
            raise InputError(f"job {job.name}: {error}") from None
        except Signalled as pressed:
            return 128 + pressed.number
        finally:
            job.end(done=False)  # where it has not ended
            service.close()


def _submit(service: rollmux_client.Service, entry: dict[str, Any]) -> None:
    """Submit a job that the service does not have.

    Raises:
        Refused: it cannot be. InputError: it has ended, or the service does not answer; one line.
    """
    for pause_s in (*_PAUSES_S, None):
        try:
            service.ask("POST", "/v1/jobs", entry, 60.0)
            return
        except rollmux_client.Refused as error:
            if error.status != 409:
                raise
            state = _state(service, entry["id"])
            if state in rollmux_client.ENDED:
                raise InputError(f"job {entry['id']}: has ended already: {state}; names are used once") from None
            return
        except OSError as error:
            if pause_s is None:
                raise InputError(f"{service.url}: the service does not answer ({error})") from None
            time.sleep(pause_s)


def _state(service: rollmux_client.Service, job_id: str) -> str:
    """What a job does; empty where it cannot be asked."""
    try:
        return str(service.ask("GET", f"/v1/jobs/{job_id}").get("state", ""))
    except (OSError, rollmux_client.Refused):
        return ""


def _here(job: rollmux_client.Job) -> list[dict[str, Any]]:
    """The job's nodes on this machine."""
    return [node for nodes in job.nodes.values() for node in nodes if node.get("host") in (None, "", socket.gethostname())]


def _cores(job: rollmux_client.Job) -> set[int]:
    """The cores that the command is kept on; none where its nodes have GPUs."""
    here = _here(job)
    return set() if any(node.get("gpus") for node in here) else {int(core) for node in here for core in node.get("cores") or ()}


def _environment(job: rollmux_client.Job, service: rollmux_client.Service) -> dict[str, str]:
    gpus = dict.fromkeys(str(gpu) for node in _here(job) for gpu in node.get("gpus") or ())
    own = {
        "CUDA_VISIBLE_DEVICES": ",".join(gpus),
        "ROLLMUX_URL": service.url,
        "ROLLMUX_TOKEN": service.token,
        "ROLLMUX_JOB": job.name,
        "ROLLMUX_LEASE": job.lease or "",
        "ROLLMUX_TTL_S": str(job.ttl_s),
        "ROLLMUX_ITERATION": str(job.iteration),
        "ROLLMUX_NODES": json.dumps(job.nodes),
    }
    threads: dict[str, str] = {}
    if _cores(job):  # more threads than a phase has cores would wait for each other
        most = str(min(len(node["cores"]) for node in _here(job) if node.get("cores")))
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), most)
    return threads | os.environ | own


class Signalled(BaseException):
    """A signal has come while no command runs."""

    def __init__(self, number: int) -> None:
        self.number = number


class ProcessGroup:
    """A command in a process group of its own, to which signals are passed on."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = self._killed = False
        self._early: list[int] = []  # signals that came while it was being started

    def pids(self) -> list[int]:
        """Its processes; before there are any, this one."""
        process = self._process
        return [os.getpid()] if process is None else rollmux_client.pids_of(process.pid) or [process.pid]

    def kill(self, why: str, say: Callable[[str], None]) -> None:
        """End it at once, for its devices may be given to others."""
        if self._process is not None and not self._killed:
            self._killed = True
            say(f"{why}: the command ends")
        self._signal(signal.SIGKILL)

    def run(self, environment: dict[str, str], cores: set[int]) -> int:
        """Run it to its end, and see that nothing of it stays.

        Raises:
            InputError: it cannot be started.
        """
        own = os.sched_getaffinity(0)
        os.sched_setaffinity(0, cores or own)
        self._starts = True
        try:
            stdin = subprocess.DEVNULL if sys.stdin is not None and sys.stdin.isatty() else None  # it would be stopped reading
            self._process = subprocess.Popen(self._words, env=environment, stdin=stdin, process_group=0)
        except OSError as error:
            raise InputError(f"{self._words[0]}: {error.strerror or error}") from None
        finally:
            os.sched_setaffinity(0, own)
            self._starts = False
        while self._early:
            self._signal(self._early.pop(0))
        try:
            status = self._process.wait()
            self._end_rest(self._process.pid)
        finally:
            self._process = None
        return status if status >= 0 else 128 - status

    @contextmanager
    def signals(self) -> Iterator[None]:
        """While it goes on, signals to this process are passed on to it; without it they end what is waited for."""

        def handle(number: int, frame: FrameType | None) -> None:
            if self._process is not None:
                self._signal(number)
            elif self._starts:
                self._early.append(number)
            elif number != signal.SIGCONT:
                raise Signalled(number)

        before = {number: signal.signal(number, handle) for number in _PASSED_ON}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _signal(self, number: int) -> None:
        process = self._process
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)

    def _end_rest(self, group: int) -> None:
        """End what the command has left behind: whose lease is given back holds nothing."""
        until_s = time.monotonic() + _TERMINATES_S
        if rollmux_client.pids_of(group):
            self._signal(signal.SIGTERM)
        while rollmux_client.pids_of(group):
            if time.monotonic() > until_s:
                self._signal(signal.SIGKILL)
            time.sleep(0.02)
