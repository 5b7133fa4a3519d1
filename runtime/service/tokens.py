"""Tokens of a service's users, each with one of three rights.

Only hashes are stored. A token is 256 random bits, so it cannot be found by trying; slow hashes, which protect passwords that
people choose, are not needed.

Each user with jobs that have a command also has a token for them, with the right to attach. These tokens are stored in a file
readable by the service's owner alone. A service that continues uses them again, so that a command started before has the same token
as those started now.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from pydantic import TypeAdapter, ValidationError

from rollmux_env.errors import InputError
from rollmux_env.fields import USER_PATTERN
from rollmux_env.files import private_opener, read_text, write_whole
from rollmux_env.validation_errors import describe, format_error, one_line, problems
from runtime.jobs.spec import CommonJob

TOKENS = "tokens.json"
COMMAND_TOKENS = "command_tokens.json"
_LOCK = "tokens.lock"
_BEGINS = "rollmux_"  # people and scanners for leaked secrets recognise a token by it
MOST_MEASURED = 10  # iterations of a job that are measured, without the right to operate
_ID_DIGITS = 12  # hexadecimal digits of the hash that are a token's id


class Right(IntEnum):
    """The right of a token. Each includes the ones before it.

    LOOK: read status, logs, events and metrics. ATTACH: submit and cancel the user's own attached jobs, and hold their leases.
    OPERATE: run code as the service's user (jobs with a class or a command), cancel all jobs, drain and clear nodes, and submit
    jobs of any priority and weight.
    """

    LOOK = 1
    ATTACH = 2
    OPERATE = 3


class Holder(NamedTuple):
    """The holder of a token.

    Attributes:
        user: Name of the user, or "" for the owner of the service.
        right: Right of the user.
        priority: Highest priority of the jobs that the user may submit without the right to operate.
    """

    user: str
    right: Right
    priority: int = 0

    def problem_of_rank(self, job: CommonJob) -> str | None:
        """Return why this holder may not submit a job by what ranks it in the queue, as a line, or None.

        Orders and policies may use a weight as a priority. A job ends at its iterations, but not at its estimate. While it is
        measured, no order ranks it.
        """
        if self.right >= Right.OPERATE:
            return None
        if job.priority > self.priority:
            return f"priority: {job.priority} is above {self.priority}, the highest priority of this token"
        if job.weight > 1:
            return f"weight: {job.weight:g} takes the right to operate; this token may give 1 at most"
        if job.measured_iterations > MOST_MEASURED:
            measured = f"profile.iterations: {job.measured_iterations} takes the right to operate"
            return f"{measured}; this token may have {MOST_MEASURED} at most"
        if job.estimate is not None and job.estimate.iterations < job.iterations:
            stated = f"estimate.iterations: {job.estimate.iterations} is below iterations, which is {job.iterations}"
            return f"{stated}; that takes the right to operate"
        return None


@dataclass(frozen=True)
class Token:
    """A token's record, without the token itself.

    Attributes:
        id: First digits of the hash.
        user: Name of the user, or "" for the owner of the service.
        right: Right of the token.
        made: Time at which it was made, in UTC and whole seconds (ISO 8601).
        sha256: Hash of the token, in hexadecimal.
        priority: Highest priority of jobs, as in `Holder`.
    """

    id: str
    user: str
    right: Right
    made: str
    sha256: str
    priority: int = 0


_FILE = TypeAdapter(tuple[Token, ...])
_COMMANDS = TypeAdapter(dict[str, str])


class Tokens:
    """The tokens of a service. Other processes may change the file at any time: each query follows its present content.

    Args:
        folder: Folder of the service, with a file readable by its owner alone.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = os.fspath(folder / TOKENS)
        self._version: tuple[int, ...] = ()
        self._holders: dict[str, Holder] = {}

    def holder(self, bearer: str) -> Holder | None:
        """Return the holder of a token, or None if it is unknown, or if the file is missing or damaged.

        Args:
            bearer: The token.
        """
        try:
            status = os.stat(self._path)
            version = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
            if version != self._version:
                self._holders = {token.sha256: Holder(token.user, token.right, token.priority) for token in self.list()}
                self._version = version
        except (OSError, InputError):
            self._version, self._holders = (), {}
        return self._holders.get(_hash(bearer))  # timing reveals something of the hash only, which a caller cannot choose

    def make(self, user: str, right: Right, priority: int = 0) -> str:
        """Make and return a token. It cannot be shown again. A new token of the service itself, with user "", replaces the old one.

        Args:
            user: Name of the user, or "" for the owner of the service.
            right: Right of the token.
            priority: Highest priority of jobs, as in `Holder`.

        Raises:
            InputError: If the name is not allowed, or the file cannot be read or written; one line.
        """
        if not re.fullmatch(USER_PATTERN[1:-1], user):
            raise InputError(
                f"a user's name may hold up to 64 letters A-Z and a-z, digits, and any of . _ @ + -, not {describe(user)}"
            )
        bearer = _BEGINS + secrets.token_urlsafe(32)
        hashed, now = _hash(bearer), datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        token = Token(hashed[:_ID_DIGITS], user, right, now, hashed, priority)
        self._change(lambda tokens: (*(other for other in tokens if user or other.user), token))
        return bearer

    def revoke(self, token_id: str) -> Token:
        """Revoke a token, and return its record.

        Args:
            token_id: Id of the token.

        Raises:
            InputError: If there is no such token, or the file cannot be read or written; one line.
        """
        revoked = next((token for token in self.list() if token.id == token_id), None)
        if revoked is None:
            raise InputError(f"token {one_line(token_id, 80)}: there is none; `rollmux token list` shows those that there are")
        self._change(lambda tokens: (token for token in tokens if token.id != token_id))
        return revoked

    def list(self) -> tuple[Token, ...]:
        """Return all tokens, oldest first.

        Raises:
            InputError: If the file cannot be read; one line.
        """
        path = self._folder / TOKENS
        if not os.path.lexists(path):
            return ()
        try:
            return _FILE.validate_json(read_text(path))
        except ValidationError as error:
            raise InputError(f"{one_line(str(path), 4096)}: cannot be read: {format_error(problems(error)[0], None)}") from None

    def _change(self, change: Callable[[Iterable[Token]], Iterable[Token]]) -> None:
        """Replace the file by a changed one; a lock makes concurrent changes wait."""
        try:
            with open(self._folder / _LOCK, "a", opener=private_opener) as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                write_whole(self._folder / TOKENS, _FILE.dump_json(tuple(change(self.list())), indent=1), private=True)
                (self._folder / TOKENS).chmod(0o600)
        except OSError as error:
            raise InputError(f"{one_line(str(self._folder), 4096)}: cannot be written: {error.strerror or error}") from None


class CommandTokens:
    """Tokens of jobs with a command.

    Args:
        folder: Folder of the service, which alone writes the file in it.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / COMMAND_TOKENS
        self._tokens = Tokens(folder)
        self._by_user = self._read()

    def of(self, user: str) -> str:
        """Return the token of a user's commands: the recorded one, unless it has been revoked.

        Args:
            user: Name of the user.

        Raises:
            InputError: If a token has to be made, and the files cannot be written; one line.
        """
        token = self._by_user.get(user)
        if token is not None and self._tokens.holder(token) == Holder(user, Right.ATTACH):
            return token
        token = self._by_user[user] = self._tokens.make(user, Right.ATTACH)
        write_whole(self._path, _COMMANDS.dump_json(self._by_user), private=True)
        self._path.chmod(0o600)
        return token

    def _read(self) -> dict[str, str]:
        """Return the recorded tokens, or none if the file is damaged: they are then made again."""
        try:
            return _COMMANDS.validate_json(read_text(self._path))
        except (InputError, ValidationError):
            return {}


def _hash(bearer: str) -> str:
    return sha256(bearer.encode(errors="surrogatepass")).hexdigest()
