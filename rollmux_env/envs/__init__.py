"""Gymnasium environments: placement, dispatch, rollout and queue. `import rollmux_env` registers them.

import gymnasium, rollmux_env

env = gymnasium.make("RollMux/Placement-v0")
envs = gymnasium.make_vec("RollMux/Placement-v0", num_envs=64, vectorization_mode="vector_entry_point")
"""
