"""Recorded runs of others: read from what they publish, and replayed as they went."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from policies.dispatch import make_dispatch
from policies.makers import makers
from rollmux_env.bench.suites.fidelity import GAIN, SECONDS, SUITE
from rollmux_env.bench.suites.overlapped import Steps, compare_steps
from rollmux_env.bench.suites.recorded import RUNS, RecordedIteration, RecordedRun, compare_runs, measured, predicted
from tests.benchmarks import load_benchmark

importer = load_benchmark("import_timeslice")


def turns(shared: bool, *iterations: tuple[str, float, float]) -> RecordedRun:
    return RecordedRun("turns", shared, (2.0, 0.0), 0.0, 100.0, tuple(RecordedIteration(*each, 0.0) for each in iterations))


def test_jobs_that_take_turns_have_the_period_of_their_busiest_gpu_or_of_their_own_iteration() -> None:
    """On one sampler two rollouts of 10 s and two switches of 2 s take 24 s; on two samplers an iteration takes 16 s."""
    both = [(job, 10.0, 6.0) for job in 40 * "AB"]
    assert predicted(turns(True, *both), make_dispatch("round-robin")).period_s == pytest.approx({"A": 24.0, "B": 24.0}, rel=0.01)
    assert predicted(turns(False, *both), make_dispatch("round-robin")).period_s == pytest.approx({"A": 16.0, "B": 16.0}, rel=0.01)


def test_every_recorded_period_is_predicted_within_five_percent_in_the_order_of_its_locks() -> None:
    assert len(RUNS) == 2
    for run in RUNS:
        real, replayed = measured(run), predicted(run, make_dispatch("fifo"))
        assert replayed.period_s == pytest.approx(real.period_s, rel=0.05)
        assert replayed.whole_s == pytest.approx(real.whole_s, rel=0.05)


def test_every_recorded_figure_has_its_measurement_beside_it() -> None:
    compared = [*compare_runs(makers()), *compare_steps(makers())]
    rows = [(each.run, each.name, GAIN if each.is_gain else SECONDS) for each in compared]
    assert len(rows) == len(set(rows)) == 27
    assert [SUITE.paper[row] for row in rows] == [each.measured for each in compared]
    assert sum(run.startswith("Weave") for run, _, _ in rows) == 2


def test_a_step_is_the_sum_of_its_stages_or_the_longer_of_two_that_overlap() -> None:
    for steps, step_s in (
        (Steps(0, 10.0, 2.0, 5.0, 1.0), 17.0),
        (Steps(1, 10.0, 2.0, 5.0, 1.0), 10.0),
        (Steps(1, 10.0, None, 12.0, 1.0), 12.0),
    ):
        assert predicted(steps.run(), make_dispatch("fifo")).period_s["job"] == pytest.approx(step_s)


def test_mean_stages_give_less_than_the_measured_step() -> None:
    """What varies from step to step, or is in no stage, is missing: 12% at most; a gain is too large by 9% at most."""
    steps = [each for each in compare_steps(makers()) if not each.is_gain]
    assert all(0.88 * each.measured < each.predicted < 1.005 * each.measured for each in steps)
    gains = [each for each in compare_steps(makers()) if each.is_gain]
    assert len(gains) == 4 and all(each.measured < each.predicted < 1.09 * each.measured for each in gains)


def test_a_page_of_locks_becomes_iterations(tmp_path: Path) -> None:
    """A made-up page of the same form: B trains while A samples; A then waits 5 s for the sampler, to send new weights."""

    def hold(job: str, pool: str, got: float, back: float, wait: float = 0.0) -> list[dict[str, object]]:
        first = {"t": got, "kind": "acquired", "job": job, "pool": pool, "wait_ms": 1000 * wait}
        return [first, {"t": back, "kind": "yielded", "job": job, "pool": pool}]

    events = [
        *hold("B", "sampler", 0.0, 40.0),
        *hold("A", "trainer", 10.0, 20.0),
        *hold("B", "trainer", 42.0, 70.0, wait=0.0),
        *hold("A", "sampler", 44.0, 80.0, wait=10.0),
        *hold("A", "trainer", 82.0, 130.0),
        *hold("B", "sampler", 90.0, 125.0),
        *hold("A", "sampler", 128.0, 160.0, wait=5.0),
    ]
    events.sort(key=lambda event: float(str(event["t"])))
    page = tmp_path / "page.html"
    page.write_text(f"<script>const DATA = {json.dumps({'runs': [{'timeslice': {'events': events}}]})};</script>")
    holds = importer.read_run(page, 0)
    assert [(hold.job, hold.asked_s) for hold in holds["sampler"]] == [("B", 0.0), ("A", 34.0), ("B", 90.0), ("A", 123.0)]
    rows = importer.lines(holds["trainer"], holds["sampler"], 20.0)
    assert rows == [("B", 20.0, 28.0, 22.0), ("A", 36.0, 43.0, 62.0)]
    assert importer.lines(holds["trainer"], None, 20.0)[1] == ("A", 62.0, 48.0, 62.0)
    assert importer.switch_s(holds["sampler"], 0.0) == 3.5  # 40 to 44 and 125 to 128, where another waits; not 80 to 90
