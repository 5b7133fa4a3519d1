"""A service from the outside: where it is, and what is asked of it over HTTP."""

from __future__ import annotations

import contextlib
import http.client
import json
import select
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from urllib.parse import quote, urlsplit

from rollmux_env.errors import InputError
from rollmux_env.extras import require
from rollmux_env.validation_errors import one_line
from runtime.jobs.spec import JobSpec
from runtime.service.address import ServiceAddress, find, folder_of
from runtime.signals import check_signals

ENDED = ("done", "failed", "cancelled", "over_budget")
_ANSWERS_S = 60.0
_MOST_BYTES = 1_000_000  # of the jobs in a request, which may have a little more
_LOOKS_S = 0.2


class NoService(InputError):
    """No service runs in a folder.

    Attributes:
        has_journal: one has been there, which `rollmux serve` goes on with.
    """

    def __init__(self, folder: Path, has_journal: bool) -> None:
        name = one_line(str(folder), 4096)
        goes = "goes on with the one that is stopped" if has_journal else "starts one"
        super().__init__(f"--at {name}: no service runs there; `rollmux serve {name}` {goes}")
        self.has_journal = has_journal


class Client:
    """Asks a service.

    Args:
        folder: as errors name it. address: where it answers.
    """

    def __init__(self, folder: Path, address: ServiceAddress) -> None:
        self._folder = folder
        self._address = address

    def submit(self, specs: Sequence[JobSpec]) -> None:
        """Submit jobs: all of them or none; of more than fit into one request, those that do.

        Raises:
            InputError: it refuses them, or (NoService) is there no more; one line.
        """
        taken = 0
        for part in _parts(_entries(specs)):
            try:
                self._ask("POST", "/v1/jobs", part)
            except InputError as error:
                if not taken:
                    raise
                raise InputError(f"{error}; the {taken} jobs before are submitted") from None
            taken += len(part)

    def preview(self, specs: Sequence[JobSpec]) -> list[dict[str, Any]]:
        """What would become of each of some jobs if it were submitted alone; nothing changes. Raises as `submit`."""
        previews: list[dict[str, Any]] = self._ask("POST", "/v1/jobs?dry_run=true", _entries(specs))
        return previews

    def cancel(self, job_id: str) -> None:
        """End a job, and wait until it has ended; raises as `submit`."""
        self._ask("DELETE", _path(job_id))
        while self.job(job_id)["state"] not in ENDED:
            check_signals()
            sleep(_LOOKS_S)

    def drain(self, node: str) -> dict[str, Any]:
        """Let jobs leave a node; raises as `submit`."""
        answer: dict[str, Any] = self._ask("POST", f"/v1/nodes/{quote(node, safe='')}/drain")
        return answer

    def undrain(self, node: str) -> None:
        """Let jobs come to a node again; raises as `submit`."""
        self._ask("POST", f"/v1/nodes/{quote(node, safe='')}/undrain")

    def job(self, job_id: str) -> dict[str, Any]:
        """What a job does; raises as `submit`."""
        job: dict[str, Any] = self._ask("GET", _path(job_id))
        return job

    def status(self) -> dict[str, Any]:
        """What every job, group and pool does; raises as `submit`."""
        status: dict[str, Any] = self._ask("GET", "/v1/status")
        return status

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        connection = http.client.HTTPConnection(urlsplit(self._address.url).netloc, timeout=_ANSWERS_S)
        headers = {"Authorization": f"Bearer {self._address.token}", "Connection": "close"}
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            _wait(connection)
            response = connection.getresponse()
            text = response.read()
        except (OSError, http.client.HTTPException):
            raise _nobody(self._folder) from None
        finally:
            connection.close()
        try:
            value = json.loads(text)
        except ValueError:
            raise InputError(f"--at {one_line(str(self._folder), 4096)}: what answers there is no RollMux") from None
        if response.status < 400:
            return value
        raise InputError(str(value.get("error", response.status)))


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


def _wait(connection: http.client.HTTPConnection) -> None:
    """Wait for an answer, so that the user may end it.

    Raises:
        KeyboardInterrupt: as `runtime.signals.check_signals`. TimeoutError: none comes.
    """
    until_s = monotonic() + _ANSWERS_S
    answered = select.poll()
    answered.register(connection.sock.fileno(), select.POLLIN)
    while not answered.poll(1000 * _LOOKS_S):
        check_signals()
        if monotonic() > until_s:
            raise TimeoutError


@contextlib.contextmanager
def connected(at: Path | None) -> Iterator[Client]:
    """Be in touch with the service of a folder.

    Args:
        at: the folder; None for that of the environment, or the usual one.

    Raises:
        InputError: (NoService) no service runs there; one line.
    """
    folder = folder_of(at)
    address = find(folder)
    if address is None or not address.answers():
        raise _nobody(folder)
    yield Client(folder, address)


def _nobody(folder: Path) -> NoService:
    """That no service runs in a folder.

    Raises:
        InputError: and none could be started, since the extra is not installed.
    """
    from runtime.journal import JOURNAL, is_begun

    has_journal = is_begun(folder / JOURNAL)
    if not has_journal:
        require("run", "a service")
    return NoService(folder, has_journal)
