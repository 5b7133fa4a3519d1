"""Seconds of a whole step of RollPacker's jobs, part by part as in its Table 2, and rollouts with one factor as in its Figure 11.

    python benchmarks/rollpacker.py

A step is a rollout, its rewards and a training on the same GPUs. Rollouts are simulated, with the fixed seconds of a decode step
fitted to each job's plain rollout. All rewards are tests of code, the task of the paper's Table 1 with the longest rewards, in the
seconds of its Figure 7a. Two more numbers are fitted to the code row of Table 1, which is the 14B job's: the tests that run at once
for each GPU, and a factor on the predicted training. The 7B and 32B jobs have the same, on their own GPUs. How alike the lengths of
a prompt's responses are is chosen by the 21 rollouts of Figure 11.

`rewards` is the reward scheduler: tests begin as responses end, with an adaptive limit. `stream` is the stream trainer. RLHFuse is
as the paper strengthens it: tests beside the rollout, with the fixed limit, and the stream trainer, without tail batching.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from policies.rollout import make_rollout
from policies.rollout.rounds import RewardTimeout
from rollmux_env.bench.suites.rollout import ROLLOUTS, fit_step_s, make_packed_setting
from rollmux_env.bench.suites.tables import PACKED_JOBS
from rollmux_env.fidelity.step import RewardLaw, RewardRuns, reward_run_ends, trained_s
from rollmux_env.kernel.tables import Floats
from rollmux_env.published import source
from rollmux_env.rollout.job import JobRollouts, RolloutOutcome
from rollmux_env.rollout.setting import Setting
from rollmux_env.timing.calibration import PHYSICAL
from rollmux_env.timing.hardware import GPUS, achieved
from rollmux_env.timing.models import SHAPES
from rollmux_env.timing.replica import Parallelism
from rollmux_env.timing.training import TrainingTiming, even_plan, update_load

SEEDS, FITTED, LIMIT_S = 3, "14B-16k", 30.0
ALIKE, ALIKES = 0.3, (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)  # correlation of the lengths in whole steps, and those that are compared


class Share(NamedTuple):
    """Shares of a step in percent."""

    rollout: float
    reward: float
    training: float


class PublishedStep(NamedTuple):
    """A job's row in the table `steps` of the published figures."""

    tensor: int
    batching: float
    rewards: float
    planner: float
    stream: float
    over_rlhfuse: float
    short_s: float
    long_s: float


class System(NamedTuple):
    """Parts of a system.

    Attributes:
        name: Name in the table.
        policy: Rollout policy.
        beside: Whether tests begin as responses end, not once the rollout is over.
        adaptive: Whether the limit of a test follows its correct runs.
        stream: Whether training on complete prompts begins on the GPUs that the policy frees.
        paper: Published speed-up over veRL, from a job's row.
    """

    name: str
    policy: str
    beside: bool
    adaptive: bool
    stream: bool
    paper: Callable[[PublishedStep], float]


SYSTEMS = (
    System("veRL", "plain", False, False, False, lambda row: 1.0),
    System("+ tail batching", "tail-batching", False, False, False, lambda row: row.batching),
    System("+ rewards", "tail-batching", True, True, False, lambda row: row.rewards),
    System("+ planner", "tail-batching+parallelism-planner", True, True, False, lambda row: row.planner),
    System("+ stream", "tail-batching+stream-trainer", True, True, True, lambda row: row.stream),
    System("RLHFuse", "stream-trainer", True, False, True, lambda row: row.stream / row.over_rlhfuse),
)
FIGURES = source("rollpacker")
STEPS = dict(FIGURES.table("steps", PublishedStep))
LAW = FIGURES.value("rewards", RewardLaw)
CODE = dict(FIGURES.table("shares", Share))["code"]


class Fit(NamedTuple):
    """Numbers that are fitted to the code row of Table 1.

    Attributes:
        workers: Number of tests that run at once for each GPU.
        training: Factor on the predicted seconds of a training.
    """

    workers: float
    training: float


