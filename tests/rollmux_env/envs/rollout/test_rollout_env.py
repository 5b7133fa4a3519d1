"""The rollout environment is the simulator of the bench, and what Gymnasium's users rely on."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from numpy.typing import NDArray

import rollmux_env  # noqa: F401 (registers)
from policies.rollout import make_rollout
from policies.rollout.environment import PolicyAgent
from rollmux_env.envs.rollout.env import RolloutVectorEnv
from rollmux_env.envs.rollout.generator import Fixed, RandomJobs, Toy
from rollmux_env.envs.rollout.reward import Cost
from rollmux_env.envs.rollout.types import ABORT, KEEP, PUT_OFF, REBALANCE, RESIZE, SPARE, TAIL, RolloutJob
from rollmux_env.errors import InputError
from rollmux_env.kernel.rollout_records import ABORTED, FINISHED, RUNNING, WAITING
from rollmux_env.kernel.rollout_rounds import reward_ends
from rollmux_env.rollout.job import play
from tests.rollmux_env.envs.playing import at_random_of, bytes_of, check_scalar

ID = "RollMux/Rollout-v0"
PUBLISHED = (
    "plain",
    "tail-batching",
    "tail-migration",
    "adaptive-parallelism",
    "parallelism-planner",
    "stream-trainer",
    "tail-batching+tail-migration",
    "tail-batching+adaptive-parallelism",
    "learned:default",
)


def vector(num_envs: int, **options: Any) -> Any:
    return gym.make_vec(ID, num_envs=num_envs, vectorization_mode="vector_entry_point", **options)


def episode(env: RolloutVectorEnv, choose: Callable[[Any], Any], seeds: list[int]) -> tuple[NDArray[Any], dict[str, Any]]:
    """Returns and figures of an episode a job."""
    observation, _ = env.reset(seed=0, options={"stream_seed": seeds})
    returns, over, info = np.zeros(len(seeds)), np.zeros(len(seeds), bool), dict[str, Any]()
    while not over.all():
        observation, rewards, ended, _, info = env.step(choose(observation))
        returns += np.where(over, 0, rewards)
        over |= ended
    return returns, info


def simulated(spec: str, case: RolloutJob) -> list[float]:
    """Seconds of a job's rollouts by the simulator of the bench, until the last reward that counts, as far as a data set without an
    end has the same prompts."""
    rounds, control = make_rollout(spec).begin_job(case.setting)
    lengths, attempts, seconds = case.draw(), np.zeros(case.prompts, np.int64), []
    for _ in range(case.iterations):
        due = rounds.next()
        if max(due.prompts) >= case.prompts:
            break
        rows = [lengths[prompt, min(attempts[prompt], 2), k] for prompt in due.prompts for k in range(due.responses)]
        attempts[list(due.prompts)] += 1
        fleet, complete, counts, _ = play(case.setting, control, due, np.array(rows)[:, None])
        rounds.done([due.prompts[place] for place in complete])
        ends = reward_ends(fleet.end_s[fleet.finished], case.setting.reward_s, case.setting.reward_nodes)
        seconds.append(max(fleet.now_s, ends[counts[fleet.finished]].max()))
    return seconds


@pytest.mark.parametrize("rewards", [False, True])
@pytest.mark.parametrize("spec", PUBLISHED)
def test_a_policy_takes_as_long_as_in_the_bench(spec: str, rewards: bool) -> None:
    env = RolloutVectorEnv(4, RandomJobs(iterations=5, rewards=rewards), autoreset_mode="Disabled")
    _, info = episode(env, PolicyAgent(spec, env).actions, [1000, 1001, 1004, 1005])
    for e, seed in enumerate((1000, 1001, 1004, 1005)):
        seconds = simulated(spec, env.generator.case(seed))
        if len(seconds) == 5:
            paid_s = info["switches"][e] * 3.5 / 5 if spec == "parallelism-planner" else 0.0  # between rollouts it pays nothing
            assert info["seconds"][e] == pytest.approx(np.mean(seconds) + paid_s, rel=1e-9)
        assert len(seconds) >= 3


def test_random_choices_train_every_prompt_once_and_the_return_is_the_cost() -> None:
    env = RolloutVectorEnv(8, RandomJobs(iterations=3), autoreset_mode="Disabled")
    choose, taken = at_random_of(1), set[int]()

    def watched(observation: Any) -> Any:
        jobs, actions = env.jobs, choose(observation["mask"])
        taken.update(actions[jobs.jobs["over"] == 0].tolist())
        for e in np.flatnonzero((jobs.jobs["over"] == 0) & (jobs.jobs["launching"] == 0)):
            job, states = jobs.jobs[e], jobs.responses[e]["state"]
            assert jobs.order[e, -1] == (states == FINISHED).sum()
            open_prompts = np.unique(jobs.responses[e]["group"][~np.isin(states, (FINISHED, ABORTED))])
            assert len(open_prompts) + jobs.counts[e, 0] >= job["prompts"], "what is wanted can still be completed"
        return actions

    returns, info = episode(env, watched, list(range(8)))
    jobs = env.jobs.jobs
    assert taken == {KEEP, SPARE, REBALANCE, TAIL, PUT_OFF, ABORT, *range(RESIZE, RESIZE + 4)}
    assert (jobs["queue"] == 0).all() and (jobs["fresh"] == 3 * jobs["prompts"]).all() and (jobs["iteration"] == 3).all()
    assert returns == pytest.approx(-(info["seconds_over_plain"] + info["held_over_plain"]) / 2)


def test_plain_costs_one() -> None:
    env = RolloutVectorEnv(3, RandomJobs(iterations=2), autoreset_mode="Disabled")
    returns, _ = episode(env, lambda observation: np.zeros(3, np.int64), [5, 6, 7])
    assert returns == pytest.approx(-1)


def test_the_optimum_of_the_toy_is_the_best_of_all_choices() -> None:
    toy = Toy(iterations=1)
    env = RolloutVectorEnv(1, toy, Cost(held_weight=0), autoreset_mode="Disabled")

    def best(path: tuple[int, ...]) -> float:
        observation, _ = env.reset(seed=0)
        total = 0.0
        for row in path:
            observation, rewards, over, _, _ = env.step(np.array([row]))
            total += float(rewards[0])
            if over[0]:
                return total
        return max(best((*path, int(row))) for row in np.flatnonzero(observation["mask"][0]))

    assert best(()) == pytest.approx(-toy.best)
    assert episode(env, lambda observation: observation["mask"][:, REBALANCE] * REBALANCE, [0])[0] == pytest.approx(-toy.best)


def test_a_moved_tail_holds_half_of_the_gpus() -> None:
    env = RolloutVectorEnv(1, Toy(iterations=1), autoreset_mode="Disabled")
    _, info = episode(env, lambda observation: observation["mask"][:, TAIL] * TAIL, [0])
    assert info["seconds"][0] == 2000 and info["held_seconds"][0] == 20 + 1980 / 2


def test_a_masked_action_keeps_on_and_costs() -> None:
    env = RolloutVectorEnv(1, Toy(), Cost(invalid_penalty=0.5), autoreset_mode="Disabled")
    env.reset(seed=0)
    for row in (TAIL, 99):
        _, rewards, _, _, info = env.step(np.array([row]))
        assert info["invalid_action"][0] and rewards[0] < -0.5
        env.reset(seed=0)


def test_a_limited_job_never_moves_its_tail_and_some_launch_no_spare() -> None:
    env = RolloutVectorEnv(6, RandomJobs(iterations=2, limited=1.0), autoreset_mode="Disabled")
    offered, choose = np.zeros((6, 10), bool), at_random_of(2)

    def watched(observation: Any) -> Any:
        np.logical_or(offered, observation["mask"] > 0, out=offered)
        assert not observation["candidates"][observation["mask"] == 0].any()
        return choose(observation["mask"])

    episode(env, watched, [*range(6)])
    spare = [env.generator.case(seed).spare for seed in range(6)]
    assert not offered[:, TAIL].any() and offered[:, REBALANCE].all() and offered[:, SPARE].tolist() == spare and 0 < sum(spare) < 6
    assert [env.generator.case(seed).setting for seed in range(6)] == [RandomJobs().case(seed).setting for seed in range(6)]
    returns, info = episode(env, PolicyAgent("tail-batching+tail-migration", env).actions, [*range(6)])
    assert returns == pytest.approx(-info["seconds_over_plain"])  # nothing is freed, and no masked action is paid for


def test_nothing_is_observed_of_tokens_that_have_not_been_sampled() -> None:
    case = RandomJobs(iterations=1).case(3)
    envs = [RolloutVectorEnv(1, Fixed(case), autoreset_mode="Disabled") for _ in range(2)]
    seen = [env.reset(seed=0, options={"stream_seed": 3})[0] for env in envs]
    responses = envs[1].jobs.lengths
    responses[responses > 600] += 50
    compared = 0

    def differs(env: RolloutVectorEnv) -> bool:
        own = env.jobs.responses[0]
        begun = np.isin(own["state"], (WAITING, RUNNING, FINISHED)) & (env.jobs.jobs["launching"][0] == 0)
        return bool((own["sampled"][begun] > 600).any())

    while not any(differs(env) for env in envs):
        assert all(np.array_equal(seen[0][name], seen[1][name]) for name in seen[0])
        compared += 1
        seen = [env.step(np.zeros(1, np.int64))[0] for env in envs]
    assert compared > 1


def test_check_env_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gym.make(ID, generator=RandomJobs(iterations=1)).unwrapped)


def test_the_same_seed_gives_the_same_bytes_and_a_scalar_environment_is_a_vector_of_one() -> None:
    first, again, other = (bytes_of(vector(3), at_random_of(0), seed, 40) for seed in (1, 1, 2))
    assert first == again != other
    check_scalar(vector(3), gym.make(ID))


def test_pictures() -> None:
    frames: dict[str, list[Any]] = {}
    for mode in ("rgb_array", "ansi"):
        env: Any = gym.make(ID, generator=Toy(), render_mode=mode)
        env.reset(seed=0)
        frames[mode] = [env.render()]
        env.step(0)
        frames[mode].append(env.render())
    assert frames["rgb_array"][0].ndim == 3 and (frames["rgb_array"][0] != frames["rgb_array"][1]).any()
    assert "before it begins" in frames["ansi"][0] and "2 of 4 responses finished" in frames["ansi"][1]


@pytest.mark.parametrize(
    "make",
    [
        lambda: RolloutVectorEnv(0),
        lambda: RolloutVectorEnv(1, render_mode="html"),
        lambda: RolloutVectorEnv(1).render(),
        lambda: RandomJobs(sigma=-1),
        lambda: RandomJobs(iterations=0),
        lambda: RandomJobs(limited=2),
        lambda: Cost(held_weight=2),
        lambda: RolloutJob(Toy().case(0).setting, 0),
        lambda: PolicyAgent("tail-batching,eta=1.5", RolloutVectorEnv(1)),
        Fixed,
    ],
)
def test_what_cannot_be_made_is_said_in_a_line(make: Callable[[], object]) -> None:
    with pytest.raises(InputError) as error:
        make()
    assert "\n" not in str(error.value)
