"""Plays episodes, and replays an episode's choices as a policy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollmux_env.cluster.candidates import candidates
from rollmux_env.cluster.events import Arrived, Event
from rollmux_env.cluster.features import Features, features
from rollmux_env.cluster.plan import Move, Place, Plan, Wait, carry_out
from rollmux_env.cluster.regroupings import Regroupings, regroupings
from rollmux_env.cluster.state import State
from rollmux_env.envs.base import BaseVectorEnv, Observation
from rollmux_env.envs.placement.env import PlacementVectorEnv
from rollmux_env.envs.placement.types import ADMIT
from rollmux_env.scheduler.ticks import INSTANT_S

Agent = Callable[[PlacementVectorEnv], int]


@dataclass
class Episode:
    """What happened in one stream."""

    rewards: list[float] = field(default_factory=list)
    plans: list[tuple[float, Plan]] = field(default_factory=list)
    seen: list[Observation] = field(default_factory=list)
    info: dict[str, Any] = field(default_factory=dict)


def play(env: PlacementVectorEnv, agent: Agent, stream_seed: int = 0) -> Episode:
    """One episode of a vector of one, without autoreset."""
    observation, _ = env.reset(seed=0, options={"stream_seed": stream_seed})
    episode, over = Episode(), False
    while not over:
        episode.seen.append({name: values[0] for name, values in observation.items()})
        action = agent(env)
        episode.plans.append((float(env.streams.clock["now_s"][0]), env.plan_of(0, action)))
        observation, rewards, terminated, _, info = env.step(np.array([action]))
        episode.rewards.append(float(rewards[0]))
        over = bool(terminated[0])
    episode.info = {name: values[0] for name, values in info.items()}
    return episode


def cheapest(env: PlacementVectorEnv) -> int:
    """Algorithm 1 without pruning: the first of the cheapest, a new group last."""
    usd = env.choices[0]["usd"]
    allowed = np.flatnonzero(env.action_masks()[0])
    order = [*allowed[allowed > 0], *allowed[allowed == 0]]
    return int(min(order, key=lambda row: usd[row]))


def gainful(env: PlacementVectorEnv) -> int:
    """The cheapest place, and the first row of moves while it gains."""
    if env.streams.clock["asks"][0] == ADMIT:
        return cheapest(env)
    return int(env.streams.clock["choices"][0] > 1 and env.choices[0]["gain"][1] > 0)


def at_random(seed: int) -> Agent:
    """Uniform over what is not masked."""
    rng = np.random.default_rng(seed)
    return lambda env: int(rng.choice(np.flatnonzero(env.action_masks()[0])))


class Replayed:
    """A policy that makes the choices of an episode again."""

    def __init__(self, episode: Episode, keeps_slo: bool = True) -> None:
        self.keeps_slo = keeps_slo
        self._left = [plan for plan in episode.plans if plan[1]]

    def decide(self, state: State, event: Event) -> Plan:
        plan: Plan = ()
        self.rows: list[Plan] = []  # of the plan
        if isinstance(event, Arrived):
            if not candidates(state, event.job.id).feasible.any():  # a pause of no length ends later in the same instant
                return (Wait(event.job.id),)
            plan = self._next(state, Place)
            if not plan or plan[0].job_id != event.job.id:
                return (Wait(event.job.id),)
        while moved := self._next(state, Move):
            plan += moved
            self.rows.append(moved)
        return plan

    def _next(self, state: State, kind: type) -> Plan:
        """The next choice if it is of that kind and of this time."""
        if self._left and isinstance(self._left[0][1][0], kind) and abs(self._left[0][0] - state.now_s) <= INSTANT_S:
            return self._left.pop(0)[1]
        return ()


class Watching(Replayed):
    """The same, keeping what a policy sees of each of its decisions, `stop` included."""

    def __init__(self, episode: Episode, first_s: float, known_stays: bool, limit: int) -> None:
        super().__init__(episode)
        self.places: list[tuple[Features, np.ndarray]] = []
        self.moves: list[Regroupings] = []
        self._first_s, self._known_stays, self._limit = first_s, known_stays, limit

    def decide(self, state: State, event: Event) -> Plan:
        shown = None
        if isinstance(event, Arrived):
            table = candidates(state, event.job.id)
            rows = table.own_first()
            rows = rows[~table.is_group[rows]]
            shown = (features(state, table, self._first_s, self._known_stays, rows), table.feasible[rows])
        plan = super().decide(state, event)
        if shown is not None and isinstance(plan[0], Place):
            self.places.append(shown)
        if plan != (Wait(event.job.id),) if isinstance(event, Arrived) else True:
            self._watch_moves(state.copy(), plan)
        return plan

    def _watch_moves(self, state: State, plan: Plan) -> None:
        """Carry a plan out as it was decided, row by row."""
        if plan and isinstance(plan[0], Place):
            carry_out(state, plan[:1], True)
        for taken in [*self.rows, ()]:
            rows = regroupings(state, self._first_s, self._known_stays, self._limit)
            if len(rows.plans) > 1:
                self.moves.append(rows)
            for row in [*rows.plans][1:]:
                carry_out(state.copy(), row, True)
            assert taken in rows.plans
            carry_out(state, taken, True)


def total(found: Iterable[Counter[str]]) -> Counter[str]:
    """The sum of counts."""
    everything: Counter[str] = Counter()
    for counts in found:
        everything += counts
    return everything


def at_random_of(seed: int) -> Callable[[NDArray[np.int8]], Any]:
    """Chooses by the mask, of one stream or of several, uniformly over what is not masked."""
    rng = np.random.default_rng(seed)
    return lambda mask: (rng.random(mask.shape) * mask).argmax(-1)


def check_scalar(envs: Any, env: Any) -> None:
    """Assert that an environment is the third of three side by side."""
    observations, infos = envs.reset(seed=7)
    observation, info = env.reset(seed=9)
    assert info["stream_seed"] == infos["stream_seed"][2]
    choose = at_random_of(0)
    for _ in range(5):
        assert all(np.array_equal(observation[name], observations[name][2]) for name in observation)
        actions = choose(observations["mask"])
        assert np.array_equal(env.unwrapped.action_masks(), envs.unwrapped.action_masks()[2])
        observations, rewards, *_ = envs.step(actions)
        observation, reward, *_ = env.step(actions[2])
        assert reward == rewards[2]


def bytes_of(envs: BaseVectorEnv, choose: Callable[[Any], Any], seed: int, steps: int) -> bytes:
    """All that environments say in so many steps, as bytes; `choose` maps (E, A) masks to (E,) choices."""
    observations, _ = envs.reset(seed=seed)
    text = []
    for _ in range(steps):
        observations, rewards, over, _, info = envs.step(choose(observations["mask"]))
        text += [*(column.tobytes() for column in observations.values()), rewards.tobytes(), over.tobytes()]
        text.append(info["stream_seed"].tobytes())
    return b"".join(text)
