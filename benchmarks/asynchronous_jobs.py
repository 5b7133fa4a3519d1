"""Gain of a staleness of 1 for two real jobs that share one rollout node and one training node, compared with on-policy jobs.

python benchmarks/asynchronous_jobs.py [--quick] [--pair "long and short"] [--runs 3] [--iterations 20]

A long job next to a short one (T_cycle at least 1.3 times T_load) gains the time that its own dependency left idle. An equal pair
fills the nodes already and gains nothing. Runs of the two kinds take turns, with the same seed, and a gain compares consecutive
runs. The tables show for each kind: trained samples per node-hour while both jobs are present and warm; the mean reward of a sample
over the whole run, over weights with the same number of trainings, and in the last fifth; and how far two predictions of the period
are off, one from the profiles and one from the first fifth of the run. Times need two cores that nothing else uses: the tables also
show the share of the phases' time in which one of the processes was without a core. Rewards do not depend on the cores, except for
which weights a stale job's rollout has.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from rich.table import Table

from rollmux_env.errors import InputError
from rollmux_env.report.tables import make_table, show
from runtime.compare import compare
from runtime.coordinator.run_plan import RunPlan
from runtime.jobs.file import JobFile, parse_jobs
from runtime.journal.audit import check_run
from runtime.journal.record import RunRecord
from runtime.journal.write import read_run
from runtime.machine import Node
from runtime.machines.pools import cluster_of
from runtime.report.figures import figures
from runtime.run.ray_session import execute, ray_session

PAIRS = {"long and short": (36, 2), "equal": (12, 12)}  # number of prompts of an iteration, of each job
KINDS = {"on-policy": 0, "staleness 1": 1}
_RUNS, _QUICK_RUNS, _ITERATIONS, _QUICK_ITERATIONS = 3, 1, 20, 8
_STARTS = 3  # largest number of attempts to start Ray


class AsynchronousFigures(NamedTuple):
    """Figures of a run.

    Attributes:
        samples: Number of trained samples per node-hour.
        reward: Mean reward of all samples of both jobs.
        by_weights: Mean reward over weights: those with no training, with one training, and so on, each with the mean of its
            samples.
        last: Mean reward of the samples in the last fifth.
        period_s: Mean time of an iteration over the jobs, in seconds.
        planned_s: The same time as the profiles predict it.
        foretold: Relative error of the prediction from the first fifth of the run.
        ratio: T_cycle over T_load, from the profiles.
        age: Age of the oldest sample, in versions of the weights.
        waited: Fraction of the phases' time in which a process was without a core.
    """

    samples: float
    reward: float
    by_weights: float
    last: float
    period_s: float
    planned_s: float
    foretold: float
    ratio: float
    age: int
    waited: float


def main() -> None:
    """Run the pairs, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{_QUICK_RUNS} run of each kind, {_QUICK_ITERATIONS} iterations")
    parser.add_argument("--pair", choices=PAIRS, action="append", help="of jobs; all where nothing is said")
    parser.add_argument("--runs", type=int, help=f"of each kind, with a seed each; {_RUNS} where nothing is said")
    parser.add_argument("--iterations", type=int, help=f"of a job; {_ITERATIONS} where nothing is said")
    arguments = parser.parse_args()
    seeds = range(arguments.runs or (_QUICK_RUNS if arguments.quick else _RUNS))
    iterations = arguments.iterations or (_QUICK_ITERATIONS if arguments.quick else _ITERATIONS)
    periods = make_table("pair", "kind", "T_cycle / T_load", "period s", "planned off", "foretold off", "without a core", left=2)
    gains = make_table("pair", "kind", "samples per node-hour", "gain", "from", "to", left=2)
    rewards = make_table("pair", "kind", "reward of a sample", "by weights", "last fifth", "oldest", left=2)
    with tempfile.TemporaryDirectory(prefix="rollmux-bench-") as cache:
        os.environ["ROLLMUX_CACHE"] = cache  # no profiles of earlier runs
        for name in arguments.pair or PAIRS:
            prompts = PAIRS[name]
            runs: dict[str, list[AsynchronousFigures]] = {kind: [] for kind in KINDS}
            with nodes_here() as nodes:
                run(jobs_of(prompts, 0, 0, 2), nodes)  # makes the profiles, and warms the machine's caches
                for seed in seeds:
                    for kind, staleness in KINDS.items():
                        jobs = jobs_of(prompts, staleness, seed, iterations)
                        runs[kind].append(look(run(jobs, nodes), jobs))
                        print(f"{name}, {kind}, seed {seed}: {runs[kind][-1].samples:.0f} samples per node-hour", flush=True)
            add_rows((periods, gains, rewards), name, runs)
    show(gains, rewards, periods)


@contextlib.contextmanager
def nodes_here() -> Iterator[tuple[Node, ...]]:
    """Start Ray with a rollout node and a training node. If one of Ray's processes comes up too late, it starts again."""
    with contextlib.ExitStack() as stack:
        for start in range(_STARTS):
            try:
                nodes = stack.enter_context(ray_session(None, {"rollout": 1, "training": 1}))
                break
            except InputError as error:
                if start + 1 == _STARTS:
                    raise
                print(f"Ray is started again: {error}", flush=True)
        yield nodes


