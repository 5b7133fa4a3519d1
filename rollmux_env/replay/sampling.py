"""Actual durations of phases: sampled per iteration, times drift.

The rollouts of a job with a model are simulated, response by response, and its trainings follow from the sampled tokens. The
durations of other jobs are lognormal. A job's draws depend only on the seed, the job's id, the phase and the iteration: each (seed,
id, phase) has its Philox generator, whose n-th draw is that of iteration n. Every schedule, a solo run included, therefore meets
the same durations.
"""

from __future__ import annotations

import hashlib
import math
from collections import deque

import numpy as np

from rollmux_env.kernel.tables import Floats
from rollmux_env.keys.job import Job
from rollmux_env.keys.phases import Actual
from rollmux_env.rollout.policy import RolloutPolicy
from rollmux_env.rollout.profile import RolloutProfile, rollout_profiles
from rollmux_env.rollout.setting import setting_of
from rollmux_env.scheduler.view import PhaseName
from rollmux_env.timing.jobs import training_of
from rollmux_env.timing.tail import Migration, TailModel

_BLOCK = 256  # number of iterations that are drawn at once


class Durations:
    """A job's phases as multiples of their worst case, for as many iterations as were asked for.

    Args:
        job: Job.
        seed: Seed of the draws.
        tails: Model of the inside of a rollout, or None.
        migration: When tails migrate and how much they keep, or None if none migrates.
        policy: Rollout policy of jobs with a model, or None if their phases take the worst case.

    Attributes:
        rollout: Factor of each iteration's rollout; `extend` appends more.
        training: Factor of each iteration's training; `extend` appends more.
        threshold: Share of each rollout's seconds after which its tail may migrate; empty without `migration`.
        stretch: Factor of the remaining seconds once the tail is migrated; empty without `migration`.
        rate: Speed of each rollout beside another's tail; empty without `migration`.
        move_s: Seconds until a migrated tail decodes, if `stretch` does not include them.
        rewards_s: Seconds from the end of each rollout to its last reward; empty if rewards take no time.
        tail_rewards_s: The same for rollouts whose tail has migrated.
    """

    def __init__(
        self,
        job: Job,
        seed: int,
        tails: TailModel | None = None,
        migration: Migration | None = None,
        policy: RolloutPolicy | None = None,
    ) -> None:
        self.threshold: list[float] = []
        self.stretch: list[float] = []
        self.rate: list[float] = []
        self.rewards_s: list[float] = []
        self.tail_rewards_s: list[float] = []
        self._job = job
        self._seed = seed
        self._drawn = 0  # number of iterations
        self._laws: dict[tuple[PhaseName, Actual | None], tuple[np.random.Generator, list[float]]] = {}
        self.rollout, self.training = self.factors("rollout", job.rollout.actual), self.factors("training", job.training.actual)
        self._tails = tails
        self._migration = migration
        self._tail = generator(seed, job.id, "tail")
        setting = None if policy is None else setting_of(job)
        self._profiles: tuple[RolloutProfile, ...] = ()
        if setting is not None and policy is not None:
            own = int.from_bytes(hashlib.sha256(f"{seed}/{job.id}/inside".encode()).digest()[:8], "little")
            self._profiles = rollout_profiles(setting, policy, own, migration)
        self.move_s = 0.0 if self._profiles or tails is None else tails.move_s

    def extend(self) -> None:
        """Draw the next block of iterations."""
        first, self._drawn = self._drawn, self._drawn + _BLOCK
        if self._profiles:
            self._extend_inside(first)
            return
        for (name, law), (draws, factors) in self._laws.items():
            factors += self._draw(name, law, draws, first).tolist()
        if self._tails is not None and self._migration is not None:
            threshold, stretch = self._tails.draw(self._tail, self._migration, _BLOCK)
            self.threshold += threshold.tolist()
            self.stretch += stretch.tolist()
            self.rate += [self._tails.rate(self._migration.share)] * _BLOCK

    def _extend_inside(self, first: int) -> None:
        job = self._job
        profiles = [self._profiles[k % len(self._profiles)] for k in range(first, first + _BLOCK)]
        rollout_s = np.array([one.seconds for one in profiles]) / job.rollout.worst_case_s
        assert job.timing is not None  # the rollouts are simulated from it
        training = training_of(job.timing)
        trained_s = np.array([training.seconds(one.trained) for one in profiles]) / job.training.worst_case_s
        self.rollout += (rollout_s * _drift(job, "rollout", first)).tolist()
        self.training += (trained_s * _drift(job, "training", first)).tolist()
        rewarded = job.lengths is not None and job.lengths.reward_nodes is not None
        names = () if self._migration is None else ("threshold", "stretch", "rate")
        for name in (*names, *(("rewards_s", "tail_rewards_s") if rewarded else ())):
            getattr(self, name).extend(getattr(one, name) for one in profiles)

    def rewarding_s(self, iteration: int, migrated: bool) -> float:
        """Return the seconds from the end of a rollout to its last reward."""
        seconds = self.tail_rewards_s if migrated else self.rewards_s
        return seconds[iteration] if seconds else 0.0

    def solo_s(self, iterations: int) -> float:
        """Return the seconds of some iterations of the job alone on its own nodes, in the shape as written.

        There is one cold start of each phase and no warm start.
        """
        job = self._job
        rollout_s, training_s = job.rollout.worst_case_s, job.training.worst_case_s
        sync_s = job.sync_s
        sampled_s = trained_s = 0.0
        # Times at which the weights for the next rollouts arrive.
        synced_s = deque([0.0] * (1 + job.staleness), maxlen=1 + job.staleness)
        cold_s = (job.rollout.switch.cold_s, job.training.switch.cold_s)
        for k in range(iterations):
            begins_s = synced_s[0] if synced_s[0] > sampled_s else sampled_s
            sampled_s = begins_s + (cold_s[0] + rollout_s * self.rollout[k]) + self.rewarding_s(k, False)
            begins_s = trained_s if trained_s > sampled_s else sampled_s
            trained_s = begins_s + (cold_s[1] + training_s * self.training[k])
            synced_s.append(trained_s + sync_s)
            cold_s = (0.0, 0.0)
        return synced_s[-1]

    def factors(self, name: PhaseName, law: Actual | None) -> list[float]:
        """Return the factors of a phase under a distribution; `extend` appends more.

        Other distributions of the same phase use the same random numbers.
        """
        if (name, law) not in self._laws:
            draws, factors = self._laws[name, law] = generator(self._seed, self._job.id, name), list[float]()
            for first in range(0, self._drawn, _BLOCK):
                factors += self._draw(name, law, draws, first).tolist()
        return self._laws[name, law][1]

    def _draw(self, name: PhaseName, actual: Actual | None, draws: np.random.Generator, first: int) -> Floats:
        factors = np.ones(_BLOCK)
        if actual is not None:
            variance = math.log1p(actual.cv**2)  # of log X
            factors = draws.lognormal(math.log(actual.mean_fraction) - variance / 2, math.sqrt(variance), _BLOCK)
            if actual.cap:
                factors = np.minimum(factors, 1.0)
        return factors * _drift(self._job, name, first)


def generator(seed: int, job_id: str, name: str) -> np.random.Generator:
    """Return the random generator of a purpose. The same arguments give the same draws."""
    digest = hashlib.sha256(f"{seed}/{job_id}/{name}".encode()).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))


def _drift(job: Job, name: str, first: int) -> Floats:
    """Return the drift of a block of iterations, shape (_BLOCK,).

    It is the factor of the last entry of `drift` that has begun, and 1 before the first.
    """
    begins = [entry.iteration for entry in job.drift]
    factors = np.array([1.0, *(getattr(entry, name) for entry in job.drift)])
    return np.asarray(factors[np.searchsorted(begins, np.arange(first, first + _BLOCK), side="right")])
