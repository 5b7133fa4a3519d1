"""What tests of several packages need: the command, run in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from hypothesis import settings

import rollmux

Command = Callable[..., tuple[int, str, str]]

settings.register_profile("rollmux", deadline=None)  # no test depends on how busy the machine is
settings.load_profile("rollmux")


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
