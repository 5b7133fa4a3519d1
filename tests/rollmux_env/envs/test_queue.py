"""The queue environment: rules played through it, its return by Little's law, its tracks, and what Gymnasium's users rely on."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from policies.registry import make_policy
from rollmux_env.cluster.events import Arrived, Parked
from rollmux_env.cluster.plan import Park, Place, Plan
from rollmux_env.cluster.trial import without_job
from rollmux_env.envs.placement.generator import Fixed, Workload
from rollmux_env.envs.queue.choices import NAMES
from rollmux_env.envs.queue.known import as_known
from rollmux_env.envs.queue.reward import Completion
from rollmux_env.envs.queue.stream import QueueStream
from rollmux_env.errors import InputError
from rollmux_env.replay.fluid import replay
from rollmux_env.replay.outcome import outcome
from rollmux_env.scenario import parse_scenario
from rollmux_env.scheduler.asking import ask
from rollmux_env.scheduler.parking import ParkingCandidates
from rollmux_env.scheduler.ranking import Ranker
from rollmux_env.workloads.fleets import alone_s, with_fleet

ID = "RollMux/Queue-v0"
SHORT = Workload("production", jobs=30, slo=(1.5, 3.0), classes=3)
KNOWN = {"lengths": "fleet,moves=false,order=area", "classes": "solo,order=learned", "nothing": "rollmux,prune=false,order=gittins"}


def made(**options: Any) -> Any:
    return gym.make(ID, generator=SHORT, **options).unwrapped


def ruled(stream: QueueStream, policy: Any) -> Plan:
    """The plan of a policy that serves the first job, and parks for it, as the queue's server does."""
    state, rules = stream.state, policy.queue_rules
    job_id = stream.decision.queue[0]
    plan = ask(policy, state, Arrived(state.now_s, state.job(job_id)))
    if any(isinstance(action, Place) for action in plan):
        return plan
    ranker = Ranker(rules)
    ranker.rank_jobs(state)
    for other in ParkingCandidates(state, ranker, rules.factor, [job_id], declined=()).list_candidates(job_id):
        with without_job(state, other) as twin:
            if any(isinstance(action, Place) for action in ask(policy, twin, Arrived(state.now_s, state.job(job_id)))):
                return (Park(other, job_id),)
    return ()


@pytest.mark.parametrize("known", KNOWN)
def test_a_rule_through_the_environment_gives_the_log_of_its_replay(known: Any) -> None:
    """The return is minus the mean completion over the mean hours alone."""
    policy: Any = make_policy(f"{KNOWN[known]},park=true")
    env = made(known=known)
    env.reset(options={"stream_seed": 3})
    stream, total, over = env.vector.streams[0], 0.0, False
    while not over:
        plans = [choice.plan for choice in stream.decision.choices]
        _, reward, over, _, info = env.step(plans.index(ruled(stream, policy)))
        total += reward
        assert not info["invalid_action"]
    scenario = as_known(with_fleet(SHORT.scenario(3), "load=1.6"), known, 1.0, 3)
    run = replay(scenario, policy)
    assert stream.run.log == run.log and stream.run.waiting == run.waiting and stream.run.nodes == run.nodes
    assert known == "nothing" or any(isinstance(event, Parked) for event in run.log)
    completion_h, jobs = outcome(run).metrics.mean_completion_h, scenario.jobs
    alone_h = sum(job.iterations * job.solo_s for job in jobs if job.iterations) / len(jobs) / 3600
    assert info["mean_completion_h"] == pytest.approx(completion_h)
    assert -total == pytest.approx(info["mean_completion_h"] / alone_h)


@pytest.mark.parametrize("stays", ["iterations", "fixed"])
def test_lost_time_is_the_completion_less_the_hours_alone(stays: Any) -> None:
    """Weights, parks and sharing included: the two returns of a play differ by a constant of the stream."""
    scenario = Workload("production", jobs=30, slo=(1.5, 3.0), stays=stays).scenario(1)
    jobs = tuple(job.model_copy(update={"weight": 1.0 + k % 3}) for k, job in enumerate(scenario.jobs))
    weighted = Fixed(scenario.model_copy(update={"jobs": jobs}))
    env: Any = gym.make(ID, generator=weighted, reward=Completion(lost_only=True)).unwrapped
    _, info = env.reset(seed=0)
    rng, total, over = np.random.default_rng(0), 0.0, False
    while not over:
        _, reward, over, _, info = env.step(int(rng.choice(np.flatnonzero(info["action_mask"]))))
        assert reward <= 1e-9  # no job works faster than alone
        total += float(reward)
    alone_h = [alone_s(job) / 3600 for job in jobs]
    weights = np.array([job.weight for job in jobs])
    assert info["completion_over_solo"] + total == pytest.approx(np.average(alone_h, weights=weights) / np.mean(alone_h))


