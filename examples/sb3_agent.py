"""Masked PPO of sb3-contrib on the placement environment: `python examples/sb3_agent.py [DECISIONS]`."""

import sys

import gymnasium
from sb3_contrib import MaskablePPO

from rollmux_env.envs.placement.generator import Workload
from trainers.pointer import PointerPolicy
from trainers.problem import PlacementProblem
from trainers.references import reference_usd
from trainers.vec_env import NativeVecEnv, play

make = {"id": "RollMux/Placement-v0", "vectorization_mode": "vector_entry_point", "generator": Workload("mixed", jobs=40)}
env = NativeVecEnv(gymnasium.make_vec(num_envs=16, **make).unwrapped)
model = MaskablePPO(PointerPolicy, env, n_steps=32, batch_size=256, gamma=1.0, verbose=1, device="cpu", seed=0)
model.learn(int(sys.argv[1]) if len(sys.argv) > 1 else 50_000)

held_out = gymnasium.make_vec(num_envs=8, autoreset=False, **make).unwrapped  # seeds below 65536 are never drawn in training
played = play(held_out, range(8), lambda obs: model.predict(obs, deterministic=True, action_masks=obs["mask"] > 0)[0])
print(f"cost over Solo-D on held-out streams: {played['cost_over_solo'].mean():.3f}")
problem = PlacementProblem(workload="mixed", options={"jobs": 40})
for name in ("masked-random", "untrained", "first-fit", "rollmux", "rollmux,prune=false"):
    costs = [reference_usd(problem, name, seed) / usd for seed, usd in zip(range(8), played["solo_usd"], strict=True)]
    print(f"of {name}: {sum(costs) / 8:.3f}")
