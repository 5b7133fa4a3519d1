"""Tokens with which commands ask the service that has started them: one of each user, which may do what that user may by attaching.

They are kept in a file for the service's owner alone, so that a service that goes on makes none anew, and a command that has
outlived the one before has the same as those that are started now.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from rollmux_env.errors import InputError
from rollmux_env.files import read_file, write_whole
from runtime.service.tokens import Holder, Right, Tokens

COMMAND_TOKENS = "command_tokens.json"

_FILE = TypeAdapter(dict[str, str])


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
        write_whole(self._path, _FILE.dump_json(self._by_user), private=True)
        self._path.chmod(0o600)
        return token

    def _read(self) -> dict[str, str]:
        """What the file says; where it is damaged, tokens are made anew."""
        try:
            return _FILE.validate_json(read_file(self._path))
        except (InputError, ValidationError):
            return {}
