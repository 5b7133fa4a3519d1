"""The placement environment, with many parallel streams."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, get_args

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from rollmux_env.cluster.demand import limits_of
from rollmux_env.cluster.plan import Move, Place, Plan
from rollmux_env.cluster.regroupings import placements
from rollmux_env.envs import checks
from rollmux_env.envs.base import BaseEnv, BaseVectorEnv, Info
from rollmux_env.envs.placement.actions import choice_table
from rollmux_env.envs.placement.generator import find_generator
from rollmux_env.envs.placement.observation import feature_names
from rollmux_env.envs.placement.reward import Dollars, Interval, Reference, Reward, gamma_of
from rollmux_env.envs.placement.step import SKIP, step_all
from rollmux_env.envs.placement.stream import Generator, check_stream, load, solo_usd, streams_for
from rollmux_env.envs.placement.types import ADMIT, OVER, Rules, Streams, begin
from rollmux_env.envs.placement.viewer import frame_of, picture, text
from rollmux_env.errors import InputError
from rollmux_env.kernel.feature_tables import make_workspace
from rollmux_env.kernel.neighbourhood.table import make_scratch
from rollmux_env.kernel.tables import Floats, Records
from rollmux_env.replay.run import in_order_of_arrival
from rollmux_env.user_code import GENERATOR, guarded, read_only
from rollmux_env.workloads.own import Source


class PlacementVectorEnv(BaseVectorEnv):
    """`RollMux/Placement-v0`, natively vectorised. `PlacementEnv` describes the environment and is the case of one stream.

    Args:
        num_envs: Number of parallel streams.
        generator: Source of the streams, as for `PlacementEnv`.
        reward: Reward function, as for `PlacementEnv`.
        moves: Whether running jobs may be moved.
        known_stays: Whether it is observed when jobs will leave.
        shield: Whether choices that break an SLO are masked.
        candidates: Number of rows of the candidate table.
        skip_forced: Whether decisions with one legal action are carried out without a step.
        render_mode: Render mode, as for `PlacementEnv`.
        autoreset_mode: When a new episode begins in a stream that is over, as for `BaseVectorEnv`.
    """

    def __init__(
        self,
        num_envs: int = 1,
        generator: Generator | Source | str = "production",
        reward: Reward | Callable[[Interval], Floats] | None = None,
        moves: bool = False,
        known_stays: bool = True,
        shield: bool = True,
        candidates: int = 32,
        skip_forced: bool = False,
        render_mode: str | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
    ) -> None:
        candidates = checks.whole_number("candidates", candidates, 2)
        moves, known_stays = checks.flag("moves", moves), checks.flag("known_stays", known_stays)
        shield, skip_forced = checks.flag("shield", shield), checks.flag("skip_forced", skip_forced)
        made = find_generator(generator)
        names = feature_names(moves, made.shapes > 0)
        super().__init__(num_envs, candidates, names, Dollars() if reward is None else reward, render_mode, autoreset_mode)
        self.generator: Generator = made
        self.moves, self.known_stays = moves, known_stays
        self._gamma, self._against = gamma_of(self.reward), checks.reference_of(self.reward, get_args(Reference))
        cluster = made.cluster
        self._limits = limits_of(cluster)
        decay = -math.log(self._gamma)
        prune = self._against != "rollmux,prune=false"
        self._rules = Rules(self._limits, moves, cluster.migration_s, shield, known_stays, skip_forced, decay, prune)
        self._streams = streams_for(made, num_envs)
        self._reference = streams_for(made, num_envs if self._against else 0)
        self._choices = choice_table(self._streams, candidates)
        jobs, groups = self._streams.jobs[0], self._streams.groups[0]
        self._workspace = make_workspace(jobs, groups)
        self._scratch = make_scratch(jobs, groups, candidates - 1) if moves else None
        self._drawn: tuple[int, Records] | None = None  # seed and stream of the last episode that began
        self._solo_usd = np.ones(num_envs)
        self._passed = self._views()

    @property
    def streams(self) -> Streams:
        """Current state of the streams, in tables with a row for each environment. For reading only.

        `Streams` in `rollmux_env/envs/placement/types.py` describes them. The rows are overwritten by the next `step`.
        """
        return self._streams

    @property
    def choices(self) -> Records:
        """Meaning of each action, shape (num_envs, candidates). For reading only.

        A record has `allowed` (whether it is unmasked), `usd` (increase of the cluster's $/h), `gain` (of a move) and more.

        In row `s` only the first `streams.clock["choices"][s]` records belong to the current decision.
        """
        return self._choices

    def _views(self) -> Interval:
        clock = self._streams.clock
        columns = Interval(
            usd=clock["spent_usd"],
            solo_usd=self._solo_usd,
            reference_usd=self._reference.clock["spent_usd"] if self._against else np.zeros(self.num_envs),
            hours=clock["hours"],
            work_h=clock["left_work_h"],
            left=clock["left"],
            broken=clock["left_broken"],
            invalid=clock["invalid"],
            n_jobs=clock["n_jobs"],
        )
        return Interval(*map(read_only, columns))

    def _interval(self) -> Interval:
        passed: Interval = self._passed
        return passed

    def _over(self) -> NDArray[np.bool_]:
        over: NDArray[np.bool_] = self._streams.clock["asks"] == OVER
        return over

    def _decided(self, interval: Interval) -> Info:
        gamma = self._gamma
        return {**super()._decided(interval), "discount": np.ones(self.num_envs) if gamma == 1 else gamma**interval.hours}

    def plan_of(self, s: int, action: int) -> Plan:
        """Return the plan of an action in a stream, with the job ids of `generator.scenario`. It is empty for `stop`.

        Args:
            s: Number of the stream.
            action: Number of the action, masked or not.

        Raises:
            InputError: The current decision has no such action.
        """
        if not 0 <= action < self._streams.clock["choices"][s]:
            raise InputError(f"action: stream {s} has no choice {action}")
        choice = self._choices[s, action]
        scenario = guarded(self.generator.scenario, GENERATOR)(int(self._seeds[s]))
        names = [job.id for job in in_order_of_arrival(scenario)]
        kind = Place if self._streams.clock["asks"][s] == ADMIT else Move
        return tuple(
            kind(names[job], placement) for job, placement in placements(choice, self._streams.jobs[s], self._streams.groups[s])
        )

    def _text(self, s: int) -> str:
        return text(frame_of(self._streams, s, self._limits))

    def _picture(self, s: int) -> NDArray[np.uint8]:
        return picture(frame_of(self._streams, s, self._limits))

    def _start(self, s: int, seed: int) -> None:
        if self._drawn is None or self._drawn[0] != seed:  # copies of a stream often begin one after the other
            self._drawn = seed, check_stream(self.generator, seed)
        stream = self._drawn[1]
        self._solo_usd[s] = solo_usd(stream, self._limits) or 1.0
        for streams in (self._streams, *([self._reference] if self._against else [])):
            begin(streams, s, load(streams, s, stream))

    def _ask(self, which: NDArray[np.int64]) -> None:
        actions = np.full(self.num_envs, SKIP)
        actions[which] = 0
        self._advance(actions)

    def _advance(self, actions: NDArray[np.int64]) -> None:
        step_all(
            self._streams, actions, self._rules, self._choices, self._workspace, self._scratch, self._observations, self._reference
        )

    def _info(self) -> Info:
        left_out = self._streams.clock["overflow"] == 1
        return {"choices_left_out": left_out, "truncated": left_out, **super()._info()}  # `truncated` is the old name

    def _figures(self) -> Info:
        clock = self._streams.clock
        n_jobs = clock["n_jobs"]
        return {
            "cost_usd": clock["usd"].copy(),
            "solo_usd": self._solo_usd.copy(),
            "cost_over_solo": clock["usd"] / self._solo_usd,
            "work_h": clock["work_h"].copy(),
            "slo_attainment": 1 - clock["broken"] / n_jobs,
            "direct_packing": clock["packed"].copy(),
            "rollout_scaling": clock["scaled"].copy(),
            "isolated": n_jobs - clock["packed"] - clock["scaled"],
            "migrations": clock["moved"].copy(),
        }


class PlacementEnv(BaseEnv):
    """## Description

    Jobs of RL post-training arrive at two pools of GPU nodes, one for rollouts and one for training, and leave again. A
    co-execution group multiplexes its members on shared nodes in strict round robin. Packing jobs that wait for each other's pool
    saves nodes, and packing too tightly breaks SLOs. Which placement is cheap depends on the jobs that arrive and leave next. One
    episode is one stream of jobs; docs/guides/environments.md explains every number.

    There are two kinds of decisions. *admit*: the first job of the queue needs a placement. *consolidate* (only with `moves=True`):
    jobs have left or one has been placed, and running jobs may be moved, one row after the other, until the agent stops. A job
    without a placement because of `max_nodes` waits, and no decision is asked for until there is one.

    ## Action Space

    `Discrete(candidates)`, 32 by default: a row of the candidate table.

    | Action | admit | consolidate |
    |---|---|---|
    | 0 | `isolated`: a new group of the job's own nodes | `stop`: no more moves now |
    | 1 ... | ways to join a group, in Algorithm 1's order | moves, exchanges and mergers of running jobs, the greatest gain first |

    Algorithm 1's order is oldest group, fewest new nodes, lowest node numbers. It is not the cheapest first, so an agent that wants
    the cheapest placement reads the rows' prices. `action_masks()`, also `observation["mask"]`, states which choices may be made.
    It is the planner's own test of SLOs, host memory, `max_nodes` and group size, and for moves the rule that a moved job must
    still be able to meet its SLO. If there are more choices than rows, action 0, the cheapest placements and the moves with the
    greatest gain are kept, and `info["choices_left_out"]` is True. Rows that may not be chosen are shown if there is space when a
    job is admitted. A masked action is replaced by action 0 (or, if that is masked too, by the cheapest feasible one),
    `info["invalid_action"]` is True, and the reward subtracts a penalty. With `shield=False` choices that break an SLO are unmasked
    too. Jobs that leave with their SLO broken are then penalised.

    ## Observation Space

    A `Dict` of float32 boxes within [-1, 1]; `rollmux_env.kernel.features` names and defines every column.

    | Key | Shape | Content |
    |---|---|---|
    | `job` | (10,) | the arriving job: phases, T_solo, SLO, nodes, memory, stay; zeros when consolidating |
    | `candidates` | (candidates, 19) | each row: price, new nodes, loads, memory, members, how long they stay |
    | | with moves (candidates, 41) | also dollars and work at 1, 4 and 24 h; the moved job, its group, gain and cost of the move |
    | `cluster` | (11,) | kind of decision, jobs running and waiting, nodes, $/h relative to Solo-D, loads, age, time |
    | `mask` | (candidates,), int8 | 1 for choices that may be made |

    If the generator's jobs may have `shapes` (other ways to run them), each row of `candidates` has three more columns: how much
    the row's shape differs from the job as written, in nodes and in seconds of an iteration alone.

    With `known_stays=False` the columns about the departure of jobs (`stay`, `longest`, `shortest`, `outlives`, `remaining`) are
    zero, because a real scheduler does not know them. Jobs that have not arrived are never observed.

    ## Rewards

    `rollmux_env.envs.placement.reward.Dollars()`: minus the dollars spent until the next decision, in units of the cost of the
    whole stream under Solo-D (the policy `solo`: every job alone on its own nodes), not discounted. So the return of an episode is
    minus its cost over Solo-D's: -1 for `solo`. A masked action and a job that leaves with its SLO broken cost 1 / (number of jobs
    of the stream) each. `Dollars(reference="rollmux")` adds the dollars that Algorithm 1 spends on the same stream in the same
    time, so the return is the saving over it. `Dollars(gamma_per_hour=0.99)` discounts by the hour; `info["discount"]` is the
    factor over the interval.

    With `skip_forced=True`, `reset` and `step` carry out decisions with a single allowed choice, and continue to the next decision
    with several, or to the end. The reward is computed once for the whole interval between two such decisions, with dollars
    discounted from its beginning. So `Dollars` gives r0 + d0 * r1 + d0 * d1 * r2 ... for the rewards r and discounts d of the
    single steps (except for penalties, which are not discounted within an interval), and `info["discount"]` is the product of these
    d. The first reward also contains the cost from the beginning of the stream to the first decision. Returns stay the same up to
    rounding, and states stay the same to the byte. In a stream without any choice, one step with any action ends the episode.

    ## Starting State

    The empty cluster at the first arrival. `reset(seed=...)` seeds the draws of streams. `reset(options={"stream_seed": 7})`
    selects the stream `generator.scenario(7)`. Seeds below 65536 are never drawn, so they are free for evaluation.

    ## Episode End

    Terminates when all jobs have left. The last reward contains the dollars until then. Never truncates. `info` then has
    `cost_usd`, `solo_usd`, `cost_over_solo`, `work_h`, `slo_attainment`, admissions by strategy and `migrations`.

    ## Arguments

    | Argument | Default | Meaning |
    |---|---|---|
    | `generator` | `"production"` | name of a workload, or an object with `cluster`, `jobs` (their limit) and `scenario(seed)` |
    | `reward` | `Dollars()` | a `rollmux_env.envs.placement.reward.Reward`, or a function of an `Interval` |
    | `moves` | `False` | whether running jobs may be moved |
    | `known_stays` | `True` | whether it is observed when jobs will leave |
    | `shield` | `True` | whether choices that break an SLO are masked |
    | `candidates` | `32` | number of rows of the candidate table |
    | `skip_forced` | `False` | whether decisions with one legal action are carried out without a step (see Rewards) |
    | `render_mode` | `None` | `human`, `rgb_array` or `ansi` |

    ```python
    import gymnasium, rollmux_env.envs

    env = gymnasium.make("RollMux/Placement-v0", generator="mixed", moves=True)
    ```

    ## Version History

    * v0: initial version.
    """

    vector_class = PlacementVectorEnv
    metadata: dict[str, Any] = {**BaseEnv.metadata, "render_modes": ["human", "rgb_array", "ansi"]}  # noqa: RUF012
