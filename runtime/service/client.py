"""The commands' client of a service: which service a command means, and the error if it refuses or does not answer."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from urllib.parse import quote, urlencode

from rollmux_client import ENDED, Refused, Service

from rollmux_env.errors import InputError
from rollmux_env.locks import is_locked
from rollmux_env.validation_errors import one_line
from runtime.jobs.spec import JobSpec
from runtime.journal.parts import newest_part
from runtime.journal.rollover import is_beginning
from runtime.journal.write import DRIVER_LOCK, SERVES, is_begun
from runtime.output import OutputPart
from runtime.service.address import VARIABLE, ServiceAddress, continuing, find, folder_of, in_shell

_URL, _TOKEN = "ROLLMUX_URL", "ROLLMUX_TOKEN"
_ANSWERS_S = 60.0
_MOST_BYTES = 1_000_000  # size of the jobs in a request; below the service's limit of a body
_LOOKS_S = 0.2
_BEGINS_S = 60.0  # longest wait for a service that begins, or continues in the next part of its journal
_MAKES_FOLDER_S = 3.0  # a service that was started at the same moment has made its folder by then
_OLDER = "the service is of an older RollMux than this command: upgrade it"
_NO_PATH = "there is no such path"  # what services of all versions say
_LATER_KEYS = ("completion", "quotas", "users")  # of a status, which the first services lack
_CANCELS_S = 60.0  # an owner that was asked to stop has ended by then, or its lease is lost


class NoService(InputError):
    """Error: no service answers at the place that a command means.

    Attributes:
        has_journal: Whether the folder has the journal of an earlier service.
    """

    def __init__(self, problem: str, has_journal: bool = False) -> None:
        super().__init__(problem)
        self.has_journal = has_journal


class ServiceClient(Service):
    """HTTP client of a service that reports errors as one line.

    Every request raises `InputError` if the service refuses it, and `NoService` if no service answers.

    Args:
        url: URL of the service.
        token: Token that is sent with each request.
        folder: Folder that the URL and the token are from, or None if they are from the environment.
    """

    def __init__(self, url: str, token: str, folder: Path | None = None) -> None:
        try:
            super().__init__(url, token)
        except ValueError as error:
            raise InputError(str(error)) from None
        self._folder = folder
        self._where = f"--at {one_line(str(folder), 4096)}" if folder else f"{_URL} {one_line(url, 4096)}"

    def ask(self, method: str, path: str, body: Any = None, timeout_s: float = _ANSWERS_S) -> Any:
        """Send a request, and return the JSON value of the answer.

        Args:
            method: HTTP method.
            path: Path with the query.
            body: JSON value to send, or None.
            timeout_s: Longest wait for the answer, in seconds.

        Raises:
            InputError: If the request is refused, or the answer is not JSON; one line.
            NoService: If no service answers; one line.
        """
        text, _ = self.request(method, path, body, timeout_s)
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise InputError(f"{self._where}: what answers there is no RollMux") from None

    def request(self, method: str, path: str, body: Any = None, timeout_s: float = _ANSWERS_S) -> tuple[bytes, Any]:
        """Send a request, and return the body and the headers of the answer; see `ask`."""
        try:
            return super().request(method, path, body, timeout_s)
        except Refused as error:
            is_older = error.status == 404 and str(error) == _NO_PATH
            raise InputError(f"{self._where}: {_OLDER}" if is_older else str(error)) from None
        except OSError as error:
            raise (no_service(self._folder) if self._folder else NoService(f"{self._where}: {error}")) from None

    def submit(self, specs: Sequence[JobSpec]) -> None:
        """Submit jobs, in several requests if they are too long for one; each request takes all of its jobs or none.

        Args:
            specs: Jobs in order.

        Raises:
            InputError: If a request is refused; the line says how many jobs were submitted before it.
        """
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
        """Return the placement or the place in the queue that each job would get if all were submitted in this order.

        Nothing changes. `rollmux_env.scheduler.preview.Preview` explains the keys.

        Args:
            specs: Jobs in order.
        """
        previews: list[dict[str, Any]] = self.ask("POST", "/v1/jobs?dry_run=true", _entries(specs))
        return previews

    def status(self) -> dict[str, Any]:
        """Return the report of all jobs, groups and pools.

        Raises:
            InputError: If the service is older than the tables of its report; one line.
        """
        status: dict[str, Any] = self.ask("GET", "/v1/status")
        if any(key not in status for key in _LATER_KEYS):
            raise InputError(f"{self._where}: {_OLDER}")
        return status

    def what_if(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Return the expected course of all jobs as it is and with a change.

        Args:
            question: Keys of a what-if question (docs/reference/service_api.md).
        """
        answer: dict[str, Any] = self.ask("POST", "/v1/whatif", question)
        return answer

    def job(self, job_id: str) -> dict[str, Any]:
        """Return the report of one job."""
        job: dict[str, Any] = self.ask("GET", _path(job_id))
        return job

    def cancel(self, job_id: str, say: Callable[[str], None] = lambda _: None) -> str:
        """End a job, and wait until it has ended, its lease is lost, or a minute has passed.

        Args:
            job_id: Id of the job.
            say: Callback for a line about the reason of the wait.

        Returns:
            Reason why the job has not ended yet, or an empty string if it has.
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
        """Return whether a job has ended, or is in one of the states `states`."""
        return self.job(job_id)["state"] in (*ENDED, *states)

    def log(self, job_id: str, process: str | None, offset: int) -> OutputPart:
        """Return a part of the output of one process of a job.

        Args:
            job_id: Id of the job.
            process: Name of the process, or None for the controller, or else any process.
            offset: Bytes of the output that are known already.

        Raises:
            InputError: If the job has no such process, or none has begun; one line.
        """
        query = {"offset": offset} if process is None else {"process": process, "offset": offset}
        data, headers = self.request("GET", f"{_path(job_id)}/logs?{urlencode(query)}")
        return OutputPart(data, int(headers["X-Next-Offset"]), json.loads(headers["X-Processes"]))


def is_named(at: Path | None) -> bool:
    """Return whether the command means the service that ROLLMUX_URL names, and not a folder.

    Args:
        at: Folder that the user names, or None.

    Raises:
        InputError: If only one of ROLLMUX_URL and ROLLMUX_TOKEN is set, or ROLLMUX_SERVICE is set too; one line.
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
def connected(at: Path | None) -> Iterator[ServiceClient]:
    """Yield a client of the service that a command means.

    It is the service of the folder `at`, else that of ROLLMUX_URL, else that of the environment's folder, else that of the default
    folder.

    Args:
        at: Folder of the service, or None. A service found by its folder is asked with its own token.

    Raises:
        InputError: As in `is_named`, or if the URL is malformed; one line.
        NoService: If no service runs there; one line.
    """
    if is_named(at):
        client = ServiceClient(os.environ[_URL], os.environ[_TOKEN])
    else:
        folder = folder_of(at)
        address = _answering(folder)
        client = ServiceClient(address.url, address.token, folder)
    try:
        yield client
    finally:
        client.close()


