"""What becomes of a run when something dies, on real Ray: the coordinator, a job's process, the disk."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from rollmux_env.cluster.events import Arrived, Departed, Parked
from runtime.checkpoints import MANIFEST, numbers
from runtime.coordinator.run_plan import Timeouts
from runtime.journal.audit import check_run
from runtime.journal.record import RunRecord
from runtime.journal.write import state_of
from tests.fixtures import copied
from tests.runtime.coordinator.conftest import Running


def counter(job_id: str, iterations: int = 4, **options: object) -> dict[str, Any]:
    return {"id": job_id, "class": "toy_jobs:Counter", "options": options, "iterations": iterations, "slo": 1000.0}


def drawn(record: RunRecord, job_id: str) -> list[float]:
    return [done.metrics["drawn"] for done in record.iterations if done.job_id == job_id]


def counts(record: RunRecord, job_id: str) -> list[float]:
    return [done.metrics["count"] for done in record.iterations if done.job_id == job_id]


def test_a_job_whose_process_dies_or_hangs_arrives_anew_from_its_checkpoint(run: Running, tmp_path: Path) -> None:
    for name in ("kill", "hang"):
        (tmp_path / name).mkdir()
    jobs = [
        counter("kill", 9, folder=str(tmp_path / "kill"), does={"train 7": "once; kill"}) | {"checkpoint": {"every": 3}},
        counter("hang", folder=str(tmp_path / "hang"), does={"train 2": "once; hang"}),
        counter("calm", iterations=12, rollout_s=0.1),
    ]
    outcome, record, lines = run(jobs, timeouts=Timeouts(least_s=8.0))  # longer than a busy machine needs to start a process
    assert outcome == "done" and not record.failed, lines
    check_run(record)
    why = {fact.job_id: (fact.iteration, fact.why) for fact in record.restarted}
    begins = why["kill"][0]
    assert why == {
        "kill": (begins, "its controller has died"),
        "hang": (2, "its training hangs: it has not ended after 8 s"),
    }
    assert begins in (3, 6)  # that of the sixth may have been on its way to the disk
    assert [done.number for done in record.repeated] == [*range(begins, 7)]
    assert counts(record, "kill") == [*range(1, 10)] and counts(record, "hang") == [1, 2, 3, 4]
    assert drawn(record, "kill") == drawn(record, "calm")[:9]  # the generator went on as well
    assert drawn(record, "hang") == drawn(record, "calm")[:4]
    for name, times in (("kill", 2), ("hang", 2), ("calm", 1)):
        come = [event for event in record.log if isinstance(event, Arrived) and event.job.id == name]
        left = [event for event in record.log if isinstance(event, Departed) and event.job_id == name]
        assert len(come) == len(left) == times
        left_over = {"kill": [9, 9 - begins], "hang": [4, 2], "calm": [12]}[name]
        assert [event.job.iterations for event in come] == left_over
    assert not state_of(record).group_list()


def test_a_worker_is_judged_by_the_one_that_it_has_lost_and_holds_up_no_other_error(run: Running, tmp_path: Path) -> None:
    for name in ("loses", "waits"):
        (tmp_path / name).mkdir()
    loses = counter("loses", folder=str(tmp_path / "loses"), does={"train 2": "once; lose_other"})
    waits = counter("waits", folder=str(tmp_path / "waits"), does={"train 1": "fail_other"})
    jobs = [loses | {"class": "toy_jobs:WithWorkers"}, waits | {"class": "toy_jobs:Waiting"}]
    outcome, record, lines = run(jobs, timeouts=Timeouts(least_s=60.0))
    assert outcome == "done", lines
    check_run(record)
    assert [(fact.job_id, fact.where, fact.problem) for fact in record.failed] == [
        ("waits", "training", "ValueError: the worker's own words")
    ]
    (restarted,) = record.restarted
    assert restarted.job_id == "loses" and restarted.why.startswith("its process on rollout-0 (toy_jobs:Echo) has died")
    assert counts(record, "loses") == [1, 2, 3, 4]


@pytest.mark.long
def test_a_parked_job_continues_with_the_samples_that_it_would_have_drawn(run: Running) -> None:
    jobs = [
        counter("long", 150, rollout_s=0.2) | {"checkpoint": {"every": 50}},
        counter("short", 3) | {"priority": 1, "arrival_s": 20.0},
        counter("calm", 150) | {"parkable": False},
    ]
    outcome, record, lines = run(jobs, policy="solo,order=fcfs,park=true", limits={"min_run_s": 0.0})
    assert outcome == "done" and not record.failed and not record.repeated and not record.restarted, lines
    check_run(record)
    (parked,) = (event for event in record.log if isinstance(event, Parked))
    assert (parked.job_id, parked.for_job) == ("long", "short")
    before = sum(done.end_s < parked.at_s for done in record.iterations_of("long"))
    assert 0 < before < 150 and counts(record, "long") == [*range(1, 151)]
    assert drawn(record, "long") == drawn(record, "calm")


def test_a_job_whose_checkpoint_finds_no_room_writes_it_when_there_is_some_and_the_others_go_on(
    run: Running, tmp_path: Path
) -> None:
    (tmp_path / "job").mkdir()
    ballast = tmp_path / "ballast"
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 256 << 20)  # more than others write in a second

    def hear(line: str) -> None:
        if "No space left on device" in line:
            ballast.unlink()

    jobs = [counter("a", folder=str(tmp_path / "job"), does={"checkpoint 2": "once; fill"}), counter("b")]
    outcome, record, lines = run(jobs, hear=hear)
    assert outcome == "done" and not record.failed and not record.repeated and not record.restarted, lines
    assert counts(record, "a") == counts(record, "b") == [1, 2, 3, 4] and drawn(record, "a") == drawn(record, "b")
    (absent,) = record.checkpoint_delays
    assert absent.job_id == "a" and "No space left on device" in absent.why
    assert [fact.iterations for fact in record.checkpointed if fact.job_id == "a"] == [1, 2, 3, 4]
    assert any(line.endswith("a: its checkpoint is written") for line in lines)
    check_run(record)


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(run: Running, tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    jobs = [counter("a", folder=str(tmp_path / "job"), does={"checkpoint 3": "once; fill"})]
    folder = tmp_path / "out"

    def hear(line: str) -> None:
        if "No space left on device" in line:
            signal.raise_signal(signal.SIGINT)

    outcome, _, _ = run(jobs, folder=folder, hear=hear)
    assert outcome == "stopped" and numbers(folder / "checkpoints" / "a") == [2, 3]
    last = folder / "checkpoints" / "a" / "000003"
    assert json.loads((last / MANIFEST).read_text())["iterations"] == 3
    (last / "drawn.json").write_text("[0.1, 0.2, 0.3]")
    _, record, _ = run(jobs, folder=folder, resume=True)
    (restarted,) = record.restarted
    assert restarted.iteration == 2 and restarted.why.endswith("000003: drawn.json is damaged")
    assert [done.number for done in record.repeated] == [2]
    assert counts(record, "a") == [1, 2, 3, 4] and drawn(record, "a")[2] == record.repeated[0].metrics["drawn"]
    check_run(record)


def test_an_interrupted_run_of_an_earlier_version_goes_on(run: Running, tmp_path: Path) -> None:
    folder = copied("interrupted-run", tmp_path)
    outcome, record, _ = run([counter("a"), counter("b", rollout_s=0.05)], folder=folder, resume=True)
    assert outcome == "done" and not record.failed and not record.repeated
    assert counts(record, "a") == counts(record, "b") == [1, 2, 3, 4] and drawn(record, "a") == drawn(record, "b")
    check_run(record)
