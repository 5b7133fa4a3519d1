"""Gain of rollout policies on real jobs with long-tailed responses.

python benchmarks/real_rollouts.py migration [--runs 3]     two jobs of examples/long_tail.yaml, without and with migrated tails
python benchmarks/real_rollouts.py rewards [--out FILE]     reward curves of the same jobs while they learn, a run for each seed
python benchmarks/real_rollouts.py batching [--runs 3]      the job of examples/tail_batching.yaml, plain and with tail batching
python benchmarks/real_rollouts.py sizes [--runs 3]         the job of examples/engine_sizes.yaml, engines of each size and of both

Runs of the kinds take turns, and a ratio compares consecutive runs. Migration needs three cores that nothing else uses; with two,
the training node shares the core of the last rollout node.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from time import process_time
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from rich.table import Table

from policies.rollout.rounds import Rounds
from rollmux_env.report.styles import draw
from rollmux_env.report.tables import show
from runtime.coordinator.run_plan import RunPlan
from runtime.grpo.rollout_worker import RolloutWorker
from runtime.grpo.shares import EngineShare
from runtime.grpo.training_worker import TrainingWorker
from runtime.jobs.file import JobFile, load_jobs
from runtime.jobs.spec import JobSpec
from runtime.journal.audit import check_run
from runtime.journal.record import RunRecord
from runtime.journal.write import read_run
from runtime.machine import Node
from runtime.machines.pools import cluster_of
from runtime.report.figures import figures
from runtime.run.ray_session import execute, ray_session

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def main() -> None:
    """Run the chosen measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["migration", "rewards", "batching", "sizes"])
    parser.add_argument("--runs", type=int, default=3, help="of each kind")
    parser.add_argument("--out", type=Path, help="PNG file of the reward curves")
    arguments = parser.parse_args()
    if arguments.what == "rewards":
        rewards(arguments.runs, arguments.out)
        return
    {"migration": migration, "batching": batching, "sizes": sizes}[arguments.what](arguments.runs)


def migration(runs: int) -> None:
    """Print the mean time of an iteration, without and with migrated tails, while both jobs have warm iterations."""
    jobs = load_jobs(EXAMPLES / "long_tail.yaml")
    table = Table("run", "iteration s, plain", "with migration", "times as fast", "tails moved")
    ratios = []
    with ray_session(None, {"rollout": min(2, cores() - 1), "training": 1}) as session_nodes:
        nodes = wide(session_nodes)
        run(jobs, nodes, "round-robin")  # makes the profiles, and warms the machine's caches
        for number in range(runs):
            plain, moved = (run(jobs, nodes, dispatch) for dispatch in ("round-robin", "round-robin,migrate=0.8"))
            before_s, after_s = period_s(plain), period_s(moved)
            ratios.append(before_s / after_s)
            tails = sum(any(span.tail for span in part.spans) for part in moved.phases)
            print(f"run {number + 1}: {before_s:.3f} s, {after_s:.3f} s", flush=True)
            table.add_row(str(number + 1), f"{before_s:.3f}", f"{after_s:.3f}", f"{ratios[-1]:.2f}", str(tails))
    show(table)
    print(f"mean {fmean(ratios):.2f}, from {min(ratios):.2f} to {max(ratios):.2f}")


