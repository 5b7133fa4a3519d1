"""Measurement of a real engine on this machine, and the fit of the phase-time model to it (`rollmux profile`).

Times are those of this process: computing time on one core, so that neighbours on the machine do not count, and wall-clock time on
several cores and on a GPU. Everything is measured in rounds, so that slow changes of the machine affect all figures alike, and the
median over rounds is used.
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
from runtime.engines.interface import Engine, Sampling, SamplingProgress

Prompts = Sequence[Sequence[int]]
Point = TypeVar("Point", "MeasuredStep", "MeasuredPrefill")
_STEPS = 8  # decode steps measured for each batch size and context
_READ_AT_ONCE = 2048  # prompt tokens that every engine reads in a step, at least
_LEAST = 1e-12  # seconds of a part to which the fit assigns no cost


def clock(threads: int = 1) -> Callable[[], float]:
    """Return a function that reads the clock of this process's work, in seconds.

    Args:
        threads: Number of threads that share the work on a CPU. Computing time is that of all of them together.
    """
    import torch

    if not torch.cuda.is_available():
        return process_time if threads == 1 else perf_counter

    def now() -> float:
        torch.cuda.synchronize()
        return perf_counter()

    return now


@dataclass(frozen=True)
class MeasuredStep:
    """A measured decode step.

    Attributes:
        batch: Number of sequences.
        context: Tokens of all contexts together.
        seconds: Duration, in seconds.
    """

    batch: int
    context: int
    seconds: float


@dataclass(frozen=True)
class MeasuredPrefill:
    """A measured prefill, including the first token of each response.

    Attributes:
        batch: Number of prompts.
        tokens: Tokens of each prompt.
        seconds: Duration, in seconds.
    """

    batch: int
    tokens: int
    seconds: float


@dataclass(frozen=True)
class MeasuredRollout:
    """A measured rollout whose responses end freely.

    Attributes:
        prompts: Tokens of each prompt (n,).
        lengths: Tokens of each response (n,).
        seconds: Duration, in seconds.
    """

    prompts: tuple[int, ...]
    lengths: tuple[int, ...]
    seconds: float

    def predicted_s(self, timing: ReplicaTiming) -> float:
        """Return the model's duration in seconds. A response's first token comes with its prompt, not in a separate step."""
        return batch_s(timing, np.array(self.prompts), np.array(self.lengths) - 1)


class Measurer:
    """Measurements of one engine.

    Args:
        engine: The engine.
        vocabulary: Size of the vocabulary from which random prompts are drawn.
        seed: Seed of the prompts and of all sampling.
        now: Function that returns the time, in seconds.
    """

    def __init__(self, engine: Engine, vocabulary: int, seed: int, now: Callable[[], float]) -> None:
        self._engine = engine
        self._vocabulary = vocabulary
        self._generator = np.random.default_rng(seed)
        self._now = now

    def decode(self, batch: int, prompt: int) -> MeasuredStep:
        """Return the mean decode step of `batch` sequences after prompts of `prompt` tokens.

        Raises:
            InputError: If the engine does not run all sequences at once; one line.
        """
        marks: list[tuple[float, int]] = []
        tokens = _STEPS + 2 + batch * prompt // _READ_AT_ONCE  # the first sequences decode before the last prompts are read
        self._generate(self._random(batch, prompt), tokens, lambda progress: marks.append((self._now(), progress.tokens)))
        steps = [after[0] - before[0] for before, after in itertools.pairwise(marks) if after[1] - before[1] == batch]
        if not steps:
            raise InputError(f"the engine does not hold {batch} sequences of {prompt + tokens} tokens at once")
        return MeasuredStep(batch, batch * (prompt + tokens // 2), fmean(steps))

    def prefill(self, batch: int, tokens: int) -> MeasuredPrefill:
        """Return the time to read `batch` prompts of `tokens` tokens each and to sample one token of each."""
        prompts = self._random(batch, tokens)
        return MeasuredPrefill(batch, tokens, self.seconds(lambda: self._generate(prompts, 1)))

    def rollout(self, prompts: Prompts, max_tokens: int) -> MeasuredRollout:
        """Return a rollout whose responses end freely, or at `max_tokens`."""
        begin = self._now()
        responses = self._engine.generate(prompts, Sampling(max_tokens=max_tokens, seed=self._seed()))
        seconds = self._now() - begin
        return MeasuredRollout(tuple(map(len, prompts)), tuple(len(response.token_ids) for response in responses), seconds)

    def seconds(self, call: Callable[[], object]) -> float:
        """Return the duration of a call, in seconds."""
        begin = self._now()
        call()
        return self._now() - begin

    def _generate(self, prompts: Prompts, tokens: int, progress: Callable[[SamplingProgress], None] | None = None) -> None:
        self._engine.generate(prompts, Sampling(max_tokens=tokens, seed=self._seed(), ignore_end=True), progress)

    def _random(self, batch: int, tokens: int) -> list[list[int]]:
        ids: list[list[int]] = self._generator.integers(0, self._vocabulary, (batch, tokens)).tolist()
        return ids

    def _seed(self) -> int:
        return int(self._generator.integers(2**31))


@dataclass(frozen=True)
class Grid:
    """The points to measure.

    Attributes:
        batches: Batch sizes.
        contexts: Tokens of the prompts before decode steps.
        prompts: Tokens of the prompts of prefills.
    """

    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    prompts: tuple[int, ...]

    @classmethod
    def up_to(cls, batch: int, prompt: int, length: int) -> Grid:
        """Return a grid with batch sizes from 1, contexts up to a prompt with its longest response, and prompts from one token.

        Args:
            batch: Largest batch size.
            prompt: Longest prompt, in tokens.
            length: Longest response, in tokens.
        """
        longest = max(2, prompt + length - _STEPS - 2 - batch * (prompt + length) // _READ_AT_ONCE)
        batches = {max(1, round(batch / 4**power)) for power in range(4)} | {1}
        contexts = {min(8, prompt, longest), max(1, longest // 3), longest}
        return cls(tuple(sorted(batches)), tuple(sorted(contexts)), tuple(sorted({1, max(1, prompt // 3), prompt})))


@dataclass(frozen=True)
class CalibrationRounds:
    """The results of all rounds.

    Attributes:
        steps: Decode steps of the grid, with median times.
        prefills: Prefills of the grid, with median times.
        rollouts: Rollouts of all rounds.
    """

    steps: tuple[MeasuredStep, ...]
    prefills: tuple[MeasuredPrefill, ...]
    rollouts: tuple[MeasuredRollout, ...]


def measure(measurer: Measurer, grid: Grid, rounds: int, checks: Sequence[tuple[Prompts, int]]) -> CalibrationRounds:
    """Measure the grid, and in each round also rollouts that the fit does not use.

    Args:
        measurer: Measurements of the engine.
        grid: Points to measure.
        rounds: Number of rounds.
        checks: Prompts and longest response of each rollout; one of each is measured per round.
    """
    for check in checks:  # first calls take longer than those after them
        measurer.rollout(*check)
    steps: dict[tuple[int, int], list[MeasuredStep]] = defaultdict(list)
    prefills: dict[tuple[int, int], list[MeasuredPrefill]] = defaultdict(list)
    rollouts: list[MeasuredRollout] = []
    for _ in range(rounds):
        gc.collect()
        for point in itertools.product(grid.batches, grid.contexts):
            steps[point].append(measurer.decode(*point))
        for point in itertools.product(grid.batches, grid.prompts):
            prefills[point].append(measurer.prefill(*point))
        rollouts += [measurer.rollout(*check) for check in checks]
    return CalibrationRounds(_medians(steps.values()), _medians(prefills.values()), tuple(rollouts))


def _medians(points: Iterable[Sequence[Point]]) -> tuple[Point, ...]:
    """Return the first measurement of each point, with the median of its times."""
    return tuple(replace(repeats[0], seconds=median(one.seconds for one in repeats)) for repeats in points)


def fit(figures: CalibrationRounds, kv_tokens: int) -> ReplicaTiming:
    """Return the replica timing that minimises the squared relative errors of decode steps and prefills.

    Args:
        figures: Measurements.
        kv_tokens: Capacity of the KV cache in tokens, which is not measured.
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
    """Return initial values that explain the slowest step by the cache, by arithmetic, or by both."""
    low, high = float(seconds.min()), float(seconds.max())
    return [
        np.array([low / 2, low / 2, share * high / context.max(), (1 - share) * high / batch.max()]) for share in (0.05, 0.5, 0.95)
    ]


def _least(ratio: Callable[[Floats], Floats], starts: Sequence[Floats]) -> list[float]:
    """Return the numbers, at least `_LEAST`, whose ratios of predicted to measured are closest to 1, over several starts."""
    from scipy.optimize import least_squares

    def errors(logs: Floats) -> Floats:
        return np.asarray(ratio(np.exp(logs)) - 1)

    fits = [least_squares(errors, np.log(np.maximum(start, 2 * _LEAST)), bounds=(np.log(_LEAST), np.log(1e6))) for start in starts]
    best: list[float] = np.exp(min(fits, key=lambda one: one.cost).x).tolist()
    return best


def as_hardware(
    name: str, shape: ModelShape, timing: ReplicaTiming, number_bytes: float, memory_gb: float, update_s: float
) -> Hardware:
    """Return the device rates that correspond to a replica timing with this model. The rate of training is unknown.

    Args:
        name: Name of the hardware.
        shape: Shape of the model.
        timing: Fitted timing.
        number_bytes: Bytes of a number of the weights.
        memory_gb: Memory for weights and KV cache, in GB.
        update_s: Seconds to load new weights from host memory into the engine.
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
