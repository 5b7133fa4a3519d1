"""The wait of `rollmux serve` between starts after a roll-over. No user has asked for these, so one that fails is repeated."""

from __future__ import annotations

from collections.abc import Callable

from rollmux_env.errors import InputError
from runtime.signals import pause

_AGAIN_S = 5.0


class Patience:
    """A wait between repeated starts of a service.

    Args:
        say: Callback for a line about a start that has failed.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._last = ""

    def wait(self, error: InputError) -> None:
        """Wait until the next start, and say why the last one has failed, unless that was said before.

        Args:
            error: Reason of the failure, for example a full disk.

        Raises:
            KeyboardInterrupt: If the user asks for the end.
        """
        if str(error) != self._last:
            self._last = str(error)
            self._say(f"{error}; the start is repeated every {_AGAIN_S:g} s")
        pause(_AGAIN_S)
