"""What planned switches cost, and which part of them: savings over solo where warm or cold starts take no time.

    python benchmarks/promise_costs.py

Fluid replays of three production streams, so that nothing but the plans differs. Without either start what is left is the promise
itself: a newcomer's wait for its meta-iteration, and the periods in which a group settles.
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
    """The same jobs, some of whose starts take no time."""
    jobs = []
    for job in problem.jobs:
        phases = {name: getattr(job, name) for name in ("rollout", "training")}
        free = dict.fromkeys(starts, 0.0)
        changed = {name: one.model_copy(update={"switch": one.switch.model_copy(update=free)}) for name, one in phases.items()}
        jobs.append(job.model_copy(update=changed))
    return problem.model_copy(update={"jobs": tuple(jobs)})


def measured(problem: Scenario, policy: str) -> Metrics:
    return metrics(replay(problem, make_policy(policy)))


def main() -> None:
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
