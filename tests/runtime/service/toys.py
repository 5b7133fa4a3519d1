"""The policy of the service in `tests/fixtures`, as its journal names it."""

from __future__ import annotations

from tests.runtime.toy_policies import MoveOnce


class MoveOne(MoveOnce):
    mover = "moved"
