"""Masked PPO of sb3-contrib on the placement environment: `python examples/sb3_agent.py [DECISIONS]`."""

import sys

import gymnasium
import numpy as np
import torch
from sb3_contrib import MaskablePPO

from rollmux_env.bench.intervals import mean_interval
from rollmux_env.envs.placement.generator import Workload
from trainers.pointer import PointerPolicy
from trainers.problems.placement import PlacementProblem
from trainers.references import reference_usd
from trainers.vec_env import NativeVecEnv, play

torch.set_num_threads(1)  # the network is small: more threads only wait for each other
make = {"id": "RollMux/Placement-v0", "vectorization_mode": "vector_entry_point", "generator": Workload("mixed", jobs=40)}
env = NativeVecEnv(gymnasium.make_vec(num_envs=64, **make).unwrapped)
settings = {"n_steps": 40, "batch_size": 512, "learning_rate": 1e-3, "gamma": 0.97, "gae_lambda": 0.9, "ent_coef": 0.003}
model = MaskablePPO(PointerPolicy, env, **settings, n_epochs=4, verbose=1, device="cpu", seed=0)
model.learn(int(sys.argv[1]) if len(sys.argv) > 1 else 150_000)

# seeds below 65536 are never drawn in training
held_out = gymnasium.make_vec(num_envs=40, autoreset_mode="Disabled", **make).unwrapped
played = play(held_out, range(40), lambda obs: model.predict(obs, deterministic=True, action_masks=obs["mask"] > 0)[0])
print(f"cost over Solo-D on held-out streams: {played['cost_over_solo'].mean():.3f}")
problem = PlacementProblem(workload="mixed", options={"jobs": 40})
for name in ("masked-random", "untrained", "first-fit", "rollmux", "rollmux,prune=false"):
    usd = np.array([reference_usd(problem, name, seed) for seed in range(40)])
    gain = mean_interval((usd / played["cost_usd"]).tolist())  # paired by stream, 95%
    print(f"of {name}: {(usd / played['solo_usd']).mean():.3f}, over the agent's {gain.text(3)}")
