"""What a real engine costs, measured on this machine, and the numbers of the phase-time model that fit it (`rollmux profile`).

Seconds are those of this process: on a CPU its computing time, so that neighbours on the machine do not count, on a GPU the
clock's. Everything is measured in rounds, so that slow changes of the machine meet all figures alike, and the median over rounds
is taken.
"""

from __future__ import annotations

import gc
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from time import perf_counter, process_time
from typing import TypeVar

import numpy as np

from rollmux_env.errors import InputError
from rollmux_env.kernel.tables import Floats
from rollmux_env.timing.hardware import Hardware
from rollmux_env.timing.models import ModelShape
from rollmux_env.timing.replica import ReplicaTiming
from rollmux_env.timing.rollouts import batch_s
from runtime.engines.interface import Engine, Progress, Sampling

Prompts = Sequence[Sequence[int]]
Point = TypeVar("Point", "Step", "Prefill")
_STEPS = 8  # decode steps that are measured at a batch size and a context
_READ_AT_ONCE = 2048  # tokens of prompts that every engine reads in a step, or more
_LEAST = 1e-12  # seconds: of a part that the fit finds to cost nothing


def clock() -> Callable[[], float]:
    """The clock of this process' work."""
    import torch

    if not torch.cuda.is_available():
        return process_time

    def now() -> float:
        torch.cuda.synchronize()
        return perf_counter()

    return now


@dataclass(frozen=True)
class Step:
    """A decode step: sequences, tokens of their contexts in all, and seconds."""

    batch: int
    context: int
    seconds: float


@dataclass(frozen=True)
class Prefill:
    """Reading so many prompts of so many tokens each, and the first token of each response."""

    batch: int
    tokens: int
    seconds: float


@dataclass(frozen=True)
class Rollout:
    """A rollout with responses that end by themselves: (n,) tokens of prompts and of responses, and seconds."""

    prompts: tuple[int, ...]
    lengths: tuple[int, ...]
    seconds: float

    def predicted_s(self, timing: ReplicaTiming) -> float:
        """What the model says of it. A response's first token comes with its prompt, not in a step of its own."""
        return batch_s(timing, np.array(self.prompts), np.array(self.lengths) - 1)