def rewards(runs: int, out: Path | None) -> None:
    """Print the mean reward of every iteration, for both jobs and each seed, without and with migrated tails."""
    jobs = load_jobs(EXAMPLES / "long_tail.yaml")
    kinds = {"without migration": "round-robin", "with migration": "round-robin,migrate=0.8"}
    curves = {kind: list[list[float]]() for kind in kinds}
    with ray_session(None, {"rollout": min(2, cores() - 1), "training": 1}) as session_nodes:
        nodes = wide(session_nodes)
        for seed in range(runs):
            own = jobs.model_copy(update={"jobs": tuple(learning(job, 2 * seed + k) for k, job in enumerate(jobs.jobs))})
            for kind, dispatch in kinds.items():
                record = run(own, nodes, dispatch)
                tails = sum(any(span.tail for span in part.spans) for part in record.phases)
                for job in own.jobs:
                    curves[kind].append([done.metrics["reward"] for done in record.iterations if done.job_id == job.id])
                    print(f"seed {job.seed}, {job.id}, {kind}:", *(f"{one:.3f}" for one in curves[kind][-1]))
                print(f"seeds {2 * seed} and {2 * seed + 1}, {kind}: {tails} tails moved", flush=True)
    plain, moved = (np.array(curves[kind]) for kind in kinds)
    gained, apart = plain[:, -3:].mean() - plain[:, :3].mean(), moved - plain
    print(f"mean reward of the last three iterations over that of the first three: {gained:+.3f}")
    print(f"with migration less without: at most {abs(apart).max():.3f} in an iteration of a job,", end=" ")
    print(f"{abs(apart.mean(axis=0)).max():.3f} in the mean over jobs")
    if out is not None:
        picture = Figure(figsize=(7, 3.5), layout="constrained")
        axes = picture.subplots()
        for kind, values, marker in zip(kinds, (plain, moved), "ox", strict=True):
            draw(axes, np.arange(1, 1 + values.shape[1]), values, kind, f"{kind}, {len(values)} jobs", marker=marker, markersize=4)
        axes.set_xlabel("iteration")
        axes.set_ylabel("mean reward")
        axes.legend(frameon=False)
        picture.savefig(out, dpi=110)


def learning(job: JobSpec, seed: int) -> JobSpec:
    """Return the job with smaller rollouts and a learning rate at which it learns within its iterations."""
    algorithm = job.algorithm.model_copy(update={"learning_rate": 3e-3, "group_size": 4, "max_tokens": 512})
    return job.model_copy(update={"algorithm": algorithm, "iterations": 12, "seed": seed})


def batching(runs: int) -> None:
    """Print the CPU time of all rollouts and of whole iterations, at equal samples, in this process.

    A node of one core computes all the time. So these are the times on an idle machine, and they are less noisy than wall-clock
    times.
    """
    (spec,) = load_jobs(EXAMPLES / "tail_batching.yaml").jobs
    node = Node("rollout-0", "rollout", "", (0,), (), 4.0, "1 core")
    engine, rank = RolloutWorker(spec, 0, 1, node), TrainingWorker(spec, 0, 1, node)
    engine.open(None)
    rank.open(None, None)
    with rank._trainer.shards() as (shards, info):
        state = {name: shard.clone() for name, shard in shards.items()}, info
    kinds = ("plain", "tail batching", "times as fast")
    table = Table("run", *(f"{what}: {kind}" for what in ("rollouts s", "iterations s") for kind in kinds))
    ratios: list[tuple[float, float]] = []
    for number in range(runs):
        (rollout_a, all_a), (rollout_b, all_b) = (
            iterate(spec, number, eta, engine, rank, state) for eta in (1.0, spec.rollout.eta)
        )
        ratios.append((rollout_a / rollout_b, all_a / all_b))
        values = (rollout_a, rollout_b, ratios[-1][0], all_a, all_b, ratios[-1][1])
        table.add_row(str(number + 1), *(f"{value:.2f}" for value in values))
        print(f"run {number + 1}:", *(f"{value:.2f}" for value in values), flush=True)
    engine.close()
    show(table)
    for what, own in zip(("rollouts", "iterations"), zip(*ratios, strict=True), strict=True):
        print(f"{what}: mean {fmean(own):.2f}, from {min(own):.2f} to {max(own):.2f}")


