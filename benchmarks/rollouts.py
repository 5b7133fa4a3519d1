"""What rollout policies gain on real jobs with long-tailed responses.

python benchmarks/rollouts.py migration [--runs 3]     two jobs of examples/long_tail.yaml, without and with migrated tails
python benchmarks/rollouts.py batching [--runs 3]      the job of examples/tail_batching.yaml, plain and with tail batching

Runs of the two kinds take turns; a ratio is of neighbours. Where the machine has a core less than nodes are asked for, the training
node shares the last rollout node's core.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from rich.table import Table

from rollmux_env.report.tables import show
from runtime.commands.running import cluster_of
from runtime.execution.checks import check_run
from runtime.execution.members import RunPlan
from runtime.execution.session import execute, ray_session
from runtime.jobs.spec import Jobs, RolloutSpec, load_jobs
from runtime.journal import read_run
from runtime.record import Node, RunRecord
from runtime.report.figures import figures

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["migration", "batching"])
    parser.add_argument("--runs", type=int, default=3, help="of each kind")
    arguments = parser.parse_args()
    if arguments.what == "migration":
        migration(arguments.runs)
    else:
        batching(arguments.runs)


def migration(runs: int) -> None:
    """Mean seconds of an iteration while both jobs have warm ones."""
    jobs = load_jobs(EXAMPLES / "long_tail.yaml")
    table = Table("run", "iteration s, plain", "with migration", "times as fast", "tails moved")
    ratios = []
    with ray_session(None, {"rollout": min(2, cores() - 1), "training": 1}) as found:
        nodes = wide(found)
        run(jobs, nodes, "round-robin")  # profiles, and warms the machine's caches
        for number in range(runs):
            plain, moved = (run(jobs, nodes, dispatch) for dispatch in ("round-robin", "round-robin,migrate=0.8"))
            before_s, after_s = period_s(plain), period_s(moved)
            ratios.append(before_s / after_s)
            tails = sum(any(span.tail for span in part.spans) for part in moved.phases)
            print(f"run {number + 1}: {before_s:.3f} s, {after_s:.3f} s", flush=True)
            table.add_row(str(number + 1), f"{before_s:.3f}", f"{after_s:.3f}", f"{ratios[-1]:.2f}", str(tails))
    show(table)
    print(f"mean {fmean(ratios):.2f}, from {min(ratios):.2f} to {max(ratios):.2f}")


def batching(runs: int) -> None:
    """Seconds of all iterations' rollouts, and of all iterations, at equal samples."""
    packed = load_jobs(EXAMPLES / "tail_batching.yaml")
    (job,) = packed.jobs
    plain = packed.model_copy(update={"jobs": (job.model_copy(update={"rollout": RolloutSpec()}),)})
    table = Table(
        "run", "rollouts s, plain", "tail batching", "times as fast", "iterations s, plain", "tail batching", "times as fast"
    )
    ratios: list[tuple[float, float]] = []
    with ray_session(None, {"rollout": 1, "training": 1}) as nodes:
        for jobs in (plain, packed):
            run(jobs, nodes, "round-robin", iterations=1)
        for number in range(runs):
            before, after = (run(jobs, nodes, "round-robin") for jobs in (plain, packed))
            (rollout_a, all_a), (rollout_b, all_b) = seconds(before), seconds(after)
            ratios.append((rollout_a / rollout_b, all_a / all_b))
            figures = (rollout_a, rollout_b, ratios[-1][0], all_a, all_b, ratios[-1][1])
            print(f"run {number + 1}:", *(f"{figure:.2f}" for figure in figures), flush=True)
            table.add_row(str(number + 1), *(f"{figure:.2f}" for figure in figures))
    show(table)
    for what, own in zip(("rollouts", "iterations"), zip(*ratios, strict=True), strict=True):
        print(f"{what}: mean {fmean(own):.2f}, from {min(own):.2f} to {max(own):.2f}")


def run(jobs: Jobs, nodes: Sequence[Node], dispatch: str, iterations: int | None = None) -> RunRecord:
    """Run jobs and read what they left."""
    specs = tuple(job.model_copy(update={"iterations": iterations}) if iterations else job for job in jobs.jobs)
    with tempfile.TemporaryDirectory(prefix="rollmux-bench-") as folder:
        plan = RunPlan(specs, cluster_of(jobs.cluster, specs, nodes), tuple(nodes), "rollmux", dispatch, 0, folder)
        outcome = execute(plan, lambda line: None)
        record = read_run(Path(folder))
    assert outcome == "done" and not record.failed, record.failed
    check_run(record)
    return record


def wide(found: Sequence[Node]) -> list[Node]:
    """Two rollout nodes and a training node, of a core each where there are three."""
    rollout, training = ([node for node in found if node.pool == pool] for pool in ("rollout", "training"))
    if len(rollout) < 2:
        rollout.append(replace(rollout[0], name="rollout-1", cores=training[0].cores))
    return [*rollout, *training]


def cores() -> int:
    """Of this machine."""
    return len(os.sched_getaffinity(0))


def period_s(record: RunRecord) -> float:
    """Mean over jobs of the seconds of an iteration in the group's shared time."""
    (group,) = figures(record)["groups"]
    return fmean(group["iteration_s"].values())


def seconds(record: RunRecord) -> tuple[float, float]:
    """Of all rollouts, while they sampled; and of all iterations."""
    rollouts = [part.done_s - part.run_s for part in record.phases if part.phase == "rollout" and not part.profile]
    return sum(rollouts), record.iterations[-1].end_s - record.iterations[0].start_s


if __name__ == "__main__":
    main()
