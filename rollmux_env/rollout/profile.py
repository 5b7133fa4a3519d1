"""The rollouts of a job in an event replay: their durations, when their tails begin, and the speed afterwards."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from rollmux_env.rollout.fleet import Fleet
from rollmux_env.rollout.job import JobRollouts, Rollout
from rollmux_env.rollout.policy import RolloutPolicy, Round, Stay, Wake, gather
from rollmux_env.rollout.setting import Setting
from rollmux_env.timing.tail import Migration, migration_of
from rollmux_env.timing.training import MiniBatch

KEPT = 64
"""So many rollouts of a job are simulated; later iterations go through them again."""


class RolloutProfile(NamedTuple):
    """A rollout as a replay sees it.

    Attributes:
        seconds: undisturbed, until its last response that counts. trained: these, with their prompts, over all turns.
        threshold: share of the seconds after which the wanted share of the responses is done. stretch: what the seconds of the
            rest are multiplied by once it is migrated, prefill included; at least 1.
        rate: its speed while a tail holds a share of its replicas, relative to all of them; at most 1.
        rewards_s: from its end to the last reward that counts. tail_rewards_s: the same once the rest is migrated.
    """

    seconds: float
    trained: MiniBatch
    threshold: float = 1.0
    stretch: float = 1.0
    rate: float = 1.0
    rewards_s: float = 0.0
    tail_rewards_s: float = 0.0


class _Tail(Stay):
    """Gather the rest on so many replicas when so many responses have finished."""

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
    """(KEPT,) the first rollouts of a job.

    Args:
        migration: when a tail may be moved, and what it keeps; None where tails are not. With a single replica nothing is freed,
            and nothing moves.
    """
    job = JobRollouts(setting, policy, seed)
    replicas = setting.gpus // setting.parallel
    if migration_of(policy) is not None:
        job.control = Stay()  # when a tail moves is for the dispatch policy to say
    if migration is None or (keep := migration.keeps(replicas)) >= replicas:
        return tuple(_whole(setting, job.next()) for _ in range(KEPT))
    done = min(max(1, round(migration.at * setting.prompts * setting.responses)), setting.prompts * setting.responses - 1)
    beside = setting.on((replicas - keep) * setting.parallel)
    profiles = []
    for _ in range(KEPT):
        whole, moved, narrow = job.next_of([(setting, _Tail(done, keep)), (beside, Stay())])
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


def _whole(setting: Setting, one: Rollout) -> RolloutProfile:
    """A rollout that nothing disturbs."""
    trained = MiniBatch.of(setting.prompt_tokens * setting.turns + one.counted_tokens)
    return RolloutProfile(one.seconds, trained, rewards_s=one.rewarded_s - one.seconds)
