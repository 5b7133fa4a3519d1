"""Gain of learning in each environment over the best rule, with several training seeds and held-out streams.

python benchmarks/learning_gain.py [PART ...] [--decisions 1200000] [--trainings 5] [--streams 60]

A part is an environment. Each training starts from random weights, with the settings of a preset of `rollmux train`, on one core.
Then its best network plays one greedy episode on each held-out stream (seeds from 2000 on, which neither training nor the choice
of the best network uses). The table says how many times smaller a policy's dollars are than the best rule's on the same stream:
the mean with its 95% interval, and the worst stream. Above 1 the policy is cheaper. Dollars are those of a stream at equal work
(Placement-v0), those of a work-hour (Dispatch-v0), and the cost relative to `plain` (Rollout-v0).

Results are added to `benchmarks/results/learning_gain/PART.json` as they are found, and what is there is not computed again: the
same command continues where it was stopped, also in the middle of a training. What is there has to be of the present simulator: the
first stream of every rule is computed again. With `--trainings 0` the command prints what is there, and computes nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from policies.placement.policy_file import read_policy
from rollmux_env.bench.intervals import mean_interval
from rollmux_env.envs.queue.known import TRACKS
from rollmux_env.errors import InputError
from rollmux_env.files import read_json, write_whole
from rollmux_env.keys.queue import Known
from rollmux_env.report.tables import heading, make_table, show
from trainers.config import read_config
from trainers.export import config_of
from trainers.pointer import PointerPolicy
from trainers.problem import Problem
from trainers.problems.catalogue import make_problem
from trainers.references import reference_usd
from trainers.runs import run_all
from trainers.vec_env import Observation, play

FIRST_SEED = 2000
RESULTS = Path(__file__).parent / "results" / "learning_gain"
RUNS = Path("runs") / "learning_gain"
Usd = dict[str, list[float]]


@dataclass(frozen=True)
class Part:
    """An environment.

    Attributes:
        title: Title of its rows.
        preset: Preset whose settings the trainings have.
        environment: Keys of a training configuration's environment.
        rules: Names of policies. The first is the best rule, which is the reference.
    """

    title: str
    preset: str
    environment: dict[str, Any]
    rules: tuple[str, ...]

    def problem(self) -> Problem:
        """Return the learning problem."""
        return make_problem(self.environment, self.title)


_STREAM = {"name": "placement", "workload": "production", "options": {"jobs": 60}}


def _queue(known: Known, best: str, *others: str) -> Part:
    """Return a track of the queue environment. Its jobs park none, as policies that run; rules may."""
    environment = {"name": "queue", "known": known, "options": {"jobs": 40, "slo": [1.5, 3.0], "classes": 8}}
    blind = ",known_stays=false" if known in ("classes", "nothing") else ""
    with_moves = f"fleet{blind},order={TRACKS[known]},park=true"
    rules = (*(f"fleet,moves=false{blind},{queue}" for queue in (best, *others)), with_moves, "solo", "masked-random", "untrained")
    return Part(f"Queue-v0, {known}", "queue", environment, rules)


PARTS = {
    "placement": Part(
        "Placement-v0, production, without moves",
        "production",
        _STREAM,
        ("first-fit", "rollmux,prune=false", "rollmux", "masked-random", "untrained", "learned:default,moves=false"),
    ),
    "moves": Part(
        "Placement-v0, production, with moves",
        "production-moves",
        {**_STREAM, "moves": True},
        ("consolidate", "rollmux", "learned:default,tries=1", "optimal-work"),
    ),
    "dispatch": Part(
        "Dispatch-v0",
        "dispatch",
        {"name": "dispatch", "stale": 0.5},
        ("fifo,migrate=0.8", "round-robin,migrate=0.8", "round-robin", "masked-random", "untrained", "learned:default"),
    ),
    "rollout": Part(
        "Rollout-v0",
        "rollout",
        {"name": "rollout", "rollouts": 3},
        (
            "tail-batching+tail-migration",
            "tail-batching+adaptive-parallelism",
            "tail-batching",
            "adaptive-parallelism",
            "plain",
            "masked-random",
            "untrained",
            "learned:default",
            "learned:default,tails=false",
            "learned:default,tails=false,spare=false",
        ),
    ),
    "queue-lengths": _queue("lengths", "order=area,park=true", "order=area"),
    "queue-estimates": _queue("estimates", "order=area,park=true", "order=attained,park=true"),
    "queue-classes": _queue("classes", "order=learned,park=true", "order=attained,park=true"),
    "queue-nothing": _queue("nothing", "order=gittins,park=true", "order=attained,park=true"),
}


def train_once(part: Part, name: str, decisions: int, seed: int) -> Path:
    """Train with a seed, or continue a training that was stopped, and return the policy file of its best evaluation."""
    folder = RUNS / name / f"{decisions}-{seed}"
    changes = [f"environment={json.dumps(part.environment)}", f"steps={decisions}", f"seed={seed}", "evaluation.seeds=40"]
    changes += [f"evaluation.references={json.dumps(part.rules[:1])}", f"checkpoint_every={decisions // 10}"]
    run_all(read_config(part.preset, changes), part.preset, 1, folder, resume=(folder / "config.json").exists())
    return folder / f"seed-{seed}" / "best.safetensors"


def network_usd(problem: Problem, file: Path, streams: int) -> list[float]:
    """Return the dollars of a network's greedy choices on each held-out stream."""
    env = problem.environment(streams, autoreset=False)
    config, weights = read_policy(file, config_of(env, (1,), {}).decides)
    spaces: tuple[Any, Any] = env.single_observation_space, env.single_action_space
    policy = PointerPolicy(*spaces, lambda left: 0.0, config.widths)
    policy.scorer.load_state_dict({key: torch.from_numpy(value) for key, value in weights.items()})

    def choose(observation: Observation) -> NDArray[np.int64]:
        return policy.predict(observation, deterministic=True, action_masks=observation["mask"] > 0)[0]

    return [float(usd) for usd in problem.usd(play(env, range(FIRST_SEED, FIRST_SEED + streams), choose))]


