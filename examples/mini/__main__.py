"""Print the plan, the schedule and the cost of a scenario file: `python -m examples.mini [FILE]`."""

import signal
import sys
from pathlib import Path

import numpy as np

from examples.mini.dispatch import gantt, measured_period_s
from examples.mini.env import PlacementEnv
from examples.mini.model import load
from examples.mini.planner import algorithm1, plan, solo
from examples.mini.replay import replay

signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a reader that closes the pipe, as `head`, ends this without a traceback
path = sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1] / "quickstart.yaml"
try:
    scenario = load(path)
except (OSError, LookupError, TypeError, ValueError) as error:
    print(f"{path}: {error!r}", file=sys.stderr)
    sys.exit(2)
choices, state = plan(scenario, algorithm1)
print(f"{'job':16} {'strategy':15} {'group':>5} {'more $/h':>9}  rollout nodes")
for job, choice in zip(scenario.jobs, choices, strict=True):
    if choice is None:
        print(f"{job.id:16} queued")
    else:
        print(f"{job.id:16} {choice.strategy:15} {choice.group.id:5} {choice.usd_per_hour:9.2f} ", *choice.group.members[-1].nodes)

for group in (group for group in state.groups if len(group.members) > 1):
    print(f"\ngroup {group.id}: T_cycle {group.cycle_s:.1f} s, T_load {group.load_s:.1f} s", end=", ")
    print(f"strictest SLO {min(job.limit_s for job in group.jobs):.1f} s")
    print(f"two rounds of its period, {group.period_s:.1f} s (measured: {measured_period_s(group):.1f} s)\n{gantt(group)}")

print(f"\n{'policy':8} {'cost $':>10} {'$/work-h':>9} {'SLO':>7} {'slowdown':>9} {'peak GPUs':>10}")
for name, policy in (("solo", solo), ("rollmux", algorithm1)):
    run = replay(scenario, policy)
    costs = f"{name:8} {run['cost_usd']:10.2f} {run['usd_per_work_hour']:9.2f} {run['slo_attainment']:7.1%}"
    print(f"{costs} {np.mean([*run['slowdown'].values()]):8.2f}x {' + '.join(map(str, run['peak_gpus'].values())):>10}")

env, costs_of_chance, costs_of_rollmux = PlacementEnv(), [], []
env.action_space.seed(0)
for seed in range(20):
    env.reset(seed=seed)
    while not env.step(env.action_space.sample(env.action_masks().astype(np.int8)))[2]:
        pass
    costs_of_chance.append(env.run.cost_usd / env.solo_usd)
    costs_of_rollmux.append(replay(env.scenario, algorithm1)["cost_usd"] / env.solo_usd)
print("\n20 random streams of the environment, not the file above, in dollars of solo:", end=" ")
print(f"random feasible places {np.mean(costs_of_chance):.1%}, rollmux {np.mean(costs_of_rollmux):.1%}")
