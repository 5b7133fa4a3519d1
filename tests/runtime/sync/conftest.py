"""Members of a sync in one process are on machines of their own."""

from __future__ import annotations

import pytest

from runtime.sync import wire
from tests.runtime.sync import members


@pytest.fixture(autouse=True)
def _machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "memory_id", members.memory_id)
