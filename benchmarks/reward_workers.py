"""Gain of reward workers for two real jobs with slow rewards that share one rollout node and one training node.

python benchmarks/reward_workers.py [--quick] [--runs 3] [--iterations 12]

Each reward sleeps, like one that waits for a judge, so it needs no core. Processes next to the engine compute as many rewards at a
time as the reward workers. With such processes, a rollout holds its node until the last reward. Runs of the two kinds take turns,
with the same seed, and a gain compares consecutive runs. The table shows for each kind: the time that a warm rollout holds its
node, the time from its end to its last reward, and the trained samples per node-hour while both jobs are present and warm.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from asynchronous_jobs import nodes_here, run

from rollmux_env.report.tables import make_table, show
from runtime.jobs.file import JobFile, parse_jobs
from runtime.jobs.tasks import Echo, TaskExample
from runtime.journal.record import RunRecord
from runtime.report.figures import figures

KINDS: dict[str, dict[str, int]] = {"processes": {"processes": 4}, "workers": {"workers": 4}}
REWARD_S, PROMPTS, GROUP = 0.5, 4, 4
_RUNS, _QUICK_RUNS, _ITERATIONS, _QUICK_ITERATIONS = 3, 1, 12, 6


class Judged(Echo):
    """The task `echo` with rewards that take `REWARD_S` seconds."""

    def reward(self, example: TaskExample, response: str) -> float:
        """Sleep, and return the reward of `echo`."""
        time.sleep(REWARD_S)
        return super().reward(example, response)


class RewardFigures(NamedTuple):
    """Figures of a run.

    Attributes:
        samples: Number of trained samples per node-hour.
        rollout_s: Mean time that a warm rollout held its node, in seconds.
        wait_s: Mean time from the end of a rollout to its last reward, in seconds.
    """

    samples: float
    rollout_s: float
    wait_s: float


def main() -> None:
    """Run the jobs with both kinds of rewards, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{_QUICK_RUNS} run of each kind, {_QUICK_ITERATIONS} iterations")
    parser.add_argument("--runs", type=int, help=f"of each kind, with a seed each; {_RUNS} where nothing is said")
    parser.add_argument("--iterations", type=int, help=f"of a job; {_ITERATIONS} where nothing is said")
    arguments = parser.parse_args()
    seeds = range(arguments.runs or (_QUICK_RUNS if arguments.quick else _RUNS))
    iterations = arguments.iterations or (_QUICK_ITERATIONS if arguments.quick else _ITERATIONS)
    shown: dict[str, list[RewardFigures]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory(prefix="rollmux-bench-") as cache:
        os.environ["ROLLMUX_CACHE"] = cache  # no profiles of earlier runs
        with nodes_here() as nodes:
            for seed in seeds:
                for kind in KINDS:
                    jobs = jobs_of(kind, seed, iterations)
                    shown[kind].append(look(run(jobs, nodes)))
                    print(f"{kind}, seed {seed}: {shown[kind][-1].samples:.0f} samples per node-hour", flush=True)
    gains = [other.samples / one.samples for one, other in zip(*shown.values(), strict=True)]
    table = make_table("rewards in", "rollout holds its node, s", "then waits, s", "samples per node-hour", "gain", left=1)
    for kind, own in shown.items():
        figures_of = ([one.rollout_s for one in own], 2), ([one.wait_s for one in own], 2), ([one.samples for one in own], 0)
        table.add_row(kind, *(spread(*one) for one in figures_of), spread(gains, 2) if kind == "workers" else "")
    show(table)


def jobs_of(kind: str, seed: int, iterations: int) -> JobFile:
    """Return two equal jobs whose rewards are computed in the given way."""
    algorithm = {"prompts_per_iteration": PROMPTS, "group_size": GROUP, "max_tokens": 32, "learning_rate": 2e-3, "minibatches": 2}
    shared = {"slo": 100.0, "iterations": iterations, "task": {"name": "reward_workers:Judged"}, "checkpoint": "none"}
    shared |= {"model": {"name": "tiny", "hidden_size": 128, "layers": 3}, "rollout": {"engine": "torch"}}
    shared |= {"algorithm": algorithm, "rewards": KINDS[kind]}
    jobs = [{"id": f"job{k}", "seed": 2 * seed + k} for k in range(2)]
    return parse_jobs({"version": 1, "defaults": shared, "jobs": jobs}, "pair", Path(__file__).parent)


def look(record: RunRecord) -> RewardFigures:
    """Return the figures of a run."""
    known: dict[str, Any] = figures(record)
    (group,) = known["groups"]
    samples = sum(PROMPTS * GROUP / seconds for seconds in group["iteration_s"].values()) * 3600 / len(record.nodes)
    rollouts = [part.end_s - part.start_s for part in record.phases if part.phase == "rollout" and not (part.profile or part.cold)]
    waits = [done.metrics.get("reward_wait_s", 0.0) for done in record.iterations]
    return RewardFigures(samples, fmean(rollouts), fmean(waits))


def spread(values: list[float], digits: int) -> str:
    """Return a cell with the mean, the smallest and the largest value."""
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    return f"{fmean(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


if __name__ == "__main__":
    main()
