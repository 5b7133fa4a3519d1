"""A little service, and an environment that points to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clients.little_service import TOKEN, LittleService, serving


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[LittleService]:
    """It has the jobs `one` and `other`, of three iterations, and the environment names it and the first."""
    with serving({"one": 3, "other": 3}) as little:
        monkeypatch.setenv("ROLLMUX_URL", little.url)
        monkeypatch.setenv("ROLLMUX_TOKEN", TOKEN)
        monkeypatch.setenv("ROLLMUX_JOB", "one")
        yield little
