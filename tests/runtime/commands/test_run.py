"""`rollmux run` and `rollmux compare`, on the example of a job of one's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollmux_env.cluster.events import Ticked
from runtime.commands import running
from runtime.coordinator.solo import SOLO
from runtime.journal.audit import audit
from runtime.journal.write import JOURNAL, Journal, read_facts, read_run
from tests.conftest import Command
from tests.runtime.modes import others_may_read

LOGGER = """
import json

class Lines:
    def __init__(self, folder):
        self.file = open(folder / "lines", "w")
    def write(self, key_values, key_excluded, step):
        self.file.write(json.dumps({"step": step, **key_values}) + "\\n")
    def close(self):
        self.file.close()
"""
EXAMPLE = Path(__file__).parents[3] / "examples" / "own_job.yaml"


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ROLLMUX_CACHE", str(tmp_path / "cache"))


def test_what_cannot_be_run_is_one_line_and_status_2(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_text("version: 1\njobs: [{id: a, iterations: 2, slo: 2, task: echo, engin: torch}]\n")
    journal = Journal(tmp_path / JOURNAL)
    journal.write(Ticked(0.0))
    journal.close()
    large = tmp_path / "large.yaml"
    large.write_text("version: 1\njobs: [{id: a, iterations: 2, slo: 2, task: echo, rollout: {nodes: 999}}]\n")
    many = tmp_path / "many.yaml"
    many.write_text("version: 1\njobs: [{id: a, iterations: 2, slo: 2, task: echo, checkpoint: {keep: 1999999999}}]\n")
    stale = tmp_path / "stale.yaml"
    stale.write_text("version: 1\njobs: [{id: a, iterations: 2, slo: 2, task: echo, staleness: 1}]\n")
    cases: list[tuple[list[str | Path], str]] = [
        ([stale, "--policy", "colocated"], "jobs[0].staleness: does not go with --policy colocated"),
        ([file], "jobs[0].engin: "),
        ([tmp_path / "none.yaml"], "none.yaml: "),
        ([EXAMPLE, "--policy", "optimal"], "no one could run it"),
        ([EXAMPLE, "--policy", "gavell"], "did you mean gavel?"),
        ([EXAMPLE, "--dispatch", "first"], "must be one of round-robin, fifo"),
        ([EXAMPLE, "--dispatch", "round-robin,migrate=8"], "between 0 and 1"),
        ([EXAMPLE, "--dry-run", "--compare", "solo"], "--compare"),
        ([EXAMPLE, "--dry-run", "--logger", "pathlib:Path"], "--logger: does not go with --dry-run"),
        ([EXAMPLE, "--logger", "no_such:B"], "--logger no_such:B: there is no module 'no_such'"),
        ([EXAMPLE, "--out", tmp_path], "holds a run already"),
        ([many], " GB free; checkpoints need 19325952.0 GB: those that"),
        ([large], "1000 nodes are asked of a machine with"),
    ]
    for arguments, problem in cases:
        status, out, err = command("run", *map(str, arguments))
        assert status == 2 and out == "" and problem in err and err.count("\n") == 1, (arguments, out, err)


def test_profiles_of_the_cache_are_left_alone_where_that_is_asked(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    monkeypatch.setattr(running, "run_dry", lambda jobs, planning, *_: seen.append(not planning.no_cache))
    for more in ((), ("--no-cache",)):
        assert command("run", str(EXAMPLE), "--dry-run", *more)[0] == 0
    assert seen == [True, False]
    status, _, err = command("run", "--resume", str(tmp_path), "--no-cache")
    assert status == 2 and "does not go with --no-cache" in err


def test_a_dry_run_profiles_and_runs_nothing(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "jobs.yaml"  # with an SLO that allows for two jobs on a node however long their phases turn out to be
    file.write_text(EXAMPLE.read_text().replace("slo: 2", f"slo: 1000, folder: {EXAMPLE.parent}"))
    status, out, err = command("run", str(file), "--dry-run")
    assert (status, err) == (0, "")
    assert "small: profiled" in out and "Co-execution groups" in out and "direct_packing" in out
    assert "iteration 1" not in out


def test_a_run_reports_and_is_compared(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "out"
    (tmp_path / "sent_by_run.py").write_text(LOGGER)
    monkeypatch.syspath_prepend(tmp_path)
    status, out, err = command("run", str(EXAMPLE), "--compare", "solo", "--out", str(folder), "--logger", "sent_by_run:Lines")
    assert (status, err) == (0, "")
    for text in ("large: iteration 15 of 15", "small: 5 iterations alone", "against solo", "times as fast as one after the other"):
        assert text in out
    assert not others_may_read(folder)
    record = read_run(folder)
    assert len(record.bounds) == 2 and audit(read_facts(folder / JOURNAL)).problems == ()
    assert {(done.job_id, done.number) for done in record.solo} == {
        (name, 15 + k) for name in ("small", "large") for k in range(SOLO)
    }
    results = json.loads((folder / "results.json").read_text())
    assert results["jobs"]["small"]["reward_last"] > results["jobs"]["small"]["reward_first"]
    assert {path.name for path in folder.iterdir()} >= {JOURNAL, "results.json", "trace.json", "gantt.png", "tensorboard"}
    lines = [json.loads(line) for line in (folder / "loggers" / "small" / "lines").read_text().splitlines()]
    assert [line["step"] for line in lines] == [*range(15)]
    assert lines[-1]["job/reward"] == results["jobs"]["small"]["reward_last"]
    assert lines[0].keys() >= {"seconds/iteration", "seconds/rollout", "seconds/training"}
    status, out, _ = command("compare", str(folder), "--format", "json")
    assert status == 0 and set(json.loads(out)["jobs"]) == {"small", "large"}
