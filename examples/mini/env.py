"""Part 6: the problem as a Gymnasium environment, for learned policies.

An episode is one stream of jobs. It stops at every decision of the replay (part 4). An action is an entry of the candidates (part
3), and the mask is their feasibility, so that no agent can break an SLO. The return of an episode is minus its cost as a share of
that of `solo`: -1 is the cost of separate nodes for every job, and more is better.

| | |
|---|---|
| action | `Discrete(most)`: 0 is a new group, then the other candidates in their order |
| `mask` | (most,) 1 where an action may be chosen |
| `job` | (4,) of the waiting job: shares of T_solo that rollout and training take, slack of its SLO, nodes |
| `rows` | (most, 6) per action: whether it is a new group, new nodes, price, members, period, slack of the tightest SLO |

Unbounded numbers are scaled to x / (1 + x), and prices are shares of the price of the job's own nodes. An action that the mask
forbids is replaced by the new group or, if that is infeasible, by the first of the cheapest candidates: `info["invalid_action"]`.
"""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from examples.mini.model import Cluster, Job, Phase, Pool, Scenario
from examples.mini.planner import Candidate, solo
from examples.mini.replay import Replay, replay

Observation = dict[str, NDArray[Any]]


def random_stream(rng: np.random.Generator) -> Scenario:
    """Return twenty jobs on H20 and H800 nodes, mostly rolling out or mostly training, that arrive in half a day."""
    arrivals_s = np.cumsum(rng.exponential(2400, size=20))
    jobs = []
    for k, arrival_s in enumerate(arrivals_s.tolist()):
        rollout_s, training_s = rng.permutation([rng.uniform(20, 100), rng.uniform(100, 300)]).tolist()
        rollout = Phase(rollout_s, nodes=int(rng.choice([1, 1, 2])), host_memory_gb=300)
        training, slo = Phase(training_s, host_memory_gb=300), float(rng.choice([1.2, 1.5, 2.0]))
        jobs.append(Job(f"job-{k:02d}", arrival_s, slo, rollout, training, iterations=int(rng.integers(20, 120))))
    return Scenario(Cluster(Pool(8, 1.85, "H20", 2000), Pool(8, 5.28, "H800", 2000)), tuple(jobs))


class PlacementEnv(gymnasium.Env[Any, np.int64]):
    """The placement problem as an environment; the docstring of the module describes actions and observations.

    Args:
        draw: Function that returns the scenario of the next episode.
        most: Number of actions. If there are more candidates, infeasible ones are left out.
    """

    def __init__(self, draw: Callable[[np.random.Generator], Scenario] = random_stream, most: int = 32) -> None:
        self.draw, self.most = draw, most
        self.action_space = spaces.Discrete(most)
        job, rows = spaces.Box(0, 1, (4,), np.float32), spaces.Box(-1, 1, (most, 6), np.float32)
        self.observation_space = spaces.Dict({"mask": spaces.MultiBinary(most), "job": job, "rows": rows})
        self.actions: list[Candidate] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, dict[str, Any]]:
        """Draw a stream of jobs and advance to its first decision."""
        super().reset(seed=seed)
        self.scenario = self.draw(self.np_random)
        self.solo_usd: float = replay(self.scenario, solo)["cost_usd"] or 1.0
        self.run = Replay(self.scenario)
        self.decisions = self.run.play()
        self.show(next(self.decisions))
        return self.observation(), {}

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Place the job, and advance to the next decision or to the end of the stream."""
        before_usd = self.run.cost_usd
        invalid = not self.action_masks()[action]
        allowed = [entry for entry in self.actions if entry.feasible]
        other = min(allowed, key=lambda entry: (entry.strategy != "isolated", entry.usd_per_hour))
        choice = other if invalid else self.actions[action]
        info: dict[str, Any] = {"invalid_action": invalid}
        try:
            self.show(self.decisions.send(choice))
        except StopIteration:
            self.actions = []
            info |= self.run.metrics()
        reward = (before_usd - self.run.cost_usd) / self.solo_usd
        return self.observation(), reward, not self.actions, False, info

    def action_masks(self) -> NDArray[np.bool_]:
        """Return an array (most,) that is True where an action may be chosen; sb3-contrib's masked PPO requires this name."""
        mask = np.zeros(self.most, dtype=np.bool_)
        mask[: len(self.actions)] = [entry.feasible for entry in self.actions]
        return mask

    def show(self, entries: list[Candidate]) -> None:
        """Make the candidates of a decision the actions of the next step."""
        *others, own = entries
        shown = [entry for entry in others if entry.feasible or len(entries) <= self.most]
        self.actions = [own, *shown][: self.most]

    def observation(self) -> Observation:
        """Return the observation; all zeros when the stream is over."""
        rows = np.zeros((self.most, 6), np.float32)
        shown: Observation = {"mask": self.action_masks().astype(np.int8), "job": np.zeros(4, np.float32), "rows": rows}
        if self.actions:
            job = self.actions[0].group.jobs[-1]
            own_usd = self.actions[0].usd_per_hour or 1.0
            shares = (job.rollout.worst_case_s / job.solo_s, job.training.worst_case_s / job.solo_s)
            shown["job"][:] = (*shares, squash(job.slo - 1), squash(job.rollout.nodes - 1))
            rows[: len(self.actions)] = [features(entry, job, own_usd) for entry in self.actions]
        return shown


def features(entry: Candidate, job: Job, own_usd: float) -> tuple[float, ...]:
    """Return the row of an action."""
    group = entry.group
    slack = min(one.limit_s for one in group.jobs) / group.period_s - 1
    own, price, longer = float(entry.strategy == "isolated"), entry.usd_per_hour / own_usd, group.period_s / job.solo_s - 1
    return own, squash(entry.new_nodes), price, squash(len(group.members) - 1), squash(longer), squash(slack)


def squash(x: float) -> float:
    """Map a number into (-1, 1), keeping the order."""
    return x / (1 + abs(x))
