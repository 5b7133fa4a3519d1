"""Rewards on nodes of their own: against the definition, and in a rollout and an event replay."""

from __future__ import annotations

import heapq
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.rollout import make_rollout
from rollmux_env.errors import InputError
from rollmux_env.kernel.rollout_rounds import reward_ends
from rollmux_env.rollout.job import JobRollouts
from rollmux_env.rollout.profile import rollout_profiles
from rollmux_env.rollout.setting import Setting, setting_of
from rollmux_env.scenario import parse_scenario
from rollmux_env.timing.lengths import Lognormal
from rollmux_env.timing.replica import ReplicaTiming
from rollmux_env.timing.rewards import mean_reward_s, reward_seconds, varied_reward_ends
from rollmux_env.workloads.catalogue import paper_cluster

ENGINE = ReplicaTiming(0.01, 0.01, 1e-7, 1e-4, 0.0, 1e-5, 0.0, 2**20)
SETTING = Setting(((1, ENGINE),), 4, 1, 8, 4, 16, Lognormal(2048, 300.0, 1.2))


LAW = ((0.9, 1.0), (0.95, 30.0), (1.0, 30.0))


def defined(over_s: list[float], reward_s: float | list[float], nodes: int) -> list[float]:
    """A response's reward begins when it is over and a node is free."""
    free, ends = [0.0] * nodes, list[float]()
    for k, one_s in enumerate(over_s):
        ends.append(max(one_s, heapq.heappop(free)) + (reward_s[k] if isinstance(reward_s, list) else reward_s))
        heapq.heappush(free, ends[-1])
    return ends


@given(st.lists(st.floats(0, 100), min_size=1, max_size=40), st.floats(0, 30, exclude_min=True), st.integers(1, 50))
def test_a_reward_begins_when_its_response_is_over_and_a_node_is_free(over_s: list[float], reward_s: float, nodes: int) -> None:
    over_s.sort()
    assert reward_ends(np.array(over_s), reward_s, nodes).tolist() == defined(over_s, reward_s, nodes)
    varied = [reward_s * (1 + k % 7) for k in range(len(over_s))]
    assert varied_reward_ends(np.array(over_s), np.array(varied), nodes).tolist() == defined(over_s, varied, nodes)


def test_rewards_of_a_distribution_have_its_shares_and_its_mean() -> None:
    runs_s = reward_seconds(LAW, np.linspace(0, 1, 100_001))
    assert ((runs_s == 1).mean(), (runs_s == 30).mean()) == (pytest.approx(0.9, abs=1e-4), pytest.approx(0.05, abs=1e-4))
    assert runs_s.mean() == pytest.approx(mean_reward_s(LAW), rel=1e-4) and mean_reward_s(LAW) == pytest.approx(3.175)


@pytest.mark.parametrize("name", ["plain", "tail-batching,each_engine=true"])
def test_rewards_that_differ_change_nothing_of_a_rollout_but_when_it_is_rewarded(name: str) -> None:
    settings = [replace(SETTING, reward_s=mean_reward_s(law), reward_nodes=9, reward_quantiles=law) for law in (LAW, ((1.0, 2.0),))]
    settings += [replace(SETTING, reward_s=2.0, reward_nodes=9)]
    jobs = [JobRollouts(one, make_rollout(name), 3) for one in settings]
    for _ in range(2):
        varied, alike, constant = [job.next() for job in jobs]
        assert alike.rewarded_s == constant.rewarded_s and varied.end_s.tolist() == constant.end_s.tolist()
        assert varied.rewarded_s >= varied.seconds and varied.rewarded_s != constant.rewarded_s


@pytest.mark.parametrize("name", ["plain", "tail-batching", "tail-batching,each_engine=true", "tail-migration"])
def test_rewards_change_nothing_of_a_rollout_but_when_it_is_rewarded(name: str) -> None:
    policy = make_rollout(name)
    free, slow = (JobRollouts(one, policy, 3) for one in (SETTING, replace(SETTING, reward_s=1.5, reward_nodes=3)))
    for _ in range(4):
        one, other = free.next(), slow.next()
        assert one.rewarded_s == one.seconds == other.seconds and one.end_s.tolist() == other.end_s.tolist()
        assert other.counts.sum() == 32 == other.counted_tokens.size
        ends = defined(other.end_s.tolist(), 1.5, 3)
        assert other.rewarded_s == max(end for end, counts in zip(ends, other.counts, strict=True) if counts)
        last_s = float(other.end_s[other.counts][-1])
        after_s = other.seconds + 11 * 1.5
        assert last_s + 1.5 <= other.rewarded_s and (name != "plain" or other.rewarded_s <= after_s + 1e-9)


