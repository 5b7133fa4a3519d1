"""The code of a job runs in its own processes, on real Ray: a bad one fails alone, also when the journal is taken up again."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from runtime.journal.write import read_run
from tests.runtime.service.conftest import Serving
from tests.runtime.service.test_service import SLEEPER, over

# Whoever imports it leaves the title of the process, made of the actor's class, and whether the scheduler is loaded there.
SEEN = """
import sys
from pathlib import Path

with Path(__file__).with_name("seen").open("a") as file:
    loads = "scheduler" if "rollmux_env.scheduler.core" in sys.modules else ""
    file.write(Path("/proc/self/cmdline").read_text().partition(chr(0))[0].partition(".")[0] + loads + "\\n")
"""
JOB = """
import rollmux


class Strange(float):
    pass


class Trouble(Exception):
    def __str__(self):
        raise Trouble


class Worker:
    def __init__(self, fails):
        if fails:
            raise Trouble


class Job:
    def __init__(self, fails=""):
        self.fails = fails
        self.made = False

    @rollmux.phase("rollout")
    def rollout(self):
        if not self.made:
            self.made = True
            node = rollmux.runtime_hook.nodes("rollout")[0]
            rollmux.runtime_hook.start_worker(node, "{module}:Worker", self.fails == "worker")
        rollmux.runtime_hook.progress(Strange(1), Strange(2), Strange(3))

    @rollmux.phase("train")
    def train(self):
        rollmux.runtime_hook.metrics["strange"] = Strange(2.5)
        if self.fails == "train":
            raise Trouble
        if self.fails == "metrics":
            rollmux.runtime_hook.metrics["strange"] = Worker(False)

    def close(self):
        raise SystemExit(3)
"""


def test_the_code_of_a_job_never_runs_in_the_coordinator(serve: Serving, tmp_path: Path) -> None:
    packages = {"raising": "raise RuntimeError('not here')\n", "exiting": "raise SystemExit(3)\n", "strange": ""}
    for name, does in packages.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(SEEN + does)
        (tmp_path / name / "job.py").write_text(JOB.replace("{module}", f"{name}.job"))
    here = {"folder": str(tmp_path)}

    def strange(job_id: str, **options: Any) -> dict[str, Any]:
        return {"id": job_id, "class": "strange.job:Job", "options": options, **here}

    service = serve()
    service.submit(
        {"id": "raises", "class": "raising.job:Job", **here},
        {"id": "exits", "class": "exiting.job:Job", **here},
        {"id": "plain", **SLEEPER},
        strange("good"),
        *(strange(fails, fails=fails) for fails in ("worker", "train", "metrics")),
    )
    states = {name: job["state"] for name, job in service.until(over).items()}
    failing = {"raises", "exits", "worker", "train", "metrics"}
    assert states == {"plain": "done", "good": "done"} | dict.fromkeys(failing, "failed"), service.ask("news", 0)
    service.kill()
    again = serve(folder=service.folder)
    again.submit({"id": "late", **SLEEPER})
    assert again.until(over)["late"]["state"] == "done"
    again.stop()
    record = read_run(service.folder)
    assert {failed.job_id for failed in record.failed} == failing
    assert not any("\n" in failed.problem for failed in record.failed)
    assert [done.metrics for done in record.iterations if done.job_id == "good"] == [{"strange": 2.5}] * 3
    assert not record.jobs["good"].movable and record.jobs["plain"].movable  # workers, and no checkpoints
    for name in packages:
        seen = {*(tmp_path / name / "seen").read_text().splitlines()}
        assert "ray::Controller" in seen and seen <= {"ray::Controller", "ray::Worker"} and name not in sys.modules