def measure(name: str, part: Part, decisions: int, trainings: int, streams: int) -> Usd:
    """Return the dollars of every policy on every held-out stream, after computing what is missing.

    Raises:
        InputError: A rule now has other dollars on the first stream than in the file.
    """
    file, problem = RESULTS / f"{name}.json", part.problem()
    known: Usd = read_json(file) if file.exists() else {}
    _check(known, part, problem, file)
    _measure_rule(known, part.rules[0], problem, streams, file)
    for seed in range(trainings):
        policy = f"trained, {decisions:,} decisions, seed {seed}"
        if len(known.get(policy, ())) < streams:
            known[policy] = network_usd(problem, train_once(part, name, decisions, seed), streams)
            _write(file, known)
    for policy in part.rules[1:]:
        _measure_rule(known, policy, problem, streams, file)
    return known


def _check(known: Usd, part: Part, problem: Problem, file: Path) -> None:
    for policy in part.rules:
        if known.get(policy) and not np.isclose(now := reference_usd(problem, policy, FIRST_SEED), known[policy][0], rtol=2e-5):
            was = f"'{policy}' costs {now:.6g} on stream {FIRST_SEED}, and cost {known[policy][0]:.6g}"
            raise InputError(f"{file}: {was}: the simulator has changed; delete the file, and {RUNS / file.stem} to train again")


def _measure_rule(known: Usd, policy: str, problem: Problem, streams: int, file: Path) -> None:
    usd = known.setdefault(policy, [])
    while len(usd) < streams:
        usd.append(reference_usd(problem, policy, FIRST_SEED + len(usd)))
        _write(file, known)


def _write(file: Path, known: Mapping[str, Sequence[float]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{json.dumps(name)}: {json.dumps([float(f'{usd:.6g}') for usd in column])}" for name, column in known.items()]
    write_whole(file, "{\n" + ",\n".join(lines) + "\n}\n")


def rows(part: Part, known: Usd, streams: int) -> list[tuple[str, str, str]]:
    """Return the rows of a part: name, gain over the best rule, and gain on the worst stream. Trainings end with their mean."""
    base = np.array(known[part.rules[0]][:streams])
    gains = {name: base / np.array(usd[:streams]) for name, usd in known.items() if len(usd) >= streams}
    lines = [(name, mean_interval(gain.tolist()).text(3), f"{gain.min():.3f}") for name, gain in gains.items()]
    by_budget: dict[str, list[NDArray[np.float64]]] = {}
    for name, gain in gains.items():
        if name.startswith("trained, "):
            by_budget.setdefault(name.partition(", seed")[0], []).append(gain)
    for budget, own in ((budget, own) for budget, own in by_budget.items() if len(own) > 1):
        mean = mean_interval([float(gain.mean()) for gain in own])
        lines.append((f"{budget}, mean of {len(own)} trainings", mean.text(3), f"{min(gain.min() for gain in own):.3f}"))
    return lines


def main() -> None:
    """Train and measure what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all by default")
    parser.add_argument("--decisions", type=int, default=1_200_000)
    parser.add_argument("--trainings", type=int, default=5)
    parser.add_argument("--streams", type=int, default=60)
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"PART: {unknown.pop()}: must be one of {', '.join(PARTS)}")
    torch.set_num_threads(1)
    table = make_table("environment", "policy", "gain", "worst stream", left=2)
    for name in options.parts or PARTS:
        file = RESULTS / f"{name}.json"
        if options.trainings:
            try:
                known = measure(name, PARTS[name], options.decisions, options.trainings, options.streams)
            except InputError as error:
                sys.exit(f"learning_gain.py: {error}")
        elif not file.exists():
            continue
        else:
            known = read_json(file)
        table.add_section()
        for number, row in enumerate(rows(PARTS[name], known, options.streams)):
            table.add_row("" if number else PARTS[name].title, *row)
    show(heading(f"gain over the best rule, {options.streams} held-out streams; above 1 is cheaper"), table)


if __name__ == "__main__":
    main()