@settings(max_examples=20, deadline=None)
@given(st.floats(0.1, 5), st.integers(1, 64), st.integers(1, 64))
def test_more_nodes_and_shorter_rewards_are_never_slower(reward_s: float, nodes: int, more: int) -> None:
    over_s = np.linspace(0, 20, 50) ** 1.3
    ends = reward_ends(over_s, reward_s, nodes)
    assert (reward_ends(over_s, reward_s, nodes + more) <= ends).all() and (reward_ends(over_s, reward_s / 2, nodes) <= ends).all()


def scenario(**lengths: Any) -> Any:
    job = {"id": "a", "arrival_s": 0.0, "iterations": 3, "slo": 2.0, "rollout": {"nodes": 1}, "training": {"nodes": 1}}
    job |= {"model": "7B", "lengths": {"cap": 4096, "batch": 64, "median": 500, "sigma": 1.0, **lengths}}
    return parse_scenario({"version": 1, "cluster": paper_cluster().model_dump(), "jobs": [job]})


def test_a_scenarios_job_has_rewards_in_its_rollouts_and_in_their_worst_case() -> None:
    plain, slow = scenario().jobs[0], scenario(reward_s=3, reward_nodes=10).jobs[0]
    assert slow.rollout.worst_case_s == pytest.approx(plain.rollout.worst_case_s + 7 * 3)
    assert "reward" not in str(plain.model_dump()) and plain.sync_s == slow.sync_s
    policy, where = make_rollout("plain"), setting_of(slow)
    assert where is not None and (where.reward_s, where.reward_nodes) == (3.0, 10)
    without = replace(where, reward_s=0.0, reward_nodes=1)
    both = [rollout_profiles(one, policy, 1, None) for one in (without, where)]
    assert without == setting_of(plain)
    for one, other in zip(*both, strict=True):
        assert one._replace(rewards_s=other.rewards_s) == other and one.rewards_s == 0.0
        assert other.rewards_s >= 3 and other.seconds + other.rewards_s <= slow.rollout.worst_case_s


def test_a_scenarios_rewards_may_differ() -> None:
    slow = scenario(reward_quantiles=LAW, reward_nodes=10).jobs[0]
    assert slow.rollout.worst_case_s == pytest.approx(scenario().jobs[0].rollout.worst_case_s + 7 * 30)
    where = setting_of(slow)
    assert where is not None and where.reward_s == pytest.approx(3.175)
    for one in rollout_profiles(where, make_rollout("plain"), 1, None):
        assert one.rewards_s >= 1 and one.seconds + one.rewards_s <= slow.rollout.worst_case_s


@pytest.mark.parametrize(
    ("lengths", "problem"),
    [
        ({"reward_s": 3}, "jobs[0].lengths: reward_s and reward_nodes go together; one of them is given"),
        ({"reward_nodes": 3}, "jobs[0].lengths: reward_s and reward_nodes go together; one of them is given"),
        ({"reward_s": 0, "reward_nodes": 3}, "jobs[0].lengths.reward_s: must be above 0, not 0"),
        ({"reward_s": 1, "reward_nodes": 0}, "jobs[0].lengths.reward_nodes: must be at least 1, not 0"),
        ({"reward_quantiles": [[1, 3]]}, "jobs[0].lengths: reward_quantiles and reward_nodes go together; one of them is given"),
        (
            {"reward_quantiles": [[0.5, 3], [0.5, 4], [1, 4]], "reward_nodes": 1},
            "jobs[0].lengths.reward_quantiles: must rise in share, from above 0, and in seconds",
        ),
        (
            {"reward_quantiles": [[0.5, 3]], "reward_nodes": 1},
            "jobs[0].lengths.reward_quantiles: must end with a share of 1, not 0.5",
        ),
        ({"reward_quantiles": [[1, 3]], "reward_s": 3}, "jobs[0].lengths: takes reward_s or reward_quantiles, not both"),
        ({"reward": 1}, "jobs[0].lengths.reward: is not a key of this file format"),
    ],
)
def test_rewards_that_are_none_are_one_line(lengths: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError) as error:
        scenario(**lengths)
    assert str(error.value).startswith(f"scenario: {problem}") and "\n" not in str(error.value)
