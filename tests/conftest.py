"""What tests of several packages need: the command, run in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

import rollmux

Command = Callable[..., tuple[int, str, str]]

settings.register_profile("rollmux", deadline=None)  # no test depends on how busy the machine is
settings.load_profile("rollmux")

RUNTIME = Path(__file__).parent / "runtime"


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Under pytest-xdist one process has all tests of the runtime, which start Rays and engines; the others share the rest."""
    for item in items:
        if item.path.is_relative_to(RUNTIME):
            item.add_marker(pytest.mark.xdist_group("runtime"))


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run `rollmux ARGUMENTS` here: (status, standard output, standard error)."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["rollmux", *arguments])
        with pytest.raises(SystemExit) as left:
            rollmux.main()
        printed = capsys.readouterr()
        return int(left.value.code or 0), printed.out, printed.err

    return run
