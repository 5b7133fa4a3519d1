"""The state of a cluster as a user's policy sees it: a copy that cannot be changed."""

from __future__ import annotations

from copy import copy
from typing import NoReturn

from rollmux_env.cluster.state import State
from rollmux_env.kernel.tables import View
from rollmux_env.user_code import read_only

_ARRAYS = ("nodes", "busy_before_s")
_TABLES = ("jobs", "groups", "order", "departs_s", "node_columns")


class Snapshot(State):
    """A state as it was when a user's policy was asked.

    Nothing of it is shared with the state that a replay or a run accounts from. Its attributes cannot be set, and its arrays are
    read-only, so that a policy that writes by mistake fails at that line. `view` has what compiled code takes, and `copy` gives a
    state that `apply` changes.

    Args:
        state: State to copy.
    """

    _twin: State

    def __init__(self, state: State) -> None:
        twin = state.copy()
        twin.limits = twin.limits._replace(pools=twin.limits.pools.copy())
        twin.pools, twin.prices = dict(twin.pools), list(twin.prices)
        self.__dict__.update(vars(twin), _twin=twin)
        shown = self.__dict__
        shown["limits"] = twin.limits._replace(pools=read_only(twin.limits.pools))
        for name in _ARRAYS:
            shown[name] = read_only(shown[name])
        tables = shown["tables"] = copy(twin.tables)
        for name in _TABLES:
            setattr(tables, name, read_only(getattr(tables, name)))

    @property
    def view(self) -> View:
        """The state in the form that compiled code takes."""
        return self._twin.view

    def copy(self) -> State:
        """Return an independent state, which `apply` may change."""
        return self._twin.copy()

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"'{name}' of the state cannot be set: a policy reads the state, and only `apply` writes it")
