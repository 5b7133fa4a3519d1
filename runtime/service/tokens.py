"""Who may ask a service for what: tokens of users, with one of three rights.

Only hashes are kept. A token is 256 random bits, so that nobody finds it by guessing at its hash however fast that is: what makes
slow hashes necessary is that people choose passwords which can be guessed.

Commands that a service has started ask it with tokens of their own: one of each user, which may do what that user may by attaching.
They are kept in a file for the service's owner alone, so that a service that goes on makes none anew, and a command that has
outlived the one before has the same as those that are started now.
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
from rollmux_env.fields import ID_PATTERN
from rollmux_env.files import private_opener, read_text, write_whole
from rollmux_env.validation_errors import describe, format_error, one_line, problems

TOKENS = "tokens.json"
COMMAND_TOKENS = "command_tokens.json"
_LOCK = "tokens.lock"
_BEGINS = "rollmux_"  # so that scanners for leaked secrets, and people, know one
_ID_DIGITS = 12  # of its hash in hexadecimal


class Right(IntEnum):
    """What a token allows; each allows what the one before allows.

    LOOK: status, logs, events and metrics. ATTACH: submit and cancel jobs of one's own that run elsewhere, and hold their leases.
    OPERATE: run code as the service's user (jobs with a class or a command), cancel all jobs, drain and clear nodes.
    """

    LOOK = 1
    ATTACH = 2
    OPERATE = 3


class Holder(NamedTuple):
    """Who asks: a user's name (`""` for the owner of the service), and what that user may do."""

    user: str
    right: Right


@dataclass(frozen=True)
class Token:
    """A token that was made, without the token itself.

    Attributes:
        id: the first digits of its hash. made: when, UTC, in seconds (ISO 8601).
    """

    id: str
    user: str
    right: Right
    made: str
    sha256: str


_FILE = TypeAdapter(tuple[Token, ...])
_COMMANDS = TypeAdapter(dict[str, str])


class Tokens:
    """The tokens of a service. Another process may make and revoke some meanwhile: what counts is what the file says now.

    Args:
        folder: of the service; the file in it is for its owner alone.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = os.fspath(folder / TOKENS)
        self._version: tuple[int, ...] = ()
        self._holders: dict[str, Holder] = {}

    def holder(self, bearer: str) -> Holder | None:
        """Whose token this is; None for what is none, and for all where the file is missing or damaged."""
        try:
            status = os.stat(self._path)
            version = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
            if version != self._version:
                self._holders = {token.sha256: Holder(token.user, token.right) for token in self.list()}
                self._version = version
        except (OSError, InputError):
            self._version, self._holders = (), {}
        return self._holders.get(_hash(bearer))  # how long it takes tells of a hash, which nobody can aim at

    def make(self, user: str, right: Right) -> str:
        """Make a token, which nothing shows again. The service's own, of user `""`, replaces the one before.

        Raises:
            InputError: the name cannot be one, or the file cannot be read or written; one line.
        """
        if user and not re.fullmatch(ID_PATTERN[1:-1], user):
            raise InputError(f"a user's name may hold 1 to 64 letters A-Z and a-z, digits, . _ and -, not {describe(user)}")
        bearer = _BEGINS + secrets.token_urlsafe(32)
        hashed, now = _hash(bearer), datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        token = Token(hashed[:_ID_DIGITS], user, right, now, hashed)
        self._change(lambda tokens: (*(other for other in tokens if user or other.user), token))
        return bearer

    def revoke(self, token_id: str) -> Token:
        """Let a token count for nothing from now on.

        Raises:
            InputError: there is none with this id, or the file cannot be read or written; one line.
        """
        revoked = next((token for token in self.list() if token.id == token_id), None)
        if revoked is None:
            raise InputError(f"token {one_line(token_id, 80)}: there is none; `rollmux token list` shows those that there are")
        self._change(lambda tokens: (token for token in tokens if token.id != token_id))
        return revoked

    def list(self) -> tuple[Token, ...]:
        """All tokens, oldest first.

        Raises:
            InputError: the file cannot be read; one line.
        """
        path = self._folder / TOKENS
        if not os.path.lexists(path):
            return ()
        try:
            return _FILE.validate_json(read_text(path))
        except ValidationError as error:
            raise InputError(f"{one_line(str(path), 4096)}: cannot be read: {format_error(problems(error)[0], None)}") from None

    def _change(self, change: Callable[[Iterable[Token]], Iterable[Token]]) -> None:
        """Write the file anew; who changes it at the same time waits."""
        try:
            with open(self._folder / _LOCK, "a", opener=private_opener) as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                write_whole(self._folder / TOKENS, _FILE.dump_json(tuple(change(self.list())), indent=1), private=True)
                (self._folder / TOKENS).chmod(0o600)
        except OSError as error:
            raise InputError(f"{one_line(str(self._folder), 4096)}: cannot be written: {error.strerror or error}") from None


class CommandTokens:
    """The tokens of commands.

    Args:
        folder: of the service, which alone writes the file in it.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / COMMAND_TOKENS
        self._tokens = Tokens(folder)
        self._by_user = self._read()

    def of(self, user: str) -> str:
        """The token of a user's commands: that of before, unless it has been revoked.

        Raises:
            InputError: it has to be made, and the files cannot be written; one line.
        """
        token = self._by_user.get(user)
        if token is not None and self._tokens.holder(token) == Holder(user, Right.ATTACH):
            return token
        token = self._by_user[user] = self._tokens.make(user, Right.ATTACH)
        write_whole(self._path, _COMMANDS.dump_json(self._by_user), private=True)
        self._path.chmod(0o600)
        return token

    def _read(self) -> dict[str, str]:
        """What the file says; where it is damaged, tokens are made anew."""
        try:
            return _COMMANDS.validate_json(read_text(self._path))
        except (InputError, ValidationError):
            return {}


def _hash(bearer: str) -> str:
    return sha256(bearer.encode(errors="surrogatepass")).hexdigest()