class Measurer:
    """Measures one engine.

    Args:
        vocabulary: random prompts are drawn from its tokens. seed: of them and of all sampling. now: what it reads seconds from.
    """

    def __init__(self, engine: Engine, vocabulary: int, seed: int, now: Callable[[], float]) -> None:
        self._engine = engine
        self._vocabulary = vocabulary
        self._generator = np.random.default_rng(seed)
        self._now = now

    def decode(self, batch: int, prompt: int) -> Step:
        """The mean step of so many sequences behind prompts of that length."""
        marks: list[tuple[float, int]] = []
        tokens = _STEPS + 2 + batch * prompt // _READ_AT_ONCE  # the first sequences begin before the last are read
        self._generate(self._random(batch, prompt), tokens, lambda progress: marks.append((self._now(), progress.tokens)))
        steps = [after[0] - before[0] for before, after in itertools.pairwise(marks) if after[1] - before[1] == batch]
        if not steps:
            raise InputError(f"the engine does not hold {batch} sequences of {prompt + tokens} tokens at once")
        return Step(batch, batch * (prompt + tokens // 2), fmean(steps))

    def prefill(self, batch: int, tokens: int) -> Prefill:
        """Prompts are read, and one token of each is sampled."""
        prompts = self._random(batch, tokens)
        return Prefill(batch, tokens, self.seconds(lambda: self._generate(prompts, 1)))

    def rollout(self, prompts: Prompts, max_tokens: int) -> Rollout:
        """Responses that end by themselves, or at `max_tokens`."""
        begin = self._now()
        responses = self._engine.generate(prompts, Sampling(max_tokens=max_tokens, seed=self._seed()))
        seconds = self._now() - begin
        return Rollout(tuple(map(len, prompts)), tuple(len(response.token_ids) for response in responses), seconds)

    def seconds(self, call: Callable[[], object]) -> float:
        """How long a call takes."""
        begin = self._now()
        call()
        return self._now() - begin

    def _generate(self, prompts: Prompts, tokens: int, progress: Callable[[Progress], None] | None = None) -> None:
        self._engine.generate(prompts, Sampling(max_tokens=tokens, seed=self._seed(), ignore_end=True), progress)

    def _random(self, batch: int, tokens: int) -> list[list[int]]:
        ids: list[list[int]] = self._generator.integers(0, self._vocabulary, (batch, tokens)).tolist()
        return ids

    def _seed(self) -> int:
        return int(self._generator.integers(2**31))


@dataclass(frozen=True)
class Grid:
    """What is measured: batch sizes; tokens of the contexts that decode steps begin with, and of the prompts that are read."""

    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    prompts: tuple[int, ...]

    @classmethod
    def up_to(cls, batch: int, prompt: int, length: int) -> Grid:
        """Batch sizes from 1 up, contexts from a few tokens to a prompt with its longest response, prompts from one token up."""
        longest = max(2, prompt + length - _STEPS - 2 - batch * (prompt + length) // _READ_AT_ONCE)
        batches = {max(1, round(batch / 4**power)) for power in range(4)} | {1}
        contexts = {min(8, prompt, longest), max(1, longest // 3), longest}
        return cls(tuple(sorted(batches)), tuple(sorted(contexts)), tuple(sorted({1, max(1, prompt // 3), prompt})))


@dataclass(frozen=True)
class Measured:
    """Medians over rounds: of each point of the grid; and the rollouts of all rounds."""

    steps: tuple[Step, ...]
    prefills: tuple[Prefill, ...]
    rollouts: tuple[Rollout, ...]


def measure(measurer: Measurer, grid: Grid, rounds: int, checks: Sequence[tuple[Prompts, int]]) -> Measured:
    """Measure the grid and, between its points, rollouts that the fit never sees.

    Args:
        checks: prompts and longest response of a rollout; one of each in every round.
    """
    for check in checks:  # first calls take longer than those after them
        measurer.rollout(*check)
    steps: dict[tuple[int, int], list[Step]] = defaultdict(list)
    prefills: dict[tuple[int, int], list[Prefill]] = defaultdict(list)
    rollouts: list[Rollout] = []
    for _ in range(rounds):
        gc.collect()
        for point in itertools.product(grid.batches, grid.contexts):
            steps[point].append(measurer.decode(*point))
        for point in itertools.product(grid.batches, grid.prompts):
            prefills[point].append(measurer.prefill(*point))
        rollouts += [measurer.rollout(*check) for check in checks]
    return Measured(_medians(steps.values()), _medians(prefills.values()), tuple(rollouts))


def _medians(points: Iterable[Sequence[Point]]) -> tuple[Point, ...]:
    """Of each point, what was measured first, with the median of the seconds."""
    return tuple(replace(repeats[0], seconds=median(one.seconds for one in repeats)) for repeats in points)


def fit(figures: Measured, kv_tokens: int) -> ReplicaTiming:
    """The replica's numbers that make the squared relative errors of steps and prefills least.

    Args:
        kv_tokens: room in the KV cache; it is not measured.
    """
    steps, prefills = figures.steps, figures.prefills
    batch, context, seconds = (np.array([getattr(one, name) for one in steps]) for name in ("batch", "context", "seconds"))
    decode = _least(
        lambda x: (x[0] + np.maximum(x[1] + x[2] * context, x[3] * batch)) / seconds, _decode_starts(batch, context, seconds)
    )
    count, tokens, read_s = (np.array([getattr(one, name) for one in prefills]) for name in ("batch", "tokens", "seconds"))
    least = float(read_s.min() / count.max())
    prefill = _least(
        lambda x: (count * (x[0] + x[1] * tokens + x[2] * tokens**2)) / read_s,
        [np.array([least, least / tokens.max(), least / tokens.max() ** 2])],
    )
    return ReplicaTiming(
        step_s=decode[0],
        weights_s=decode[1],
        kv_s_per_token=decode[2],
        sequence_s=decode[3],
        prefill_s=prefill[0],
        prefill_s_per_token=prefill[1],
        prefill_s_per_token2=prefill[2],
        kv_tokens=kv_tokens,
    )


def _decode_starts(batch: Floats, context: Floats, seconds: Floats) -> list[Floats]:
    """Where the fit begins: with the cache, or with arithmetic, as the reason why the slowest step is slow."""
    low, high = float(seconds.min()), float(seconds.max())
    return [
        np.array([low / 2, low / 2, share * high / context.max(), (1 - share) * high / batch.max()]) for share in (0.05, 0.5, 0.95)
    ]


def _least(ratio: Callable[[Floats], Floats], starts: Sequence[Floats]) -> list[float]:
    """Numbers of at least `_LEAST` that bring all ratios of predicted to measured near 1: the best of several beginnings."""
    from scipy.optimize import least_squares

    def errors(logs: Floats) -> Floats:
        return np.asarray(ratio(np.exp(logs)) - 1)

    fits = [least_squares(errors, np.log(np.maximum(start, 2 * _LEAST)), bounds=(np.log(_LEAST), np.log(1e6))) for start in starts]
    best: list[float] = np.exp(min(fits, key=lambda one: one.cost).x).tolist()
    return best


def as_hardware(
    name: str, shape: ModelShape, timing: ReplicaTiming, number_bytes: float, memory_gb: float, update_s: float
) -> Hardware:
    """The rates of the device that the replica's numbers stand for, with this model; training's is not known.

    Args:
        update_s: of new weights, from host memory into the engine.
    """
    weights_gb = shape.parameters * number_bytes / 1e9
    product = 2 * shape.matrix_parameters / 1e12
    update_gb_s = weights_gb / max(update_s, _LEAST)
    return Hardware(
        name=name,
        memory_gb=memory_gb,
        number_bytes=number_bytes,
        weights_gb_s=weights_gb / timing.weights_s,
        kv_gb_s=shape.cached * number_bytes / 1e9 / timing.kv_s_per_token,
        decode_tflops=product / timing.sequence_s,
        prefill_tflops=product / timing.prefill_s_per_token,
        attention_tflops=shape.attended / 1e12 / timing.prefill_s_per_token2,
        training_tflops=0.0,
        step_s=timing.step_s,
        prefill_s=timing.prefill_s,
        update_s=0.0,
        cross_gb_s=update_gb_s,
        inside_gb_s=update_gb_s,
    )
