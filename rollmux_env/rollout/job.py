"""The consecutive rollouts of a job: draws lengths, runs a policy on the replicas, and reports the outcome."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rollmux_env.errors import InputError
from rollmux_env.kernel.rollout_records import FINISHED
from rollmux_env.kernel.tables import Floats, Ints
from rollmux_env.portable import dot
from rollmux_env.rollout.fleet import Fleet
from rollmux_env.rollout.moves import Stay
from rollmux_env.rollout.policy import Control, RolloutPolicy, Round, Rounds
from rollmux_env.rollout.rewards import reward_ends
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
        end_s: (n,) when the responses that finished did, rising. complete_s: (wanted,) when the prompts that count were complete,
            rising.
        counted_tokens: (wanted * needed,) tokens of the responses that count. lost_tokens: sampled for those that do not.
        preemptions, migrations: of responses. moved_s: when one first migrated; infinite where none did.
        busy_gpu_s: seconds of every GPU until its replica had nothing to do any more, summed.
        counts: (n,) which of the responses that finished do. rewarded_s: when the last reward of those ended; `seconds` where
            rewards take no time.
    """

    seconds: float
    long: bool
    end_s: Floats
    complete_s: Floats
    counted_tokens: Ints
    lost_tokens: int
    preemptions: int
    migrations: int
    moved_s: float
    busy_gpu_s: float
    counts: NDArray[np.bool_]
    rewarded_s: float

    def done_s(self, share: float) -> float:
        """Seconds until such a share of the responses that finished had done so."""
        return float(self.end_s[max(1, round(share * self.end_s.size)) - 1])


class JobRollouts:
    """The rollouts of one job under one policy.

    Lengths depend on the seed, the prompt's key and the round alone. Prompts keep how hard they are when they are sampled again.
    """

    def __init__(self, setting: Setting, policy: RolloutPolicy, seed: np.random.SeedSequence | int) -> None:
        self.setting = setting
        own = policy.begin_job(setting)
        self.rounds: Rounds = own.rounds
        self.control: Control = own.control
        self._each_engine: bool = getattr(policy, "each_engine", False)
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

        Raises:
            InputError: there are variants, and every engine ends its share for itself.
        """
        round = self.rounds.next()
        lengths = self._draw(round)
        if self._each_engine:
            if variants:
                raise InputError("rollout policy: with each_engine=true no tail moves")
            rollout, done = play_shares(self.setting, round, lengths)
            self.rounds.done([round.prompts[g] for g in done])
            return [rollout]
        rollouts: list[Rollout] = []
        for setting, control in ((self.setting, self.control), *variants):
            fleet, complete = play(setting, control, round, lengths)
            if not rollouts:
                self.rounds.done([round.prompts[g] for g in complete])
            rollouts.append(_rollout_of(setting, fleet, round, complete))
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
        fleet.run(fleet.now_s, None, round.wanted)  # what ends at the same instant has ended
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


def play_shares(setting: Setting, round: Round, lengths: Ints) -> tuple[Rollout, list[int]]:
    """Run one round with a share for every replica, which ends it for itself: what happened, and complete prompts as of `play`."""
    one = replace(setting, timings=((setting.parallel, setting.replicas[0]),), gpus=setting.parallel)
    rollouts, complete, first = [], [], 0
    for share in round.shares(len(setting.replicas)):
        rows = slice(first * round.responses, (first + len(share.prompts)) * round.responses)
        if share.wanted:
            fleet, own = play(one, Stay(), share, lengths[rows])
            rollouts.append(_rollout_of(one, fleet, share, own))
            complete += [first + group for group in own]
        first += len(share.prompts)
    end_s, counted = (np.concatenate([getattr(part, name) for part in rollouts]) for name in ("end_s", "counts"))
    order, seconds = np.argsort(end_s, kind="stable"), max(part.seconds for part in rollouts)
    whole = Rollout(
        seconds=seconds,
        long=round.long,
        end_s=end_s[order],
        complete_s=np.sort(np.concatenate([part.complete_s for part in rollouts])),
        counted_tokens=np.concatenate([part.counted_tokens for part in rollouts]),
        lost_tokens=sum(part.lost_tokens for part in rollouts),
        preemptions=sum(part.preemptions for part in rollouts),
        migrations=0,
        moved_s=np.inf,
        busy_gpu_s=sum(part.busy_gpu_s for part in rollouts),
        counts=counted[order],
        rewarded_s=_rewarded_s(setting, end_s[order], counted[order], seconds),
    )
    return whole, complete


def _rollout_of(setting: Setting, fleet: Fleet, round: Round, complete: list[int]) -> Rollout:
    sampled = fleet.sampled()
    counts = np.zeros(len(round.prompts), bool)
    counts[complete] = True
    ends = np.where(fleet.state == FINISHED, fleet.end_s, np.inf).reshape(len(round.prompts), round.responses)
    complete_s = np.sort(np.sort(ends, axis=1)[counts, round.needed - 1])
    counted_tokens = sampled[(fleet.state == FINISHED) & np.repeat(counts, round.responses)]
    end_s, counted = fleet.end_s[fleet.finished], counts[fleet.finished // round.responses]
    return Rollout(
        seconds=fleet.now_s,
        long=round.long,
        end_s=end_s,
        complete_s=complete_s,
        counted_tokens=counted_tokens,
        lost_tokens=int(sampled.sum() - counted_tokens.sum()),
        preemptions=fleet.preemptions,
        migrations=fleet.migrations,
        moved_s=fleet.moved_s,
        busy_gpu_s=dot(np.minimum(fleet.busy_s, fleet.now_s), fleet.gpus),
        counts=counted,
        rewarded_s=_rewarded_s(setting, end_s, counted, fleet.now_s),
    )


def _rewarded_s(setting: Setting, end_s: Floats, counts: NDArray[np.bool_], seconds: float) -> float:
    if not setting.reward_s:
        return seconds
    return max(seconds, float(reward_ends(end_s, setting.reward_s, setting.reward_nodes)[counts].max()))
