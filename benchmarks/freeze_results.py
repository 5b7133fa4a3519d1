"""Write the results of policies and environments on the frozen scenarios to benchmarks/results, or check that they are the same.

    python benchmarks/freeze_results.py                    rewrite the files
    python benchmarks/freeze_results.py --check            print differences, exit 1 if there are any
    python benchmarks/freeze_results.py --check --quick    only the replays and traces that take well under a second each

Figures are written with all their digits. Event logs, sequences of decisions and traces of environments are kept as a SHA-256:
`decisions` covers which jobs were admitted and moved where, `events` also the times. All of it is the same on every processor,
except near-ties of the learned policies (`rollmux_env/portable.py`).
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import rollmux_env.envs  # noqa: F401 (registers)
from policies.dispatch import make_dispatch
from policies.registry import make_policy
from rollmux_env.bench.harness import OwnReplay
from rollmux_env.cluster.events import Admitted, Event, Moved
from rollmux_env.envs.placement.generator import Toy
from rollmux_env.files import write_whole
from rollmux_env.replay.event import replay_events
from rollmux_env.replay.fluid import replay
from rollmux_env.replay.metrics import Metrics, metrics
from rollmux_env.scenario import Scenario, load_scenario

FOLDER = Path(__file__).parent / "results"
SCENARIOS = Path(__file__).parent / "scenarios"
SEED = 0
FEW = 60  # number of jobs of a scenario for slow policies
CHEAP = ("solo", "colocated", "random", "most-idle", "rollmux", "rollmux,prune=false", "learned:default,moves=false")
DEAR = ("gavel", "regroup", "consolidate", "consolidate,known_stays=false", "learned:default", "optimal", "optimal-work")
DISPATCHERS = ("round-robin", "round-robin,migrate=0.8", "fifo", "shortest-first", "longest-first,migrate=0.8", "learned:default")
QUICK = {"mixed": "round-robin", "production": "round-robin,migrate=0.8"}  # dispatch policy of quick replays, by workload
PLACEMENT, DISPATCH = "RollMux/Placement-v0", "RollMux/Dispatch-v0"
TRACES: dict[str, tuple[str, dict[str, Any], int]] = {
    "placement toy": (PLACEMENT, {"generator": Toy()}, 60),
    "placement mixed": (PLACEMENT, {"generator": "mixed"}, 600),
    "placement mixed, moves": (PLACEMENT, {"generator": "mixed", "moves": True}, 150),
    "placement production": (PLACEMENT, {"generator": "production"}, 400),
    "placement production, moves": (PLACEMENT, {"generator": "production", "moves": True}, 250),
    "placement production, moves, unknown stays": (
        PLACEMENT,
        {"generator": "production", "moves": True, "known_stays": False},
        150,
    ),
    "placement production, moves, no shield": (PLACEMENT, {"generator": "production", "moves": True, "shield": False}, 150),
    "dispatch": (DISPATCH, {}, 3000),
}
Case = tuple[str, str, int | None, str]  # scenario file, placement policy, jobs (None: all), dispatch policy ("": a fluid replay)


def cases(quick: bool) -> Iterator[Case]:
    """Yield the replays to run."""
    for path in sorted(SCENARIOS.glob("*.json")):
        if quick:
            yield from ((path.name, policy, FEW, "") for policy in (*CHEAP, "consolidate"))
            yield path.name, "rollmux", FEW, QUICK[path.name.partition("-")[0]]
            continue
        yield from ((path.name, policy, None, "") for policy in CHEAP)
        yield from ((path.name, policy, FEW, "") for policy in (*CHEAP, *DEAR))
        yield from ((path.name, "rollmux", FEW, dispatch) for dispatch in DISPATCHERS)
        yield from ((path.name, policy, FEW, "round-robin") for policy in ("solo", "colocated", "consolidate", "learned:default"))
    if not quick:
        yield "production-iterations-seed0.json", "rollmux", None, "round-robin"


def key(case: Case) -> str:
    """Return the name of a case in replays.json."""
    name, policy, jobs, dispatch = case
    return f"{name.removesuffix('-seed0.json')}, {jobs or 'all'} jobs, {policy}, {dispatch or 'fluid'}"


def replayed(case: Case) -> dict[str, Any]:
    """Return the figures of one replay."""
    name, spec, jobs, dispatch = case
    scenario: Scenario = load_scenario(SCENARIOS / name)
    scenario = scenario.model_copy(update={"jobs": scenario.jobs[:jobs]})
    policy = make_policy(spec, SEED)
    if isinstance(policy, OwnReplay):
        return figures(policy.replay(scenario).metrics)
    run = replay_events(scenario, policy, make_dispatch(dispatch), SEED) if dispatch else replay(scenario, policy)
    decisions = (known((event.job_id, event.placement)) for event in run.log if isinstance(event, Admitted | Moved))
    return {**figures(metrics(run)), "decisions": digest(decisions), "events": digest(line(event) for event in run.log)}


def figures(outcome: Metrics) -> dict[str, Any]:
    """Return the metrics, with the sums of slowdowns and of waits in place of the values of single jobs."""
    values = outcome.as_dict()
    return {**values, "slowdown": sum(values["slowdown"].values()), "wait_s": sum(values["wait_s"].values())}


def line(event: Event) -> str:
    """Return an event as a line of text. A job in it is written as its id."""
    parts = (value.id if name == "job" else value for name, value in vars(event).items())
    return " ".join((type(event).__name__, *map(known, parts)))


def known(value: object) -> str:
    """Return a value as text, without the job's own shape, which all jobs have."""
    return repr(value).replace(", shape=0)", ")").replace("JobProgress(", "Progress(")  # results stay the same under another name


