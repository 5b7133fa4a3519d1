"""Gain of a change of the size of replicas during a rollout over the best static size: with hindsight, and by policy.

    python benchmarks/replica_sizes.py

In this project's model a replica of twice the GPUs loses only messages. Real engines may lose more, so each job is also simulated
with replicas whose cache is read, and whose products are computed, at 80% and at 65% of the rate for each doubling of the GPUs.
With hindsight means: the best of all single changes from one size to a larger one, once a given share of the responses is done, by
their mean over the same rollouts. The change takes as long as that of `adaptive-parallelism`.

The last job has engines of 4 and 8 GPUs whose steps Splitwise measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.optimize import nnls

from policies.rollout import make_rollout
from policies.rollout.adaptive_parallelism import AdaptiveParallelism
from policies.rollout.published import Plain
from rollmux_env.bench.suites.tables import make_packed_lengths
from rollmux_env.kernel.rollout_trials import spread
from rollmux_env.published import source
from rollmux_env.rollout.fleet import Fleet
from rollmux_env.rollout.job import JobRollouts
from rollmux_env.rollout.policy import Control, RolloutPolicy, Round, StaticControl, Wake
from rollmux_env.rollout.setting import Setting
from rollmux_env.timing.calibration import PHYSICAL
from rollmux_env.timing.hardware import GPUS, MEMORY_SHARE, achieved
from rollmux_env.timing.lengths import LengthDistribution, Lognormal
from rollmux_env.timing.models import SHAPES
from rollmux_env.timing.replica import SIZES, ReplicaTiming, fitting_replicas
from rollmux_env.workloads.modelled import THINKING_MEDIAN

RATES, SHARES, ROLLOUTS = (1.0, 0.8, 0.65), (0.5, 0.7, 0.8, 0.9, 0.95, 0.98), 10
PROMPT_TOKENS, EACH, MOST = 1024, 8, 1024


class SizedJob(NamedTuple):
    """A job on H800 whose replicas may have several sizes."""

    size: str
    gpus: int
    prompts: int
    lengths: LengthDistribution

    def setting(self, parallel: int, rate: float) -> Setting:
        """Return the setting of its rollouts.

        Args:
            parallel: Number of GPUs of each replica at the beginning.
            rate: Factor of the rate of the GPUs for each doubling of a replica's GPUs.
        """
        hardware = achieved("H800", GPUS["H800"], PHYSICAL)
        timings = []
        for size, timing in fitting_replicas(SHAPES[self.size], hardware, self.gpus, PROMPT_TOKENS + self.lengths.cap):
            slower = rate ** -np.log2(size)
            parts = {name: getattr(timing, name) * slower for name in ("kv_s_per_token", "sequence_s", "prefill_s_per_token")}
            timings.append((size, replace(timing, **parts)))
        return Setting(tuple(timings), self.gpus, parallel, self.prompts, EACH, PROMPT_TOKENS, self.lengths, most=MOST)


JOBS = {
    "14B-16k, 48 GPUs, 1024 responses, median 600": SizedJob("14B", 48, 128, make_packed_lengths(16384)),
    "8B-32k, 8 GPUs, 1024 responses, median 4096": SizedJob("8B", 8, 128, Lognormal(32768, THINKING_MEDIAN, 1.0)),
    "14B-16k, 8 GPUs, 512 responses, median 3000": SizedJob("14B", 8, 64, Lognormal(16384, 3000.0, 0.8)),
}


class EngineRun(NamedTuple):
    """A run of an engine that Splitwise measured."""

    gpus: int
    sequences: int
    prompt: int
    prefill_ms: float
    step_ms: float

    @property
    def context(self) -> int:
        """Mean tokens of all contexts together in its decode steps."""
        return self.sequences * (self.prompt + SPLITWISE.value("tokens", int) // 2)


SPLITWISE = source("splitwise")
RUNS = [run for _, run in SPLITWISE.table("steps", EngineRun)]
MEASURED_SIZES, NUMBER_BYTES = (4, 8), 2.0
MEASURED = "70B-8k, 8 GPUs, 512 responses, median 600"


def measured_timing(gpus: int) -> ReplicaTiming:
    """Return the timing of an engine of Splitwise: the least relative errors of its steps and prefills.

    Args:
        gpus: Number of GPUs of the engine.
    """
    runs, shape = [run for run in RUNS if run.gpus == gpus], SHAPES["70B"]
    steps = [(1, run.sequences, run.context) for run in runs]
    step_s, message_s, kv_s = least([run.step_ms / 1000 for run in runs], steps)
    prefills = [(run.sequences, run.sequences * run.prompt, run.sequences * run.prompt**2) for run in runs]
    prefill_s, token_s, pair_s = least([run.prefill_ms / 1000 for run in runs], prefills)
    room = gpus * SPLITWISE.value("gpu_gb", float) * MEMORY_SHARE * 1e9 / NUMBER_BYTES - shape.parameters
    return ReplicaTiming(step_s, 0.0, kv_s, 0.0, token_s, pair_s, prefill_s, int(room / shape.cached), message_s=message_s)


def step_error(gpus: int) -> float:
    """Return the largest relative error of the fitted decode steps of an engine.

    Args:
        gpus: Number of GPUs of the engine.
    """
    timing = measured_timing(gpus)
    return max(abs(1000 * timing.decode_s(run.sequences, run.context) / run.step_ms - 1) for run in RUNS if run.gpus == gpus)


def least(seconds: Sequence[float], parts: Sequence[tuple[int, ...]]) -> list[float]:
    """Return the seconds of each part, at least 0, that give measured seconds with the least relative errors.

    Args:
        seconds: Measured seconds.
        parts: Number of times that each measurement has each part.
    """
    fitted: list[float] = nnls(np.array(parts) / np.array(seconds)[:, None], np.ones(len(parts)))[0].tolist()
    return fitted


def measured_setting(parallel: int) -> Setting:
    """Return the setting of a job on engines of 4 and 8 GPUs; on 2 the cache does not hold its longest response.

    Args:
        parallel: Number of GPUs of each replica at the beginning.
    """
    timings = tuple((size, measured_timing(size)) for size in MEASURED_SIZES)
    return Setting(timings, 8, parallel, 64, EACH, PROMPT_TOKENS, make_packed_lengths(8192), most=MOST)


def cases() -> Iterator[tuple[str, str, dict[int, Setting]]]:
    """Yield the name of each job, its rate, and its setting by the GPUs of each replica at the beginning."""
    for label, job in JOBS.items():
        for rate in RATES:
            yield label, f"{rate:.0%}", {size: job.setting(size, rate) for size in SIZES}
    yield MEASURED, "measured", {size: measured_setting(size) for size in MEASURED_SIZES}


@dataclass(frozen=True)
class OneChange(Plain):
    """Rollout policy that changes the size of all replicas once.

    Args:
        size: GPUs of each replica from then on.
        share: Share of the responses after which it changes.
    """

    size: int
    share: float

    def control(self, setting: Setting) -> Control:
        """Return the control that changes the size."""
        return _Change(self, setting)


class _Change(StaticControl):
    def __init__(self, policy: OneChange, setting: Setting) -> None:
        self._policy, self._setting = policy, setting

    def begin(self, fleet: Fleet, round: Round) -> Wake:
        super().begin(fleet, round)
        return Wake(int(self._policy.share * round.wanted * round.needed))

    def act(self, fleet: Fleet) -> Wake:
        size, left = self._policy.size, fleet.open
        replicas = [dict(self._setting.timings)[size]] * (self._setting.gpus // size)
        live = fleet.add(replicas, size, fleet.now_s + AdaptiveParallelism().switch_s)
        fleet.migrate(left, live[spread(np.arange(left.size), live.size)])
        return Wake()


def mean_s(setting: Setting, policy: RolloutPolicy) -> float:
    """Return the mean seconds of a job's rollouts but the first, in which no policy knows its lengths."""
    rollouts = JobRollouts(setting, policy, 0)
    return float(np.mean([rollouts.next().seconds for _ in range(ROLLOUTS)][1:]))


