"""Duration of a rollout on replicas (`rollmux_env.timing.replica`): from the lengths of its responses, and its bound at the cap."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np

from rollmux_env.errors import InputError
from rollmux_env.timing.lengths import Tokens
from rollmux_env.timing.replica import ReplicaTiming


def batch_s(timing: ReplicaTiming, prompts: Tokens, lengths: Tokens) -> float:
    """Seconds of one replica for sequences that start together and all fit into its cache.

    From one completion to the next the batch stays as it is and each context grows by a token a step, so that the steps between
    are an arithmetic series, or two where memory traffic overtakes arithmetic.

    Args:
        prompts: (n,) tokens read before the first step. lengths: (n,) tokens sampled, one a step.
    """
    order = np.argsort(lengths, kind="stable")
    prompts, lengths = prompts[order].astype(np.float64), lengths[order].astype(np.float64)
    prefill_s = len(prompts) * timing.prefill_s + timing.prefill_s_per_token * prompts.sum()
    prefill_s += timing.prefill_s_per_token2 * (prompts**2).sum()
    begin = np.concatenate([[0.0], lengths[:-1]])  # steps done when the batch has shrunk to those that end no earlier
    batch = np.arange(len(lengths), 0, -1, dtype=np.float64)
    read = np.cumsum(prompts[::-1])[::-1]  # prompts of the batch
    weights_s = timing.weights_seconds(batch)
    memory_s = weights_s + timing.kv_s_per_token * (read + batch * begin)  # of its first step; then it grows by `slope`
    slope, arithmetic_s = timing.kv_s_per_token * batch, timing.sequence_s * batch
    steps = lengths - begin
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        until = np.where(memory_s >= arithmetic_s, 0.0, np.ceil((arithmetic_s - memory_s) / slope))
    bound = np.minimum(np.nan_to_num(until, nan=0.0, posinf=np.inf), steps)  # steps that arithmetic bounds
    reading = steps - bound
    traffic_s = reading * (memory_s + slope * bound) + slope * reading * (reading - 1) / 2
    return float(prefill_s + np.sum(timing.step_s * steps + bound * arithmetic_s + traffic_s))


def replica_s(timing: ReplicaTiming, prompts: Tokens, lengths: Tokens) -> float:
    """Seconds of one replica for sequences that may not fit into its cache together.

    They then run in waves, in their order, each as many as fit with their last token; a wave begins when the one before it has
    ended. What really happens (free room is filled at once, and who outgrows it is preempted and read again) is the simulator's
    to say; waves are on the slow side.

    Raises:
        InputError: one sequence alone exceeds the cache.
    """
    ends = prompts + lengths
    if len(ends) and ends.max() > timing.kv_tokens:
        raise _too_long(timing, int(ends.max()))
    total, first = 0.0, 0
    while first < len(ends):
        fits = int(np.searchsorted(np.cumsum(ends[first:]), timing.kv_tokens, side="right"))
        total += batch_s(timing, prompts[first : first + fits], lengths[first : first + fits])
        first += fits
    return total


@dataclass(frozen=True)
class Responses:
    """The size of a rollout, apart from the lengths of its responses.

    Attributes:
        batch: responses. prompt_tokens: read before each turn. turns: of a response. environment_s: wait before each further turn.
        rewards_s: from the end of the last response to that of the last reward, where all end at once.
    """

    batch: int
    prompt_tokens: int = 0
    turns: int = 1
    environment_s: float = 0.0
    rewards_s: float = 0.0

    @property
    def prompts(self) -> Tokens:
        """(batch,) tokens that are read of each response, over all turns; earlier turns stay in the cache."""
        return np.full(self.batch, self.prompt_tokens * self.turns, dtype=np.int64)

    def tokens(self, cap: int) -> int:
        """Of a response that reaches the cap in every turn, its prompts included."""
        return (self.prompt_tokens + cap) * self.turns


def rollout_s(timing: ReplicaTiming, replicas: int, responses: Responses, lengths: Tokens) -> float:
    """Seconds of a rollout: of its slowest replica, and all waits for the environment.

    The longest response goes to the first replica, the next to the second, and so on in turns. A response of several turns is one
    long one whose prompts are read at once; nobody else's steps hide its waits.

    Args:
        lengths: (batch,) tokens of each response, over all turns.
    """
    order = np.argsort(-lengths, kind="stable")
    prompts = responses.prompts
    slowest = max(
        replica_s(timing, prompts[order[k::replicas]], lengths[order[k::replicas]]) for k in range(min(replicas, responses.batch))
    )
    return slowest + (responses.turns - 1) * responses.environment_s


def worst_rollout_s(timing: ReplicaTiming, replicas: int, responses: Responses, cap: int) -> float:
    """Seconds of a rollout whose responses all get `cap` tokens in each turn, rewards included. Bounds those of shorter ones.

    Sequences that wait for room in the cache are counted as read twice in each turn: preempted, or pushed out while away.

    Raises:
        InputError: one response exceeds the cache.
    """
    share = ceil(responses.batch / replicas)
    prompt, length = responses.prompt_tokens * responses.turns, cap * responses.turns
    end = prompt + length
    if end > timing.kv_tokens:
        raise _too_long(timing, end)
    together = timing.kv_tokens // end

    more = responses.turns - 1  # prefills of a response, of later prompts, that attend to what was sampled before them
    again_s = more * (timing.prefill_s + timing.prefill_s_per_token2 * prompt * cap)

    def wave_s(count: int) -> float:
        tokens = np.full(count, prompt, dtype=np.int64), np.full(count, length, dtype=np.int64)
        return batch_s(timing, *tokens) + count * again_s

    if share <= together:
        seconds = wave_s(share)
    else:  # waves, the last of which is not full: as many parts of a full one, and a single sequence; monotone, unlike their sum
        seconds = share / together * wave_s(together) + wave_s(1)
        seconds += (share - together) * responses.turns * timing.prefill_seconds(end)
    return seconds + more * responses.environment_s + responses.rewards_s


def _too_long(timing: ReplicaTiming, tokens: int) -> InputError:
    return InputError(f"a response of {tokens} tokens, its prompts included, exceeds a KV cache of {timing.kv_tokens} tokens")
