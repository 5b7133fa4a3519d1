"""`rollmux serve` and what asks about it, as a user runs them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runtime.journal.write import DRIVER_LOCK, read_run
from runtime.machines.own_ray import MARK, end_processes
from runtime.service.address import find
from tests.children import Child
from tests.conftest import Command
from tests.runtime.modes import others_may_read
from tests.runtime.sockets import listens_only_on_loopback

TOYS = Path(__file__).parents[1]
JOBS = """
version: 1
defaults: {{slo: 5, folder: {folder}, class: "toy_jobs:Counter", options: {{rollout_s: 0.05, train_s: 0}}}}
jobs:
  - {{id: talks, iterations: 60}}
  - {{id: endless, iterations: 100000}}
"""
PATIENCE_S = 240.0


class Shell:
    """Runs commands with the cache and the service folder of a test."""

    def __init__(self, folder: Path) -> None:
        self.service = folder / "service"
        self.environment = {**os.environ, "ROLLMUX_CACHE": str(folder / "cache"), "ROLLMUX_SERVICE": str(self.service)}
        self.said = folder / "said.txt"  # by the last one that was started
        self._servers: list[subprocess.Popen[bytes]] = []

    def run(self, *arguments: str) -> tuple[int, str, str]:
        command = [sys.executable, "-m", "rollmux", *arguments]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        return done.returncode, done.stdout, done.stderr

    def start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-u", "-m", "rollmux", "serve", str(self.service)]
        with self.said.open("w") as file:
            server = subprocess.Popen(command, env=self.environment, stdout=file, stderr=file, start_new_session=True)
        self._servers.append(server)
        return server

    def serve(self) -> subprocess.Popen[bytes]:
        server, until_s = self.start(), time.monotonic() + PATIENCE_S
        while "serving from" not in self.said.read_text():
            assert server.poll() is None and time.monotonic() < until_s, self.said.read_text()
            time.sleep(0.2)
        return server

    def stream(self, *arguments: str) -> Child[str]:
        command = [sys.executable, "-m", "rollmux", *arguments]
        pipe = subprocess.PIPE
        return Child(command, env=self.environment, stdout=pipe, stderr=pipe, text=True)

    def jobs(self) -> dict[str, dict[str, object]]:
        status, out, err = self.run("status", "--format", "json")
        assert status == 0, err
        return {job["id"]: job for job in json.loads(out)["jobs"]}

    def end(self) -> None:
        where = find(self.service)
        for server in self._servers:
            if server.poll() is None:
                server.send_signal(signal.SIGTERM)
                server.wait(timeout=PATIENCE_S)
        if where is not None and where.ray is not None and where.ray.home is not None:
            end_processes(where.ray.home, grace_s=0.0)


def processes_of(ray_folder: str) -> list[str]:
    """Ids of the processes that were started with a Ray's folder in their environment, whether it is still there or not."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and f"{MARK}={ray_folder}\0".encode() in (entry / "environ").read_bytes():
                found.append(entry.name)
    return found


@pytest.mark.long
def test_a_service_outlives_the_command_that_started_it_and_goes_on_after_a_stop(tmp_path: Path) -> None:
    (tmp_path / "jobs.yaml").write_text(JOBS.format(folder=TOYS))
    shell = Shell(tmp_path)
    try:
        server = shell.serve()
        where = find(shell.service)
        assert where is not None and where.ray is not None and where.ray.token is not None and where.ray.home is not None
        assert Path(where.ray.token).stat().st_mode & 0o777 == 0o600
        assert listens_only_on_loopback(where.ray.home)
        status, out, err = shell.run("submit", str(tmp_path / "jobs.yaml"))
        assert (status, out, err) == (0, "submitted: talks, endless\n", "")
        status, _, err = shell.run("serve", str(shell.service))
        assert status == 2 and "under way in this folder" in err
        os.kill(server.pid, signal.SIGKILL)
        server.wait()
        assert shell.run("cancel", "endless") == (0, "cancelled: endless\n", "")
        server = shell.serve()  # finds it alive
        assert find(shell.service) == where
        with shell.stream("status", "--watch") as watching:
            assert watching.stdout and watching.stderr
            assert watching.stdout.readline() and "talks" in "".join(watching.stdout.readline() for _ in range(6))
            watching.send_signal(signal.SIGTERM)
            watching.stdout.read()
            assert (watching.wait(timeout=PATIENCE_S), watching.stderr.read()) == (130, "")
        with shell.stream("status", "--watch", "--format", "json") as watching:
            assert watching.stdout and watching.stderr
            assert watching.stdout.readline() == "{\n"
            watching.stdout.close()  # as `| head -1` does
            assert (watching.wait(timeout=PATIENCE_S), watching.stderr.read()) == (1, "")
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=PATIENCE_S) == 0
        assert (
            not processes_of(where.ray.home.path) and not Path(where.ray.home.path).exists() and not Path(where.ray.token).exists()
        )
        status, out, err = shell.run("status")
        assert (status, err) == (0, "") and f"{shell.service}: rollmux,switches=true, round-robin, stopped at " in " ".join(
            out.split()
        )
        assert "cancelled" in out
        shell.serve()
        again = find(shell.service)
        assert again is not None and (again.url, again.token) == (where.url, where.token)  # clients find it again
        status, out, _ = shell.run("logs", "talks", "--follow")
        assert status == 0
        assert any(line == "controller | trained 60 times" for line in out.splitlines())
        assert not others_may_read(shell.service)
        assert "  iteration 60 of 60: " in out and out.splitlines()[-1].endswith("  done")
        jobs = shell.jobs()
        assert (jobs["talks"]["state"], jobs["talks"]["iteration"], jobs["endless"]["state"]) == ("done", 60, "cancelled")
    finally:
        shell.end()
    record = read_run(shell.service)
    assert [done.number for done in record.iterations if done.job_id == "talks"] == [*range(60)]


