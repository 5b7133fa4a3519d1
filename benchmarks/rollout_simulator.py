"""Computing time of a simulated rollout of 256 responses of up to 32k tokens, and of RollPacker's rounds of up to 1,600 responses.

python benchmarks/rollout_simulator.py
"""

from __future__ import annotations

from time import perf_counter

import numpy as np
from rich.table import Table

from policies.rollout import make_rollout
from rollmux_env.report.tables import show
from rollmux_env.rollout.job import JobRollouts
from rollmux_env.rollout.setting import Setting
from rollmux_env.timing.hardware import GPUS, achieved
from rollmux_env.timing.lengths import Lognormal
from rollmux_env.timing.models import SHAPES
from rollmux_env.timing.replica import replica_timing

ROLLOUTS = 40


def main() -> None:
    """Simulate rollouts under each policy, and print the table."""
    timings = tuple((tp, replica_timing(SHAPES["8B"], achieved("H20", GPUS["H20"]), tp)) for tp in (1, 2, 4))
    table = Table("responses", "replicas", "policy", "median ms", "p99 ms", "simulated s")
    for prompts in (32, 128):
        setting = Setting(timings, 8, 1, prompts, 8, 1024, Lognormal(32768, 4096.0, 1.2))
        for name in ("plain", "tail-migration", "tail-batching", "adaptive-parallelism"):
            job = JobRollouts(setting, make_rollout(name), 0)
            job.next()  # compiles the kernel
            times, seconds = [], []
            for _ in range(ROLLOUTS):
                began = perf_counter()
                seconds.append(job.next().seconds)
                times.append(1e3 * (perf_counter() - began))
            median, p99 = np.percentile(times, (50, 99))
            table.add_row(str(8 * prompts), "8", name, f"{median:.1f}", f"{p99:.1f}", f"{np.mean(seconds):.0f}")
    show(table)


if __name__ == "__main__":
    main()
