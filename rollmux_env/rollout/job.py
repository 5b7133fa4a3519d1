"""The consecutive rollouts of a job: lengths are drawn, a policy runs on the replicas, and the outcome is reported."""

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
from rollmux_env.rollout.policy import Control, RolloutPolicy, Round, RoundSequence, StaticControl
from rollmux_env.rollout.setting import Setting
from rollmux_env.timing.rewards import reward_seconds, varied_reward_ends
from rollmux_env.user_code import guarded

_BLOCK = 1024  # number of prompts whose hardness is drawn at once


@dataclass(frozen=True)
class RolloutOutcome:
    """The outcome of a rollout. Times are in seconds since its start.

    Attributes:
        seconds: Duration until the last response that counts, waits for the environment included.
        long: Whether it ran prompts that earlier rounds deferred.
        end_s: End of each finished response, ascending, shape (n,).
        complete_s: Time at which each prompt that counts was complete, ascending, shape (wanted,).
        counted_tokens: Tokens of each response that counts, shape (wanted * needed,).
        lost_tokens: Number of tokens that were sampled for responses that do not count.
        preemptions: Number of preemptions of responses.
        migrations: Number of migrations of responses.
        moved_s: Time of the first migration, or infinity.
        busy_gpu_s: Seconds until each GPU's replica ran out of work, summed over GPUs.
        counts: Whether each finished response counts, in the order of `end_s`, shape (n,).
        rewarded_s: End of the last reward of a response that counts; equals `seconds` if rewards take no time.
        prompts: Number of the prompt of each finished response, in the order of `end_s`, shape (n,).
        tokens: Tokens of each finished response over all turns, in the order of `end_s`, shape (n,).
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
    prompts: Ints
    tokens: Ints

    def done_s(self, share: float) -> float:
        """Return the seconds until a share of the finished responses had finished."""
        return float(self.end_s[max(1, round(share * self.end_s.size)) - 1])


class JobRollouts:
    """The rollouts of one job under one policy.

    The lengths depend only on the seed, the prompt and the round. A prompt keeps its hardness when it is sampled again.

    Args:
        setting: Setting of the job's rollouts.
        policy: Rollout policy.
        seed: Seed of the lengths.
    """

    def __init__(self, setting: Setting, policy: RolloutPolicy, seed: np.random.SeedSequence | int) -> None:
        self.setting = setting
        own = begin_job(policy, setting)
        self._checks = RoundChecks(setting)
        self.rounds: RoundSequence = own.rounds
        self.control: Control = own.control
        self._each_engine: bool = getattr(policy, "each_engine", False)
        own_seed = np.random.SeedSequence(seed) if isinstance(seed, int) else seed
        hardness, responses = own_seed.spawn(2)
        self._hardness = np.random.Generator(np.random.Philox(hardness))
        self._responses = np.random.Generator(np.random.Philox(responses))
        self._hard = np.zeros(0)
        if setting.reward_quantiles:
            self._rewards = np.random.Generator(np.random.Philox(own_seed.spawn(1)[0]))

    def next(self) -> RolloutOutcome:
        """Run the next rollout."""
        return self.next_of(())[0]

    def next_of(self, variants: Sequence[tuple[Setting, Control]]) -> list[RolloutOutcome]:
        """Run the next rollout, and the same responses under other settings and controls, which leave no trace in the job's state.

        Args:
            variants: Setting and control of each further run of the same responses.

        Returns:
            The outcome of the rollout, then that of each variant.

        Raises:
            InputError: If there are variants, and every engine ends its own share.
            PlanError: If the policy broke a rule of `rollmux_env.rollout.checks` or raised an exception.
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
        rewards_s = self._draw_rewards(round)
        return [_rollout_of(setting, round, parts, rewards_s) for setting, parts in zip(settings, plays, strict=True)]

    def _draw(self, round: Round) -> Ints:
        """Draw the lengths of a round's responses, shape (prompts * responses, turns)."""
        if observed := self.setting.observed:
            groups = [observed[prompt % len(observed)] for prompt in round.prompts]
            return np.array([[group[k % len(group)]] for group in groups for k in range(round.responses)], dtype=np.int64)
        while self._hard.size <= max(round.prompts):
            self._hard = np.concatenate([self._hard, self._hardness.standard_normal(_BLOCK)])
        own = self._responses.standard_normal((len(round.prompts), round.responses, self.setting.turns))
        return self.setting.lengths_of(self._hard[list(round.prompts), None, None], own).reshape(-1, self.setting.turns)

    def _draw_rewards(self, round: Round) -> Floats | None:
        """Draw the seconds of a round's rewards, shape (prompts * responses,), or None if all take equally long."""
        if not (quantiles := self.setting.reward_quantiles):
            return None
        return reward_seconds(quantiles, self._rewards.random(len(round.prompts) * round.responses))


