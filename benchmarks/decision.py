"""Time of one placement decision with many active jobs, compared with the paper's planner and a plain Python search.

    python benchmarks/decision.py
    python benchmarks/decision.py --policies learned:default,moves=false learned:default --jobs 30 200 2000
    python benchmarks/decision.py --shapes --jobs 2000
    python benchmarks/decision.py --shapes --jobs 2000 --policies rollmux learned:default consolidate

Jobs have Table 6's mixed profiles (arXiv 2512.11306) and SLO ~ U(1, 2). `rollmux` places them. Then further jobs arrive one by one;
each is decided, placed and leaves again. With `--shapes` every job has eight shapes, including its own. With `--policies` the named
policies are timed, on departures too, while `rollmux` places the arriving jobs. Times are CPU seconds of this process, so that
other processes on the machine influence them less. The paper's figures (Table 5, search in C++) are from its authors' machine:
compare orders of magnitude, not digits.
"""

from __future__ import annotations

import argparse
from math import inf
from time import process_time

import numpy as np
from rich.table import Table

from policies.placement.algorithm1 import Algorithm1
from policies.registry import make_policy
from rollmux_env.bench.harness import OwnReplay
from rollmux_env.cluster.apply import apply
from rollmux_env.cluster.candidates import candidates
from rollmux_env.cluster.events import Arrived, Departed
from rollmux_env.cluster.plan import carry_out
from rollmux_env.cluster.state import State
from rollmux_env.keys.cluster import Cluster
from rollmux_env.keys.job import Job
from rollmux_env.report.tables import show
from rollmux_env.scenario import Scenario
from rollmux_env.workloads import WorkloadOptions, make_workload

PAPER_MS = {100: 41.9, 500: 198.0, 1000: 318.0, 2000: 591.0}


def in_eight_shapes(job: Job) -> Job:
    """Return the job on 1 to 4 rollout nodes and 1 or 2 training nodes. A tenth of each phase does not scale."""
    shapes = []
    for rollout_nodes in (1, 2, 3, 4):
        for training_nodes in (1, 2):
            rollout_s = job.rollout.worst_case_s * (0.1 + 0.9 / rollout_nodes)
            training_s = job.training.worst_case_s * (0.1 + 0.9 / training_nodes)
            rollout = {"nodes": rollout_nodes, "worst_case_s": rollout_s} if rollout_nodes > 1 else None
            training = {"nodes": training_nodes, "worst_case_s": training_s} if training_nodes > 1 else None
            if rollout or training:
                shapes.append({**({"rollout": rollout} if rollout else {}), **({"training": training} if training else {})})
    return Job.model_validate({**job.model_dump(exclude_none=True), "shapes": shapes})


def filled(cluster: Cluster, jobs: list[Job]) -> State:
    """Return a cluster in which all the jobs are active."""
    state, policy = State(cluster), Algorithm1()
    for job in jobs:
        event = Arrived(0.0, job)
        apply(state, event)
        carry_out(state, policy.decide(state, event), keeps_slo=True)
    return state


def plain_search(state: State, job_id: str) -> float:
    """Run Algorithm 1 for one-node jobs in plain Python over the same groups, for comparison with the compiled search.

    Args:
        state: The cluster.
        job_id: Job to place.

    Returns:
        Cost of the place, in $/h.
    """
    job = state.job(job_id)
    rollout, training = state.cluster.pools["rollout"], state.cluster.pools["training"]
    best = rollout.usd_per_node_hour + training.usd_per_node_hour
    for group in state.group_list():
        if group.saturated or len(group.jobs) >= state.limits.group_size_max:
            continue
        members = [state.job(member) for member in group.jobs]
        limit = min(other.slo * other.solo_s for other in [*members, job])
        cycle = max(other.solo_s for other in [*members, job])
        training_s = sum(other.training.worst_case_s for other in [*members, job])
        pins = {node: [m for m in members if node in state.pins(m.id)] for node in group.rollout_nodes}
        loads = [sum(m.rollout.worst_case_s for m in pinned) for pinned in pins.values()]
        memory = [sum(m.rollout.host_memory_gb for m in pinned) for pinned in pins.values()]
        if sum(other.training.host_memory_gb for other in [*members, job]) > (training.node_memory_gb or inf):
            continue
        fits = any(
            max(cycle, training_s, *loads, load + job.rollout.worst_case_s) <= limit
            and used_gb + job.rollout.host_memory_gb <= (rollout.node_memory_gb or inf)
            for load, used_gb in zip(loads, memory, strict=True)
        )
        if fits:
            return 0.0
        if max(cycle, training_s, *loads) <= limit:
            best = min(best, rollout.usd_per_node_hour)
    return best


