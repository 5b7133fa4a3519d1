"""What speaks against a candidate is said with numbers that hold: what is said to do does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rollmux_env.cluster.apply import apply
from rollmux_env.cluster.candidates import candidates
from rollmux_env.cluster.events import Admitted, Arrived, Placement, Warm, isolated
from rollmux_env.cluster.sides import against, tightest
from rollmux_env.cluster.state import State
from rollmux_env.kernel.candidates import SLO
from rollmux_env.scenario import Scenario
from tests.oracle.draw import examples
from tests.rollmux_env.replay.test_event import job, scenario
from tests.rollmux_env.replay.test_promises import with_switches

COLD = {"rollout": {"warm_s": 0, "cold_s": 8}, "training": {"warm_s": 0, "cold_s": 4}}


def waiting(problem: Scenario, at_s: float, warm: int | None = None) -> State:
    """The first job has run alone until then, the second waits; warm: it could enter that group warm."""
    state = State(problem.cluster, switches=True)
    first, second = problem.jobs
    apply(state, Arrived(0, first))
    apply(state, Admitted(0, first.id, isolated(first)))
    apply(state, Arrived(at_s, second))
    if warm is not None:
        apply(state, Warm(at_s, second.id, warm))
    return state


def of(name: str, rollout: int = 10, training: int = 10, **more: Any) -> dict[str, Any]:
    return with_switches(job(name, rollout, training, **more), **COLD)


def test_a_period_above_the_slo_is_said_so() -> None:
    state = waiting(scenario(of("a", 20, 30, slo=4, iterations=100), of("b", slo=1.2, iterations=100)), 0)
    sides = tightest(state, candidates(state, "b"))
    assert sides is not None and (sides.job_id, sides.needs_s, sides.allows_s) == ("b", 50, 24)
    assert sides.words == "an iteration would take 50 s, and the SLO of b allows 1.2 x 20 s = 24 s; slo: 2.55 would do"


def test_both_sides_of_a_promise_are_said() -> None:
    """Two equal jobs of 20 s: 8 iterations and 2 to settle at 20 s, with the cold starts of both, against 1.1 x (8 x 20 + 12) s."""
    state = waiting(scenario(of("a", slo=4, iterations=100), of("b", slo=1.1, iterations=8)), 0)
    sides = tightest(state, candidates(state, "b"))
    assert sides is not None and (sides.needs_s, sides.allows_s) == pytest.approx((24 + 10 * 20, 1.1 * (8 * 20 + 12)))
    assert sides.words.startswith(
        "b would take 24 s of cold starts + (8 + 2) x 20 s = 224 s, and its SLO of 1.1 x 20 s an iteration"
    )
    assert sides.words.endswith("allows 189.2 s; 26 iterations or slo: 1.31 would do")


def test_a_member_that_has_run_for_long_closes_its_group() -> None:
    state = waiting(scenario(of("a", slo=1.05, iterations=20), of("b", slo=4, iterations=100)), 200)
    sides = tightest(state, candidates(state, "b"))
    assert sides is not None and sides.job_id == "a" and "a would take 200 s so far" in sides.words


def test_a_warm_entry_has_no_cold_start_to_come_and_none_to_its_credit() -> None:
    problem = scenario(of("a", slo=4, iterations=100), of("b", slo=1.5, iterations=7))
    cold, warm, elsewhere = (waiting(problem, 200, where) for where in (None, 0, 7))
    tables = [candidates(state, "b") for state in (cold, warm, elsewhere)]
    fits = [table.reason[0] != SLO for table in tables]  # 12 + 9 x 20 <= 1.5 (7 x 20 + 12); 9 x 20 <= 1.5 x 7 x 20; no credit: 192
    assert fits == [True, True, True]
    tight = scenario(of("a", slo=4, iterations=100), of("b", slo=1.3, iterations=7))  # 192 <= 197.6; 180 <= 182; 192 > 182
    tables = [candidates(waiting(tight, 200, where), "b") for where in (None, 0, 7)]
    assert [table.reason[0] != SLO for table in tables] == [True, True, False]


def test_warmth_is_of_one_instant_and_of_the_nodes_that_are_there() -> None:
    problem = scenario(of("a", slo=4, iterations=100), of("b", slo=1.3, iterations=7))
    state = waiting(problem, 200, 0)
    apply(state, Admitted(200, "b", Placement(0, (), 1)))  # on a node that is added
    assert [*state.tables.jobs.admitted_warm[:2]] == [0, 0] and state.tables.groups.coming_cold_s[0] == 12
    state = waiting(problem, 200, 0)
    apply(state, Admitted(200, "b", Placement(0, (0,))))
    assert [*state.tables.jobs.admitted_warm[:2]] == [0, 1] and state.tables.groups.coming_cold_s[0] == 0
    state = waiting(problem, 200, 0)
    state.now_s = 200.0
    apply(state, Admitted(201, "b", Placement(0, (0,))))
    assert state.tables.jobs.admitted_warm[1] == 0


@given(
    slo=st.floats(1, 2),
    iterations=st.integers(1, 40),
    seconds=st.tuples(st.integers(1, 30), st.integers(1, 30)),
    at_s=st.integers(0, 1000),
    stays=st.booleans(),
)
@examples(80)
def test_what_would_do_does(slo: float, iterations: int, seconds: tuple[int, int], at_s: int, stays: bool) -> None:
    """The largest of the SLOs, or numbers of iterations, that are named one after the other opens the group."""

    def asked(slo: float, iterations: int) -> State:
        stay = {"duration_s": 20 * iterations} if stays else {"iterations": iterations}
        return waiting(scenario(of("a", slo=9, iterations=1000), of("b", *seconds, slo=slo, **stay)), at_s)

    state = asked(slo, iterations)
    table = candidates(state, "b")
    assume(table.reason[0] == SLO)
    words = against(state, table, 0).words
    named = [word for word in words.rpartition("; ")[2].removesuffix(" would do").split(" or ")]
    for way in named:
        if way.startswith("slo: "):
            assert candidates(asked(float(way[5:]), iterations), "b").reason[0] != SLO
        elif way.endswith(" iterations"):
            assert candidates(asked(slo, int(way.split()[0])), "b").reason[0] != SLO