def jobs_of(prompts: Sequence[int], staleness: int, seed: int, iterations: int) -> JobFile:
    """Return two jobs that differ in their number of prompts."""
    algorithm = {"group_size": 16, "max_tokens": 32, "learning_rate": 2e-3, "minibatches": 2}
    jobs = [
        {"id": f"job{k}", "seed": 2 * seed + k, "algorithm": {"prompts_per_iteration": count, **algorithm}}
        for k, count in enumerate(prompts)
    ]
    more = {"slo": 100.0, "iterations": iterations, "staleness": staleness, "task": "echo", "checkpoint": "none"}
    model = {"name": "tiny", "hidden_size": 128, "layers": 3}
    rollout = {"engine": "torch"}  # vLLM's first batches take seconds; a profile would contain them, but later batches would not
    return parse_jobs({"version": 1, "defaults": {**more, "model": model, "rollout": rollout}, "jobs": jobs}, "pair", Path())


def run(jobs: JobFile, nodes: Sequence[Node]) -> RunRecord:
    """Run jobs in one group, and return the record of the run."""
    with tempfile.TemporaryDirectory(prefix="rollmux-bench-") as folder:
        cluster = cluster_of(jobs.cluster, jobs.jobs, nodes)
        plan = RunPlan(jobs.jobs, cluster, tuple(nodes), "rollmux,prune=false", "round-robin", 0, folder)
        outcome = execute(plan, lambda line: None)
        record = read_run(Path(folder))
    assert outcome == "done" and not record.failed, record.failed
    check_run(record)
    return record


def look(record: RunRecord, jobs: JobFile) -> AsynchronousFigures:
    """Return the figures of a run."""
    known: dict[str, Any] = figures(record)
    (group,) = known["groups"]
    seconds = group["iteration_s"]
    per_iteration = {spec.id: spec.algorithm.prompts_per_iteration * spec.algorithm.group_size for spec in jobs.jobs}
    samples = sum(per_iteration[job_id] / seconds[job_id] for job_id in seconds) * 3600 / len(record.nodes)
    planned = [record.jobs[spec.id] for spec in jobs.jobs]
    load_s = max(sum(getattr(job, phase).worst_case_s for job in planned) for phase in ("rollout", "training"))
    cycle_s = max(job.rollout.worst_case_s + job.training.worst_case_s + job.sync_s for job in planned)
    planned_s = max(load_s, *(job.solo_s for job in planned))
    compared = compare(record)
    return AsynchronousFigures(
        samples,
        *earned(record, per_iteration),
        fmean(seconds.values()),
        planned_s,
        compared["period_error"],
        cycle_s / load_s,
        int(max(job.get("staleness_max") or 0 for job in known["jobs"].values())),
        max((compared["cores"] or {"after": 0.0}).values()),
    )


def earned(record: RunRecord, per_iteration: dict[str, int]) -> tuple[float, float, float]:
    """Return `reward`, `by_weights` and `last` of a run (see `AsynchronousFigures`)."""
    means = []
    for job_id in per_iteration:
        metrics = [one.metrics for one in record.iterations_of(job_id)]
        rewards = [one["reward"] for one in metrics]
        by_version: dict[float, list[float]] = {}
        for one in metrics:
            by_version.setdefault(one["sampled_version"], []).append(one["reward"])
        versions = sorted(by_version)  # a version of a stale job may have no samples: it gets an interpolated reward
        at = np.interp(range(len(rewards) - 1), versions, [fmean(by_version[version]) for version in versions])
        means.append((fmean(rewards), float(at.mean()), fmean(rewards[-max(1, len(rewards) // 5) :])))
    reward, by_weights, last = np.average(means, axis=0, weights=[*per_iteration.values()]).tolist()
    return reward, by_weights, last


def add_rows(tables: Sequence[Table], name: str, runs: dict[str, list[AsynchronousFigures]]) -> None:
    """Add a row with the means and spreads of a pair's runs to each table."""
    (periods, gains, rewards), before = tables, runs["on-policy"]
    for kind, own in runs.items():
        planned = fmean(abs(one.planned_s / one.period_s - 1) for one in own)
        periods.add_row(
            *(name, kind, f"{fmean(one.ratio for one in own):.2f}", f"{fmean(one.period_s for one in own):.3f}"),
            *(f"{100 * planned:.1f}%", f"{100 * fmean(one.foretold for one in own):.1f}%"),
            f"{100 * max(one.waited for one in own):.1f}%",
        )
        ratios = [one.samples / other.samples for one, other in zip(own, before, strict=True)]
        spread = (fmean(ratios), min(ratios), max(ratios)) if own is not before else ()
        gains.add_row(name, kind, f"{fmean(one.samples for one in own):,.0f}", *(f"{ratio:.2f}" for ratio in spread))
        earned_by = ([one.reward for one in own], [one.by_weights for one in own], [one.last for one in own])
        spreads = [f"{fmean(values):.3f} ({min(values):.3f} to {max(values):.3f})" for values in earned_by]
        rewards.add_row(name, kind, *spreads, str(max(one.age for one in own)))


if __name__ == "__main__":
    main()
