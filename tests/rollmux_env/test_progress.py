"""What takes long says how far it is, what ends soon says nothing."""

from __future__ import annotations

import pytest

from rollmux_env import progress
from rollmux_env.progress import ProgressLines


def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], terminal: bool, until_s: int) -> str:
    """What is printed in so many seconds."""
    now_s = [0.0]
    monkeypatch.setattr(progress, "monotonic", lambda: now_s[0])
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    with ProgressLines("counting") as counting:
        for second in range(until_s):
            now_s[0] = float(second)
            counting.report(f"{second} s")
    return capsys.readouterr().err


def test_a_file_gets_a_line_a_minute(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(monkeypatch, capsys, False, 10) == ""
    assert said(monkeypatch, capsys, False, 131) == "counting: 10 s\ncounting: 70 s\ncounting: 130 s\n"


def test_a_line_on_a_terminal_is_written_over_and_then_removed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said(monkeypatch, capsys, True, 3) == ""
    assert said(monkeypatch, capsys, True, 5) == "\rcounting: 3 s\033[K\rcounting: 4 s\033[K\r\033[K"
