"""The consecutive rollouts of a job: draws lengths, runs a policy on the replicas, and reports the outcome."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rollmux_env.kernel.rollouts import FINISHED
from rollmux_env.kernel.tables import Floats, Ints
from rollmux_env.portable import dot
from rollmux_env.rollout.fleet import Fleet
from rollmux_env.rollout.policy import Control, RolloutPolicy, Round, Rounds
from rollmux_env.rollout.setting import Setting
from rollmux_env.timing.lengths import whole

_BLOCK = 1024
RUNAWAY = 100_000  # calls of a control in one rollout


@dataclass(frozen=True)
class Rollout:
    """The outcome of a rollout.

    Attributes:
        seconds: from its start to its last response that counts, waits for the environment included.
        long: it ran what earlier ones left.
        end_s: (n,) when the responses that finished did, rising.
        counted_tokens: (wanted * needed,) tokens of the responses that count. lost_tokens: sampled for those that do not.
        preemptions, migrations: of responses. moved_s: when one first migrated; infinite where none did.
        busy_gpu_s: seconds of every GPU until its replica had nothing to do any more, summed.
    """

    seconds: float
    long: bool
    end_s: Floats
    counted_tokens: Ints
    lost_tokens: int
    preemptions: int
    migrations: int
    moved_s: float
    busy_gpu_s: float

    def done_s(self, share: float) -> float:
        """Seconds until such a share of the responses that finished had done so."""
        return float(self.end_s[max(1, round(share * self.end_s.size)) - 1])


class JobRollouts:
    """The rollouts of one job under one policy.

    Lengths depend on the seed, the prompt's key and the round alone. Prompts keep how hard they are when they are sampled again.
    """

    def __init__(self, setting: Setting, policy: RolloutPolicy, seed: np.random.SeedSequence | int) -> None:
        self.setting = setting
        self.rounds: Rounds = policy.rounds(setting.prompts, setting.responses)
        self.control: Control = policy.control(setting)
        hardness, responses = np.random.SeedSequence(seed).spawn(2) if isinstance(seed, int) else seed.spawn(2)
        self._hardness = np.random.Generator(np.random.Philox(hardness))
        self._responses = np.random.Generator(np.random.Philox(responses))
        self._hard = np.zeros(0)

    def next(self) -> Rollout:
        """Run the next rollout."""
        return self.next_of(())[0]

    def next_of(self, variants: Sequence[tuple[Setting, Control]]) -> list[Rollout]:
        """Run the rollout that is due, and the same responses in other ways, of which nothing is remembered.

        Returns:
            What happened, of the rollout and of each of `variants`.
        """
        round = self.rounds.next()
        lengths = self._draw(round)
        rollouts: list[Rollout] = []
        for setting, control in ((self.setting, self.control), *variants):
            fleet, complete = play(setting, control, round, lengths)
            if not rollouts:
                self.rounds.done([round.prompts[g] for g in complete])
            rollouts.append(_rollout_of(fleet, round, complete))
        return rollouts

    def _draw(self, round: Round) -> Ints:
        """(prompts * responses, turns) the lengths of a round."""
        from scipy.special import ndtr

        if observed := self.setting.observed:
            groups = [observed[prompt % len(observed)] for prompt in round.prompts]
            return np.array([[group[k % len(group)]] for group in groups for k in range(round.responses)], dtype=np.int64)
        while self._hard.size <= max(round.prompts):
            self._hard = np.concatenate([self._hard, self._hardness.standard_normal(_BLOCK)])
        alike = self.setting.alike
        own = self._responses.standard_normal((len(round.prompts), round.responses, self.setting.turns))
        scores = np.sqrt(alike) * self._hard[list(round.prompts), None, None] + np.sqrt(1 - alike) * own
        return whole(self.setting.lengths.quantile(ndtr(scores).reshape(-1, self.setting.turns)))


def play(setting: Setting, control: Control, round: Round, lengths: Ints) -> tuple[Fleet, list[int]]:
    """Run one round: its fleet when it is over, and its complete prompts, by place in the round, as they became so."""
    n = len(round.prompts)
    groups = np.repeat(np.arange(n), round.responses)
    prompts = np.full(groups.size, setting.prompt_tokens)
    replicas, away_s = setting.replicas, setting.environment_s
    fleet = Fleet(replicas, prompts, lengths, groups, round.needed, setting.most, setting.parallel, away_s)
    wake = control.begin(fleet, round)
    for _ in range(RUNAWAY):
        fleet.run(wake.at_s, wake.finished, round.wanted)
        if fleet.complete >= round.wanted or not fleet.open.size:
            break
        wake = control.act(fleet)
    assert fleet.complete >= round.wanted, "a control left responses unlaunched, or never let them run"
    fleet.abort(fleet.open)
    control.end(fleet)
    ended = np.zeros(n, np.int64)
    complete = []
    for response in fleet.finished.tolist():
        group = response // round.responses
        ended[group] += 1
        if ended[group] == round.needed:
            complete.append(group)
    return fleet, complete[: round.wanted]  # some may have become complete in the same step as the last


def _rollout_of(fleet: Fleet, round: Round, complete: list[int]) -> Rollout:
    sampled = fleet.sampled()
    counts = np.zeros(len(round.prompts), bool)
    counts[complete] = True
    counted_tokens = sampled[(fleet.state == FINISHED) & np.repeat(counts, round.responses)]
    return Rollout(
        seconds=fleet.now_s,
        long=round.long,
        end_s=fleet.end_s[fleet.finished],
        counted_tokens=counted_tokens,
        lost_tokens=int(sampled.sum() - counted_tokens.sum()),
        preemptions=fleet.preemptions,
        migrations=fleet.migrations,
        moved_s=fleet.moved_s,
        busy_gpu_s=dot(np.minimum(fleet.busy_s, fleet.now_s), fleet.gpus),
    )
