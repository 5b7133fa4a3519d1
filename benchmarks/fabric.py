"""Computing time of the flow solver for a simulated hour of 2,048 GPUs, if the flows of every step are solved again, in seconds."""

from __future__ import annotations

from time import perf_counter

import numpy as np

from policies.network import make_network
from rollmux_env.bench.suites.fabric import CASES, WIDE, play_hour
from rollmux_env.fabric.fairness import completion_s
from rollmux_env.fabric.play import forecast_of, topologies
from rollmux_env.fabric.steps import iteration_of
from rollmux_env.fabric.topology import Fabric, traffic_s

ROUNDS = 3


def main() -> None:
    """Print a line for each job of 2,048 GPUs."""
    completion_s(np.zeros((1, 4), np.int64), np.ones(1), np.ones(1))  # compiles the kernel, or loads it
    for case in CASES:
        if case.job.gpus != 2048:
            continue
        fabric, iteration = Fabric(case.job.gpus, uplinks=2, optical=WIDE), iteration_of(case.job)
        choices = topologies(fabric, iteration)
        forecast = forecast_of(fabric, iteration, choices, 0.01)
        played = play_hour(forecast, iteration, 3600.0, 0, make_network("rfabric"))
        seconds = []
        for _ in range(ROUNDS):
            began_s = perf_counter()
            for topology_of in played.topologies.tolist():
                for step, topology in zip(iteration.steps, topology_of, strict=True):
                    traffic_s(fabric, iteration.traffic[step.pattern], choices[topology])
            seconds.append(perf_counter() - began_s)
        flows = sum(iteration.traffic[step.pattern].gb.size for step in iteration.steps) * len(played.topologies)
        print(f"{case.label}: {played.seconds / 3600:.2f} h, {played.topologies.size:,} steps with {flows:,} flows in", end=" ")
        print(f"{np.median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f})")


if __name__ == "__main__":
    main()
