"""Steps of a trainer that takes prompts as they complete while others decode (verl's fully asynchronous policy).

The rollout side starts prompts up to a number at once and up to a number since the last sync; a prompt is complete with its last
response. The trainer takes complete prompts a piece at a time, and syncs after the last piece of a step. Responses under way
go on decoding. All replicas share their load evenly, so that every response decodes at one rate, that of the mean load.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rollmux_env.timing.lengths import sample
from rollmux_env.timing.replica import ReplicaTiming
from rollmux_env.timing.rl_step import Batch

_SEED, _FIRST, _STEPS = 0, 3, 9  # of the lengths; steps until it is steady; steps in all


@dataclass(frozen=True)
class Stream:
    """How far rollouts may run ahead.

    Attributes:
        pieces: that a step is trained in. staleness: share of a step's prompts that may start before its sync.
        at_once: prompts that decode at once.
    """

    pieces: int
    staleness: float
    at_once: int


class StreamedStep(NamedTuple):
    """Means over steps, seconds: from sync to sync, and of it the trainer's wait for prompts."""

    step_s: float
    wait_s: float


def streamed_step(
    timing: ReplicaTiming, replicas: int, batch: Batch, stream: Stream, piece_s: float, sync_s: float
) -> StreamedStep:
    """Play some steps and average those after the first.

    Args:
        piece_s: seconds to train one piece. sync_s: from the last piece to the next step.
    """
    generator = np.random.default_rng(_SEED)
    size, allowed = batch.prompts // stream.pieces, int(batch.prompts * (1 + stream.staleness))
    rates = _seconds_per_token(timing, replicas, batch, stream.at_once)
    ends: list[tuple[float, int]] = []  # (tokens that all responses under way have decoded by then, prompt)
    open_responses: dict[int, int] = {}
    now_s = decoded = wait_s = 0.0
    started = next_prompt = queue = active = 0
    lengths = sample(batch.lengths, generator, batch.responses).tolist()

    def start() -> None:
        nonlocal started, next_prompt, active, lengths
        while len(open_responses) < stream.at_once and started < allowed:
            for length in lengths:
                heapq.heappush(ends, (decoded + length, next_prompt))
            open_responses[next_prompt] = len(lengths)
            active += len(lengths)
            started, next_prompt = started + 1, next_prompt + 1
            lengths = sample(batch.lengths, generator, batch.responses).tolist()

    def decode(until_s: float | None) -> None:
        """Go on to a time, or to the next response's end."""
        nonlocal now_s, decoded, queue, active
        while ends:
            rate_s = rates[active]
            end, prompt = ends[0]
            end_s = now_s + (end - decoded) * rate_s
            if until_s is not None and end_s > until_s:
                decoded += (until_s - now_s) / rate_s
                break
            heapq.heappop(ends)
            now_s, decoded, active = end_s, end, active - 1
            open_responses[prompt] -= 1
            if not open_responses[prompt]:
                del open_responses[prompt]
                queue += 1
                start()
            if until_s is None:
                return
        if until_s is not None:
            now_s = until_s

    start()
    begin_s = first_wait_s = 0.0
    for step in range(_STEPS):
        if step == _FIRST:
            begin_s, first_wait_s = now_s, wait_s
        for _ in range(stream.pieces):
            asked_s = now_s
            while queue < size:
                decode(None)
            wait_s += now_s - asked_s
            queue -= size
            decode(now_s + piece_s)
        decode(now_s + sync_s)
        started = len(open_responses) + queue
        start()
    steps = _STEPS - _FIRST
    return StreamedStep((now_s - begin_s) / steps, (wait_s - first_wait_s) / steps)


def _seconds_per_token(timing: ReplicaTiming, replicas: int, batch: Batch, at_once: int) -> list[float]:
    """Seconds of a step, by the responses under way on all replicas; their contexts are half done."""
    tokens = batch.tokens().astype(np.float64)
    context = batch.prompt_tokens + float((tokens**2).sum() / (2 * tokens.sum()))  # long ones are met more often
    waits_s = (batch.turns - 1) * batch.environment_s / float(tokens.mean())  # a response waits between its turns
    loads = [max(1.0, count / replicas) for count in range(at_once * batch.responses + 1)]
    read_s = timing.prefill_s_per_token * batch.prompt_tokens / float(tokens.mean())  # others' prompts are read between steps
    return [timing.decode_s(load, load * context) + load * read_s + waits_s for load in loads]