def main() -> None:
    """Print the table."""
    table = Table("job", "rate", "best size", "s", "with hindsight", "s", "gain", "adaptive, s", "gain")
    for label, rate, settings in cases():
        static = {size: mean_s(setting, make_rollout("plain")) for size, setting in settings.items()}
        best = min(static, key=lambda size: static[size])
        changes = [(a, b, share) for a in settings for b in settings for share in SHARES if b > a]
        hindsight = {one: mean_s(settings[one[0]], OneChange(*one[1:])) for one in changes}
        first, then, share = min(hindsight, key=lambda one: hindsight[one])
        least_s = hindsight[first, then, share]
        adaptive_s = mean_s(settings[best], make_rollout("adaptive-parallelism"))
        change = f"TP {first} to {then} at {share:.0%}"
        gains = (f"{static[best] / seconds:.2f}x" for seconds in (least_s, adaptive_s))
        cells = (f"{static[best]:.0f}", change, f"{least_s:.0f}", next(gains), f"{adaptive_s:.0f}", next(gains))
        table.add_row(label, rate, f"TP {best}", *cells)
    Console(width=132).print(table)
    print(f"Fit of the measured steps: within {max(step_error(size) for size in MEASURED_SIZES):.0%}")


if __name__ == "__main__":
    main()
