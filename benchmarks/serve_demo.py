"""A service with five small jobs: one is cancelled, one loses a process, one has an error in its code, and one is moved.

python benchmarks/serve_demo.py

It has two pairs of nodes, which are raylets on this machine. It runs the commands that a user types, and prints their output. The
exit status is 1 if an iteration of a surviving job was lost or counted twice.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chaos_cluster import Pools

from rollmux_env.cluster.events import Moved
from runtime.journal.audit import audit
from runtime.journal.write import JOURNAL, read_facts, read_run

HERE = Path(__file__).parent
FIRST = """version: 1
defaults: {{folder: {here}, class: "serve_demo_jobs:CountingJob", iterations: 30, slo: 1000, checkpoint: {{every: 1}}}}
jobs:
  - {{id: early}}
  - {{id: strict, slo: 1.45, iterations: 1000}}
"""
SECOND = """version: 1
defaults: {{folder: {here}, class: "serve_demo_jobs:CountingJob", iterations: 15, slo: 1000, checkpoint: {{every: 1}}}}
jobs:
  - {{id: late}}
  - {{id: killed}}
  - {{id: poisoned, options: {{breaks_at: 3}}}}
"""
_PATIENCE_S = 300.0


class Shell:
    """Runs commands as a user types them, and prints them.

    Args:
        folder: Folder of the service.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            **os.environ,
            "ROLLMUX_SERVICE": str(folder),
            "ROLLMUX_CACHE": str(folder.parent / "cache"),
            "COLUMNS": "110",
        }

    def type(self, *arguments: str) -> None:
        """Print a command, run it, and print its output."""
        print(f"$ rollmux {' '.join(Path(one).name if '/' in one else one for one in arguments)}")
        print(self._run(*arguments), flush=True)

    def until(self, what: Callable[[dict[str, dict[str, Any]]], bool]) -> None:
        """Wait until a condition holds for the jobs in the output of `status`."""
        until_s = time.monotonic() + _PATIENCE_S
        while not what(jobs := {job["id"]: job for job in json.loads(self._run("status", "--format", "json"))["jobs"]}):
            if time.monotonic() > until_s:
                raise TimeoutError(f"the jobs do not come to it: {jobs}")
            time.sleep(0.2)

    def _run(self, *arguments: str) -> str:
        command = [sys.executable, "-c", "import rollmux; rollmux.main()", *arguments]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, check=True).stdout


def show(shell: Shell, address: str) -> bool:
    """Run the whole demonstration, and return whether every iteration was counted once."""
    first, second = shell.folder.parent / "first.yaml", shell.folder.parent / "second.yaml"
    first.write_text(FIRST.format(here=HERE))
    second.write_text(SECOND.format(here=HERE))
    options = ["--policy", "consolidate", "--cluster", str(HERE / "serve_demo_cluster.yaml"), "--address", address]
    command = [sys.executable, "-u", "-c", "import rollmux; rollmux.main()", "serve", str(shell.folder), *options]
    server = subprocess.Popen(command, env=shell.environment, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        while "serving from" not in (line := server.stdout.readline()):
            if not line:
                raise RuntimeError("the service does not start")
        shell.type("submit", str(first))
        shell.until(lambda jobs: all(job["iteration"] > 1 for job in jobs.values()))
        shell.type("submit", str(second))
        shell.until(lambda jobs: jobs["poisoned"]["state"] == "failed" and jobs["killed"]["iteration"] > 2)
        shell.type("status")
        pid = next(int(done.metrics["pid"]) for done in read_run(shell.folder).iterations[::-1] if done.job_id == "killed")
        print(f"$ kill -9 {pid}  # the training process of the job `killed`\n")
        os.kill(pid, signal.SIGKILL)
        shell.type("cancel", "strict")
        shell.until(lambda jobs: any(fact for fact in moves(shell.folder)) and jobs["killed"]["state"] == "running")
        shell.type("status")
        shell.until(lambda jobs: all(job["state"] in ("done", "failed", "cancelled") for job in jobs.values()))
        shell.type("status")
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()
    return report(shell.folder)


def moves(folder: Path) -> list[Moved]:
    """Return the moves in the journal."""
    return [event for event in read_run(folder).log if isinstance(event, Moved)]


def report(folder: Path) -> bool:
    """Print what the journal contains, and return whether no iteration was lost or counted twice."""
    record, result = read_run(folder), audit(read_facts(folder / JOURNAL))
    for move in moves(folder):
        print(f"moved: {move.job_id}, at {move.at_s:.1f} s")
    for restarted in record.restarted:
        print(
            f"restarted: {restarted.job_id}, at {restarted.at_s:.1f} s, from iteration {restarted.iteration + 1}: {restarted.why}"
        )
    once = True
    for spec in (fact.spec for fact in record.submitted):
        counts = [int(done.metrics["count"]) for done in record.iterations if done.job_id == spec.id]
        once &= counts == [*range(1, len(counts) + 1)]
        print(f"{spec.id}: {len(counts)} iterations, {'each counted once' if counts == [*range(1, len(counts) + 1)] else counts}")
    print(f"audit of the journal: {'nothing lost or doubled' if not result.problems else result.problems}")
    return once and not result.problems


def main() -> int:
    """Run the demonstration, and return the exit status."""
    home = Path(tempfile.mkdtemp(prefix="rollmux-demo-", dir="/tmp"))  # a short path, since Ray's sockets are there
    os.environ.update({"RAY_TMPDIR": str(home), "RAY_USAGE_STATS_ENABLED": "0"})
    pools = Pools(2)
    try:
        pools.start()
        return 0 if show(Shell(home / "service"), pools.cluster.address) else 1
    finally:
        pools.stop()
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
