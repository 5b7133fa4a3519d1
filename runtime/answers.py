"""The kinds of `InputError` with which a coordinator refuses; a service's face over HTTP answers each with a status of its own."""

from __future__ import annotations

from rollmux_env.errors import InputError


class NotFound(InputError):
    """There is no such job, lease or node. One line."""


class Conflict(InputError):
    """It is not possible in the state that things are in now. One line."""


class Unprocessable(InputError):
    """A job that cannot be. One line."""


class TooMany(InputError):
    """Above a limit. One line."""


class NotAllowed(InputError):
    """The holder of this token may not. One line."""
