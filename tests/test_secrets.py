"""No command prints a token: a run of each, with a service's token in its environment."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

import rollmux
from tests.clients.little_service import TOKEN, serving
from tests.conftest import Command

SECRET = f"rollmux_{TOKEN}_7d1c"
JOBS = (
    "version: 1\njobs: [{id: one, attach: true, iterations: 1, slo: 2, rollout: {worst_case_s: 1}, training: {worst_case_s: 1}}]\n"
)
ASK = {
    "submit": ("jobs.yaml",),
    "exec": ("jobs.yaml", "--", sys.executable, "-c", "import rollmux_client; rollmux_client.attach().__enter__()"),
    "cancel": ("one",),
    "logs": ("one",),
    "status": (),
    "drain": ("rollout-0",),
    "undrain": ("rollout-0",),
}
"""Arguments of the commands that ask a service of the environment; the others are asked for their help."""


def commands(group: Any, *words: str) -> Iterator[tuple[str, ...]]:
    for name, one in group.commands.items():
        if hasattr(one, "commands"):
            yield from commands(one, *words, name)
        else:
            yield (*words, name)


def named() -> list[tuple[str, ...]]:
    return [*commands(typer.main.get_command(rollmux.command()))]


def test_all_commands_that_ask_a_service_are_here() -> None:
    assert ASK.keys() <= {words[0] for words in named()}


@pytest.mark.parametrize("words", named(), ids=" ".join)
def test_no_command_prints_a_token(
    words: tuple[str, ...], command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("runtime.commands.executing._PAUSES_S", ())
    monkeypatch.setattr("tests.clients.little_service.TOKEN", SECRET)
    (tmp_path / "jobs.yaml").write_text(JOBS)
    asks = ASK.get(words[0]) if len(words) == 1 else None
    with serving({"one": 1}) as little:
        monkeypatch.setenv("ROLLMUX_URL", little.url)
        for token in (SECRET, f"{SECRET}\n", f"{SECRET}x", f"{SECRET}\nx") if asks is not None else (SECRET,):
            for redirect in (None, "https://rollmux.example.org"):
                little.redirect, little.jobs["one"].state = redirect, "done"  # nothing waits for its end
                monkeypatch.setenv("ROLLMUX_TOKEN", token)
                _, out, err = command(*words, *(("--help",) if asks is None else asks))
                assert SECRET not in out + err


def test_no_script_prints_a_token(tmp_path: Path) -> None:
    script = "import rollmux_client\nwith rollmux_client.attach(): pass"
    for token, url in ((f"{SECRET}\nx", "http://127.0.0.1:1"), (SECRET, "http://127.0.0.1:eighty"), (SECRET, "")):
        variables = {"ROLLMUX_TOKEN": token, "ROLLMUX_URL": url, "ROLLMUX_JOB": "one"}
        done = subprocess.run(
            [sys.executable, "-c", script], env=variables, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert SECRET not in done.stdout + done.stderr and done.returncode == int(bool(url))
