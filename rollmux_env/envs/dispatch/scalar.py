"""The dispatch environment of one group."""

from __future__ import annotations

from rollmux_env.envs.base import BaseEnv
from rollmux_env.envs.dispatch.env import DispatchVectorEnv
from rollmux_env.envs.dispatch.generator import Generator
from rollmux_env.envs.dispatch.reward import Reward
from rollmux_env.timing.tail import TailModel


class DispatchEnv(BaseEnv):
    """## Description

    Jobs of RL post-training share the nodes of one co-execution group. Each is a cycle: a rollout on all the rollout nodes that
    it is pinned to, a training on all of the group's training nodes, a sync, and again; how long a phase takes is sampled anew
    every time. A node runs one phase at a time, so jobs wait for each other. A dispatch policy says which waiting phase gets a
    free node next, and whether a rollout of which 80% of the responses are done has the rest moved to a share of its nodes, so
    that the next rollout may have the others (long-tail migration). One episode is one group until a horizon; see
    docs/reference/dispatch.md.

    It is the event replay, not a model of it: the same choices start the same phases at the same times.

    ## Action Space

    `Discrete(members + 1)`: members in order of admission. Where the generator may draw stale members, `Discrete(2 * members + 1)`.

    | Action | What |
    |---|---|
    | 0 | wait until something else ends |
    | k + 1 | start the phase that member k waits for; or, where it runs a rollout past the threshold, migrate its tail |
    | members + k + 1 | start the training of member k, if it is stale: its rollout has the row above |

    `action_masks()`, also `observation["mask"]`, tells which may be chosen: a phase whose nodes are all free; a tail whose
    nodes hold no other tail and are waited for by a rollout; waiting while something runs. A phase that was overtaken as often
    as the group has members is overdue: its nodes are kept for it, and once they are free nobody waits. So no choice starves
    anybody. Decisions with one answer are not asked. A masked action does no harm: what strict round robin with migration does
    happens instead, `info["invalid_action"]` is True, and the reward takes a penalty off.

    ## Observation Space

    A `Dict` of float32 boxes within [-1, 1]; `rollmux_env.envs.dispatch.observation` names every column.

    | Key | Shape | What |
    |---|---|---|
    | `job` | (5,) | the group: members, loads and the longest iteration by expected seconds, against plan |
    | `candidates` | (members + 1, 23) | each choice: kind, turn, expected seconds, slack to the SLO, who else wants its nodes |
    | `cluster` | (8,) | who waits, what runs and for how long, the least and the mean slack |
    | `mask` | (members + 1,), int8 | 1 where a choice may be made |

    Where members may be stale there are as many rows as actions, 27 columns of each, 6 of `job` and 9 of `cluster`: how stale each
    may be, what it has sampled and not trained, what it runs on its other side, and whether that waits for this phase.

    Expected seconds are means of what the member's phases took so far, worst cases before there is one. Nothing is observed of
    durations that have not happened, nor of the horizon.

    ## Rewards

    `rollmux_env.envs.dispatch.reward.Work()`: T_solo seconds of the phases that ended since the last decision (of a stale member:
    of the iterations whose trainings ended), less the seconds that members fell behind their SLOs, over the horizon. So the return
    is how many jobs the group runs as if each were alone, and dollars per work-hour are the group's $/h over it (where SLOs are
    kept). `Work(reference="round-robin")` takes off what strict round robin does in as much time of the same group. A masked action
    costs 0.01.

    ## Starting State

    All members are ready for their first rollout; every node is free and cold. `reset(seed=...)` seeds the draws of groups;
    `reset(options={"stream_seed": 7})` asks for the group that `generator.group(7)` is. Seeds below 65536 are never drawn, so
    they are free for evaluation.

    ## Episode End

    Terminates at the group's horizon. Never truncates. `info` then has `cost_usd`, `work_h`, `usd_per_work_hour`,
    `slo_attainment`, `worst_over_slo`, `iterations`, `decisions` and `tails_migrated`.

    ## Arguments

    | Argument | Default | What |
    |---|---|---|
    | `generator` | `RandomGroups()` | where groups come from: a `rollmux_env.envs.dispatch.generator.Generator` |
    | `reward` | `Work()` | a `rollmux_env.envs.dispatch.reward.Reward` |
    | `tails` | `TailModel()` | the inside of a rollout: a `rollmux_env.timing.tail.TailModel` |
    | `render_mode` | `None` | `rgb_array` or `ansi` |

    ```python
    import gymnasium, rollmux_env.envs
    from rollmux_env.envs.dispatch.generator import RandomGroups

    env = gymnasium.make("RollMux/Dispatch-v0", generator=RandomGroups("spatial", skew=0.5))
    ```

    ## Version History

    * v0: initial version.
    """

    metadata = {"render_modes": ["rgb_array", "ansi"], "render_fps": 4}  # noqa: RUF012

    def __init__(
        self,
        generator: Generator | None = None,
        reward: Reward | None = None,
        tails: TailModel | None = None,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(DispatchVectorEnv(1, generator, reward, tails, render_mode, autoreset=False))
