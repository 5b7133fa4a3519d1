"""The policies `learned:default` and `learned:PATH`: a network makes the decisions of a rollout.

It chooses what to launch, the size of the replicas, and which responses move or are dropped. It sees the observation of
`RollMux/Rollout-v0` (`rollmux_env.envs.rollout.observation`) and chooses among the rows that the mask allows, at the same points
of a rollout as the environment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policies.placement.policy_file import read_default
from policies.placement.scorer import score
from policies.rollout.rounds import Rounds
from rollmux_env.envs.rollout.actions import dropped, remembered, shifted
from rollmux_env.envs.rollout.dynamics import next_checkpoint
from rollmux_env.envs.rollout.observation import feature_names, write_observation
from rollmux_env.envs.rollout.types import (
    ABORT,
    JOB,
    KEEP,
    PUT_OFF,
    RESIZE,
    ROWS,
    SIZES,
    SPARE,
    TAIL,
    write_setting,
)
from rollmux_env.errors import InputError
from rollmux_env.kernel.feature_tables import Observations, observation_table
from rollmux_env.kernel.rollout_records import COSTS, Rollout, rollout_table
from rollmux_env.kernel.rollout_trials import QUANTILES, remember
from rollmux_env.rollout.fleet import Fleet
from rollmux_env.rollout.policy import JobPolicy, Round, Wake, deal
from rollmux_env.rollout.setting import Setting


@dataclass(frozen=True)
class Learned:
    """Rollout policy that takes the allowed row to which its network gives the highest score.

    Args:
        path: Path of a policy file for rollouts, or `default` for the one that RollMux ships.
        tails: Whether tails may move to half of the replicas. False if no other job would use the freed half.
        spare: Whether rounds may launch more responses than they need.
        switch_s: Seconds until replicas of another size are ready.

    Attributes:
        weights: Weights of the network.
        rewards: Whether the network reads the features about rewards.
        sha256: Hash of the weights. Policies whose files had other weights are not equal.

    Raises:
        InputError: The file cannot be read, is damaged, or reads features that this version does not have.
        ValueError: An option has an invalid value.
    """

    path: str = "default"
    tails: bool = True
    spare: bool = True
    switch_s: float = 3.5
    weights: dict[str, NDArray[np.float32]] = field(init=False, repr=False, compare=False)
    rewards: bool = field(init=False, repr=False, compare=False)
    sha256: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("tails", "spare"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be true or false, not {getattr(self, name)}")
        if not (isinstance(self.switch_s, int | float) and 0 <= self.switch_s < float("inf")):
            raise ValueError(f"switch_s must be a number of at least 0, not {self.switch_s}")
        _, config, weights = read_default(self.path, "rollout", (feature_names(False), feature_names(True)))
        digest = sha256(b"".join(name.encode() + weights[name].tobytes() for name in sorted(weights)))
        values = {"weights": weights, "rewards": config.features == feature_names(True), "sha256": digest.hexdigest()}
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def begin_job(self, setting: Setting) -> JobPolicy:
        """Return one `LearnedRollouts` as both the rounds and their control, because both need the same history."""
        network = LearnedRollouts(self, setting)
        return JobPolicy(network, network)

    def best_row(self, shown: Observations, e: int) -> int:
        """Return the best allowed row of decision `e`, given the observations of the environment."""
        mask = shown.mask[e].copy()
        mask[TAIL] &= self.tails
        mask[SPARE] &= self.spare
        rows = np.flatnonzero(mask)
        if len(rows) == 1:
            return int(rows[0])
        job, _, state = map(len, feature_names(self.rewards))
        known = _first_padded(shown.job[e], job), shown.candidates[e, rows], _first_padded(shown.cluster[e], state)
        return int(rows[score(self.weights, *known).argmax()])


def _first_padded(row: NDArray[np.float32], count: int) -> NDArray[np.float32]:
    """Return the first `count` numbers of a row, padded with 0, which means that rewards take no time."""
    return np.concatenate([row[:count], np.zeros(max(0, count - row.size), np.float32)])


class LearnedRollouts(Rounds):
    """A job's rounds and the control of its rollouts, decided by the network.

    Attributes:
        job: Record of type `JOB`: the history of the job's rollouts, as the network sees it.
        quantiles: Quantiles of response lengths in short and in long rounds, shape (2, QUANTILES).
    """

    def __init__(self, policy: Learned, setting: Setting) -> None:
        if setting.turns != 1 or any(size not in SIZES for size, _ in setting.timings):
            raise InputError("rollout policy learned: was trained on responses of one turn, with replicas of 1, 2, 4 or 8 GPUs")
        super().__init__(setting.prompts, setting.responses, 1)
        self._policy, self._setting = policy, setting
        self._current: Round | None = None
        self.job: Any = np.zeros(1, JOB)[0]
        self.quantiles = np.zeros((2, QUANTILES))
        self._costs, self._kv = np.zeros((len(SIZES), COSTS)), np.zeros(len(SIZES), np.int64)
        write_setting(self.job, self._costs, self._kv, setting, policy.switch_s)
        self._out = observation_table(1, ROWS, feature_names(policy.rewards))

    def next(self) -> Round:
        """Return the next round. The first call for a round also decides the size of its replicas."""
        if self._current is None:
            job = self.job
            job["launching"], job["resized"], job["moved"] = 1, 0, 0
            job["queue"], job["long"] = len(self.queue), len(self.queue) >= job["prompts"]
            row = self._best_row(rollout_table())
            if row >= RESIZE:
                job["size"], job["resized"] = row - RESIZE, 1
                job["live"] = job["gpus"] // SIZES[row - RESIZE]
                row = self._best_row(rollout_table())
            sizes = ("spare_prompts", "spare_responses") if row == SPARE else ("prompts", "responses")
            self._launched = int(job[sizes[0]]), int(job[sizes[1]])
            self._current = super().next()
        return self._current

    def done(self, complete: Sequence[int]) -> None:
        """Record that the current round is over, so that the network decides about the next one."""
        super().done(complete)
        self._current = None

    def begin(self, fleet: Fleet, round: Round) -> Wake:
        """Launch a round on replicas of the chosen size."""
        job = self.job
        live = np.arange(fleet.size)
        if job["size"] != job["configured"] or job["resized"]:
            live = self._add_replicas(fleet, self._policy.switch_s if job["resized"] else 0.0)
        else:
            job["first"], job["live"] = 0, fleet.size
        job["launched"], job["each"], job["long"] = len(round.prompts), round.responses, round.long
        job["launching"] = job["resized"] = job["moved"] = 0
        job["queue"] -= len(round.prompts) if round.long else 0  # a long round takes its prompts from the queue
        deal(fleet, live)
        return self._next_wake(fleet)

    def act(self, fleet: Fleet) -> Wake:
        """Apply the best row: keep everything, migrate or drop responses, or add replicas of another size."""
        job = self.job
        fleet.sampled()
        job["now_s"] = fleet.now_s
        row = self._best_row(fleet.tables)
        if row in (PUT_OFF, ABORT):
            fleet.abort(dropped(job, fleet.tables, row))
        elif row != KEEP:
            which, where = shifted(job, fleet.tables, self.quantiles, row)
            if row >= RESIZE:
                job["size"] = row - RESIZE
                self._add_replicas(fleet, fleet.now_s + self._policy.switch_s)
            fleet.migrate(which, job["first"] + where)
            job["moved"] = row == TAIL
        return self._next_wake(fleet)

    def end(self, fleet: Fleet) -> None:
        """Add the lengths of the finished responses to the job's history."""
        job = self.job
        remember(self.quantiles[job["long"]], fleet.sampled()[fleet.finished], remembered(job))
        job["known"] |= 1 << job["long"]

    def _best_row(self, rollout: Rollout) -> int:
        write_observation(self.job, rollout, self.quantiles, self._costs, self._kv, self._out, 0)
        return self._policy.best_row(self._out, 0)

    def _add_replicas(self, fleet: Fleet, from_s: float) -> NDArray[np.int64]:
        size, setting = SIZES[self.job["size"]], self._setting
        live = fleet.add([dict(setting.timings)[size]] * (setting.gpus // size), size, from_s)
        self.job["first"], self.job["live"] = live[0], live.size
        return live

    def _next_wake(self, fleet: Fleet) -> Wake:
        job = self.job
        return Wake(int(next_checkpoint(job["prompts"] * job["responses"], fleet.finished.size)))
