"""The scheduling problem: scenarios, state, candidates, replays, workloads, environments.

Importing the package registers its environments: `gymnasium.make("RollMux/Placement-v0")`, `gymnasium.make("RollMux/Dispatch-v0")`,
`gymnasium.make("RollMux/Rollout-v0")`, `gymnasium.make("RollMux/Queue-v0")`.
"""

from rollmux_env.registration import register_environments

register_environments()
