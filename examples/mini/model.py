"""Part 1: jobs that alternate between two pools, and the file that describes them.

Reinforcement learning of a language model repeats one *iteration*: the model samples responses (the **rollout**), learns from them
(the **training**), and its new weights are sent to the nodes that sample (the **sync**). Sampling is bound by memory and does well
on cheap GPUs. Learning is bound by arithmetic and needs expensive ones. So there are two **pools**, rented by the node.

The next rollout needs the new weights: while a job trains, its rollout nodes are idle, and vice versa. Jobs whose phases fit into
each other's gaps can share nodes and save money, as long as none becomes too slow. This package decides which jobs share nodes.

Times are in seconds, prices in dollars per hour. `docs/reference/scenario.md` describes the file; this reader knows the keys of the
plain problem and refuses all others. It does not check values: `rollmux validate FILE` does.
"""

import json
from dataclasses import dataclass, field, fields
from math import inf
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

TOLERANCE = 1e-9  # relative: sums of the same seconds in different orders count as equal
EVENT_REPLAY_KEYS = {"actual", "switch", "drift", "colocated"}  # only used by the event replay, and ignored here


@dataclass(frozen=True)
class Pool:
    """Nodes of one kind, at most `max_nodes` of them."""

    gpus_per_node: int
    usd_per_gpu_hour: float
    gpu: str = ""
    node_memory_gb: float = inf
    max_nodes: float = inf

    @property
    def node_usd_per_hour(self) -> float:
        return self.gpus_per_node * self.usd_per_gpu_hour


@dataclass(frozen=True)
class Cluster:
    """The two pools, and the largest number of jobs in a group (part 2)."""

    rollout: Pool
    training: Pool
    max_group_size: int = 5
    migration_s: float = 300.0  # pause of a job that is moved; unused, because no policy here moves jobs


@dataclass(frozen=True)
class Phase:
    """A rollout or a training: worst-case seconds, nodes, and the memory on each that holds its state between its turns."""

    worst_case_s: float
    nodes: int = 1
    host_memory_gb: float = 0.0
    by_nodes: dict[Any, float] = field(default_factory=dict)  # seconds of a training by number of nodes (a string in JSON)

    def seconds_on(self, nodes: int) -> float:
        """Return the worst-case seconds on a number of nodes: those of the largest known number that is not above it."""
        known = {self.nodes: self.worst_case_s} | {int(count): seconds for count, seconds in self.by_nodes.items()}
        return known[max(count for count in known if count <= nodes)]


@dataclass(frozen=True)
class Job:
    """A job: its phases, its arrival and departure, and the delay that it tolerates.

    It leaves after `iterations` iterations, or `duration_s` after its admission; the other one is None.
    """

    id: str
    arrival_s: float
    slo: float  # longest tolerated iteration, as a multiple of an iteration alone
    rollout: Phase
    training: Phase
    sync_s: float = 0.0  # delays the job, occupies no node
    iterations: int | None = None
    duration_s: float | None = None

    @property
    def solo_s(self) -> float:
        """T_solo: the seconds of an iteration of the job alone, on the nodes that it asks for."""
        return self.rollout.worst_case_s + self.training.worst_case_s + self.sync_s

    @property
    def limit_s(self) -> float:
        """The longest iteration that keeps the SLO, in seconds."""
        return self.slo * self.solo_s


@dataclass(frozen=True)
class Scenario:
    """The cluster, and the jobs in order of arrival. Jobs that arrive together keep the order of the file."""

    cluster: Cluster
    jobs: tuple[Job, ...]


def load(path: str | Path) -> Scenario:
    """Return the scenario of a YAML or JSON file."""
    text = Path(path).read_text()
    return from_dict(json.loads(text) if str(path).endswith(".json") else YAML(typ="safe", pure=True).load(text))


def from_dict(data: dict[str, Any]) -> Scenario:
    """Return the scenario of a file's contents, or raise ValueError if this package does not know a key."""
    cluster = record(Cluster, data["cluster"], "cluster", Pool)
    jobs = [merged(data.get("defaults") or {}, job) for job in data["jobs"]]
    read = [record(Job, job, f"jobs[{number}]", Phase) for number, job in enumerate(jobs)]
    return Scenario(cluster, tuple(sorted(read, key=lambda job: job.arrival_s)))


def merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of both dictionaries, level by level. Where both have a key, `above` wins."""
    deeper = {key: merged(below[key], above[key]) for key in below.keys() & above.keys() if isinstance(above[key], dict)}
    return {**below, **above, **deeper}


def record(kind: Any, keys: dict[str, Any], where: str, side: Any = None) -> Any:
    """Return a dataclass with the keys of a file. `rollout` and `training` become records of kind `side`; null keys are ignored."""
    names = {one.name for one in fields(kind)}
    for key in sorted(keys.keys() - names - EVENT_REPLAY_KEYS):
        raise ValueError(f"{where}: examples/mini does not know the key '{key}'")
    values = {key: value for key, value in keys.items() if key in names and value is not None}
    for key in {"rollout", "training"} & values.keys():
        values[key] = record(side, values[key], f"{where}.{key}")
    return kind(**values)


def at_most(a: float, b: float) -> bool:
    """Return whether a <= b, up to rounding."""
    return a <= b + TOLERANCE * max(abs(a), abs(b))
