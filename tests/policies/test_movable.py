"""Jobs that cannot be moved stay where they are placed, whoever decides."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.registry import make_runnable
from rollmux_env.cluster.events import Event, Moved
from rollmux_env.cluster.plan import Plan, Policy
from rollmux_env.cluster.regroupings import regroupings
from rollmux_env.cluster.state import State
from rollmux_env.envs.placement.env import PlacementVectorEnv
from rollmux_env.envs.placement.generator import Fixed
from rollmux_env.replay.fluid import replay
from rollmux_env.scenario import Scenario, parse_scenario
from rollmux_env.workloads import WorkloadOptions, make_workload
from tests.oracle import draw
from tests.oracle.draw import examples
from tests.rollmux_env.envs.playing import Replayed, Watching, at_random, play

MOVERS = ["consolidate,budget=400", "regroup,every_s=20", "learned:default,tries=1"]


@st.composite
def scenarios(draw_one: st.DrawFn) -> Scenario:
    """Jobs with slack to move, of which any may be told to stay."""
    data = draw_one(draw.scenarios(max_jobs=9, limited=False))
    data["cluster"]["migration_s"] = draw_one(st.sampled_from([0, 5]))
    stays = draw_one(st.lists(st.booleans(), min_size=len(data["jobs"]), max_size=len(data["jobs"])))
    for job, movable in zip(data["jobs"], stays, strict=True):
        job["slo"] = 2 * job["slo"]
        job["movable"] = movable
    return parse_scenario(data)


def stream(every: int) -> Scenario:
    """A stream of which every so-many-th job is to stay."""
    made = make_workload("production", WorkloadOptions(seed=3, jobs=40, stays="fixed"))
    jobs = [job.model_copy(update={"movable": k % every > 0}) for k, job in enumerate(made.jobs)]
    return made.model_copy(update={"jobs": tuple(jobs)})


def fixed(scenario: Scenario) -> set[str]:
    return {job.id for job in scenario.jobs if not job.movable}


def moved(scenario: Scenario, policy: Policy) -> set[str]:
    log = replay(scenario, policy, check=True).log
    return {event.job_id for event in log if isinstance(event, Moved)}


@pytest.mark.parametrize("spec", MOVERS)
@pytest.mark.hypothesis
def test_policies_leave_them_where_they_are(spec: str) -> None:
    @examples(25)
    @given(scenarios())
    def holds(scenario: Scenario) -> None:
        assert not moved(scenario, make_runnable(spec)) & fixed(scenario)

    holds()


@pytest.mark.parametrize("spec", [*MOVERS[::2], "regroup"])
def test_the_others_are_moved_as_ever(spec: str) -> None:
    scenario = stream(2)
    everyone = scenario.model_copy(update={"jobs": tuple(job.model_copy(update={"movable": True}) for job in scenario.jobs)})
    assert moved(everyone, make_runnable(spec)) & fixed(scenario), "else the stream says nothing"
    some = moved(scenario, make_runnable(spec))
    assert some and not some & fixed(scenario)


@dataclass
class RowsSeen:
    """`Solo`, noting the rows of moves at each decision: as they are, and with everybody free to move."""

    scenario: Scenario
    keeps_slo: bool = True
    pairs: list[tuple[list[Plan], list[Plan]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._policy = make_runnable("most-idle" if len(self.scenario.jobs) % 2 else "solo")
        self.keeps_slo = self._policy.keeps_slo

    def decide(self, state: State, event: Event) -> Plan:
        free = state.copy()
        free.tables.jobs.movable[:] = 1
        both = [regroupings(one, 0.0, limit=2000, shield=self.keeps_slo) for one in (state, free)]
        assert not any(rows.truncated for rows in both)
        self.pairs.append((list(both[0].plans), list(both[1].plans)))
        return self._policy.decide(state, event)


@pytest.mark.hypothesis
def test_the_rows_are_those_of_everybody_without_what_moves_one_of_them() -> None:
    left_out = 0

    @examples(25)
    @given(scenarios())
    def holds(scenario: Scenario) -> None:
        nonlocal left_out
        policy = RowsSeen(scenario)
        replay(scenario, policy)
        for rows, everybody in policy.pairs:
            allowed = [plan for plan in everybody if not {move.job_id for move in plan} & fixed(scenario)]
            assert rows == allowed
            left_out += len(everybody) - len(allowed)

    holds()
    assert left_out > 0


@examples(25)
@given(scenarios(), st.integers(0, 3))
def test_the_environment_offers_no_move_of_theirs_and_is_the_replay(scenario: Scenario, seed: int) -> None:
    env = PlacementVectorEnv(1, Fixed(scenario), moves=True, candidates=128, autoreset_mode="Disabled")
    episode = play(env, at_random(seed))
    plans = [move for _, plan in episode.plans for move in plan]
    run = replay(scenario, Replayed(episode), check=True)
    assert {event.job_id for event in run.log if isinstance(event, Moved)}.isdisjoint(fixed(scenario))
    assert len(plans) == len(scenario.jobs) + sum(isinstance(event, Moved) for event in run.log)
    # Rows of the state and of the environment are the same ones, in the same order.
    watching = Watching(episode, min(job.arrival_s for job in scenario.jobs), True, 128)
    replay(scenario, watching)
    for rows in watching.moves:
        assert {move.job_id for plan in rows.plans for move in plan}.isdisjoint(fixed(scenario))
