"""Event replays of jobs whose responses have rewards: a rollout's nodes are others' while it waits for its last reward."""

from __future__ import annotations

from itertools import pairwise

import pytest

from policies.dispatch import make_dispatch
from policies.registry import make_policy
from policies.rollout import make_rollout
from rollmux_env.replay.event import Watch, replay_events
from rollmux_env.replay.failures import Failures
from rollmux_env.replay.run import PhaseRun, Run
from rollmux_env.replay.sampling import Durations
from tests.rollmux_env.replay.test_inside import LENGTHS, pair

REWARDS = {"reward_s": 20.0, "reward_nodes": 8}


def played(placement: str, dispatch: str = "round-robin", failures: Failures | None = None, staleness: int = 0) -> Run:
    scenario = pair(lengths=LENGTHS | REWARDS, staleness=staleness, sync_s=5.0)
    return replay_events(
        scenario,
        make_policy(placement),  # type: ignore[arg-type]
        make_dispatch(dispatch),
        0,
        watch=Watch(check=True, keep_phases=True),
        rollout=make_rollout("plain"),
        failures=failures,
    )


def phases_of(run: Run, job_id: str, phase: str) -> list[PhaseRun]:
    return sorted(one for one in run.phases if one.job_id == job_id and one.phase == phase)


def alone(run: Run, job_id: str) -> Durations:
    durations = Durations(next(job for job in run.scenario.jobs if job.id == job_id), 0, policy=make_rollout("plain"))
    durations.extend()
    return durations


@pytest.mark.parametrize("staleness", [0, 1])
def test_training_and_a_stale_jobs_next_rollout_wait_for_the_last_reward(staleness: int) -> None:
    run = played("solo", staleness=staleness)
    durations, worst_s = alone(run, "a"), run.scenario.jobs[0].rollout.worst_case_s
    rollouts, trainings = (phases_of(run, "a", phase) for phase in ("rollout", "training"))
    for k, (rollout, training) in enumerate(zip(rollouts, trainings, strict=True)):
        assert rollout.end_s - rollout.start_s == pytest.approx(durations.rollout[k] * worst_s)
        rewarded_s = rollout.end_s + durations.rewards_s[k]
        assert durations.rewards_s[k] >= REWARDS["reward_s"] and training.start_s >= rewarded_s - 1e-9
        assert staleness or training.start_s == pytest.approx(rewarded_s)
        assert k + 1 == len(rollouts) or rollouts[k + 1].start_s >= rewarded_s - 1e-9
    assert run.solo_s is not None and trainings[-1].end_s + 5.0 == pytest.approx(run.solo_s["a"])


def test_another_job_samples_while_a_rollout_waits_for_its_rewards() -> None:
    run = played("rollmux")
    rollouts, trainings, others = phases_of(run, "a", "rollout"), phases_of(run, "a", "training"), phases_of(run, "b", "rollout")
    durations = alone(run, "a")
    assert {one.group for one in run.phases} == {0}
    beside = 0
    for k, (rollout, training) in enumerate(zip(rollouts, trainings, strict=True)):
        assert training.start_s >= rollout.end_s + durations.rewards_s[k] - 1e-9
        beside += any(rollout.end_s <= other.start_s < rollout.end_s + durations.rewards_s[k] for other in others)
    assert beside > len(rollouts) / 2


def test_a_rollout_that_has_migrated_its_tail_waits_for_its_rewards_too() -> None:
    run = played("rollmux", "round-robin,migrate=0.8")
    tails = {one.iteration: one for one in phases_of(run, "a", "tail")}
    assert tails
    for training in phases_of(run, "a", "training"):
        if training.iteration in tails:
            assert training.start_s >= tails[training.iteration].end_s + REWARDS["reward_s"] - 1e-9


def test_jobs_that_die_while_they_wait_for_rewards_do_the_rollout_again() -> None:
    run = played("rollmux", failures=Failures(job_h=0.4, every=2))
    assert run.failures is not None and run.failures.losses
    durations, rollouts, waiting = alone(run, "a"), phases_of(run, "a", "rollout"), 0
    deaths = [loss for loss in run.failures.losses if loss.job_id == "a"]
    for before, loss in pairwise(deaths):
        for one in rollouts:
            if before.at_s < one.end_s < loss.at_s < one.end_s + durations.rewards_s[one.iteration]:
                waiting += 1
                assert loss.iterations > 0, "what it has sampled is lost"
                assert any(again.iteration == one.iteration and again.start_s > loss.at_s for again in rollouts)
                assert not any(one.end_s <= training.start_s <= loss.at_s for training in phases_of(run, "a", "training"))
    assert waiting
