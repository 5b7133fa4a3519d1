"""Jobs that share nodes stay on them between phases where both fit, and are offloaded where they do not; nothing else changes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from runtime.journal.audit import check_run
from runtime.journal.record import RunRecord
from tests.runtime.coordinator.conftest import Running, nodes, run
from tests.runtime.grpo.test_job import SMALL, job

__all__ = ["nodes", "run"]

MODEL = {"name": "tiny", "hidden_size": 512, "layers": 2}
ALGORITHM = {**SMALL["algorithm"], "max_tokens": 8, "prompts_per_iteration": 2}
JOBS = [
    job(name, seed=seed, task=task, model=MODEL, algorithm=ALGORITHM, iterations=2)
    for name, seed, task in (("a", 1, "echo"), ("b", 2, "count"))
]


def _learned(folder: Path, record: RunRecord) -> list[object]:
    """What every iteration measured, and the digests of weights, moments and counts after the last one."""
    learned: list[object] = [*sorted((done.job_id, done.number, sorted(done.metrics.items())) for done in record.iterations)]
    for path in sorted(folder.glob("checkpoints/*/*/checkpoint.json")):
        kept = json.loads(path.read_text())
        if kept["iterations"] == 2:
            learned.append((path.parts[-3], kept["files"]["rank-0.safetensors"], kept["files"]["training.json"]))
    assert len(learned) == 6
    return learned


@pytest.mark.long
def test_where_both_fit_they_stay_and_else_they_are_offloaded(run: Running, tmp_path: Path) -> None:
    outcome, record, _ = run(JOBS, folder=tmp_path / "fits")
    assert outcome == "done" and not record.failed
    check_run(record)
    warm = [part for part in record.phases if not part.profile]
    assert len({part.group for part in warm}) == 1 and len(warm) == 8
    assert all(part.stays and part.stages.keys() == {"restore", "stay"} for part in warm)
    learned = _learned(tmp_path / "fits", record)

    profiles = list(Path(os.environ["ROLLMUX_CACHE"]).glob("profiles/*.json"))
    assert len(profiles) == 2
    for path in profiles:  # as if either job took 9 GB where it stays; a node has 8
        profile = json.loads(path.read_text())
        for phase in ("rollout", "training"):
            profile[phase]["waits"]["levels"][0]["host_gb"] = 9.0
        path.write_text(json.dumps(profile))
    outcome, record, _ = run(JOBS, folder=tmp_path / "does not")
    assert outcome == "done" and not record.failed
    warm = [part for part in record.phases if not part.profile and part.phase != "init"]
    assert len(warm) == 8 and not any(part.stays for part in warm)
    assert all("offload" in part.stages and "stay" not in part.stages for part in warm)
    assert _learned(tmp_path / "does not", record) == learned
