"""Mean completion of rules in each track of `RollMux/Queue-v0`, in the units of its return.

    python benchmarks/queue_tracks.py

Streams have 100 jobs of `production` with 8 classes that explain half of the variance of the logarithm of stays, on fleets at load
1.6. A rule is the fluid replay of a policy with the order of the track and `park=true`, which is what the environment gives for the
rule's actions. Where lengths are unknown, the policy does not know them either. `random` takes an allowed action at random.
"""

from __future__ import annotations

import argparse
from typing import get_args

import gymnasium
import numpy as np

import rollmux_env.envs  # noqa: F401 (it registers the environments)
from rollmux_env.bench.intervals import mean_interval
from rollmux_env.envs.queue.known import TRACKS
from rollmux_env.keys.queue import Known
from rollmux_env.report.tables import heading, make_table, show
from trainers.problems.queue import QueueProblem

OPTIONS = {"jobs": 100, "slo": [1.5, 3.0], "classes": 8}
QUEUES = ("first-come", "order=attained,park=true", "order=ORDER", "order=ORDER,park=true")
POLICIES = ("solo", "rollmux,prune=false", "fleet,moves=false")


def rules_of(known: Known) -> list[str]:
    """Return the policies with rules of the queue that are tried in a track."""
    blind = ",known_stays=false" if known in ("classes", "nothing") else ""
    rules = []
    for policy in POLICIES:
        named = policy + blind * policy.startswith("fleet")
        queues = [queue.replace("ORDER", TRACKS[known]) for queue in QUEUES]
        rules += [named if queue == "first-come" else f"{named},{queue}" for queue in queues]
    return rules


def random_over_alone(problem: QueueProblem, seed: int) -> float:
    """Return the mean completion of an agent that takes allowed actions at random, over the mean hours of a job alone."""
    keys = problem.model_dump(include={"fleet", "known", "sigma"})
    env = gymnasium.make("RollMux/Queue-v0", generator=problem.generator, **keys)
    draws = np.random.default_rng(seed)
    _, info = env.reset(options={"stream_seed": seed})
    over = False
    while not over:
        _, _, over, _, info = env.step(int(draws.choice(np.flatnonzero(info["action_mask"]))))
    return float(info["completion_over_solo"])


def main() -> None:
    """Print a row for each track and rule."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    seeds = range(parser.parse_args().seeds)
    table = make_table("known", "rule", "completion over alone", left=2)
    for known in get_args(Known):
        table.add_section()
        problem = QueueProblem(options=OPTIONS, known=known)
        rows = {rule: [problem.reference_usd(rule, seed) for seed in seeds] for rule in rules_of(known)}
        rows["random"] = [random_over_alone(problem, seed) for seed in seeds]
        for number, (rule, values) in enumerate(rows.items()):
            table.add_row("" if number else known, rule, mean_interval(values).text(2))
    show(heading(f"mean completion over the mean hours of a job alone, {len(seeds)} streams; lower is better"), table)


if __name__ == "__main__":
    main()