def digest(lines: Iterable[str]) -> str:
    """Return the SHA-256 of lines of text."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def trace(name: str) -> dict[str, Any]:
    """Return hashes of what four streams of an environment show and pay while an agent chooses allowed actions at random."""
    env, options, steps = TRACES[name]
    envs = gymnasium.make_vec(env, num_envs=4, vectorization_mode="vector_entry_point", **options)
    rng = np.random.default_rng(SEED)
    observation, _ = envs.reset(seed=SEED)
    columns = {column: hashlib.sha256(values.tobytes()) for column, values in observation.items()}
    paid, chosen, ended = hashlib.sha256(), hashlib.sha256(), hashlib.sha256()
    total, episodes = 0.0, 0
    for _ in range(steps):
        actions = np.array([rng.choice(np.flatnonzero(mask)) for mask in observation["mask"]])
        observation, rewards, terminated, truncated, _ = envs.step(actions)
        over = terminated | truncated
        for column, values in observation.items():
            columns[column].update(values.tobytes())
        paid.update(np.asarray(rewards, dtype=np.float64).tobytes())
        chosen.update(actions.tobytes())
        ended.update(over.tobytes())
        total += float(rewards.sum())
        episodes += int(over.sum())
    hashes = {**columns, "rewards": paid, "actions": chosen, "ended": ended}
    return {"reward": total, "episodes": episodes, **{column: sha256.hexdigest() for column, sha256 in hashes.items()}}


def results(quick: bool) -> dict[str, dict[str, Any]]:
    """Return all results, by file."""
    traces = [name for name, (_, _, steps) in TRACES.items() if not quick or "moves," not in name]
    return {
        "replays.json": {key(case): replayed(case) for case in cases(quick)},
        "traces.json": {name: trace(name) for name in traces},
    }


def differences(current: dict[str, dict[str, Any]], folder: Path = FOLDER) -> list[str]:
    """Return a line about each difference from the frozen results."""
    lines = []
    for file, entries in current.items():
        frozen = json.loads((folder / file).read_text(encoding="utf-8"))
        for name, entry in entries.items():
            entry = json.loads(json.dumps(entry))
            was = frozen.get(name, {})
            lines += [
                f"{file}: {name}: {column}: was {was.get(column)}, is {entry.get(column)}"
                for column in {**was, **entry}
                if was.get(column) != entry.get(column)
            ]
    return lines


def main() -> int:
    """Run the command, and return its exit status."""
    parser = argparse.ArgumentParser(description="Write what policies and environments give on the frozen scenarios, or check it.")
    parser.add_argument("--check", action="store_true", help="only compare, and print what differs")
    parser.add_argument("--quick", action="store_true", help="with --check: only what takes well under a second each")
    asked = parser.parse_args()
    current = results(asked.check and asked.quick)
    if asked.check:
        lines = differences(current)
        print("\n".join(lines) if lines else f"{sum(map(len, current.values()))} results are as frozen")
        return 1 if lines else 0
    FOLDER.mkdir(exist_ok=True)
    for file, entries in current.items():
        write_whole(FOLDER / file, json.dumps(entries, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
