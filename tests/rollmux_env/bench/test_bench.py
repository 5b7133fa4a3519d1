"""The harness, intervals and comparison."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from policies.dispatch import make_dispatch
from policies.registry import make_policy
from rollmux_env.bench import processes
from rollmux_env.bench.comparison import compare
from rollmux_env.bench.harness import Contender, Result, Task, run_task, run_tasks
from rollmux_env.bench.intervals import mean_interval
from rollmux_env.cluster.events import Arrived, Event
from rollmux_env.cluster.plan import Plan, Wait
from rollmux_env.cluster.state import State
from rollmux_env.errors import InputError, PlanError
from rollmux_env.replay.outcome import Outcome
from rollmux_env.report.progress import tracked
from rollmux_env.scenario import Scenario
from rollmux_env.workloads import make_workload
from rollmux_env.workloads.options import WorkloadOptions

ROOT = Path(__file__).parents[3]
STREAM = make_workload("mixed", WorkloadOptions(jobs=12))


class Never:
    keeps_slo = True

    def decide(self, state: State, event: Event) -> Plan:
        return (Wait(event.job.id),) if isinstance(event, Arrived) else ()


class Yardstick:
    """A contender with a replay of its own."""

    def replay(self, scenario: Scenario, check: bool = False) -> Outcome:
        found = run_task(make_policy, Task("solo", 0, scenario)).outcome
        return replace(found, extra={"bound_usd": 1.0})


class Endless:
    def replay(self, scenario: Scenario, check: bool = False) -> Outcome:
        time.sleep(120)
        raise AssertionError("nobody stopped it")


class Killed:
    def replay(self, scenario: Scenario, check: bool = False) -> Outcome:
        os._exit(1)


def make(spec: str, seed: int) -> Contender:
    contenders: dict[str, type[Contender]] = {"never": Never, "yardstick": Yardstick, "endless": Endless, "killed": Killed}
    return contenders[spec]()


def test_interval_is_students_t() -> None:
    found = mean_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert found.mean == 3.0
    assert found.half_width == pytest.approx(2.7764451 * (2.5 / 5) ** 0.5, rel=1e-6)
    assert mean_interval([7.0]).half_width is None
    assert mean_interval([7.0]).text(1) == "7.0"
    assert found.text(1) == "3.0 ± 2.0"


def test_results_come_with_the_index_of_their_task() -> None:
    tasks = [Task(name, 0, STREAM) for name in ("solo", "rollmux", "most-idle")]
    here = {index: result.outcome.metrics for index, result in run_tasks(make_policy, tasks)}
    assert list(here) == [0, 1, 2] and len({found.cost_usd for found in here.values()}) > 1


def test_a_policy_that_never_places_is_named_not_waited_for() -> None:
    with pytest.raises(PlanError, match=r"^policy never: 12 jobs wait for ever"):
        run_task(make, Task("never", 0, STREAM))


def test_workers_must_be_some() -> None:
    with pytest.raises(InputError, match="workers"):
        next(run_tasks(make_policy, [Task("solo", 0, STREAM)], workers=0))


def test_no_process_outlives_the_bench() -> None:
    results = run_tasks(make, [Task("yardstick", 0, STREAM), Task("endless", 0, STREAM)], workers=2)
    assert next(results)[0] == 0
    assert isinstance(results, Generator)
    results.close()  # as an interrupt does
    assert not multiprocessing.active_children()


def test_a_process_that_is_killed_is_said_in_one_line() -> None:
    with pytest.raises(InputError, match="killed before its task was done"):
        list(run_tasks(make, [Task("killed", 0, STREAM), Task("killed", 1, STREAM)], workers=2))


@pytest.mark.parametrize("is_file", [True, False])
def test_a_script_whose_processes_cannot_begin_is_told_what_to_do(tmp_path: Path, is_file: bool) -> None:
    text = "import rollmux\nrollmux.bench('micro-temporal', ['solo', 'rollmux'], workers=2)\n"
    (tmp_path / "script.py").write_text(text)
    words = [sys.executable, "script.py"] if is_file else [sys.executable, "-"]
    done = subprocess.run(
        words, input=text, capture_output=True, text=True, timeout=300, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    last = done.stderr.splitlines()[-1]
    if is_file:
        assert last.endswith("workers=2: each process imports the script again; call this below `if __name__ == '__main__':`")
    else:
        assert last.endswith("workers=2: each process imports the script again, and this one is no file; save it first")
    assert done.stderr.count("Traceback") == 1, "that of the script"


def test_a_yardstick_replays_its_own_way() -> None:
    assert run_task(make, Task("yardstick", 0, STREAM)).outcome.extra == {"bound_usd": 1.0}


def test_comparison_is_paired_by_seed() -> None:
    streams = {seed: make_workload("mixed", WorkloadOptions(jobs=12, seed=seed)) for seed in (0, 1, 2)}
    tasks = [Task(name, seed, streams[seed]) for seed in streams for name in ("rollmux", "solo")]
    results = [result for _, result in run_tasks(make_policy, tasks)]
    rows = {row.policy: row for row in compare(results[::-1], "solo")}
    costs = {(result.spec, result.seed): result.outcome.metrics.cost_usd for result in results}
    ratios = [costs["solo", seed] / costs["rollmux", seed] for seed in streams]
    assert rows["rollmux"].saving == mean_interval(ratios)
    assert rows["solo"].saving is not None and rows["solo"].saving.half_width == 0.0
    assert 0 < rows["rollmux"].packed <= 1 and rows["solo"].packed == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_who_runs_tasks_is_told_how_far_they_are(monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    told: dict[int, list[tuple[int, int]]] = {}
    jobs = [job.model_copy(update={"iterations": 40_000 if k == 0 else 1, "duration_s": None}) for k, job in enumerate(STREAM.jobs)]
    stream = STREAM.model_copy(update={"jobs": tuple(jobs)})
    tasks = [Task("solo", seed, stream, make_dispatch("fifo")) for seed in range(workers)]
    if workers == 2:  # what a worker has told is looked at when any task ends too
        monkeypatch.setattr(processes, "_LOOKS_S", 0.01)

    def report(index: int, phases: int, departed: int) -> None:
        told.setdefault(index, []).append((phases, departed))

    assert {index for index, _ in run_tasks(make_policy, tasks, workers, report)} == told.keys() == {*range(workers)}
    assert all(phases >= 1 << 16 and departed <= len(jobs) for counts in told.values() for phases, departed in counts)


def test_how_far_a_replay_is_is_a_line_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rollmux_env.progress._FILE_S", (0.0, 0.0))
    result = run_task(make_policy, Task("solo", 0, STREAM))

    def run(report: Callable[[int, int, int], None]) -> Iterator[tuple[int, Result]]:
        report(1, 1_000_000, 3)
        yield 0, result
        yield 1, result

    assert tracked(run, ["first", "second"]) == [result, result]
    lines = capsys.readouterr().err.splitlines()
    assert lines[-3:] == [
        "replaying: 0 of 2 done; second: 1,000,000 phases, 3 jobs done",
        "replaying: 1 of 2 done",
        "replaying: 2 of 2 done",
    ]
