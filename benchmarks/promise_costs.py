"""Costs of planned switches by their parts: savings over solo if warm or cold starts take no time.

    python benchmarks/promise_costs.py

It uses fluid replays of three production streams, so that only the plans differ. Without both starts, the rest is the cost of the
promise itself: the wait of a new job for its meta-iteration, and the periods in which a group settles.
"""

from __future__ import annotations

import argparse
from statistics import fmean

from policies.registry import make_policy
from rollmux_env.replay.fluid import replay
from rollmux_env.replay.metrics import Metrics, metrics
from rollmux_env.scenario import Scenario
from rollmux_env.workloads import WorkloadOptions, make_workload

STARTS = {
    "warm and cold starts": (),
    "warm starts alone": ("cold_s",),
    "cold starts alone": ("warm_s",),
    "neither": ("warm_s", "cold_s"),
}


def without(problem: Scenario, starts: tuple[str, ...]) -> Scenario:
    """Return the same jobs with some of their starts taking no time.

    Args:
        problem: Scenario with the jobs.
        starts: Names of the starts' times that are set to 0.
    """
    jobs = []
    for job in problem.jobs:
        phases = {name: getattr(job, name) for name in ("rollout", "training")}
        free = dict.fromkeys(starts, 0.0)
        changed = {name: one.model_copy(update={"switch": one.switch.model_copy(update=free)}) for name, one in phases.items()}
        jobs.append(job.model_copy(update=changed))
    return problem.model_copy(update={"jobs": tuple(jobs)})


def measured(problem: Scenario, policy: str) -> Metrics:
    """Return the metrics of a fluid replay under a policy."""
    return metrics(replay(problem, make_policy(policy)))


def main() -> None:
    """Print a line for each kind of stay, policy and choice of starts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    seeds = range(parser.parse_args().seeds)
    print(f"{'stays':12}{'policy':14}{'planned with':24}{'dollars':>9}{'per work':>10}")
    for stays in ("fixed", "iterations"):
        streams = [make_workload("production", WorkloadOptions(seed=seed, stays=stays, switches=True)) for seed in seeds]
        solo = [measured(problem, "solo") for problem in streams]
        for policy in ("rollmux", "consolidate"):
            for label, starts in {"no switches": None, **STARTS}.items():
                name = policy if starts is None else f"{policy},switches=true"
                runs = [measured(without(problem, starts or ()), name) for problem in streams]
                dollars = fmean(alone.cost_usd / run.cost_usd for alone, run in zip(solo, runs, strict=True))
                work = fmean(alone.usd_per_work_hour / run.usd_per_work_hour for alone, run in zip(solo, runs, strict=True))
                print(f"{stays:12}{policy:14}{label:24}{dollars:8.3f}x{work:9.3f}x", flush=True)


if __name__ == "__main__":
    main()
