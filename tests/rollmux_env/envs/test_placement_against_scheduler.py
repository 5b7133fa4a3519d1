"""The order of an instant stands twice, in the scheduler and in the compiled environment: random streams hold one to the other.

Streams are small and their numbers coarse, so that arrivals, departures and ends of pauses coincide, jobs queue, and limits bind.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import pytest

from rollmux_env.cluster.events import Admitted, Departed, Event, Moved, Resumed
from rollmux_env.cluster.plan import Plan
from rollmux_env.cluster.state import State
from rollmux_env.envs.placement.env import PlacementVectorEnv
from rollmux_env.envs.placement.generator import Fixed
from rollmux_env.kernel.tables import Ints, Records
from rollmux_env.replay.fluid import replay
from rollmux_env.replay.metrics import metrics
from rollmux_env.replay.run import Run
from rollmux_env.scenario import Scenario, parse_scenario
from tests.rollmux_env.envs.playing import Episode, Replayed, total

BATCH = 50  # streams of one cluster, side by side
ROWS = 512  # more than any decision here has


class Snapshot(NamedTuple):
    """Who is where: whole numbers, and seconds and iterations."""

    whole: list[int]
    real: list[float]


def snapshot(jobs: Records, groups: Records, order: Ints, clock: tuple[float, int, int, int]) -> Snapshot:
    """Of the groups in `order` and their members; `clock`: time, rollout and training nodes, jobs in the queue."""
    whole, real = [*clock[1:]], [clock[0]]
    number = np.cumsum(jobs["more_shapes"] >= 0) - 1  # of each job: rows of shapes do not count
    for row in order:
        group = groups[row]
        members = group["members"][: group["n_members"]].tolist()
        whole += [int(group["id"]), int(group["training_nodes"]), -1, *number[members].tolist(), -1]
        whole += group["node_number"][: group["n_nodes"]].tolist()
        real += [float(group["period_s"]), float(group["settled_s"]), float(group["departs_s"])]
        for member in members:
            job = jobs[member]
            whole += [-2, int(job["of_shape"]), *job["pins"][: job["n_pins"]].tolist()]
            real += [float(job[name]) for name in ("done", "admitted_s", "paused_until_s", "leaves_s")]
    return Snapshot(whole, real)


class Compared(Replayed):
    """Makes the choices of an episode again, and compares what it finds before each with what was there in the environment."""

    def __init__(self, episode: Episode, snapshots: list[Snapshot]) -> None:
        super().__init__(episode)
        self._expected = [known for known, (_, plan) in zip(snapshots, episode.plans, strict=True) if plan]

    def decide(self, state: State, event: Event) -> Plan:
        clock = state.now_s, state.rollout_nodes, state.training_nodes, len(state.waiting)
        found, left = snapshot(state.tables.jobs, state.tables.groups, state.tables.order, clock), len(self._left)
        plan = super().decide(state, event)
        if len(self._left) < left:
            expected = self._expected[-left]
            assert found.whole == expected.whole
            np.testing.assert_allclose(found.real, expected.real, rtol=1e-9, atol=1e-9)
        return plan

    def check_all_made(self) -> None:
        assert not self._left


def random_cluster(rng: np.random.Generator) -> dict[str, Any]:
    """A job of at most 3 rollout and 2 training nodes always fits alone."""
    pools = {
        name: {
            "gpus_per_node": 1,
            "usd_per_gpu_hour": float(rng.choice([usd, 1.0, 0.0], p=[0.6, 0.3, 0.1])),
            "node_memory_gb": rng.choice(np.array([None, 600, 900])),
            "device_memory_gb": rng.choice(np.array([None, 4, 6])),
            "max_nodes": rng.choice(np.array([None, fewest, fewest + 1, fewest + 3])),
        }
        for name, usd, fewest in (("rollout", 1.85, 3), ("training", 5.28, 2))
    }
    return {**pools, "max_group_size": int(rng.integers(1, 6)), "migration_s": float(rng.choice([0, 5, 40, 300]))}


def random_scenario(rng: np.random.Generator, cluster: dict[str, Any]) -> Scenario:
    jobs = []
    for k in range(rng.integers(2, 8)):
        training: dict[str, Any] = {"nodes": int(rng.choice([1, 1, 1, 2])), "worst_case_s": float(rng.integers(1, 13) * 5)}
        if rng.random() < 0.3:
            training["by_nodes"] = {training["nodes"] + 1: float(rng.integers(1, 7) * 5)}
        training["host_memory_gb"] = int(rng.choice([0, 150, 300, 600]))
        training["device_gb"] = int(rng.choice([0, 1, 2, 4]))
        fixed = rng.random() < 0.5
        jobs.append(
            {
                "id": f"j{k}",
                "arrival_s": float(rng.integers(0, 12) * 20),
                **({"duration_s": float(rng.integers(1, 30) * 20)} if fixed else {"iterations": int(rng.integers(1, 12))}),
                "slo": float(rng.choice([1, 1.5, 2, 4])),
                "rollout": {
                    "nodes": int(rng.choice([1, 1, 1, 2, 3])),
                    "worst_case_s": float(rng.integers(1, 13) * 5),
                    "host_memory_gb": int(rng.choice([0, 150, 300, 600])),
                    "device_gb": int(rng.choice([0, 1, 2, 4])),
                },
                "training": training,
                "sync_s": float(rng.choice([0, 0, 0, 5])),
                "staleness": int(rng.choice([0, 0, 0, 1, 4])),
                "movable": bool(rng.random() < 0.9),
            }
        )
    for job in jobs:
        if rng.random() < 0.3:
            job["shapes"] = random_shapes(rng, job)
    return parse_scenario({"version": 1, "cluster": cluster, "jobs": jobs})


def random_shapes(rng: np.random.Generator, job: dict[str, Any]) -> list[dict[str, Any]]:
    """One shape or two, each with other nodes than the job's."""
    rollout = {"nodes": job["rollout"]["nodes"] % 3 + 1, "worst_case_s": float(rng.integers(1, 13) * 5)}
    training = {"nodes": 3 - job["training"]["nodes"], "worst_case_s": float(rng.integers(1, 13) * 5), "host_memory_gb": 300}
    if rng.random() < 0.3:
        training["by_nodes"] = {3: float(rng.integers(1, 7) * 5)}
    shapes: list[dict[str, Any]] = [{"rollout": rollout}, {"training": training}, {"rollout": rollout, "training": training}]
    return [shapes[k] for k in rng.permutation(3)[: rng.integers(1, 3)]]