def test_a_service_that_is_told_to_stop_while_its_ray_starts_leaves_nothing_behind(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    try:
        server = shell.start()
        while (
            (where := find(shell.service) if shell.service.is_dir() else None) is None
            or where.ray is None
            or not where.ray.answers()
        ):
            assert server.poll() is None, shell.said.read_text()
            time.sleep(0.05)
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=PATIENCE_S) == 130 and shell.said.read_text() == "stopped at once\n"
        assert where.ray.home is not None and not processes_of(where.ray.home.path) and not Path(where.ray.home.path).exists()
        assert {path.name for path in shell.service.iterdir()} == {DRIVER_LOCK}
    finally:
        shell.end()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["status"], "no service runs there; `rollmux serve"),
        (["cancel", "a"], "no service runs there"),
        (["logs", "a"], "no service runs there"),
        (["logs", "a", "--follow"], "no service runs there"),
        (["status", "--at", "empty.yaml"], "rollmux: --at empty.yaml: is a file, not the folder of a service"),
        (["logs", "a", "--at", "empty.yaml"], "is a file"),
        (["token", "list", "--at", "empty.yaml"], "is a file"),
        (["serve", "x", "--policy", "optimal"], "no one could run it"),
        (["serve", "x", "--cluster", "missing.yaml"], "missing.yaml"),
        (["serve", "--out", "x"], "--out: is for `rollmux run`; the folder of a service is its argument: `rollmux serve x`"),
        (["serve", "x", "--cluster", "empty.yaml"], "empty.yaml: cluster: is missing"),
        (["serve", "x", "--cluster", "wrong.yaml"], "wrong.yaml: cluster."),
        (["serve", "empty.yaml"], "rollmux: empty.yaml: File exists"),
        (
            ["whatif", "x", "--since", "7d"],
            "--since: is for services and runs; x is neither a folder nor a file of `rollmux bundle`",
        ),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str], problem: str
) -> None:
    monkeypatch.delenv("ROLLMUX_SERVICE", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.yaml").write_text("version: 1\n")
    (tmp_path / "wrong.yaml").write_text("cluster: {rollout: {gpus_per_node: -1}}\n")
    status, out, err = command(*arguments)
    assert (status, out) == (2, "") and problem in err and err.count("\n") == 1, err
    assert {path.name for path in tmp_path.iterdir()} == {"empty.yaml", "wrong.yaml"}


def test_a_folder_whose_service_could_not_listen_is_no_runs(command: Command, tmp_path: Path) -> None:
    folder = tmp_path / "service"
    with socket.create_server(("127.0.0.1", 0)) as other:
        where = f"127.0.0.1:{other.getsockname()[1]}"
        status, _, err = command("serve", str(folder), "--no-ray", "--http", where)
    assert (status, err) == (2, f"rollmux: --http {where}: Address already in use\n")
    status, out, err = command("status", "--at", str(folder))
    assert (status, err) == (0, "") and f"`rollmux serve {folder} --no-ray` continues it" in " ".join(out.split())
    status, _, err = command("run", "--resume", str(folder))
    assert status == 2 and f"{folder}: holds a service, and no run; `rollmux serve {folder} --no-ray` continues it" in err
