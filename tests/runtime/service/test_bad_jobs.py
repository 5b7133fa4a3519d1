"""Bad jobs beside healthy ones, on one service on real Ray: the bad ones end, and the healthy ones lose nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runtime.coordinator.run_plan import Timeouts
from runtime.journal.audit import audit
from runtime.journal.write import JOURNAL, read_facts
from runtime.machines.job_processes import started
from runtime.output import LARGEST, LOGS
from tests.runtime.service.conftest import Serving
from tests.runtime.service.test_service import over, true_throughout


@pytest.mark.long
def test_healthy_jobs_lose_nothing_beside_bad_ones(serve: Serving, tmp_path: Path) -> None:
    (tmp_path / "hangs.py").write_text("import time\ntime.sleep(3000)\n")
    service = serve("tests.runtime.toy_policies:MoveOnce", pairs=1, memory_gb=2.0, timeouts=Timeouts(least_s=120.0, profile_s=20.0))

    def job(name: str, **does: str) -> dict[str, Any]:
        options = {"folder": str(tmp_path), "does": {when.replace("_", " "): what for when, what in does.items()}}
        return {"id": name, "class": "toy_jobs:Sleeper", "slo": 1000.0, "iterations": 6, "options": options}

    healthy = {"slo": 1000.0, "iterations": 150, "class": "toy_jobs:Counter", "options": {"rollout_s": 0.05, "train_s": 0.05}}
    service.submit({"id": "healthy", **healthy}, {"id": "other", **healthy})
    service.until(lambda jobs: all(jobs[name]["iteration"] > 1 for name in ("healthy", "other")))
    service.submit(
        job("eats", rollout_3="eat"),
        job("leaves", rollout_1="leave"),
        job("talks", rollout_1="talk"),
        {**job("hangs"), "class": "hangs:X", "folder": str(tmp_path)},
    )
    service.submit(job("dies", rollout_1="leave; kill"))

    jobs = service.until(over)
    assert {name: job["state"] for name, job in jobs.items()} == {
        "healthy": "done",
        "other": "done",
        "leaves": "done",
        "talks": "done",
        "eats": "failed",
        "hangs": "failed",
        "dies": "failed",
    }, service.ask("news", 0)
    assert "GB of host memory; a node has 2.00 GB for jobs" in jobs["eats"]["problem"]
    assert jobs["hangs"]["problem"] == "rollout: its rollout hangs: it has not ended after 20 s"
    left = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(left) == 2 + 3 * 2 and not any(started(pid) for pid in left)
    assert sum(path.stat().st_size for path in (service.folder / LOGS / "talks").glob("*")) <= 2 * LARGEST
    record = service.stop()
    assert audit(read_facts(service.folder / JOURNAL)).problems == ()
    true_throughout(service.reports)
    assert {fact.job_id for fact in record.restarted} == {"dies"}
    for name in ("healthy", "other"):
        done = [done.metrics["count"] for done in record.iterations if done.job_id == name]
        assert done == [*range(1, 151)]
