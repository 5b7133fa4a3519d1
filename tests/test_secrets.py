"""No command prints a token: a run of each, with a service's token in its environment."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

import rollmux
from runtime.service.operations_log import OPERATIONS
from tests.clients.little_service import TOKEN, serving
from tests.conftest import Command

SECRET = f"rollmux_{TOKEN}_7d1c"
JOBS = (
    "version: 1\njobs: [{id: one, attach: true, iterations: 1, slo: 2, rollout: {worst_case_s: 1}, training: {worst_case_s: 1}}]\n"
)
WORK = "import rollmux_client\nwith rollmux_client.attach() as job:\n    with job.phase('rollout'): pass\n    1 / 0"
ASK = {
    ("submit",): ("jobs.yaml",),
    ("exec",): ("jobs.yaml", "--", "true"),
    ("cancel",): ("one",),
    ("logs",): ("one",),
    ("status",): (),
    ("drain",): ("rollout-0",),
    ("undrain",): ("rollout-0",),
    ("clear",): ("rollout-0",),
    ("quota", "set"): ("ann", "nodes=1"),
    ("quota", "unset"): ("ann",),
    ("quota", "list"): (),
    ("usage",): (),
    ("whatif",): ("--nodes", "training=+1"),
}
"""Arguments of the commands that ask a service of the environment; the others are asked for their help."""


def commands(group: Any, *words: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, one in group.commands.items():
        if hasattr(one, "commands"):
            yield from commands(one, *words, name)
        else:
            yield (*words, name), one


NAMED = dict(commands(typer.main.get_command(rollmux.command())))


def test_all_commands_that_ask_a_service_are_here() -> None:
    modules = {words: sys.modules[one.callback.__module__] for words, one in NAMED.items()}
    assert ASK.keys() == {words for words, module in modules.items() if "connected(" in inspect.getsource(module)}


@pytest.mark.parametrize("words", NAMED, ids=" ".join)
def test_no_command_prints_a_token(
    words: tuple[str, ...], command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("runtime.commands.executing._PAUSES_S", ())
    monkeypatch.setattr("tests.clients.little_service.TOKEN", SECRET)
    (tmp_path / "jobs.yaml").write_text(JOBS)
    asks = ASK.get(words)
    with serving({"one": 1}) as little:
        monkeypatch.setenv("ROLLMUX_URL", little.url)
        for token in (SECRET, f"{SECRET}\n", f"{SECRET}x", f"{SECRET}\nx") if asks is not None else (SECRET,):
            for redirect in (None, "https://rollmux.example.org"):
                little.redirect, little.jobs["one"].state = redirect, "done"  # nothing waits for its end
                monkeypatch.setenv("ROLLMUX_TOKEN", token)
                _, out, err = command(*words, *(("--help",) if asks is None else asks))
                assert SECRET not in out + err


def test_no_command_of_exec_is_shown_a_token_in_its_errors(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jobs.yaml").write_text(JOBS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tests.clients.little_service.TOKEN", SECRET)
    monkeypatch.setenv("ROLLMUX_TOKEN", f"{SECRET}\n")
    with serving({}) as little:
        monkeypatch.setenv("ROLLMUX_URL", little.url)
        status, out, err = command("exec", "jobs.yaml", "--", "sh", "-c", '"$0" -c "$1" >said 2>&1', sys.executable, WORK)
        assert status == 1 and len(little.granted) == 1
    said = Path("said").read_text()
    assert "ZeroDivisionError" in said and SECRET not in out + err + said


def test_no_webhook_is_in_the_log_of_operations(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has the URL of a hook may post to it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "service.json").write_text("{}")
    status, _, said = command("webhook", "set", f"https://user:{SECRET}@hooks.example.org/services/{SECRET}", "--at", ".")
    assert status == 2 and SECRET not in said
    assert command("webhook", "set", f"https://hooks.example.org/services/{SECRET}", "--at", ".")[0] == 0
    log = (tmp_path / OPERATIONS).read_text()
    assert "hooks.example.org" in log and SECRET not in log


def test_no_script_prints_a_token(tmp_path: Path) -> None:
    script = "import rollmux_client\nwith rollmux_client.attach(): pass"
    for token, url in ((f"{SECRET}\nx", "http://127.0.0.1:1"), (SECRET, "http://127.0.0.1:eighty"), (SECRET, "")):
        variables = {"ROLLMUX_TOKEN": token, "ROLLMUX_URL": url, "ROLLMUX_JOB": "one"}
        done = subprocess.run(
            [sys.executable, "-c", script], env=variables, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert SECRET not in done.stdout + done.stderr and done.returncode == int(bool(url))