class PlayedStep(NamedTuple):
    """Seconds of a step.

    Attributes:
        seconds: Seconds of the whole step.
        tests_s: Seconds from the end of the rollout to that of the last test that counts.
        training_s: Seconds of its training alone.
        long: Whether its rollout was a long round.
    """

    seconds: float
    tests_s: float
    training_s: float
    long: bool


def training_of(name: str) -> TrainingTiming:
    """Return the predicted cost of a job's training. Pipeline stages and context parallelism count as further copies."""
    job, tensor = PACKED_JOBS[name], STEPS[name].tensor
    plan = even_plan(SHAPES[job.size], achieved("H800", GPUS["H800"], PHYSICAL), Parallelism(tensor, 1, job.gpus // tensor))
    cap = make_packed_setting(job, 0.0, 0.5).prompt_tokens + job.cap
    return plan.timing(update_load(PHYSICAL, np.full(1024, cap), 1, cap, scored=1))


def _setting(name: str, alike: float = ALIKE) -> Setting:
    job = PACKED_JOBS[name]
    return make_packed_setting(job, fit_step_s(job, make_rollout("plain")), alike)


def steps_of(name: str, system: System, seed: int, fit: Fit) -> list[PlayedStep]:
    """Return the steps of a job under a system.

    Args:
        name: Name of the job.
        system: System that runs it.
        seed: Seed of lengths and tests.
        fit: Fitted numbers.
    """
    rollouts = JobRollouts(_setting(name), make_rollout(system.policy), seed)
    generator, timeout = np.random.default_rng(seed), RewardTimeout(least_s=2.0 if system.adaptive else LIMIT_S)
    timing, workers = training_of(name), max(1, round(fit.workers * rollouts.setting.gpus))
    steps = []
    for _ in range(ROLLOUTS):
        one = rollouts.next()
        ready_s = _ready_s(one, system, workers, timeout, generator)
        work_s = fit.training * _work_s(one, timing, rollouts.setting.prompt_tokens)
        begin_s = min(one.moved_s, one.seconds) if system.stream else max(one.seconds, float(ready_s.max()))
        ended_s = trained_s(ready_s, work_s, begin_s, 0.5, one.seconds) + fit.training * timing.update_s
        training_s = float(work_s.sum()) + fit.training * timing.update_s
        steps.append(PlayedStep(ended_s, max(0.0, float(ready_s.max()) - one.seconds), training_s, one.long))
    return steps


def _ready_s(one: RolloutOutcome, system: System, workers: int, timeout: RewardTimeout, generator: np.random.Generator) -> Floats:
    """Return when the last test that counts of each prompt has ended, in seconds, in the order of `np.unique`."""
    runs_s, correct = LAW.draw(generator, one.end_s.size)
    tested = np.ones(one.end_s.size, bool) if system.beside else one.counts
    begin_s = one.end_s if system.beside else np.full(one.end_s.size, one.seconds)
    runs = RewardRuns(begin_s[tested], runs_s[tested], correct[tested], one.prompts[tested])
    ends_s = np.zeros(one.end_s.size)
    ends_s[tested] = reward_run_ends(runs, workers, timeout)
    _, prompt = np.unique(one.prompts[one.counts], return_inverse=True)
    ready_s = np.zeros(prompt.max() + 1)
    np.maximum.at(ready_s, prompt, ends_s[one.counts])
    return ready_s


def _work_s(one: RolloutOutcome, timing: TrainingTiming, prompt_tokens: int) -> Floats:
    """Return the predicted seconds of each prompt's training, in the order of `np.unique`."""
    _, prompt = np.unique(one.prompts[one.counts], return_inverse=True)
    tokens = (prompt_tokens + one.tokens[one.counts]).astype(float)
    return np.bincount(prompt, timing.s_per_token * tokens + timing.s_per_token2 * tokens**2).astype(float)


@lru_cache
def fitted() -> Fit:
    """Fit tests at once and training to the code row of Table 1."""
    job = PACKED_JOBS[FITTED]
    tests_s, training_s = (job.plain_s * share / CODE.rollout for share in (CODE.reward, CODE.training))
    low, high = 0.25, 16.0
    for _ in range(12):
        middle = (low * high) ** 0.5
        measured = steps_of(FITTED, SYSTEMS[0], 0, Fit(middle, 1.0))
        low, high = (middle, high) if np.mean([one.tests_s for one in measured]) > tests_s else (low, middle)
    return Fit(high, training_s / float(np.mean([one.training_s for one in measured])))


def steps_table() -> Table:
    """Return the table of whole steps."""
    heads = ("step, s", "short", "long", "paper, short and long", "tests after it", "training", "over veRL", "paper")
    fit, table = fitted(), Table("job", "system", *heads)
    for name, row in STEPS.items():
        base: list[float] = []
        for system in SYSTEMS:
            runs = [steps_of(name, system, seed, fit) for seed in range(SEEDS)]
            seconds = [float(np.mean([one.seconds for one in run])) for run in runs]
            base = base or seconds
            gains, every = np.array(base) / seconds, [one for run in runs for one in run]
            kinds = ([one.seconds for one in every if one.long == long] for long in (False, True))
            labels = f"{row.short_s:.0f}, {row.long_s:.0f}" if system.name == "+ stream" else ""
            spent = (_mean([getattr(one, part) for one in every]) for part in ("tests_s", "training_s"))
            ours = f"{gains.mean():.2f}x ± {gains.std(ddof=1):.2f}"
            table.add_row(name, system.name, _mean(seconds), *map(_mean, kinds), labels, *spent, ours, f"{system.paper(row):.2f}x")
    return table


def _mean(values: list[float]) -> str:
    return f"{np.mean(values):.0f}" if values else ""


def published_rollouts() -> list[tuple[str, str, str, float]]:
    """Return the rollouts of Figure 11: job, what is spare and by which factor, rollout policy, and seconds."""
    rows = []
    for spare, spec in (
        ("responses", "tail-batching,eta=1,eta_responses={:g}"),
        ("prompts", "tail-batching,eta={:g},eta_responses=1"),
    ):
        for name, papers in FIGURES.table(f"spare_{spare}", tuple[float, float, float]):
            for factor, paper_s in zip(FIGURES.value("factors", list[float]), papers, strict=True):
                rows.append((name, f"{spare}, {factor:g}", spec.format(factor), paper_s))
    return rows + [(name, "both, 1.25", "tail-batching", job.batched_s) for name, job in PACKED_JOBS.items()]


def spare_table() -> Table:
    """Return the table of rollouts with spare responses, spare prompts, or both, by how alike lengths are."""
    table = Table("job", "spare", "paper, s", *(f"alike {alike:g}" for alike in ALIKES))
    errors = []
    for name, spare, policy, paper_s in published_rollouts():
        seconds = [_rollout_s(name, policy, alike) for alike in ALIKES]
        errors.append(np.abs(np.log(np.array(seconds) / paper_s)))
        table.add_row(name, spare, f"{paper_s:.0f}", *(f"{one:.0f}" for one in seconds))
    for label, measured in (("mean", np.mean(errors, axis=0)), ("worst", np.max(errors, axis=0))):
        table.add_row("", f"{label} error", "", *(f"{100 * np.expm1(error):.0f}%" for error in measured))
    return table


def _rollout_s(name: str, policy: str, alike: float) -> float:
    """Return the mean seconds of a job's rollouts over the seeds."""
    jobs = [JobRollouts(_setting(name, alike), make_rollout(policy), seed) for seed in range(SEEDS)]
    return float(np.mean([job.next().seconds for job in jobs for _ in range(ROLLOUTS)]))


def main() -> None:
    """Print the tables."""
    console, fit = Console(width=132, highlight=False), fitted()
    console.print(f"Fitted: {fit.workers:.1f} tests at once for each GPU; training {fit.training:.1f} times as long as predicted.")
    console.print(f"\nSteps, with lengths of a prompt's responses alike by {ALIKE:g}")
    console.print(steps_table())
    console.print("\nSeconds of rollouts with spare responses, spare prompts, or both")
    console.print(spare_table())


if __name__ == "__main__":
    main()
