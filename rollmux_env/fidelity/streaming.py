"""Steps of a trainer that takes prompts as they complete while others decode (verl's fully asynchronous policy).

The rollout side limits the prompts that decode at once and the prompts that were started since the last sync. A prompt is complete
when its last response is. The trainer takes complete prompts in pieces, and syncs after the last piece of a step. Unfinished
responses continue to decode. All replicas share their load evenly, so that every response decodes at the rate of the mean load.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rollmux_env.fidelity.batch import ResponseBatch
from rollmux_env.timing.lengths import sample
from rollmux_env.timing.replica import ReplicaTiming

_SEED, _FIRST, _STEPS = 0, 3, 9  # seed of the lengths; steps before the average; steps in all
_DRAWN = 256  # prompts whose lengths are drawn at once


@dataclass(frozen=True)
class StreamLimits:
    """Limits of how far rollouts may run ahead of training.

    Attributes:
        pieces: Number of pieces in which a step is trained.
        ahead: Share of a step's prompts that may start before its sync, which verl limits.
        at_once: Largest number of prompts that decode at once.
    """

    pieces: int
    ahead: float
    at_once: int


class StreamedStep(NamedTuple):
    """Means over the steady steps of a stream.

    Attributes:
        step_s: Seconds from sync to sync.
        wait_s: Seconds of a step in which the trainer waits for prompts.
    """

    step_s: float
    wait_s: float


def simulate_streamed_step(
    timing: ReplicaTiming, replicas: int, batch: ResponseBatch, stream: StreamLimits, piece_s: float, sync_s: float
) -> StreamedStep:
    """Simulate some steps and average those after the first three.

    Args:
        timing: Timing of a replica.
        replicas: Number of replicas.
        batch: Batch of a step.
        stream: Limits of the rollout side.
        piece_s: Seconds to train one piece.
        sync_s: Seconds from the last piece to the next step.
    """
    rollout = _Rollout(batch, stream, _seconds_per_token(timing, replicas, batch, stream.at_once))
    size = batch.prompts // stream.pieces
    begin_s = wait_s = first_wait_s = 0.0
    for step in range(_STEPS):
        if step == _FIRST:
            begin_s, first_wait_s = rollout.now_s, wait_s
        for _ in range(stream.pieces):
            asked_s = rollout.now_s
            rollout.take(size)
            wait_s += rollout.now_s - asked_s
            rollout.decode(rollout.now_s + piece_s)
        rollout.decode(rollout.now_s + sync_s)
        rollout.sync()
    steps = _STEPS - _FIRST
    return StreamedStep((rollout.now_s - begin_s) / steps, (wait_s - first_wait_s) / steps)


class _Rollout:
    """The rollout side at the time `now_s`.

    Every unfinished response decodes one token per `_decoded` unit, so a response ends when `_decoded` reaches its value at the
    response's start plus the response's length.
    """

    def __init__(self, batch: ResponseBatch, stream: StreamLimits, rates_s: list[float]) -> None:
        self.now_s = 0.0
        self._batch, self._rates_s, self._at_once = batch, rates_s, stream.at_once
        self._allowed = int(batch.prompts * (1 + stream.ahead))
        self._generator = np.random.default_rng(_SEED)
        self._drawn: list[list[int]] = []  # lengths of the responses of prompts that have not started, the next one last
        self._decoded = 0.0
        self._ends: list[tuple[float, int]] = []  # heap of (`_decoded` at the response's end, prompt)
        self._open: dict[int, int] = {}  # number of unfinished responses of each prompt
        self._prompts = self._since_sync = self._complete = 0
        self._start()

    def take(self, count: int) -> None:
        """Decode until `count` prompts are complete, and remove them."""
        while self._complete < count:
            self._end_next(self._next_s())
        self._complete -= count

    def decode(self, until_s: float) -> None:
        """Decode until a time."""
        while self._ends and (next_s := self._next_s()) <= until_s:
            self._end_next(next_s)
        if self._ends:
            self._decoded += (until_s - self.now_s) / self._rates_s[len(self._ends)]
        self.now_s = until_s

    def sync(self) -> None:
        """Count only the prompts that are unfinished or complete against the limit, so that others may start."""
        self._since_sync = len(self._open) + self._complete
        self._start()

    def _next_s(self) -> float:
        return self.now_s + (self._ends[0][0] - self._decoded) * self._rates_s[len(self._ends)]

    def _end_next(self, next_s: float) -> None:
        self.now_s = next_s
        self._decoded, prompt = heapq.heappop(self._ends)
        self._open[prompt] -= 1
        if not self._open[prompt]:
            del self._open[prompt]
            self._complete += 1
            self._start()

    def _start(self) -> None:
        while len(self._open) < self._at_once and self._since_sync < self._allowed:
            for length in self._draw():
                heapq.heappush(self._ends, (self._decoded + length, self._prompts))
            self._open[self._prompts] = self._batch.responses
            self._prompts += 1
            self._since_sync += 1

    def _draw(self) -> list[int]:
        """Return the lengths of the responses of the next prompt, in tokens."""
        if not self._drawn:
            lengths = sample(self._batch.lengths, self._generator, _DRAWN * self._batch.responses)
            self._drawn = lengths.reshape(_DRAWN, -1)[::-1].tolist()
        return self._drawn.pop()


def _seconds_per_token(timing: ReplicaTiming, replicas: int, batch: ResponseBatch, at_once: int) -> list[float]:
    """Return the seconds of a decode step, by the number of unfinished responses on all replicas.

    The contexts are taken at half of their final length.
    """
    tokens = batch.tokens().astype(np.float64)
    context = batch.prompt_tokens + float((tokens**2).sum() / (2 * tokens.sum()))  # long responses are decoded for longer
    waits_s = (batch.turns - 1) * batch.environment_s / float(tokens.mean())  # waits between turns, per token
    loads = [max(1.0, count / replicas) for count in range(at_once * batch.responses + 1)]
    # The prompts of other responses are read between the decode steps of a response.
    read_s = timing.prefill_s_per_token * batch.prompt_tokens / float(tokens.mean())
    return [timing.decode_s(load, load * context) + load * read_s + waits_s for load in loads]
