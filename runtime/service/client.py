"""A service from the outside: which one is meant, and what is asked of it over HTTP."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlencode

from rollmux_env.errors import InputError, require
from rollmux_env.validation_errors import one_line
from runtime.jobs.spec import JobSpec
from runtime.service.address import VARIABLE, find, folder_of
from runtime.service.listening import continuing

if TYPE_CHECKING:
    import rollmux_client

ENDED = ("done", "failed", "cancelled", "over_budget")
_URL, _TOKEN = "ROLLMUX_URL", "ROLLMUX_TOKEN"
_ANSWERS_S = 60.0
_MOST_BYTES = 1_000_000  # of the jobs in a request, which may have a little more
_LOOKS_S = 0.2


class NoService(InputError):
    """Nobody answers where a service is looked for.

    Attributes:
        has_journal: its folder has the journal of one that has been there.
    """

    def __init__(self, problem: str, has_journal: bool = False) -> None:
        super().__init__(problem)
        self.has_journal = has_journal


class LogPart(NamedTuple):
    """A part of what a process of a job has printed.

    Attributes:
        offset: of what follows, bytes. processes: all of the job that have printed.
    """

    text: str
    offset: int
    processes: tuple[str, ...]


class Client:
    """Asks a service.

    Args:
        service: that is asked. folder: where its token is from; None: from the environment.
    """

    def __init__(self, service: rollmux_client.Service, folder: Path | None = None) -> None:
        self.service = service
        self._folder = folder

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
        """What would become of each of some jobs if they were submitted in this order; nothing changes. Raises as `submit`."""
        previews: list[dict[str, Any]] = self._ask("POST", "/v1/jobs?dry_run=true", _entries(specs))
        return previews

    def cancel(self, job_id: str) -> None:
        """End a job, and wait until it has ended; raises as `submit`."""
        self._ask("DELETE", _path(job_id))
        while self.job(job_id)["state"] not in ENDED:
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

    def log(self, job_id: str, process: str | None = None, offset: int = 0) -> LogPart:
        """What a process of a job has printed from an offset on; without a name that of a process that tells of the job.

        Raises as `submit`.
        """
        query = {"offset": offset} | ({"process": process} if process is not None else {})
        text, headers = self._request("GET", f"{_path(job_id)}/logs?{urlencode(query)}")
        return LogPart(text.decode(errors="replace"), int(headers["X-Next-Offset"]), (*json.loads(headers["X-Processes"]),))

    def log_lines(self, job_id: str, ended: Callable[[], bool], pause: Callable[[float], None] = sleep) -> Iterator[str]:
        """What a job's processes print, every line after the name of its process, until the job has ended.

        Args:
            pause: waits so many seconds between looks.

        Raises:
            InputError: as `submit`; also while none of its processes has begun.
        """
        offsets, rests = dict.fromkeys(self.log(job_id).processes, 0), dict[str, str]()
        while True:
            last, more = ended(), False
            for process, offset in [*offsets.items()]:
                part = self.log(job_id, process, offset)
                offsets = dict.fromkeys(part.processes, 0) | offsets | {process: part.offset}
                more |= bool(part.text) or len(offsets) > len(rests)
                *whole, rests[process] = (rests.get(process, "") + part.text).split("\n")
                yield from (f"{process} | {line}" for line in whole)
            if last and not more:
                yield from (f"{process} | {line}" for process, line in rests.items() if line)
                return
            if not more:
                pause(_LOOKS_S)

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        text, _ = self._request(method, path, body)
        try:
            return json.loads(text)
        except ValueError:
            raise InputError(f"{self._where()}: what answers there is no RollMux") from None

    def _request(self, method: str, path: str, body: Any = None) -> tuple[bytes, Any]:
        from rollmux_client import Refused

        try:
            return self.service.request(method, path, body, _ANSWERS_S)
        except Refused as error:
            raise InputError(str(error)) from None
        except OSError as error:
            raise (_nobody(self._folder) if self._folder else NoService(f"{self._where()}: {error}")) from None

    def _where(self) -> str:
        return f"--at {one_line(str(self._folder), 4096)}" if self._folder else f"{_URL} {one_line(self.service.url, 4096)}"


def is_named(at: Path | None) -> bool:
    """Whether the environment's ROLLMUX_URL names the service that a command means, and not a folder.

    Raises:
        InputError: the environment names one with half of what it takes, or two; one line.
    """
    url, token = os.environ.get(_URL), os.environ.get(_TOKEN)
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
        InputError: as `is_named`, the URL is none, rollmux-client is not installed, or (NoService) no service runs there; one line.
    """
    if is_named(at):
        client = Client(_service(os.environ[_URL], os.environ[_TOKEN]))
    else:
        folder = folder_of(at)
        address = find(folder)
        if address is None or not address.answers():
            raise _nobody(folder)
        client = Client(_service(address.url, address.token), folder)
    try:
        yield client
    finally:
        client.service.close()


def require_client(what: str) -> None:
    """See that rollmux-client is installed; raises InputError, one line, where it is not."""
    if find_spec("rollmux_client") is None:
        raise InputError(f"{what}: needs rollmux-client; not installed here: pip install ./clients/python")


def _service(url: str, token: str) -> rollmux_client.Service:
    require_client("a service's command")
    from rollmux_client import Service

    try:
        return Service(url, token)
    except ValueError as error:
        raise InputError(str(error)) from None


def _nobody(folder: Path) -> NoService:
    """That no service runs in a folder.

    Raises:
        InputError: and none could be started, since the extra is not installed.
    """
    from runtime.journal.write import JOURNAL, is_begun

    name, has_journal = Path(one_line(str(folder), 4096)), is_begun(folder / JOURNAL)
    if has_journal:
        return NoService(f"--at {name}: no service runs there; `{continuing(folder)}` goes on with what is stopped", True)
    require("run", "a service")
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
