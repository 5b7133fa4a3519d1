"""`learned`: what a network decides in `bench` is what it decides in the environment."""

from pathlib import Path

import numpy as np
import pytest

from policies.placement.learned import SHIPPED, Learned
from policies.placement.policy_file import read_policy, write_policy
from policies.placement.scorer import score
from policies.registry import make_runnable
from rollmux_env.cluster.events import Admitted
from rollmux_env.envs.placement.env import PlacementVectorEnv
from rollmux_env.envs.placement.generator import Workload
from rollmux_env.envs.placement.observation import candidate_names
from rollmux_env.envs.placement.stream import Generator
from rollmux_env.errors import InputError
from rollmux_env.replay.fluid import replay
from rollmux_env.replay.outcome import outcome
from tests.rollmux_env.replay.test_event import job, scenario


def played(generator: Generator, seed: int, policy: Learned) -> float:
    """Dollars of a stream in the environment under the highest logit of the policy's network."""
    moves = policy.config.moves
    known, room = policy.config.known_stays, 32 if moves else 400
    env = PlacementVectorEnv(1, generator=generator, moves=moves, known_stays=known, candidates=room, autoreset_mode="Disabled")
    seen, _ = env.reset(options={"stream_seed": seed})
    names = candidate_names(moves, shapes=True)  # those of shapes, of which there are none here, are 0
    columns = [names.index(name) for name in policy.config.candidate_features]
    over = False
    while not over:
        rows = np.flatnonzero(seen["mask"][0])
        shown = np.pad(seen["candidates"][0][rows], ((0, 0), (0, len(names) - len(candidate_names(moves)))))
        logits = score(policy.weights, seen["job"][0], shown[:, columns], seen["cluster"][0])
        seen, _, ended, _, info = env.step(np.array([rows[np.argmax(logits)]]))
        over = ended[0]
        assert moves or not info["truncated"][0]
    return float(info["cost_usd"][0])


@pytest.mark.parametrize(
    "spec",
    [
        "learned:default,moves=false",
        "learned:default,moves=false,known_stays=false",
        "learned:random,moves=false",
        "learned:default,tries=1",
        "learned:default,tries=1,known_stays=false",
    ],
)
@pytest.mark.parametrize("name, stays", [("production", "iterations"), ("mixed", "fixed")])
def test_bench_decides_as_the_environment(spec: str, name: str, stays: str) -> None:
    generator = Workload(name, jobs=60, stays=stays)
    policy = make_runnable(spec, seed=1)
    assert isinstance(policy, Learned)
    found = outcome(replay(generator.scenario(3), policy, check=True)).metrics
    assert found.slo_attainment == 1
    assert found.cost_usd == pytest.approx(played(generator, 3, policy), rel=1e-9)


@pytest.mark.parametrize(
    "spec, name",
    [
        ("learned:default,tries=1", "moves"),
        ("learned:default,moves=false", "admission"),
        ("learned:default,moves=false,known_stays=false", "admission-unknown"),
    ],
)
def test_jobs_of_several_shapes_have_a_network_of_their_own(spec: str, name: str) -> None:
    """Which is the one to choose: on streams with shapes the other one costs more."""
    scenario = Workload("production", jobs=60, shapes=True).scenario(1000)
    other = spec.replace("default", str(SHIPPED / f"{name}.safetensors"))
    usd = [outcome(replay(scenario, make_runnable(one), check=True)).metrics.usd_per_work_hour for one in (spec, other)]
    assert usd[0] < 0.97 * usd[1]


def test_jobs_wait_where_nothing_fits() -> None:
    scenario = Workload("mixed", jobs=30).scenario(0)
    training = scenario.cluster.pools["training"].model_copy(update={"max_nodes": 3})
    cluster = scenario.cluster.model_copy(update={"training": training})
    found = outcome(replay(scenario.model_copy(update={"cluster": cluster}), Learned(), check=True)).metrics
    assert max(found.wait_s.values()) > 0 and found.slo_attainment == 1


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.safetensors"
    write_policy(path, *read_policy(SHIPPED / "admission.safetensors"))
    scenario = Workload("mixed", jobs=20).scenario(0)
    costs = [
        outcome(replay(scenario, make_runnable(spec))).metrics.cost_usd
        for spec in (f"learned:{path}", "learned:default,moves=false")
    ]
    assert costs[0] == costs[1]


def test_moves_follow_a_place_while_others_wait_for_a_quota() -> None:
    """Ann's second job is passed over; where to place Bob's, and what to move then, is asked of a state in which it still waits."""
    users = (("a", "ann", 0), ("b", "ann", 9), ("c", "bob", 9))
    jobs = [job(name, 50, 40, at_s, slo=1, user=user) for name, user, at_s in users]
    run = replay(scenario(*jobs, quotas={"ann": {"nodes": 2}}), Learned())
    admitted = {event.job_id: event.at_s for event in run.log if isinstance(event, Admitted)}
    assert admitted["c"] == 9 < admitted["b"]


def test_errors_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "other.safetensors"
    with pytest.raises(InputError, match="No such file"):
        make_runnable(f"learned:{path}")
    config, weights = read_policy(SHIPPED / "admission.safetensors")
    names = ("colour", *config.job_features[1:])
    write_policy(path, config.model_copy(update={"job_features": names}), weights)
    with pytest.raises(InputError, match="job_features: there is no feature 'colour'") as error:
        make_runnable(f"learned:{path}")
    assert "\n" not in str(error.value)
    with pytest.raises(InputError, match="has no option 'x'"):
        make_runnable("learned:default,x=1")


def test_the_shipped_files_are_small() -> None:
    assert all(file.stat().st_size < 2 * 2**20 for file in SHIPPED.glob("*.safetensors"))
