"""Rewards that take time in the rollout environment: what they cost, and what is observed of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from policies.rollout.environment import PolicyAgent
from rollmux_env.envs.rollout.env import RolloutVectorEnv
from rollmux_env.envs.rollout.generator import Fixed, RandomJobs
from rollmux_env.envs.rollout.observation import JOB_FEATURES, STATE_FEATURES, feature_names
from rollmux_env.envs.rollout.types import RolloutJob
from rollmux_env.errors import InputError
from rollmux_env.kernel.rollout_rounds import reward_ends

SEEDS = [1000, 1001, 1004, 1005]


def both() -> list[RolloutVectorEnv]:
    return [RolloutVectorEnv(4, RandomJobs(iterations=3, rewards=rewards), autoreset_mode="Disabled") for rewards in (False, True)]


@pytest.mark.parametrize("spec", ["tail-batching+tail-migration", "learned:default"])
def test_a_policy_does_the_same_with_rewards_and_waits_for_them_without_gpus(spec: str) -> None:
    envs = both()
    agents = [PolicyAgent(spec, env) for env in envs]
    shown = [env.reset(seed=0, options={"stream_seed": SEEDS})[0] for env in envs]
    over, info = np.zeros(4, bool), list[dict[str, Any]]()
    while not over.all():
        assert np.array_equal(shown[0]["candidates"], shown[1]["candidates"]) and np.array_equal(shown[0]["mask"], shown[1]["mask"])
        assert np.array_equal(shown[0]["job"], shown[1]["job"][:, : len(JOB_FEATURES)])
        assert np.array_equal(shown[0]["cluster"], shown[1]["cluster"][:, : len(STATE_FEATURES)])
        actions = [agent.actions(one) for agent, one in zip(agents, shown, strict=True)]
        assert actions[0].tolist() == actions[1].tolist()
        stepped = [env.step(own) for env, own in zip(envs, actions, strict=True)]
        shown, over, info = [one[0] for one in stepped], stepped[0][2] | over, [one[4] for one in stepped]
    assert (info[0]["held_seconds"] == info[1]["held_seconds"]).all() and (info[0]["seconds"] < info[1]["seconds"]).all()


def test_plain_costs_one_with_rewards_too() -> None:
    env = RolloutVectorEnv(4, RandomJobs(iterations=2, rewards=True), autoreset_mode="Disabled")
    env.reset(seed=0, options={"stream_seed": SEEDS})
    returns, over = np.zeros(4), np.zeros(4, bool)
    while not over.all():
        _, rewards, ended, _, info = env.step(np.zeros(4, np.int64))
        returns += np.where(over, 0, rewards)
        over |= ended
    assert returns == pytest.approx(-1) and info["held_over_plain"] == pytest.approx(1) == info["seconds_over_plain"]


def test_the_observation_says_which_rewards_wait() -> None:
    env = RolloutVectorEnv(4, RandomJobs(iterations=2, rewards=True), autoreset_mode="Disabled")
    names = feature_names(True)
    observation, _ = env.reset(seed=0, options={"stream_seed": SEEDS})
    over, waited = np.zeros(4, bool), 0
    while not over.all():
        for e in np.flatnonzero(~over):
            job, setting = env.jobs.jobs[e], env.setting(int(e))
            told = dict(zip((*names[0], *names[2]), (*observation["job"][e], *observation["cluster"][e]), strict=True))
            assert 0 < told["reward"] <= told["rewards"] < 1
            count = 0 if job["launching"] else int(env.jobs.order[e, -1])
            over_s = env.jobs.responses[e]["end_s"][env.jobs.order[e, :count]]
            ends = reward_ends(over_s, setting.reward_s, setting.reward_nodes)
            waiting = int((ends > job["now_s"]).sum())
            assert told["rewards waiting"] == pytest.approx(waiting / (setting.prompts * setting.responses))
            assert (told["rewards ahead"] > 0) == (waiting > 0)
            waited += waiting > 0
        observation, _, ended, _, _ = env.step(np.zeros(4, np.int64))
        over |= ended
    assert waited > 20


def test_a_generator_says_whether_rewards_take_time() -> None:
    case = RandomJobs(iterations=1, rewards=True).case(3)
    assert Fixed(case).rewards and not RandomJobs().rewards and RandomJobs(iterations=1).case(3).setting.reward_s == 0
    varied = replace(case, setting=replace(case.setting, reward_quantiles=((1.0, case.setting.reward_s),)))
    with pytest.raises(InputError, match="all rewards of a job take equally long; give it reward_s, not reward_quantiles"):
        RolloutVectorEnv(1, Fixed(varied)).reset(seed=0)

    class Wrong(RandomJobs):
        def case(self, seed: int) -> RolloutJob:
            return case

    with pytest.raises(InputError, match="a job's rewards take time, and its generator says that none do"):
        RolloutVectorEnv(1, Wrong(iterations=1)).reset(seed=0)
