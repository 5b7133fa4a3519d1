"""The Ray actor in which a coordinator runs.

Every process that gets a handle of an actor imports the module of the actor's class. This one imports nothing of RollMux's, so that
the processes of jobs do not load the scheduler.
"""

from importlib import import_module
from typing import Any


class Coordinator:
    """The actor. It makes the coordinator in its own process.

    Args:
        of: Class of the coordinator, as `module:name`. Its public methods are asynchronous.
        *arguments: Arguments of the class.
    """

    def __init__(self, of: str, *arguments: Any) -> None:
        module, _, name = of.partition(":")
        self._coordinator = getattr(import_module(module), name)(*arguments)

    async def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the coordinator.

        Args:
            method: Name of the method.
            *arguments: Arguments of the method.
        """
        return await getattr(self._coordinator, method)(*arguments)


def named(of: type) -> str:
    """Return the name of a coordinator's class, as `Coordinator` takes it."""
    return f"{of.__module__}:{of.__qualname__}"
