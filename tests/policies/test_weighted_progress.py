"""The gain of the weighted progress, and prices with it, are those of a plain definition."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.placement import weighted_progress
from policies.placement.baselines import Solo
from policies.placement.weighted_progress import TimePrice, Urgency, gains, largest, pace
from rollmux_env.bench.streams import workload
from rollmux_env.cluster.apply import apply
from rollmux_env.cluster.candidates import candidates
from rollmux_env.cluster.events import Admitted, Arrived
from rollmux_env.cluster.remaining import learned_h
from rollmux_env.cluster.state import State
from rollmux_env.errors import InputError
from rollmux_env.replay.fluid import replay
from rollmux_env.scenario import parse_scenario
from tests.oracle.draw import examples, scenarios


def _value(state: State, alpha: float) -> float:
    """V of a state, from its public attributes."""
    total = 0.0
    for group in state.group_list():
        for job_id in group.jobs:
            job = state.job(job_id)
            if job.iterations is not None:
                left_s = (job.iterations - state.iterations_done(job_id)) * job.solo_s
            else:
                left_s = float(state.tables.jobs.leaves_s[state.row(job_id)]) - state.now_s
            total += (3600 / max(60.0, left_s)) ** alpha * job.solo_s / group.period_s
    return total


@examples(15)
@given(
    drawn=scenarios(max_jobs=6, shaped=True),
    alpha=st.sampled_from([0.0, 0.5, 1.0]),
    draw=st.randoms(use_true_random=False),
)
def test_a_gain_is_the_difference_that_the_placement_makes(drawn: dict[str, object], alpha: float, draw: object) -> None:
    scenario, urgency = parse_scenario(drawn), Urgency(alpha)
    state = State(scenario.cluster)
    for job in sorted(scenario.jobs, key=lambda job: job.arrival_s):
        apply(state, Arrived(max(state.now_s, job.arrival_s), job))
        table = candidates(state, job.id)
        gained = gains(state, table, urgency)
        before = _value(state, alpha)
        assert pace(state, urgency).value == pytest.approx(before, rel=1e-12)
        rows = np.flatnonzero(table.feasible).tolist()
        assert np.all(np.isneginf(np.delete(gained, rows)))
        for row in {*rows[:2], *rows[-1:]}:
            twin = state.copy()
            apply(twin, Admitted(twin.now_s, job.id, table.placement(row)))
            assert gained[row] == pytest.approx(_value(twin, alpha) - before, rel=1e-9, abs=1e-9)
        if rows:
            row = draw.choice(rows)  # type: ignore[attr-defined]
            apply(state, Admitted(state.now_s, job.id, table.placement(row)))


def test_departures_teach_how_long_jobs_are() -> None:
    state = replay(workload("mixed", 0, jobs=24), Solo()).state
    rows = np.arange(24)
    left_h = learned_h(state, rows)
    assert left_h is not None
    assert Urgency(0.5, known_stays=False)(state, rows) == pytest.approx(np.maximum(left_h, 1 / 60) ** -0.5)


def test_of_gains_that_are_equal_but_for_rounding_the_first_counts() -> None:
    assert largest(np.array([-1.0, 0.0, -np.inf])) is None
    assert largest(np.array([1.0, 1.0 + 1e-10, 1.0 + 1e-8, 1.0 + 1.05e-8])) == 2


def test_of_prices_that_are_equal_but_for_rounding_the_first_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def cheapest(usd: float, gain: list[float], usd_per_hour: list[float]) -> int | None:
        monkeypatch.setattr(weighted_progress, "gains", lambda *_: np.array(gain))
        table = SimpleNamespace(usd_per_hour=np.array(usd_per_hour))
        return TimePrice(usd, 0.5).cheapest(None, table, np.arange(len(gain)))  # type: ignore[arg-type]

    assert cheapest(1e9, [1.0, 1.0 + 1e-15], [2.0, 2.0]) == 0
    assert cheapest(1e9, [1.0, 1.0 + 1e-8], [2.0, 2.0]) == 1
    assert cheapest(1e12, [1.0, 1.0], [40.0, 2.0]) == 0  # as `fleet`, which never looks at dollars
    assert cheapest(1.0, [1.0, 1.0], [40.0, 2.0]) == 1
    assert cheapest(1.0, [1.0, -1.0], [40.0, 2.0]) == 1
    assert cheapest(1.0, [0.0, -1.0], [40.0, 2.0]) is None


def test_invalid_options_are_refused() -> None:
    for make in (lambda: Urgency(-1), lambda: Urgency(True), lambda: TimePrice(-1.0, 0.5), lambda: TimePrice(float("nan"), 0.5)):
        with pytest.raises(InputError, match=r"^(alpha|time_usd): must be a number"):
            make()
