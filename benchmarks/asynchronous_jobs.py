"""What a staleness of 1 gains for two real jobs that share one rollout node and one training node, against the same jobs on-policy.

python benchmarks/asynchronous_jobs.py [--runs 3] [--iterations 20] [--small]

A long job beside a short one (T_cycle at least 1.3 times T_load) gains what its own dependency left idle; an equal pair fills the
nodes already and gains nothing. Runs of the two kinds take turns, with the same seed; a gain is of neighbours. Of each: trained
samples per node-hour while both jobs are there and warm, mean reward of a sample over the whole run and in its last fifth, the
period that the profiles plan, and the period that the first fifth of the run foretells, both against the one that came. It needs
two cores that nothing else uses.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from rich.table import Table

from rollmux_env.report.tables import show
from runtime.compare import compare
from runtime.execution.checks import check_run
from runtime.execution.pools import cluster_of
from runtime.execution.ray_session import execute, ray_session
from runtime.execution.run_plan import RunPlan
from runtime.facts import Node
from runtime.jobs.spec import Jobs, parse_jobs
from runtime.journal import read_run
from runtime.record import RunRecord
from runtime.report.figures import figures

PAIRS = {"long and short": (24, 4), "equal": (12, 12)}  # prompts of an iteration, of either job
KINDS = {"on-policy": 0, "staleness 1": 1}


class Seen(NamedTuple):
    """What a run has shown.

    Attributes:
        samples: trained, per node-hour. reward, last: means over samples of both jobs, of all and of the last fifth.
        period_s, planned_s, foretold: mean over the jobs of seconds of an iteration, as it came, by the profiles, and how far the
            prediction from the first fifth was off. ratio: T_cycle over T_load, by the profiles. age: of the oldest sample, in
            versions.
    """

    samples: float
    reward: float
    last: float
    period_s: float
    planned_s: float
    foretold: float
    ratio: float
    age: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="of each kind, with a seed each")
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--small", action="store_true", help="smaller models and fewer responses: to see that it runs")
    arguments = parser.parse_args()
    table = Table("pair", "kind", "T_cycle / T_load", *("period s", "planned off", "foretold off"), "samples per node-hour", "gain")
    rewards = Table("pair", "kind", "reward", "from", "to", "last fifth", "oldest sample, versions")
    with ray_session(None, {"rollout": 1, "training": 1}) as nodes:
        for name, prompts in PAIRS.items():
            runs: dict[str, list[Seen]] = {kind: [] for kind in KINDS}
            run(jobs_of(prompts, 0, 0, 2, arguments.small), nodes)  # profiles, and warms the machine's caches
            for seed in range(arguments.runs):
                for kind, staleness in KINDS.items():
                    jobs = jobs_of(prompts, staleness, seed, arguments.iterations, arguments.small)
                    runs[kind].append(look(run(jobs, nodes), jobs))
                    print(f"{name}, {kind}, seed {seed}: {runs[kind][-1]}", flush=True)
            add_rows(table, rewards, name, runs)
    show(table)
    show(rewards)


def jobs_of(prompts: Sequence[int], staleness: int, seed: int, iterations: int, small: bool) -> Jobs:
    """Two jobs that differ in what an iteration samples."""
    group, tokens, width = (4, 16, 64) if small else (16, 32, 128)
    jobs = [
        {
            "id": f"job{k}",
            "seed": 2 * seed + k,
            "algorithm": {
                "prompts_per_iteration": count,
                "group_size": group,
                "max_tokens": tokens,
                "learning_rate": 2e-3,
                "minibatches": 2,
            },
        }
        for k, count in enumerate(prompts)
    ]
    model = {"name": "tiny", "hidden_size": width, "layers": 1 if small else 3}
    more = {"slo": 100.0, "iterations": iterations, "staleness": staleness, "task": "echo", "checkpoint": "none"}
    rollout = {"engine": "torch"}  # vLLM's first batches take seconds, which a profile would know and later ones would not
    return parse_jobs({"version": 1, "defaults": {**more, "model": model, "rollout": rollout}, "jobs": jobs}, "pair", Path())


def run(jobs: Jobs, nodes: Sequence[Node]) -> RunRecord:
    """Run jobs in one group and read what they left."""
    with tempfile.TemporaryDirectory(prefix="rollmux-bench-") as folder:
        cluster = cluster_of(jobs.cluster, jobs.jobs, nodes)
        plan = RunPlan(jobs.jobs, cluster, tuple(nodes), "rollmux,prune=false", "round-robin", 0, folder)
        outcome = execute(plan, lambda line: None)
        record = read_run(Path(folder))
    assert outcome == "done" and not record.failed, record.failed
    check_run(record)
    return record


def look(record: RunRecord, jobs: Jobs) -> Seen:
    """What a run has shown."""
    known: dict[str, Any] = figures(record)
    (group,) = known["groups"]
    seconds = group["iteration_s"]
    per_iteration = {spec.id: spec.algorithm.prompts_per_iteration * spec.algorithm.group_size for spec in jobs.jobs}
    samples = sum(per_iteration[job_id] / seconds[job_id] for job_id in seconds) * 3600 / len(record.nodes)
    planned = [record.jobs[spec.id] for spec in jobs.jobs]
    load_s = max(sum(getattr(job, phase).worst_case_s for job in planned) for phase in ("rollout", "training"))
    cycle_s = max(job.rollout.worst_case_s + job.training.worst_case_s + job.sync_s for job in planned)
    planned_s = max(load_s, *(job.solo_s for job in planned))
    rewards = {spec.id: [one.metrics["reward"] for one in record.iterations if one.job_id == spec.id] for spec in jobs.jobs}
    weight = sum(per_iteration.values())
    last = max(1, len(next(iter(rewards.values()))) // 5)
    return Seen(
        samples,
        sum(per_iteration[job_id] * fmean(own) for job_id, own in rewards.items()) / weight,
        sum(per_iteration[job_id] * fmean(own[-last:]) for job_id, own in rewards.items()) / weight,
        fmean(seconds.values()),
        planned_s,
        compare(record)["period_error"],
        cycle_s / load_s,
        int(max(job.get("staleness_max") or 0 for job in known["jobs"].values())),
    )


def add_rows(table: Table, rewards: Table, name: str, runs: dict[str, list[Seen]]) -> None:
    """The means of a pair's runs, and what spreads."""
    before = runs["on-policy"]
    for kind, own in runs.items():
        gains = [one.samples / other.samples for one, other in zip(own, before, strict=True)]
        gain = "" if own is before else f"{fmean(gains):.2f} ({min(gains):.2f} to {max(gains):.2f})"
        planned = fmean(abs(one.planned_s / one.period_s - 1) for one in own)
        table.add_row(
            *(name, kind, f"{fmean(one.ratio for one in own):.2f}", f"{fmean(one.period_s for one in own):.3f}"),
            *(f"{100 * planned:.1f}%", f"{100 * fmean(one.foretold for one in own):.1f}%"),
            *(f"{fmean(one.samples for one in own):,.0f}", gain),
        )
        values = [one.reward for one in own]
        rewards.add_row(
            *(name, kind, f"{fmean(values):.4f}", f"{min(values):.4f}", f"{max(values):.4f}"),
            *(f"{fmean(one.last for one in own):.4f}", str(max(one.age for one in own))),
        )


if __name__ == "__main__":
    main()
