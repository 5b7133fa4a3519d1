"""Environments with some extras installed, and every command in them: what it needs, and what comes of it.

A new command is added to `cases`; `tests/test_extras.py` walks it through all of them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import typer
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import rollmux

ROOT = Path(__file__).parents[1]
HIDING = ROOT / "tests" / "hidden_extras"
COMBINATIONS = ("", "train", "serve", "run", "run,train")
"""Extras that are installed together, as the pages say: `pip install '.[EXTRAS]'`."""
ALONE = (
    "validate",
    "schema",
    "workload",
    "examples",
    "plan",
    "bench",
    "explain",
    "trace",
    "shapes",
    "allocate",
    "whatif",
    "token",
    "journal",
)
"""Commands in whose modules nothing depends on an extra: what they do without one they do with more."""
SCRIPT = "import rollmux_client\nwith rollmux_client.attach() as job:\n    for _ in job.iterations():\n        pass\n"
ENTRY = "{{id: {}, attach: true, iterations: 1, slo: 4, rollout: {{worst_case_s: 1}}, training: {{worst_case_s: 1}}}}"


class Case(NamedTuple):
    """A command line, and what it does.

    Attributes:
        words: Arguments of `rollmux`.
        needs: Extra without which the command says what to install, or an empty text.
        says: Part of the one line with which it ends where it has what it needs, or an empty text: it does its work.
    """

    words: tuple[str, ...]
    needs: str = ""
    says: str = ""


def paths() -> set[tuple[str, ...]]:
    """Return the words that lead to each command, as the application has them: `("journal", "check")`."""
    return {*_paths(typer.main.get_command(rollmux.command()), ())}


def _paths(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    below = getattr(command, "commands", {})
    if not below or command.invoke_without_command:
        yield path
    for name, sub in below.items():
        yield from _paths(sub, (*path, name))


def cases(folder: Path, service: Path, prefix: str) -> dict[tuple[str, ...], list[Case]]:
    """Return what to run of each command.

    Args:
        folder: Working folder of the commands; files that they read are written here.
        service: Folder of a service that is running.
        prefix: Beginning of the ids of jobs, of letters.
    """
    for name in ("finished-run", "attached-service"):
        shutil.copytree(ROOT / "tests" / "fixtures" / name, folder / name)
    (folder / "jobs.yaml").write_text(f"version: 1\njobs: [{ENTRY.format(prefix + '-submitted')}]\n")
    (folder / "own.yaml").write_text(f"version: 1\njobs: [{ENTRY.format(prefix + '-own')}]\n")
    (folder / "own.py").write_text(SCRIPT)
    at = ("--at", str(service))
    held = "a run is under way in this folder"
    return {
        ("validate",): [Case(("validate", "quickstart"))],
        ("schema",): [Case(("schema",))],
        ("workload",): [Case(("workload", "production", "--set", "jobs=3", "--out", "stream.yaml"))],
        ("examples",): [Case(("examples",))],
        ("examples", "copy"): [Case(("examples", "copy", "first_fit"))],
        ("plan",): [Case(("plan", "quickstart", "--policy", "learned:default"))],
        ("bench",): [Case(("bench", "quickstart", "--out", "bench"))],
        ("explain",): [Case(("explain", "quickstart", "--job", "code-7b"))],
        ("trace",): [Case(("trace", "quickstart", "--out", "pictures"))],
        ("shapes",): [Case(("shapes", "models", "--job", "math-7b"))],
        ("allocate",): [Case(("allocate", "7B", "--budget", "H800=8,H20=8"))],
        ("whatif",): [Case(("whatif", "max_nodes", "--nodes", "training=+1"))],
        ("train",): [Case(("train", "toy", "--set", "nothing=1"), "train", "nothing")],
        ("run",): [
            Case(("run", "two_jobs", "--compare", "solo", "--dry-run"), "run", "--dry-run, which runs nothing"),
            Case(("run", "--resume", "finished-run"), "run", "this run is done"),
        ],
        ("compare",): [Case(("compare", "finished-run"))],
        ("serve",): [
            Case(("serve", str(service), "--no-ray"), "serve", held),
            Case(("serve", str(service)), "run", held),
        ],
        ("submit",): [Case(("submit", "jobs.yaml", "--dry-run", *at)), Case(("submit", "jobs.yaml", *at))],
        ("status",): [
            Case(("status", *at)),
            Case(("status", "--at", "attached-service")),
            Case(("status", "--at", "nowhere"), says="no service runs there"),
        ],
        ("logs",): [Case(("logs", f"{prefix}-submitted", *at), says="no process of such a job has begun")],
        ("cancel",): [Case(("cancel", f"{prefix}-submitted", *at))],
        ("drain",): [Case(("drain", "rollout-0", *at))],
        ("undrain",): [Case(("undrain", "rollout-0", *at))],
        ("clear",): [Case(("clear", "rollout-0", *at), says="rollout-0")],
        ("quota", "set"): [Case(("quota", "set", "ann", "nodes=4", *at))],
        ("quota", "list"): [Case(("quota", "list", *at))],
        ("quota", "unset"): [Case(("quota", "unset", "ann", *at))],
        ("usage",): [Case(("usage", *at)), Case(("usage", "--at", "attached-service"))],
        ("webhook", "set"): [Case(("webhook", "set", "http://127.0.0.1:9/notices", *at))],
        ("webhook", "unset"): [Case(("webhook", "unset", *at))],
        ("samples",): [Case(("samples", "a", *at), says="there are no samples of it")],
        ("export",): [Case(("export", "finished-run", "a", "--to", "model"), "run", "a")],
        ("bundle",): [Case(("bundle", "finished-run", "--out", "bundle.zip"))],
        ("profile",): [Case(("profile", "nowhere.yaml"), "run", "nowhere.yaml")],
        ("doctor",): [Case(("doctor",)), Case(("doctor", "--format", "json"))],
        ("exec",): [Case(("exec", "own.yaml", *at, "--", sys.executable, "own.py"))],
        ("mcp",): [Case(("mcp", *at), "mcp")],
        ("openenv",): [Case(("openenv", "mixed"), "openenv")],
        ("journal", "replay"): [Case(("journal", "replay", "finished-run"))],
        ("journal", "check"): [Case(("journal", "check", "finished-run"))],
        ("journal", "audit"): [Case(("journal", "audit", "finished-run"))],
        ("token", "make"): [Case(("token", "make", "ann", "--right", "look", *at))],
        ("token", "list"): [Case(("token", "list", *at))],
        ("token", "revoke"): [Case(("token", "revoke", "0123456789ab", *at), says="0123456789ab")],
    }


def has(extras: str, extra: str) -> bool:
    """Return whether a combination of extras has all that an extra brings."""
    installed = extras.split(",")
    return not extra or extra in installed or (extra == "serve" and "run" in installed)


@cache
def hidden_modules(extras: str) -> str:
    """Return the modules, with commas between, that this environment has and one with these extras alone would not have."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = [*project["dependencies"], *(one for extra in filter(None, extras.split(",")) for one in _of_extra(project, extra))]
    kept = {"rollmux", "rollmux-client"}
    _keep(asked, kept)
    by_module = metadata.packages_distributions()
    return ",".join(name for name, owners in by_module.items() if kept.isdisjoint(map(canonicalize_name, owners)))


