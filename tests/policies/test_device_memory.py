"""What jobs keep on GPUs between their phases is a limit for every policy, and more memory never makes the optimum dearer."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from policies.placement.optimal import Optimal
from policies.registry import make_policy
from rollmux_env.bench.harness import OwnReplay
from rollmux_env.cluster.plan import Policy
from rollmux_env.replay.fluid import replay
from rollmux_env.replay.metrics import Metrics, metrics
from rollmux_env.scenario import Scenario, parse_scenario

MOVING = ("consolidate", "regroup")


def _scenario(seed: int, rollout_gb: float | None, training_gb: float | None, count: int = 6) -> Scenario:
    """Jobs that would share nodes, and keep 1 to 4 GB on each GPU of either side."""
    rng = np.random.default_rng(seed)
    jobs: list[dict[str, Any]] = [
        {
            "id": f"j{k}",
            "arrival_s": 40.0 * k,
            "iterations": int(rng.integers(4, 20)),
            "slo": float(rng.choice([2, 3, 4])),
            "rollout": {"worst_case_s": int(rng.integers(4, 20)), "device_gb": int(rng.integers(1, 5))},
            "training": {"worst_case_s": int(rng.integers(4, 20)), "device_gb": int(rng.integers(1, 5))},
        }
        for k in range(count)
    ]
    pools = {
        name: {"gpus_per_node": 8, "usd_per_gpu_hour": usd, "device_memory_gb": gb}
        for name, usd, gb in (("rollout", 1.85, rollout_gb), ("training", 5.28, training_gb))
    }
    return parse_scenario({"version": 1, "cluster": {**pools, "migration_s": 1.0}, "jobs": jobs})


def _metrics(scenario: Scenario, policy: Policy) -> Metrics:
    return metrics(replay(scenario, policy, check=True))


@pytest.mark.parametrize("name", ["rollmux", "random", "most-idle", "solo", "colocated", "gavel", "optimal", *MOVING])
def test_no_plan_of_any_policy_keeps_more_on_a_gpu_than_there_is(name: str) -> None:
    """Plans are checked when they are made (P4), and states after every event by sums over their jobs (R4)."""
    for seed in range(3):
        for rollout_gb, training_gb in ((5, None), (None, 5), (7, 6)):
            scenario, policy = _scenario(seed, rollout_gb, training_gb), make_policy(name)
            found = policy.replay(scenario, check=True).metrics if isinstance(policy, OwnReplay) else _metrics(scenario, policy)
            assert len(found.slowdown) == 6


def test_more_device_memory_never_makes_the_optimum_dearer() -> None:
    differs = False
    for seed in range(4):
        for pool in (0, 1):
            plans = [
                Optimal().plan(_scenario(seed, gb if pool == 0 else None, gb if pool == 1 else None, 5)).usd_per_hour
                for gb in (4, 5, 6, 8, 20, None)
            ]
            assert all(more <= less + 1e-9 for less, more in pairwise(plans))
            assert plans[-2] == pytest.approx(plans[-1])
            differs |= plans[0] > plans[-1]
    assert differs
