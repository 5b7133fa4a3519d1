"""The rollouts of a job in an event replay: their durations, when their tails begin, and the speed after a migration."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from rollmux_env.rollout.fleet import Fleet
from rollmux_env.rollout.job import JobRollouts, RolloutOutcome
from rollmux_env.rollout.policy import RolloutPolicy, Round, StaticControl, Wake, gather
from rollmux_env.rollout.setting import Setting
from rollmux_env.timing.tail import Migration, migration_of
from rollmux_env.timing.training import MiniBatch

KEPT = 64
"""Number of rollouts that are simulated per job; later iterations reuse them in turn."""


class RolloutProfile(NamedTuple):
    """A rollout as a replay sees it.

    Attributes:
        seconds: Duration without interference, until the last response that counts.
        trained: Responses that count, with their prompts, over all turns.
        threshold: Share of `seconds` after which the wanted share of the responses is done.
        stretch: Factor of the remaining seconds once the tail is migrated, prefill included, at least 1.
        rate: Speed while another job's tail holds some of the replicas, relative to the speed on all of them, at most 1.
        rewards_s: Seconds from the end of the rollout to the last reward that counts.
        tail_rewards_s: The same once the tail is migrated.
    """

    seconds: float
    trained: MiniBatch
    threshold: float = 1.0
    stretch: float = 1.0
    rate: float = 1.0
    rewards_s: float = 0.0
    tail_rewards_s: float = 0.0


class _Tail(StaticControl):
    """Control that gathers the remaining responses on `keep` replicas once `finished` responses have finished."""

    def __init__(self, finished: int, keep: int) -> None:
        self._finished, self._keep = finished, keep

    def begin(self, fleet: Fleet, round: Round) -> Wake:
        super().begin(fleet, round)
        return Wake(self._finished)

    def act(self, fleet: Fleet) -> Wake:
        gather(fleet, self._keep)
        return Wake()


@lru_cache(maxsize=4096)
def rollout_profiles(setting: Setting, policy: RolloutPolicy, seed: int, migration: Migration | None) -> tuple[RolloutProfile, ...]:
    """Simulate the first rollouts of a job, shape (KEPT,).

    Args:
        setting: Setting of the job's rollouts.
        policy: Rollout policy of the job.
        seed: Seed of the lengths.
        migration: When a tail may migrate and how much it keeps, or None if tails do not migrate. A job with a single replica
            migrates no tail, since that would free nothing.
    """
    job = JobRollouts(setting, policy, seed)
    replicas = setting.gpus // setting.parallel
    if migration_of(policy) is not None:
        job.control = StaticControl()  # the dispatch policy decides when a tail migrates
    if migration is None or (keep := migration.keeps(replicas)) >= replicas:
        return tuple(_whole(setting, job.next()) for _ in range(KEPT))
    done = min(max(1, round(migration.at * setting.prompts * setting.responses)), setting.prompts * setting.responses - 1)
    beside = setting.on((replicas - keep) * setting.parallel)
    profiles = []
    for _ in range(KEPT):
        whole, moved, narrow = job.next_of([(setting, _Tail(done, keep)), (beside, StaticControl())])
        threshold_s = float(whole.end_s[done - 1])
        rest_s = max(whole.seconds - threshold_s, 1e-9)
        profiles.append(
            _whole(setting, whole)._replace(
                threshold=threshold_s / whole.seconds,
                stretch=max(1.0, (moved.seconds - threshold_s) / rest_s),
                rate=min(1.0, threshold_s / float(narrow.end_s[done - 1])),
                tail_rewards_s=moved.rewarded_s - moved.seconds,
            )
        )
    return tuple(profiles)


def _whole(setting: Setting, one: RolloutOutcome) -> RolloutProfile:
    """Return the profile of a rollout whose tail does not migrate."""
    trained = MiniBatch.of(setting.prompt_tokens * setting.turns + one.counted_tokens)
    return RolloutProfile(one.seconds, trained, rewards_s=one.rewarded_s - one.seconds)