def test_check_env_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gym.make(ID, generator=Workload("mixed", jobs=3), fleet="1+1").unwrapped)


def test_any_play_ends_and_keeps_every_slo() -> None:
    """Random choices of the mask, on a vector with autoreset; a masked action costs a penalty and is replaced."""
    envs = gym.make_vec(ID, num_envs=2, vectorization_mode="vector_entry_point", generator=Workload("mixed", jobs=8), fleet="2+1")
    vector: Any = envs.unwrapped
    envs.reset(seed=1)
    rng, ended = np.random.default_rng(0), 0
    streams = [*vector.streams]
    for _ in range(150):
        mask = vector.action_masks()
        _, _, over, _, info = envs.step(np.array([rng.choice(np.flatnonzero(row)) for row in mask]))
        ended += int(over.sum())
        assert not info["invalid_action"].any()
        if ended > 1:
            break
    assert ended > 1
    assert outcome(streams[0].run).metrics.slo_attainment == 1
    twin = pickle.loads(pickle.dumps(copy.deepcopy(vector)))  # noqa: S301
    results = [one.step(np.array([106, 0])) for one in (vector, twin)]
    assert results[0][4]["invalid_action"][0] and results[0][1][0] <= -0.01
    assert all(np.array_equal(results[0][0][name], results[1][0][name]) for name in results[0][0])


def test_tracks_hide_lengths() -> None:
    job = SHORT.scenario(0).jobs[0]
    stated = [as_known(SHORT.scenario(0), "estimates", sigma, 0).jobs for sigma in (0.0, 1.0)]
    assert all(job.estimate and job.estimate.iterations == job.iterations for job in stated[0])
    logs = np.log([job.estimate.iterations / job.iterations for job in stated[1] if job.estimate and job.iterations])
    assert 0.6 < logs.std() < 1.4
    told = SHORT.scenario(0).model_copy(update={"jobs": stated[1]})
    assert as_known(told, "lengths", 1.0, 0).jobs == SHORT.scenario(0).jobs
    assert job.class_name and not as_known(SHORT.scenario(0), "nothing", 1.0, 0).jobs[0].class_name


def test_on_one_device_a_job_asks_for_training_nodes_alone() -> None:
    """The work that it has left is its iterations times T_solo there, too."""
    pool = {"gpus_per_node": 8, "usd_per_gpu_hour": 1, "max_nodes": 2}
    job = {"id": "a", "arrival_s": 0, "iterations": 36, "slo": 2, "rollout": {"worst_case_s": 50}, "training": {"worst_case_s": 50}}
    scenario = parse_scenario({"version": 1, "cluster": {"training": pool, "one_device": True}, "jobs": [job]})
    env: Any = gym.make(ID, generator=Fixed(scenario), fleet=None)
    observation, _ = env.reset()
    place = dict(zip(NAMES.candidates, observation["candidates"][1].tolist(), strict=True))
    assert (place["left"], place["nodes"]) == pytest.approx((1 / 25, 1 / 5))
    assert observation["job"][NAMES.job.index("nodes asked for")] == pytest.approx(1 / 17)


def test_an_estimate_stays_a_number_of_iterations_however_wrong_it_is() -> None:
    stated = as_known(SHORT.scenario(0), "estimates", 10.0, 0).jobs
    counts = [job.estimate.iterations for job in stated if job.estimate]
    assert len(counts) == len(stated) and (min(counts), max(counts)) == (1, 2**31)


def test_streams_learn_lengths_each_from_its_own_departures() -> None:
    envs: Any = gym.make_vec(ID, num_envs=2, vectorization_mode="vector_entry_point", generator=SHORT, known="classes")
    envs.reset(seed=0)
    assert len({id(vars(stream)["_rules"].order) for stream in envs.unwrapped.streams}) == 2


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"known": "all"}, "known: must be one of lengths, estimates, classes, nothing, not 'all'"),
        ({"sigma": -1}, "sigma: must be a number from 0 to 10, not -1"),
        ({"park": 1}, "park: must be true or false, not 1"),
        ({"fleet": 22}, "fleet: must be text, such as 12+10 or load=1.6, or None, not 22"),
        ({"fleet": None}, "fleet: must be given, as the pools of the generator's cluster have no max_nodes"),
    ],
)
def test_an_argument_out_of_range_is_one_line(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError) as caught:
        made(**options).reset(seed=0)
    assert str(caught.value) == problem


def test_classes_are_refused_where_no_job_has_one() -> None:
    env: Any = gym.make(ID, generator=Workload("production", jobs=4), known="classes")
    with pytest.raises(InputError, match=r"known: classes: the generator's jobs have none; give it some, .*classes=8\)"):
        env.reset(seed=0)