def play(env: PlacementVectorEnv, rng: np.random.Generator) -> tuple[list[Episode], list[list[Snapshot]]]:
    """One episode a stream with random choices of those that may be made."""
    env.reset(seed=0, options={"stream_seed": [*range(env.num_envs)]})
    episodes = [Episode() for _ in range(env.num_envs)]
    snapshots: list[list[Snapshot]] = [[] for _ in range(env.num_envs)]
    over, streams = np.zeros(env.num_envs, dtype=np.bool_), env.streams
    info: dict[str, Any] = {}
    while not over.all():
        mask = env.action_masks()
        actions = (rng.random(mask.shape) * mask).argmax(1)
        for s in np.flatnonzero(~over).tolist():
            c = streams.clock[s]
            episodes[s].plans.append((float(c["now_s"]), env.plan_of(s, actions[s])))
            clock = float(c["now_s"]), *streams.nodes[s].sum(axis=0).tolist(), int(c["taken"] - c["admitted"])
            snapshots[s].append(snapshot(streams.jobs[s], streams.groups[s], streams.order[s, : c["n_groups"]], clock))
        _, _, over, _, info = env.step(actions)
    for s, episode in enumerate(episodes):
        episode.info = {name: column[s] for name, column in info.items()}
    return episodes, snapshots


def what_happened(run: Run, waited: bool, moves: bool) -> Counter[str]:
    """How often what the streams are to bring about came about."""
    times = {kind: [e.at_s for e in run.log if isinstance(e, kind)] for kind in (Departed, Resumed, Moved)}
    together = len(times[Departed]) - len(set(times[Departed]))
    arrivals = {job.arrival_s for job in run.scenario.jobs}
    return Counter(
        {
            "departures together": together,
            "a departure as a pause ends": len(set(times[Departed]) & set(times[Resumed])),
            "a departure as a job arrives": len(set(times[Departed]) & arrivals),
            "streams with a queue": int(waited),
            "moves": len(times[Moved]),
            "streams with both stays": int(len({job.iterations is None for job in run.scenario.jobs}) == 2),
            "groups joined": sum(isinstance(e, Admitted) and e.placement.group is not None for e in run.log),
            "streams without moves": int(not moves),
        }
    )


def hold_to_the_scheduler(seed: int) -> Counter[str]:
    """Play a batch of streams, and each of them again through the scheduler; returns what happened in them."""
    rng, moves = np.random.default_rng(seed), seed % 3 > 0
    cluster = random_cluster(rng)
    scenarios = [random_scenario(rng, cluster) for _ in range(BATCH)]
    env = PlacementVectorEnv(BATCH, Fixed(*scenarios), moves=moves, candidates=ROWS, autoreset_mode="Disabled")
    happened: Counter[str] = Counter()
    for scenario, episode, snapshots in zip(scenarios, *play(env, rng), strict=True):
        policy = Compared(episode, snapshots)
        run = replay(scenario, policy)
        policy.check_all_made()
        expected = metrics(run)
        assert episode.info["cost_usd"] == pytest.approx(expected.cost_usd, rel=1e-9, abs=1e-12)
        assert episode.info["work_h"] == pytest.approx(expected.work_h, rel=1e-9)
        assert episode.info["slo_attainment"] == pytest.approx(expected.slo_attainment)
        assert episode.info["migrations"] == expected.migrations
        waited = any(known.whole[2] > 1 for known in snapshots)
        happened += what_happened(run, waited, moves)
    return happened


def test_streams_go_as_in_the_scheduler() -> None:
    happened = total(hold_to_the_scheduler(seed) for seed in range(12, 18))
    assert len(happened) == 8, happened


@pytest.mark.long
def test_ten_thousand_streams_go_as_in_the_scheduler() -> None:
    happened = total(hold_to_the_scheduler(seed) for seed in range(1000, 1000 + 10_000 // BATCH))
    assert len(happened) == 8 and min(happened.values()) >= 500, happened
