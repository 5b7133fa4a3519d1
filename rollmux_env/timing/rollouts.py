"""Duration of a rollout on replicas (`rollmux_env.timing.replica`), from the lengths of its responses, and its bound at the cap."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np

from rollmux_env.errors import InputError
from rollmux_env.timing.lengths import Tokens
from rollmux_env.timing.replica import ReplicaTiming


def batch_s(timing: ReplicaTiming, prompts: Tokens, lengths: Tokens) -> float:
    """Return the seconds of one replica for sequences that start together and all fit into its cache.

    Between two completions the batch is constant and each context grows by one token per step. The seconds of these steps are
    therefore an arithmetic series, or two of them if memory traffic overtakes arithmetic.

    Args:
        timing: Timing of the replica.
        prompts: Number of tokens of each sequence that are read before the first step, shape (n,).
        lengths: Number of tokens of each sequence that are sampled, one per step, shape (n,).
    """
    order = np.argsort(lengths, kind="stable")
    prompts, lengths = prompts[order].astype(np.float64), lengths[order].astype(np.float64)
    prefill_s = len(prompts) * timing.prefill_s + timing.prefill_s_per_token * prompts.sum()
    prefill_s += timing.prefill_s_per_token2 * (prompts**2).sum()
    begin = np.concatenate([[0.0], lengths[:-1]])  # steps completed when the batch has shrunk to sequence k and longer ones
    batch = np.arange(len(lengths), 0, -1, dtype=np.float64)
    read = np.cumsum(prompts[::-1])[::-1]  # prompt tokens of the batch
    weights_s = timing.weights_seconds(batch)
    # Memory traffic of the first step with this batch; each further step adds `slope`.
    memory_s = weights_s + timing.kv_s_per_token * (read + batch * begin)
    slope, arithmetic_s = timing.kv_s_per_token * batch, timing.sequence_s * batch
    steps = lengths - begin
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        until = np.where(memory_s >= arithmetic_s, 0.0, np.ceil((arithmetic_s - memory_s) / slope))
    bound = np.minimum(np.nan_to_num(until, nan=0.0, posinf=np.inf), steps)  # number of steps that are bound by arithmetic
    reading = steps - bound
    traffic_s = reading * (memory_s + slope * bound) + slope * reading * (reading - 1) / 2
    return float(prefill_s + np.sum((timing.step_s + timing.message_s * batch) * steps + bound * arithmetic_s + traffic_s))


def replica_s(timing: ReplicaTiming, prompts: Tokens, lengths: Tokens) -> float:
    """Return the seconds of one replica for sequences that may not fit into its cache together.

    The sequences then run in waves, in order. Each wave has as many sequences as fit with their last token, and begins when the
    previous one has ended. A real engine fills free room at once, and preempts and recomputes sequences that outgrow it; only the
    simulator models this. Waves overestimate the duration.

    Args:
        timing: Timing of the replica.
        prompts: Number of tokens of each sequence that are read before the first step, shape (n,).
        lengths: Number of tokens of each sequence that are sampled, shape (n,).

    Raises:
        InputError: If one sequence alone exceeds the cache.
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
        batch: Number of responses.
        prompt_tokens: Number of tokens that are read before each turn.
        turns: Number of turns of a response.
        environment_s: Wait for the environment before each further turn, in seconds.
        rewards_s: Time from the end of the last response to the end of the last reward if all responses end together, in seconds.
    """

    batch: int
    prompt_tokens: int = 0
    turns: int = 1
    environment_s: float = 0.0
    rewards_s: float = 0.0

    @property
    def prompts(self) -> Tokens:
        """Number of tokens of each response that are read, over all turns, shape (batch,).

        Earlier turns stay in the cache.
        """
        return np.full(self.batch, self.prompt_tokens * self.turns, dtype=np.int64)

    def tokens(self, cap: int) -> int:
        """Return the length of a response that reaches the cap in every turn, including its prompts, in tokens."""
        return (self.prompt_tokens + cap) * self.turns


def rollout_s(timing: ReplicaTiming, replicas: int, responses: Responses, lengths: Tokens) -> float:
    """Return the seconds of a rollout: those of its slowest replica, and all waits for the environment.

    The longest response goes to the first replica, the next one to the second, and so on in turns. A response of several turns
    counts as one long response whose prompts are read at once. Its waits are not hidden by the steps of other responses.

    Args:
        timing: Timing of a replica.
        replicas: Number of replicas.
        responses: Size of the rollout.
        lengths: Number of sampled tokens of each response, over all turns, shape (batch,).
    """
    order = np.argsort(-lengths, kind="stable")
    prompts = responses.prompts
    slowest = max(
        replica_s(timing, prompts[order[k::replicas]], lengths[order[k::replicas]]) for k in range(min(replicas, responses.batch))
    )
    return slowest + (responses.turns - 1) * responses.environment_s


def worst_rollout_s(timing: ReplicaTiming, replicas: int, responses: Responses, cap: int) -> float:
    """Return the seconds of a rollout whose responses all get `cap` tokens in each turn, including rewards.

    The value is an upper bound for shorter responses. Sequences that wait for room in the cache are counted as read twice in each
    turn, because they may be preempted, or evicted while they wait for the environment.

    Args:
        timing: Timing of a replica.
        replicas: Number of replicas.
        responses: Size of the rollout.
        cap: Number of sampled tokens of each turn.

    Raises:
        InputError: If one response exceeds the cache.
    """
    share = ceil(responses.batch / replicas)
    prompt, length = responses.prompt_tokens * responses.turns, cap * responses.turns
    end = prompt + length
    if end > timing.kv_tokens:
        raise _too_long(timing, end)
    together = timing.kv_tokens // end

    more = responses.turns - 1  # further prefills of a response, which attend to the tokens sampled before them
    again_s = more * (timing.prefill_s + timing.prefill_s_per_token2 * prompt * cap)

    def wave_s(count: int) -> float:
        tokens = np.full(count, prompt, dtype=np.int64), np.full(count, length, dtype=np.int64)
        return batch_s(timing, *tokens) + count * again_s

    if share <= together:
        seconds = wave_s(share)
    else:  # a fraction of full waves and one sequence alone: unlike whole waves and a rest, it grows monotonically with the share
        seconds = share / together * wave_s(together) + wave_s(1)
        seconds += (share - together) * responses.turns * timing.prefill_seconds(end)
    return seconds + more * responses.environment_s + responses.rewards_s


def _too_long(timing: ReplicaTiming, tokens: int) -> InputError:
    return InputError(f"a response of {tokens} tokens, its prompts included, exceeds a KV cache of {timing.kv_tokens} tokens")