def decide_times_ms(state: State, newcomers: list[Job]) -> tuple[list[float], list[float], list[float]]:
    """Measure decisions for jobs that come and go.

    Args:
        state: The cluster.
        newcomers: Jobs that arrive, each after the one before it has left.

    Returns:
        Times of the decisions, of whole tables of candidates (first 20 jobs), and of plain searches (first 3), in milliseconds.
    """
    policy = Algorithm1()
    decisions, tables, plain = [], [], []
    for k, job in enumerate(newcomers):
        event = Arrived(state.now_s, job)
        apply(state, event)
        began = process_time()
        plan = policy.decide(state, event)
        decisions.append((process_time() - began) * 1e3)
        if k < 20:
            began = process_time()
            candidates(state, job.id)
            tables.append((process_time() - began) * 1e3)
        if k < 3:
            began = process_time()
            plain_search(state, job.id)
            plain.append((process_time() - began) * 1e3)
        carry_out(state, plan, keeps_slo=True)
        apply(state, Departed(state.now_s, job.id))
    return decisions, tables, plain


def policy_times_ms(state: State, newcomers: list[Job], name: str) -> tuple[list[float], list[float]]:
    """Measure a policy's answers to arrivals and departures.

    Args:
        state: The cluster.
        newcomers: Jobs that arrive an hour apart, each after the one before it has left.
        name: Name of the policy.

    Returns:
        CPU times of the answers to arrivals and to departures, in milliseconds, without the first two of each.
    """
    policy = make_policy(name)
    assert not isinstance(policy, OwnReplay), "a yardstick makes no decisions"
    times: tuple[list[float], list[float]] = [], []
    for job in newcomers:
        for k in (0, 1):
            event = Departed(state.now_s, job.id) if k else Arrived(state.now_s + 3600.0, job)
            apply(state, event)
            began = process_time()
            policy.decide(state, event)
            times[k].append((process_time() - began) * 1e3)
            if not k:
                carry_out(state, Algorithm1().decide(state, event), keeps_slo=True)
    return times[0][2:], times[1][2:]


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, nargs="*", default=[100, 500, 1000, 2000, 20000], help="numbers of active jobs")
    parser.add_argument("--decisions", type=int, default=300)
    parser.add_argument("--shapes", action="store_true", help="jobs have eight shapes each")
    parser.add_argument("--policies", nargs="*", default=[], help="others than `rollmux`, by name")
    arguments = parser.parse_args()
    if arguments.policies:
        show(_policies(arguments.policies, arguments.jobs, arguments.decisions, arguments.shapes))
        return
    table = Table("active jobs", "groups", "p50 ms", "p99 ms", "whole table ms", "plain Python ms", "paper ms (its machine)")
    for count in arguments.jobs:
        scenario: Scenario = make_workload("mixed", WorkloadOptions(jobs=count + arguments.decisions))
        jobs = _jobs(scenario, arguments.shapes)
        state = filled(scenario.cluster, jobs[:count])
        decisions, tables, plain = decide_times_ms(state, jobs[count:])
        paper = PAPER_MS.get(count)
        table.add_row(
            f"{count:,}",
            f"{len(state.tables.order):,}",
            f"{np.percentile(decisions, 50):.3f}",
            f"{np.percentile(decisions, 99):.3f}",
            f"{np.median(tables):.2f}",
            f"{np.median(plain):.1f}",
            f"{paper:.0f}" if paper else "",
        )
    show(table)


def _jobs(scenario: Scenario, shapes: bool) -> list[Job]:
    """Return the jobs of a workload, with eight shapes each if `shapes` is true."""
    return [in_eight_shapes(job) if shapes else job for job in scenario.jobs]


def _policies(names: list[str], counts: list[int], decisions: int, shapes: bool) -> Table:
    """Return the table with the times of the named policies."""
    table = Table("active jobs", "policy", "an arrival, p50 ms", "p99 ms", "after a departure, p50 ms", "p99 ms")
    for count in counts:
        scenario = make_workload("mixed", WorkloadOptions(jobs=count + decisions, stays="fixed"))
        jobs = _jobs(scenario, shapes)
        for name in names:
            state = filled(scenario.cluster, jobs[:count])
            times_ms = policy_times_ms(state, jobs[count:], name)
            table.add_row(f"{count:,}", name, *(f"{np.percentile(times, q):.2f}" for times in times_ms for q in (50, 99)))
    return table


if __name__ == "__main__":
    main()
