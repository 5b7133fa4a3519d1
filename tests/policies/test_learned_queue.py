"""`learned:FILE` of a file for the queue: what a network decides in `bench` is what it decides in the environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from policies.api import Arrived, Place, Placement, after, candidates
from policies.dispatch import make_dispatch
from policies.placement.policy_file import PolicyConfig, write_policy
from policies.placement.scorer import random_weights, score
from policies.registry import make_policy
from rollmux_env.cluster.apply import apply
from rollmux_env.cluster.events import OverBudget
from rollmux_env.cluster.state import State
from rollmux_env.envs.placement.generator import Fixed, Workload
from rollmux_env.envs.placement.stream import Generator
from rollmux_env.envs.queue.choices import NAMES, cluster_features
from rollmux_env.envs.queue.env import QueueVectorEnv
from rollmux_env.envs.queue.known import as_known
from rollmux_env.errors import InputError
from rollmux_env.keys.queue import Known
from rollmux_env.replay.admission import admit_all
from rollmux_env.replay.event import replay_events
from rollmux_env.replay.fluid import replay
from rollmux_env.replay.outcome import outcome
from rollmux_env.scenario import load_scenario
from rollmux_env.workloads.fleets import with_fleet

STREAM = Workload("production", jobs=30, slo=(1.5, 3.0), classes=3)
FLEET = "5+5"
FEATURES = NAMES.job, NAMES.candidates, NAMES.cluster


def written(path: Path, seed: int = 0, **fields: Any) -> Path:
    """A file with a network of random weights that seldom serves nobody."""
    config = PolicyConfig.of(FEATURES, (16, 16), {}, **{"decides": "queue", **fields})
    weights = random_weights(len(NAMES.job), len(NAMES.candidates), len(NAMES.cluster), config.widths, seed)
    weights["skip.weight"][0, NAMES.candidates.index("place")] = 0.3
    write_policy(path, config, weights)
    return path


def played(known: Known, weights: Any, seed: int, generator: Generator = STREAM, fleet: str | None = FLEET) -> list[Any]:
    """The log of a stream in the environment under the highest score; somebody is served if nobody runs."""
    env = QueueVectorEnv(1, generator=generator, fleet=fleet, known=known, park=False, autoreset_mode="Disabled")
    seen, _ = env.reset(options={"stream_seed": [seed]})
    stream = env.streams[0]
    while not stream.is_over:
        rows = np.flatnonzero(seen["mask"][0])
        rows = rows if stream.state.stays.placed_at_s else rows[rows > 0]
        scores = score(weights, seen["job"][0], seen["candidates"][0, rows], seen["cluster"][0])
        seen, *_ = env.step(np.array([rows[np.argmax(scores)]]))
    return stream.run.log


@pytest.mark.parametrize("known", ["lengths", "estimates", "classes", "nothing"])
def test_bench_decides_as_the_environment(tmp_path: Path, known: Known) -> None:
    path = written(tmp_path / "queue.safetensors", known=known)
    policy: Any = make_policy(f"learned:{path}")
    scenario = as_known(with_fleet(STREAM.scenario(3), FLEET), known, 1.0, 3)
    run = replay(scenario, policy, check=True)
    assert run.log == played(known, policy.weights, 3)
    assert outcome(run).metrics.slo_attainment == 1 and any(run.waiting)


def test_quotas_and_budgets_of_a_file_hold_in_both(tmp_path: Path) -> None:
    policy: Any = make_policy(f"learned:{written(tmp_path / 'queue.safetensors')}")
    file = load_scenario(Path(__file__).parents[2] / "examples" / "queue.yaml")
    scenario = file.model_copy(update={"jobs": tuple(job for job in file.jobs if not job.priority)})
    run = replay(as_known(scenario, "lengths", 1.0, 0), policy, check=True)
    assert run.log == played("lengths", policy.weights, 0, Fixed(scenario), fleet=None)
    assert any(isinstance(event, OverBudget) for event in run.log) and any(run.waiting)


def test_event_replays_and_reasons_take_it_too(tmp_path: Path) -> None:
    policy: Any = make_policy(f"learned:{written(tmp_path / 'queue.safetensors')}")
    scenario = with_fleet(Workload("production", jobs=8, slo=(1.5, 3.0)).scenario(3), "1+1")
    run = replay_events(scenario, policy, make_dispatch("round-robin"), 0)
    assert outcome(run).metrics.mean_completion_h
    decisions = admit_all(scenario, policy).decisions
    assert any("waits behind" in decision.reason for decision in decisions)


def test_scores_are_those_by_which_it_decides(tmp_path: Path) -> None:
    """What `rollmux explain` shows: the place that is chosen has the highest one."""
    policy: Any = make_policy(f"learned:{written(tmp_path / 'queue.safetensors')}")
    jobs = STREAM.scenario(3).jobs[:4]
    state = State(with_fleet(STREAM.scenario(3), FLEET).cluster)
    for job in jobs:
        apply(state, Arrived(state.now_s, job))
        table = candidates(state, job.id)
        scores = policy.scores(state, table)
        chosen = policy.place(state, job)
        assert (np.isfinite(scores) <= table.feasible).all() and chosen is not None
        assert table.placement(int(np.nanargmax(scores))) == chosen
        state = after(state, (Place(job.id, chosen),))


def test_a_job_without_a_place_has_no_finite_key(tmp_path: Path) -> None:
    """It is last, and reports show only finite keys."""
    policy: Any = make_policy(f"learned:{written(tmp_path / 'queue.safetensors')}")
    scenario = with_fleet(Workload("production", jobs=8, slo=(1.0, 1.0)).scenario(3), "1+1")  # no job may share
    state = State(scenario.cluster)
    for job in scenario.jobs[:3]:
        apply(state, Arrived(job.arrival_s, job))
    first, *others = [job.id for job in scenario.jobs[:3]]
    assert all(np.isfinite(policy.queue_rules.keys(state, state.waiting)))
    state = after(state, (Place(first, Placement(None, new_rollout_nodes=1, training_nodes=1)),))
    assert policy.queue_rules.keys(state, others) == [np.inf, np.inf]


@pytest.mark.filterwarnings("error")
def test_nodes_may_be_unlimited(tmp_path: Path) -> None:
    policy: Any = make_policy(f"learned:{written(tmp_path / 'queue.safetensors')}")
    scenario = Workload("production", jobs=3).scenario(3)
    assert len(admit_all(scenario, policy).decisions) == 3
    assert cluster_features(State(scenario.cluster)) == (0.0, 0.0, 1.0, 1.0)  # all nodes are free


@pytest.mark.parametrize(
    ("fields", "options", "problem"),
    [
        ({}, ",order=area", "order: its network orders the queue"),
        ({}, ",starve_h=3", "starve_h: its network orders the queue"),
        ({"parks": True}, "", "was trained to park jobs, which only the environment lets it; train with park=false"),
        ({"decides": "dispatch"}, "", "is a policy for dispatch, not for placement"),
        ({}, ",colour=1", "has no option 'colour'"),
    ],
)
def test_what_does_not_fit_is_said_in_a_line(tmp_path: Path, fields: dict[str, Any], options: str, problem: str) -> None:
    path = written(tmp_path / "queue.safetensors", **fields)
    with pytest.raises(InputError) as error:
        make_policy(f"learned:{path}{options}")
    assert problem in str(error.value) and "\n" not in str(error.value)


def test_a_network_of_other_features_is_refused(tmp_path: Path) -> None:
    config = PolicyConfig.of((("a",), ("b",), ("c",)), (4,), {}, decides="queue")
    write_policy(tmp_path / "other.safetensors", config, random_weights(1, 1, 1, (4,), 0))
    with pytest.raises(InputError, match="reads other features"):
        make_policy(f"learned:{tmp_path / 'other.safetensors'}")