def sizes(runs: int) -> None:
    """Print the mean time of a rollout and the number of size changes, without the first iteration, whose lengths are unknown."""
    jobs = load_jobs(EXAMPLES / "engine_sizes.yaml")
    (spec,), engine = jobs.jobs, jobs.jobs[0].rollout
    kinds = {
        "two of a core": engine.model_copy(update={"policy": "adaptive-parallelism,margin=0.99"}),  # never changes the size
        "one of two cores": engine.model_copy(update={"policy": "plain", "sizes": ()}),
        "as the policy says": engine,
    }
    table = Table("run", *(f"rollout s: {kind}" for kind in kinds), "changes within")
    with ray_session(None, {"rollout": 0, "training": 1}) as nodes:
        for number in range(runs):
            seconds, lengths = list[float](), set[tuple[float, ...]]()
            for rollout in kinds.values():
                own = jobs.model_copy(update={"jobs": (spec.model_copy(update={"rollout": rollout}),)})
                record = run(own, nodes, "round-robin")
                later = [part for part in record.phases if part.phase == "rollout" and part.iteration > 0]
                seconds.append(fmean(part.done_s - part.run_s for part in later))
                lengths.add(tuple(done.metrics["response_tokens"] for done in record.iterations))
            assert len(lengths) == 1  # all kinds have sampled the same responses
            changes = [done.metrics["resizes"] for done in record.iterations]
            print(f"run {number + 1}:", *(f"{one:.2f}" for one in seconds), changes, flush=True)
            table.add_row(str(number + 1), *(f"{one:.2f}" for one in seconds), f"{sum(changes):.0f}")
    show(table)


def weights_of(rank: TrainingWorker) -> dict[str, torch.Tensor]:
    """Return the weights of the only rank."""
    trainer = rank._trainer
    data = torch.empty(trainer.layout.nbytes, dtype=torch.uint8)
    trainer.write_weights(data)
    return trainer.layout.views(data)


def iterate(spec: JobSpec, seed: int, eta: float, engine: RolloutWorker, rank: TrainingWorker, state: Any) -> tuple[float, float]:
    """Run a job from its beginning, and return the CPU time of its rollouts and of its iterations, in seconds."""
    rank._trainer.load_state(*state)
    engine._engine.update_weights(weights_of(rank), 0)
    rounds = Rounds(spec.algorithm.prompts_per_iteration, spec.algorithm.group_size, eta)
    rollout_s = all_s = 0.0
    for number in range(spec.iterations):
        due, began_s = rounds.next(), process_time()
        engine.begin(1000 * seed + number, False, len(due.prompts) * due.responses, (EngineShare(0, due),), {})
        assert not engine.sample()
        complete = sorted({line.prompt for line in engine.results().lines})
        rollout_s += process_time() - began_s
        rank.update(engine.take())
        engine._engine.update_weights(weights_of(rank), rank._trainer.updates)
        all_s += process_time() - began_s
        rounds.done(complete)
    assert rounds.position == spec.iterations * spec.algorithm.prompts_per_iteration  # both ways have trained the same prompts
    return rollout_s, all_s


def run(jobs: JobFile, nodes: Sequence[Node], dispatch: str) -> RunRecord:
    """Run jobs, and return the record of the run."""
    with tempfile.TemporaryDirectory(prefix="rollmux-bench-") as folder:
        plan = RunPlan(jobs.jobs, cluster_of(jobs.cluster, jobs.jobs, nodes), tuple(nodes), "rollmux", dispatch, 0, folder)
        outcome = execute(plan, lambda line: None)
        record = read_run(Path(folder))
    assert outcome == "done" and not record.failed, record.failed
    check_run(record)
    return record


def wide(nodes: Sequence[Node]) -> list[Node]:
    """Return two rollout nodes and a training node, each with a core if the machine has three."""
    rollout, training = ([node for node in nodes if node.pool == pool] for pool in ("rollout", "training"))
    if len(rollout) < 2:
        rollout.append(replace(rollout[0], name="rollout-1", cores=training[0].cores))
    return [*rollout, *training]


def cores() -> int:
    """Return the number of this machine's cores."""
    return len(os.sched_getaffinity(0))


def period_s(record: RunRecord) -> float:
    """Return the mean time of an iteration over the jobs, in the group's shared time, in seconds."""
    (group,) = figures(record)["groups"]
    return fmean(group["iteration_s"].values())


if __name__ == "__main__":
    main()
