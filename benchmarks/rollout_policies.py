"""Rollout policies on jobs that training never saw, paired: for each seed, all policies have the same jobs and the same lengths.

python benchmarks/rollout_policies.py [--first 2000] [--seeds 10] [--jobs 12] [POLICY ...]

A policy's figure for a seed is the mean, over the seed's jobs, of the cost of `RollMux/Rollout-v0`: half of the rollouts' seconds
and half of the GPU-seconds that they hold, relative to those of `plain`. The column `learned` says how many times smaller the cost
of the last policy is than that of the row, and for how many seeds it is smaller. In the simulation decisions take no time. The last
column gives the CPU time of a decision.
"""

from __future__ import annotations

import argparse
from time import process_time

import numpy as np
from rich.table import Table

from policies.rollout.environment import PolicyAgent
from rollmux_env.bench.intervals import mean_interval
from rollmux_env.envs.rollout.env import RolloutVectorEnv
from rollmux_env.envs.rollout.generator import RandomJobs
from rollmux_env.report.tables import show

POLICIES = (
    "plain",
    "tail-migration",
    "adaptive-parallelism",
    "parallelism-planner",
    "stream-trainer",
    "tail-batching",
    "tail-batching+tail-migration",
    "tail-batching+adaptive-parallelism",
    "tail-batching+parallelism-planner",
    "tail-batching+stream-trainer",
    "learned:default",
)
JOBS = 20  # count of job numbers reserved for a seed; all numbers are below those that training draws
FIGURES = ("cost", "seconds_over_plain", "held_over_plain")


def play(spec: str, seeds: range) -> tuple[dict[str, np.ndarray], float]:
    """Play a policy on some jobs.

    Args:
        spec: Name of the policy.
        seeds: Numbers of the jobs.

    Returns:
        Figures by name, each of shape (jobs,), and the time of a decision in seconds.
    """
    env = RolloutVectorEnv(len(seeds), RandomJobs(), autoreset_mode="Disabled")
    observation, _ = env.reset(seed=0, options={"stream_seed": list(seeds)})
    agent, over, cost = PolicyAgent(spec, env), np.zeros(len(seeds), bool), np.zeros(len(seeds))
    seconds, decisions, info = 0.0, 0, {}
    while not over.all():
        began, asked = process_time(), int((~over).sum())
        actions = agent.actions(observation)
        seconds, decisions = seconds + process_time() - began, decisions + asked
        observation, rewards, ended, _, info = env.step(actions)
        cost -= np.where(over, 0, rewards)
        over |= ended
    return {"cost": cost, **{name: info[name] for name in FIGURES[1:]}}, seconds / decisions


def main() -> None:
    """Play all policies, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("policies", nargs="*", default=POLICIES)
    parser.add_argument("--first", type=int, default=2000, help="first seed")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=12, choices=range(1, JOBS + 1), metavar="N", help="of a seed, at most 20")
    arguments = parser.parse_args()
    measured, decision_s = {}, {}
    for spec in arguments.policies:
        firsts = range(JOBS * arguments.first, JOBS * (arguments.first + arguments.seeds), JOBS)
        rows = [play(spec, range(first, first + arguments.jobs)) for first in firsts]
        measured[spec] = {name: np.array([own[name].mean() for own, _ in rows]) for name in FIGURES}
        decision_s[spec] = float(np.mean([seconds for _, seconds in rows]))
        print(spec, *(f"{name} {measured[spec][name].mean():.3f}" for name in FIGURES), flush=True)
    last = measured[arguments.policies[-1]]["cost"]
    table = Table("policy", "cost", "seconds", "held GPU-seconds", "learned", "seeds", "ms a decision")
    for spec, own in measured.items():
        gain = mean_interval((own["cost"] / last).tolist())
        figures = [mean_interval(own[name].tolist()) for name in FIGURES]
        wins = f"{int((last < own['cost']).sum())} of {len(last)}"
        table.add_row(spec, *(one.text() for one in figures), gain.text(2), wins, f"{1000 * decision_s[spec]:.2f}")
    show(table)


if __name__ == "__main__":
    main()
