"""Mean completion on a fixed fleet if the lengths of jobs are not known, by what is learned from departures.

    python benchmarks/unknown_lengths.py
    python benchmarks/unknown_lengths.py --policy fleet,known_stays=false --seeds 5

Streams have classes, users, phases or hours of arrival that explain half of the variance of the logarithm of stays. `gittins, no
classes` replays the same stream without the key `class`. `area, known` knows the lengths; with `fleet` the placement does, too.
"""

from __future__ import annotations

import argparse
from typing import Any

from policies.registry import make_policy
from rollmux_env.bench.harness import Task, run_task
from rollmux_env.bench.intervals import mean_interval
from rollmux_env.scenario import Scenario
from rollmux_env.workloads import WorkloadOptions, make_workload
from rollmux_env.workloads.fleets import with_fleet

BLIND = "gittins, no classes"
ROWS = {"attained": "attained", BLIND: "gittins", "gittins": "gittins", "learned": "learned", "area, known": "area"}
STREAMS: dict[str, dict[str, Any]] = {
    "8 classes": {"classes": 8},
    "40 classes": {"classes": 40},
    "8 that change": {"classes": 8, "turns": 1.0},
    "40 that change": {"classes": 40, "turns": 1.0},
    "12 users": {"users": 12, "explained_by": ("user",)},
    "phases": {"explained_by": ("phases",)},
    "hours": {"explained_by": ("hour",)},
    "all but classes": {"users": 12, "explained_by": ("user", "phases", "hour")},
    "nothing": {},
}


def completion_h(stream: Scenario, policy: str, row: str, seed: int) -> float:
    """Return the mean completion of a stream in hours under an order, with parking."""
    if row == BLIND:
        stream = stream.model_copy(update={"jobs": tuple(job.model_copy(update={"class_name": ""}) for job in stream.jobs)})
    spec = policy.replace("known_stays=false", "known_stays=true") if "known" in row else policy
    measured = run_task(make_policy, Task(f"{spec},order={ROWS[row]},park=true", seed, stream)).outcome.metrics
    assert measured.mean_completion_h is not None
    return measured.mean_completion_h


def main() -> None:
    """Print a row for each stream and order."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--policy", default="solo")
    parser.add_argument("--fleet", default="load=1.6")
    options = parser.parse_args()
    where = f"--fleet {options.fleet}, {options.policy}, park=true, {options.seeds} seeds"
    print(f"production, {options.jobs} jobs, SLOs from U(1.5, 3), {where}")
    print(f"{'stream':16}{'order':22}{'completion h':>16}{'over gittins':>18}")
    for label, structure in STREAMS.items():
        completions_h: dict[str, list[float]] = {row: [] for row in ROWS}
        for seed in range(options.seeds):
            made = make_workload("production", WorkloadOptions(seed=seed, jobs=options.jobs, slo=(1.5, 3.0), **structure))
            stream = with_fleet(made, options.fleet)
            for row, hours in completions_h.items():
                hours.append(completion_h(stream, options.policy, row, seed))
        for row, hours in completions_h.items():
            ratios = [own / other for own, other in zip(hours, completions_h["gittins"], strict=True)]
            print(f"{label:16}{row:22}{mean_interval(hours).text(1):>16}{mean_interval(ratios).text(3):>18}", flush=True)


if __name__ == "__main__":
    main()