def _answering(folder: Path) -> ServiceAddress:
    """Return the address of the service in a folder; wait for one that is starting or continues in the next part of its journal.

    Raises:
        NoService: If no service answers; one line.
    """
    until_s = monotonic() + _BEGINS_S
    made_by_s = 0.0 if folder.exists() else monotonic() + _MAKES_FOLDER_S
    while (address := find(folder)) is None or not address.answers():
        starting = is_locked(folder / DRIVER_LOCK, SERVES)
        is_near = starting or monotonic() < made_by_s or (address is not None and _is_beginning(folder))
        if not is_near or monotonic() > until_s:
            raise no_service(folder, starting)
        sleep(_LOOKS_S)
    return address


def _is_beginning(folder: Path) -> bool:
    with suppress(InputError, OSError):  # a damaged journal is no reason to wait
        return is_beginning(folder)
    return False


def no_service(folder: Path, starting: bool = False) -> NoService:
    """Return the error that no service answers in a folder.

    Args:
        folder: Folder of the service.
        starting: Whether one is about to.
    """
    name, has_journal = Path(one_line(str(folder), 4096)), is_begun(newest_part(folder))
    if starting:
        return NoService(f"--at {name}: the service there is starting, and does not answer yet", has_journal)
    if has_journal:
        return NoService(f"--at {name}: no service runs there; `{continuing(folder)}` continues it", True)
    return NoService(f"--at {name}: no service runs there; `rollmux serve {in_shell(folder)}` starts one")


def _entries(specs: Sequence[JobSpec]) -> list[dict[str, Any]]:
    return [spec.model_dump(mode="json", exclude_unset=True, by_alias=True) for spec in specs]


def _parts(entries: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Split entries into lists that are short enough for one request each."""
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
