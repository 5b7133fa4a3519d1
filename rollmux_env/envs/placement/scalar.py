"""The placement environment of one stream."""

from __future__ import annotations

from typing import Any

import numpy as np

from rollmux_env.envs.base import BaseEnv, Info, Observation
from rollmux_env.envs.placement.env import PlacementVectorEnv
from rollmux_env.envs.placement.reward import Reward
from rollmux_env.envs.placement.stream import Generator


class PlacementEnv(BaseEnv):
    """## Description

    Jobs of RL post-training arrive at two pools of GPU nodes, one for rollouts and one for training, and leave again. A
    co-execution group multiplexes its members on shared nodes in strict round robin: packing jobs that wait for each other's pool
    saves nodes, and packing too tightly breaks SLOs. Which placement is cheap depends on who comes and who leaves next. One episode
    is one stream of jobs; docs/guides/environments.md says what every number means.

    A decision is *admit*: the first job of the queue wants a place; or, with `moves=True`, *consolidate*: jobs have left or one
    has been placed, and running jobs may be moved, one row after the other, until the agent stops. A job that has no place because
    of `max_nodes` waits: nothing is asked until it has one.

    ## Action Space

    `Discrete(candidates)`, 32 by default: a row of the candidate table.

    | Action | admit | consolidate |
    |---|---|---|
    | 0 | `isolated`: a new group of the job's own nodes | `stop`: no more moves now |
    | 1 ... | ways to join a group, in Algorithm 1's order | moves, exchanges and mergers of running jobs, the greatest gain first |

    Algorithm 1's order: oldest group, fewest new nodes, lowest node numbers; it is not the cheapest first, so an agent that wants
    the cheapest place reads the rows' prices. `action_masks()`, also `observation["mask"]`, tells
    which choices may be made: it is the planner's own test of SLOs, host memory, `max_nodes` and group size, and for moves the rule
    that a moved job must still be able to meet its SLO. Where there are more choices than rows the cheapest places
    and the moves of the greatest gain are kept, action 0 always, and `info["truncated"]` is True. Rows that may not be chosen are
    shown where there is room when a job is admitted. A masked action does no harm: action 0 is done instead (or, where that is
    masked too, the cheapest feasible one),
    `info["invalid_action"]` is True, and the reward takes a penalty off. With `shield=False` choices that break an SLO are unmasked
    too; jobs that leave with their SLO broken are then penalised.

    ## Observation Space

    A `Dict` of float32 boxes within [-1, 1]; `rollmux_env.kernel.features` names and defines every column.

    | Key | Shape | What |
    |---|---|---|
    | `job` | (10,) | who wants a place: phases, T_solo, SLO, nodes, memory, stay; zeros when consolidating |
    | `candidates` | (candidates, 19) | each row: price, new nodes, loads, memory, members, how long they stay |
    | | with moves (candidates, 41) | and dollars and work at 1, 4 and 24 h; who moves, from where, what that gains and costs |
    | `cluster` | (11,) | kind of decision, jobs running and waiting, nodes, $/h against Solo-D, loads, age, time |
    | `mask` | (candidates,), int8 | 1 where a choice may be made |

    With `known_stays=False` the columns that tell when jobs leave (`stay`, `longest`, `shortest`, `outlives`, `remaining`) are
    zero: a real scheduler does not know them. Nothing tells about jobs that have not arrived.

    ## Rewards

    `rollmux_env.envs.placement.reward.Dollars()`: minus the dollars spent until the next decision, in units of what the whole
    stream costs under Solo-D, not discounted. So the return of an episode is minus its cost over Solo-D's: -1 for `solo`. A masked
    action, and a job that leaves with its SLO broken, cost 1 / (jobs of the stream) each. `Dollars(reference="rollmux")` adds what
    Algorithm 1 spends on the same stream in the same time: the return is the saving over it. `Dollars(gamma_per_hour=0.99)`
    discounts by the hour; `info["discount"]` is the factor over the interval.

    ## Starting State

    The empty cluster at the first arrival. `reset(seed=...)` seeds the draws of streams; `reset(options={"stream_seed": 7})` asks
    for the stream that `generator.scenario(7)` is. Seeds below 65536 are never drawn, so they are free for evaluation.

    ## Episode End

    Terminates when all jobs have left; the last reward holds the dollars until then. Never truncates. `info` then has `cost_usd`,
    `solo_usd`, `cost_over_solo`, `work_h`, `slo_attainment`, admissions by strategy and `migrations`.

    ## Arguments

    | Argument | Default | What |
    |---|---|---|
    | `generator` | `"production"` | where streams come from: a name for `Workload`, or a `Generator` (`.stream`) |
    | `reward` | `Dollars()` | a `rollmux_env.envs.placement.reward.Reward` |
    | `moves` | `False` | whether running jobs may be moved |
    | `known_stays` | `True` | whether it is observed how long jobs stay |
    | `shield` | `True` | whether choices that break an SLO are masked |
    | `candidates` | `32` | rows of the table |
    | `render_mode` | `None` | `human`, `rgb_array` or `ansi` |

    ```python
    import gymnasium, rollmux_env.envs

    env = gymnasium.make("RollMux/Placement-v0", generator="mixed", moves=True)
    ```

    ## Version History

    * v0: initial version.
    """

    metadata = {"render_modes": ["human", "rgb_array", "ansi"], "render_fps": 4}  # noqa: RUF012

    def __init__(
        self,
        generator: Generator | str = "production",
        reward: Reward | None = None,
        moves: bool = False,
        known_stays: bool = True,
        shield: bool = True,
        candidates: int = 32,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(
            PlacementVectorEnv(1, generator, reward, moves, known_stays, shield, candidates, render_mode, autoreset=False)
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, Info]:
        """Start a new episode; see `BaseVectorEnv.reset`."""
        begun = super().reset(seed=seed, options=options)
        self._show()
        return begun

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, Info]:
        """Carry out a decision and go on to the next."""
        stepped = super().step(action)
        self._show()
        return stepped

    def render(self) -> Any:
        """A frame: an (H, W, 3) array (`rgb_array`) or a text (`ansi`); `human` shows it in a window at every step."""
        return None if self.render_mode == "human" else super().render()

    def close(self) -> None:
        """Close the window."""
        self.vector.close()

    def _show(self) -> None:
        if self.render_mode == "human":
            self.vector.render()
