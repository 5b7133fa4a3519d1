"""The consecutive rollouts of a job: draws lengths, runs a policy on the replicas, and reports the outcome."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollmux_env.errors import InputError, PlanError
from rollmux_env.kernel.rollout_rounds import rewarded_s
from rollmux_env.kernel.tables import Floats, Ints
from rollmux_env.portable import dot
from rollmux_env.rollout.checks import RUNAWAY, WHO, RoundChecks, begin_job, check_wake
from rollmux_env.rollout.fleet import Fleet
from rollmux_env.rollout.policy import Control, RolloutPolicy, Round, Rounds, Stay
from rollmux_env.rollout.setting import Setting
from rollmux_env.user_code import guarded

_BLOCK = 1024


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
        own = begin_job(policy, setting)
        self._checks = RoundChecks(setting)
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
            PlanError: the policy broke an invariant of `rollmux_env.rollout.checks`, or raised an exception; one line.
        """
        round = guarded(self.rounds.next, WHO)()
        self._checks.check(round)
        lengths = self._draw(round)
        if self._each_engine and variants:
            raise InputError("rollout policy: with each_engine=true no tail moves")
        if self._each_engine:
            plays = [play_shares(self.setting, round, lengths)]
        else:
            plays = [[play(*way, round, lengths)] for way in ((self.setting, self.control), *variants)]
        complete = [round.prompts[part.first + g] for part in plays[0] for g in part.complete.tolist()]
        self._checks.done(complete)
        guarded(self.rounds.done, WHO)(complete)
        settings = (self.setting, *(setting for setting, _ in variants))
        return [_rollout_of(setting, round, parts) for setting, parts in zip(settings, plays, strict=True)]

    def _draw(self, round: Round) -> Ints:
        """(prompts * responses, turns) the lengths of a round."""
        if observed := self.setting.observed:
            groups = [observed[prompt % len(observed)] for prompt in round.prompts]
            return np.array([[group[k % len(group)]] for group in groups for k in range(round.responses)], dtype=np.int64)
        while self._hard.size <= max(round.prompts):
            self._hard = np.concatenate([self._hard, self._hardness.standard_normal(_BLOCK)])
        own = self._responses.standard_normal((len(round.prompts), round.responses, self.setting.turns))
        return self.setting.lengths_of(self._hard[list(round.prompts), None, None], own).reshape(-1, self.setting.turns)


class Played(NamedTuple):
    """A round that is over, or a part of one.

    Attributes:
        fleet: as it is then. complete: (wanted,) the complete prompts, by place in the part, as they became so.
        counts: (R,) whether each response does. first: place of the part's first prompt in the round.
    """

    fleet: Fleet
    complete: Ints
    counts: NDArray[np.bool_]
    first: int = 0


def play(setting: Setting, control: Control, round: Round, lengths: Ints) -> Played:
    """Run one round of (R, turns) lengths to its end."""
    rollout = setting.prompt_tokens, lengths, round.responses, round.needed
    fleet = Fleet(setting.replicas, *rollout, setting.most, setting.parallel, setting.environment_s)
    act = guarded(control.act, WHO)
    wake = check_wake(guarded(control.begin, WHO)(fleet, round), fleet, setting)
    for _ in range(RUNAWAY):
        if fleet.run(wake.at_s, wake.finished, round.wanted):
            break
        wake = check_wake(act(fleet), fleet, setting)
    if fleet.complete < round.wanted:
        raise PlanError(f"R7: the rollout policy left {round.wanted - fleet.complete} of {round.wanted} prompts incomplete")
    ended = fleet.end(round.wanted)
    guarded(control.end, WHO)(fleet)
    return Played(fleet, *ended)


def play_shares(setting: Setting, round: Round, lengths: Ints) -> list[Played]:
    """Run one round with a share for every replica, which ends it for itself."""
    one, parts, first = setting.on(setting.parallel), [], 0
    for share in round.shares(len(setting.replicas)):
        rows = slice(first * round.responses, (first + len(share.prompts)) * round.responses)
        if share.wanted:
            parts.append(play(one, Stay(), share, lengths[rows])._replace(first=first))
        first += len(share.prompts)
    return parts


def _rollout_of(setting: Setting, round: Round, parts: Sequence[Played]) -> Rollout:
    """What happened in a round, of its parts."""
    fleets = [part.fleet for part in parts]
    seconds = max(fleet.now_s for fleet in fleets)
    end_s = np.concatenate([fleet.end_s[fleet.finished] for fleet in fleets])
    order = np.argsort(end_s, kind="stable")
    end_s, counts = end_s[order], np.concatenate([part.counts[part.fleet.finished] for part in parts])[order]
    tokens, counted = np.concatenate([fleet.sampled() for fleet in fleets]), np.concatenate([part.counts for part in parts])
    completed_s = [part.fleet.end_s[part.counts].reshape(-1, round.needed).max(axis=1) for part in parts]
    return Rollout(
        seconds=seconds,
        long=round.long,
        end_s=end_s,
        complete_s=np.sort(np.concatenate(completed_s)),
        counted_tokens=tokens[counted],
        lost_tokens=int(tokens[~counted].sum()),
        preemptions=sum(fleet.preemptions for fleet in fleets),
        migrations=sum(fleet.migrations for fleet in fleets),
        moved_s=min(fleet.moved_s for fleet in fleets),
        busy_gpu_s=sum(dot(np.minimum(fleet.busy_s, fleet.now_s), fleet.gpus) for fleet in fleets),
        counts=counts,
        rewarded_s=float(rewarded_s(seconds, end_s, counts, setting.reward_s, setting.reward_nodes)),
    )
