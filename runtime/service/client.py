"""A service as commands ask it: which one is meant, and what is said where it refuses or does not answer."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from urllib.parse import quote, urlencode

from rollmux_client import ENDED, Refused, Service

from rollmux_env.errors import InputError
from rollmux_env.validation_errors import one_line
from runtime.jobs.spec import JobSpec
from runtime.journal.write import JOURNAL, is_begun
from runtime.output import Part
from runtime.service.address import VARIABLE, continuing, find, folder_of

_URL, _TOKEN = "ROLLMUX_URL", "ROLLMUX_TOKEN"
_ANSWERS_S = 60.0
_MOST_BYTES = 1_000_000  # of the jobs in a request, which may have a little more
_LOOKS_S = 0.2
_CANCELS_S = 60.0  # an owner that is told to stop has ended by then, or its lease is lost


class NoService(InputError):
    """Nobody answers where a service is looked for.

    Attributes:
        has_journal: its folder has the journal of one that has been there.
    """

    def __init__(self, problem: str, has_journal: bool = False) -> None:
        super().__init__(problem)
        self.has_journal = has_journal


class Client(Service):
    """Asks a service. Each request raises InputError, one line, where it is refused, and NoService where nobody answers.

    Args:
        url, token: of the service. folder: where they are from; None: from the environment.
    """

    def __init__(self, url: str, token: str, folder: Path | None = None) -> None:
        try:
            super().__init__(url, token)
        except ValueError as error:
            raise InputError(str(error)) from None
        self._folder = folder
        self._where = f"--at {one_line(str(folder), 4096)}" if folder else f"{_URL} {one_line(url, 4096)}"

    def ask(self, method: str, path: str, body: Any = None, timeout_s: float = _ANSWERS_S) -> Any:
        """What a request is answered by, as JSON."""
        text, _ = self.request(method, path, body, timeout_s)
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise InputError(f"{self._where}: what answers there is no RollMux") from None

    def request(self, method: str, path: str, body: Any = None, timeout_s: float = _ANSWERS_S) -> tuple[bytes, Any]:
        """What a request is answered by, and the headers of the answer."""
        try:
            return super().request(method, path, body, timeout_s)
        except Refused as error:
            raise InputError(str(error)) from None
        except OSError as error:
            raise (_nobody(self._folder) if self._folder else NoService(f"{self._where}: {error}")) from None

    def submit(self, specs: Sequence[JobSpec]) -> None:
        """Submit jobs: all of them or none; of more than fit into one request, those that do."""
        taken = 0
        for part in _parts(_entries(specs)):
            try:
                self.ask("POST", "/v1/jobs", part)
            except InputError as error:
                if not taken:
                    raise
                raise InputError(f"{error}; the {taken} jobs before are submitted") from None
            taken += len(part)

    def preview(self, specs: Sequence[JobSpec]) -> list[dict[str, Any]]:
        """What would become of each of some jobs if they were submitted in this order; nothing changes."""
        previews: list[dict[str, Any]] = self.ask("POST", "/v1/jobs?dry_run=true", _entries(specs))
        return previews

    def status(self) -> dict[str, Any]:
        """What every job, group and pool does."""
        status: dict[str, Any] = self.ask("GET", "/v1/status")
        return status

    def job(self, job_id: str) -> dict[str, Any]:
        """What a job does."""
        job: dict[str, Any] = self.ask("GET", _path(job_id))
        return job

    def cancel(self, job_id: str, say: Callable[[str], None] = lambda _: None) -> str:
        """End a job, and wait until it has ended, or nobody knows when it will have.

        Args:
            job_id: Id of the job.
            say: Takes the lines about what is waited for.

        Returns:
            What the end still waits for; empty if the job has ended.
        """
        job, said, until_s = self.ask("DELETE", _path(job_id)), "", monotonic() + _CANCELS_S
        while job["state"] not in ENDED:
            reason = job["reason"] or "its processes are being ended"
            if reason != said:
                say(f"waits: {reason}")
                said = reason
            if job["state"] == "lost" or monotonic() > until_s:
                return reason
            sleep(_LOOKS_S)
            job = self.job(job_id)
        return ""

    def has_ended(self, job_id: str, *states: str) -> bool:
        """Whether a job has ended, or is in one of some other states."""
        return self.job(job_id)["state"] in (*ENDED, *states)

    def log(self, job_id: str, process: str | None, offset: int) -> Part:
        """A part of what a process of a job has printed, as `runtime.output.read_log`; of one of them where none is named.

        Raises:
            InputError: also while none of its processes has begun.
        """
        query = {"offset": offset} if process is None else {"process": process, "offset": offset}
        data, headers = self.request("GET", f"{_path(job_id)}/logs?{urlencode(query)}")
        return Part(data, int(headers["X-Next-Offset"]), json.loads(headers["X-Processes"]))


def is_named(at: Path | None) -> bool:
    """Whether the environment's ROLLMUX_URL names the service that a command means, and not a folder.

    Raises:
        InputError: the environment names one with half of what it takes, or two; one line.
    """
    url, token = os.environ.get(_URL, "").strip(), os.environ.get(_TOKEN, "").strip()
    if at is not None or not (url or token):
        return False
    if not (url and token):
        one, other = (_URL, _TOKEN) if url else (_TOKEN, _URL)
        raise InputError(f"{one} is set, and {other} is not")
    if folder := os.environ.get(VARIABLE):
        raise InputError(f"{_URL} and {VARIABLE} ({one_line(folder, 4096)}) both name a service: unset one, or give --at DIR")
    return True


@contextmanager
def connected(at: Path | None) -> Iterator[Client]:
    """Be in touch with a service: that of a folder that is given, else that of the environment's ROLLMUX_URL, with its token, else
    that of the environment's folder, or of the usual one.

    Args:
        at: the folder; it is asked with its operator's token.

    Raises:
        InputError: as `is_named`, the URL is none, or (NoService) no service runs there; one line.
    """
    if is_named(at):
        client = Client(os.environ[_URL], os.environ[_TOKEN])
    else:
        folder = folder_of(at)
        address = find(folder)
        if address is None or not address.answers():
            raise _nobody(folder)
        client = Client(address.url, address.token, folder)
    try:
        yield client
    finally:
        client.close()


def _nobody(folder: Path) -> NoService:
    """Return the error that no service runs in a folder."""
    name, has_journal = Path(one_line(str(folder), 4096)), is_begun(folder / JOURNAL)
    if has_journal:
        return NoService(f"--at {name}: no service runs there; `{continuing(folder)}` goes on with what is stopped", True)
    return NoService(f"--at {name}: no service runs there; `rollmux serve {name}` starts one")


def _entries(specs: Sequence[JobSpec]) -> list[dict[str, Any]]:
    """Jobs as entries of a job file."""
    return [spec.model_dump(mode="json", exclude_unset=True, by_alias=True) for spec in specs]


def _parts(entries: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Entries of as many requests as they take."""
    part: list[dict[str, Any]] = []
    size = 0
    for entry in entries:
        length = len(json.dumps(entry)) + 2
        if part and size + length > _MOST_BYTES:
            yield part
            part, size = [], 0
        part.append(entry)
        size += length
    yield part


def _path(job_id: str) -> str:
    return f"/v1/jobs/{quote(job_id, safe='')}"