def _of_extra(project: dict[str, Any], extra: str) -> list[str]:
    found: list[str] = project["optional-dependencies"][extra]
    return found


def _keep(asked: Sequence[str], kept: set[str]) -> None:
    """Add the names of what is asked for, and of all that these distributions need."""
    for requirement in map(Requirement, asked):
        name = canonicalize_name(requirement.name)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        if name not in kept:
            kept.add(name)
            _keep(metadata.requires(name) or (), kept)


def environment(extras: str) -> dict[str, str]:
    """Return the environment of a Python in which these extras alone are installed."""
    path = os.pathsep.join((str(HIDING), str(ROOT), str(ROOT / "clients" / "python")))
    names = ("ROLLMUX_SERVICE", "ROLLMUX_URL", "ROLLMUX_TOKEN")
    kept = {name: value for name, value in os.environ.items() if name not in names}
    return {**kept, "PYTHONPATH": path, "ROLLMUX_TEST_HIDDEN": hidden_modules(extras)}


def installed(folder: Path, extras: str, but: Sequence[str] = ()) -> Path:
    """Install a copy of the tree with some extras into a new virtual environment.

    Args:
        folder: Folder of the environment, which is made.
        extras: Extras, with commas between.
        but: Names of distributions whose version in constraints.txt does not hold.

    Returns:
        The command `rollmux` of the environment.
    """
    venv.create(folder, with_pip=True)
    source = folder / "source"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    wanted = f"{source}[{extras}]" if extras else str(source)
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "constraints.txt").write_text("".join(pin for pin in pins if pin.partition("==")[0] not in but))
    command = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "-c", "constraints.txt", wanted]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "bin" / "rollmux"


class Walker:
    """A process that runs commands where some extras are installed; what no extra brings is imported once."""

    def __init__(self) -> None:
        command = [sys.executable, str(HIDING / "walk.py")]
        self._process = subprocess.Popen(command, env=environment(""), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def outcomes(self, words: Sequence[Sequence[str]], folder: Path, extras: str = "") -> list[dict[str, Any]]:
        """Run commands one after the other.

        Args:
            words: Arguments of `rollmux` of each command.
            folder: Working folder.
            extras: Extras that are installed, with commas between.

        Returns:
            Of each command, its `status`, and what it printed: `out` and `err`.
        """
        asked = {"env": environment(extras), "folder": str(folder), "words": words}
        sent, answered = self._process.stdin, self._process.stdout
        assert sent is not None and answered is not None
        sent.write(json.dumps(asked) + "\n")
        sent.flush()
        found: list[dict[str, Any]] = json.loads(answered.readline())
        return found

    def close(self) -> None:
        """End the process."""
        self._process.communicate()
