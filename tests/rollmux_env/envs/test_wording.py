"""A decision in words has what the tables have."""

from __future__ import annotations

import numpy as np

from rollmux_env.envs.placement.env import PlacementVectorEnv
from rollmux_env.envs.placement.generator import Toy
from rollmux_env.envs.placement.wording import PLACED, allowed_choices, decision_text


def test_a_decision_names_the_job_the_cluster_and_every_allowed_choice() -> None:
    env = PlacementVectorEnv(1, Toy(1), autoreset_mode="Disabled")
    observation, _ = env.reset(options={"stream_seed": 3})
    observation, *_ = env.step(np.array([0]))
    scale = env.generator.scenario(3).jobs[1].rollout.worst_case_s / 50
    assert decision_text(env, observation).splitlines() == [
        f"Job 2 of 4: rollout {50 * scale:.0f} s on 1 node, training {50 * scale:.0f} s on 1 node, SLO 2.00, stays 1.0 h.",
        "Running: 1 job in 1 group, $2.00/h.",
        f"0: new group: +$2.00/h, period {100 * scale:.0f} s, slack 50%",
        f"1: group 0, 1 job, 0 new nodes: +$0.00/h, period {130 * scale:.0f} s, slack 35%, last leaves in 1.0 h",
        f"2: group 0, 1 job, 1 new node: +$1.00/h, period {100 * scale:.0f} s, slack 50%, last leaves in 1.0 h",
    ]


def test_only_choices_of_the_mask_are_named_and_none_at_the_end() -> None:
    env = PlacementVectorEnv(1, Toy(1), known_stays=False, autoreset_mode="Disabled")
    observation, _ = env.reset(seed=0)
    for _ in range(4):
        allowed = allowed_choices(env, 0)
        lines = decision_text(env, observation).splitlines()[2:]
        assert allowed == np.flatnonzero(env.action_masks()[0]).tolist() == [int(line.split(":")[0]) for line in lines]
        assert not any("leaves" in line for line in lines)
        observation, *_ = env.step(np.array([allowed[-1]]))
    assert decision_text(env, observation) == PLACED and allowed_choices(env, 0) == []
