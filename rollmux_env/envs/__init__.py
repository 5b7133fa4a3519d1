"""Gymnasium environments; importing this registers them.

import gymnasium, rollmux_env.envs

env = gymnasium.make("RollMux/Placement-v0")
envs = gymnasium.make_vec("RollMux/Placement-v0", num_envs=64, vectorization_mode="vector_entry_point")
"""

from __future__ import annotations

from gymnasium.envs.registration import register

register(
    id="RollMux/Placement-v0",
    entry_point="rollmux_env.envs.scalar:PlacementEnv",
    vector_entry_point="rollmux_env.envs.placement:PlacementVectorEnv",
)

register(
    id="RollMux/Dispatch-v0",
    entry_point="rollmux_env.envs.dispatch.scalar:DispatchEnv",
    vector_entry_point="rollmux_env.envs.dispatch.vector:DispatchVectorEnv",
)