class PlayedRound(NamedTuple):
    """A round that is over, or a part of one.

    Attributes:
        fleet: The rollout at its end.
        complete: Complete prompts, by their position in the part, in the order in which they became complete, shape (wanted,).
        counts: Whether each response counts, shape (R,).
        first: Position of the part's first prompt in the round.
    """

    fleet: Fleet
    complete: Ints
    counts: NDArray[np.bool_]
    first: int = 0


def play(setting: Setting, control: Control, round: Round, lengths: Ints) -> PlayedRound:
    """Run one round to its end.

    Args:
        setting: Setting of the rollout.
        control: Control that acts on the responses.
        round: Round to run.
        lengths: Final number of sampled tokens of each turn, shape (R, turns).

    Raises:
        PlanError: If the control broke a rule, left prompts incomplete (R7), or raised an exception.
    """
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
    return PlayedRound(fleet, *ended)


def play_shares(setting: Setting, round: Round, lengths: Ints) -> list[PlayedRound]:
    """Run one round in which every replica runs and ends its own share, and return the shares."""
    one, parts, first = setting.on(setting.parallel), [], 0
    for share in round.shares(len(setting.replicas)):
        rows = slice(first * round.responses, (first + len(share.prompts)) * round.responses)
        if share.wanted:
            parts.append(play(one, StaticControl(), share, lengths[rows])._replace(first=first))
        first += len(share.prompts)
    return parts


def _rollout_of(setting: Setting, round: Round, parts: Sequence[PlayedRound], rewards_s: Floats | None) -> RolloutOutcome:
    """Return the outcome of a round.

    Args:
        setting: Setting of the rollout.
        round: The round.
        parts: Shares of the round that ran apart: one of each replica if every engine ends its own, otherwise one.
        rewards_s: Seconds of each response's reward, shape (prompts * responses,), or None if all take equally long.
    """
    fleets = [part.fleet for part in parts]
    seconds = max(fleet.now_s for fleet in fleets)
    end_s = np.concatenate([fleet.end_s[fleet.finished] for fleet in fleets])
    order = np.argsort(end_s, kind="stable")
    end_s, counts = end_s[order], np.concatenate([part.counts[part.fleet.finished] for part in parts])[order]
    tokens, counted = np.concatenate([fleet.sampled() for fleet in fleets]), np.concatenate([part.counts for part in parts])
    rows = np.concatenate([part.fleet.finished + part.first * round.responses for part in parts])[order]
    completed_s = [part.fleet.end_s[part.counts].reshape(-1, round.needed).max(axis=1) for part in parts]
    return RolloutOutcome(
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
        rewarded_s=_rewarded_s(setting, seconds, end_s, counts, None if rewards_s is None else rewards_s[rows]),
        prompts=np.array(round.prompts)[rows // round.responses],
        tokens=np.concatenate([fleet.sampled()[fleet.finished] for fleet in fleets])[order],
    )


def _rewarded_s(setting: Setting, seconds: float, end_s: Floats, counts: NDArray[np.bool_], rewards_s: Floats | None) -> float:
    if rewards_s is None:
        return float(rewarded_s(seconds, end_s, counts, setting.reward_s, setting.reward_nodes))
    return max(seconds, float(varied_reward_ends(end_s, rewards_s, setting.reward_nodes)[counts].max()))
