"""Shapes of a scenario job with a model: on how many nodes its phases may run, how long they take there, and what that costs.

The model of `rollmux_env.timing.parallel` is scaled to the job: on its own nodes a phase has the seconds and the host memory that
the job has. So the job as written is its own shape, predicted or measured, and other shapes are relative to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rollmux_env.errors import InputError
from rollmux_env.scenario import Cluster, Job, Phase, Pool
from rollmux_env.timing.alone import alone_s
from rollmux_env.timing.hardware import Hardware, hardware
from rollmux_env.timing.models import model_shape
from rollmux_env.timing.parallel import Nodes, Parallelism, PhaseTime, parallelisms, rollout_time, training_time
from rollmux_env.timing.roofline import Responses

MOST_SHAPES = 16  # of a job, in a scenario file
_SAME = 1e-9

TimeOf = Callable[[Nodes, Parallelism], PhaseTime]


class JobShape(NamedTuple):
    """A job on some nodes.

    Attributes:
        rollout, training: the phases, at worst case. alone_s: seconds of an iteration on nodes of its own.
        usd: of an iteration there, all nodes provisioned throughout. busy_usd: of the phases, as if others filled every bubble.
        own: whether it is the job as written. pareto: whether no other shape is as good in seconds and in both dollars.
    """

    rollout: PhaseTime
    training: PhaseTime
    alone_s: float
    usd: float
    busy_usd: float
    own: bool
    pareto: bool


@dataclass(frozen=True)
class ShapesOf:
    """What a job may be given.

    Attributes:
        job: as written. rollouts, trainings: every parallelism that fits, by nodes, the fastest first.
        shapes: every pair of node counts, each phase at its fastest: by dollars alone, then seconds.
    """

    job: Job
    rollouts: tuple[PhaseTime, ...]
    trainings: tuple[PhaseTime, ...]
    shapes: tuple[JobShape, ...]

    def in_file(self) -> list[dict[str, Any]]:
        """The Pareto-optimal shapes but the job's own, as `shapes` of a scenario file: at most `MOST_SHAPES`, the cheapest."""
        chosen = [shape for shape in self.shapes if shape.pareto and not shape.own][:MOST_SHAPES]
        return [self._entry(shape) for shape in chosen]

    def _entry(self, shape: JobShape) -> dict[str, Any]:
        entry: dict[str, Any] = {}
        if shape.rollout.nodes != self.job.rollout.nodes:
            entry["rollout"] = _phase(shape.rollout)
        if shape.training.nodes != self.job.training.nodes:
            fastest = _fastest(self.trainings)
            more = {nodes: _rounded(time.seconds) for nodes, time in fastest.items() if nodes > shape.training.nodes}
            entry["training"] = _phase(shape.training) | ({"by_nodes": more} if more else {})
        return entry


def shapes_of(job: Job, cluster: Cluster, most_nodes: int, folder: Path) -> ShapesOf:
    """The shapes of a job on 1, 2, 4, ... nodes of either side, and its own numbers of nodes.

    Args:
        most_nodes: of a side, at least its own number. folder: what the paths of the model and of hardware are relative to.

    Raises:
        InputError: the job has no model, the cluster has one pool, or the job's own nodes cannot hold the model; one line.
    """
    if job.model is None or job.lengths is None:
        raise InputError(f"{job.id}: has no model, from which the seconds of other shapes could be predicted")
    if cluster.one_device:
        raise InputError("cluster.one_device: both phases run on the same devices; shapes are of two pools")
    lengths, model = job.lengths, model_shape(job.model.name, folder)
    responses = Responses(lengths.batch, lengths.prompt_tokens, lengths.turns, lengths.environment_s)
    own = job.model.tensor_parallel

    def rollout(nodes: Nodes, parallelism: Parallelism) -> PhaseTime:
        return rollout_time(model, nodes, parallelism, responses, lengths.cap)

    def training(nodes: Nodes, parallelism: Parallelism) -> PhaseTime:
        return training_time(model, nodes, parallelism, responses, lengths.cap)

    sides = {"rollout": cluster.rollout, "training": cluster.training}
    of_nodes = {name: _nodes(pool, getattr(job, name), most_nodes, folder) for name, pool in sides.items()}
    own_rollout = of_nodes["rollout"][job.rollout.nodes]
    written = rollout(own_rollout, Parallelism(own, 1, own_rollout.devices // own))
    own_nodes = of_nodes["training"][job.training.nodes]
    trained = min(_those_of(training, own_nodes, model.layers), key=lambda time: _by_fit(time, own_nodes.hardware))
    rollouts = _times(rollout, model.layers, of_nodes["rollout"], job.rollout, written, sides["rollout"])
    trainings = _times(training, model.layers, of_nodes["training"], job.training, trained, sides["training"])
    pairs = [
        _shape(job, cluster, first, second)
        for first in (_fastest(rollouts) | {job.rollout.nodes: _as_written(job.rollout, written)}).values()
        for second in (_fastest(trainings) | {job.training.nodes: _as_written(job.training, trained)}).values()
    ]
    shapes = [shape._replace(pareto=not any(_beats(other, shape) for other in pairs)) for shape in pairs]
    return ShapesOf(job, rollouts, trainings, tuple(sorted(shapes, key=lambda shape: (shape.usd, shape.alone_s))))


def _nodes(pool: Pool, phase: Phase, most: int, folder: Path) -> dict[int, Nodes]:
    """Numbers of nodes to look at, in order."""
    gpus = hardware(pool.gpu, folder)
    numbers = {phase.nodes, *(2**k for k in range(max(most, 1).bit_length()) if 2**k <= most)}
    return {count: Nodes(gpus, count, pool.gpus_per_node) for count in sorted(numbers) if count <= (pool.max_nodes or count)}


def _times(
    time_of: TimeOf, layers: int, of_nodes: dict[int, Nodes], phase: Phase, own: PhaseTime, pool: Pool
) -> tuple[PhaseTime, ...]:
    """What fits, relative to what is written of the job's own nodes: by number of nodes, the fastest first.

    Args:
        own: the time of those nodes by the model.
    """
    seconds, host = phase.worst_case_s / own.seconds, phase.host_memory_gb / own.host_gb
    most_gb = pool.node_memory_gb if pool.node_memory_gb is not None else float("inf")
    found: list[PhaseTime] = []
    for nodes in of_nodes.values():
        times = [
            time._replace(seconds=time.seconds * seconds, host_gb=time.host_gb * host)
            for time in _those_of(time_of, nodes, layers)
            if time.device_gb <= nodes.hardware.memory_gb and time.host_gb * host <= most_gb
        ]
        found += sorted(times, key=lambda time: (time.seconds, time.parallelism))
    return tuple(found)


def _those_of(time_of: TimeOf, nodes: Nodes, layers: int) -> Iterator[PhaseTime]:
    """Of every parallelism on some nodes that leaves room for a cache."""
    for parallelism in parallelisms(nodes, layers):
        with suppress(InputError):
            yield time_of(nodes, parallelism)


def _by_fit(time: PhaseTime, hardware: Hardware) -> tuple[float, float]:
    """The fastest of those that fit, or else that which is nearest to it: the job as written runs there somehow."""
    return max(time.device_gb, hardware.memory_gb), time.seconds


def _as_written(phase: Phase, own: PhaseTime) -> PhaseTime:
    return own._replace(seconds=phase.worst_case_s, host_gb=phase.host_memory_gb)


def _fastest(times: Sequence[PhaseTime]) -> dict[int, PhaseTime]:
    """By number of nodes."""
    fastest: dict[int, PhaseTime] = {}
    for time in times:
        fastest.setdefault(time.nodes, time)
    return fastest


def _shape(job: Job, cluster: Cluster, rollout: PhaseTime, training: PhaseTime) -> JobShape:
    seconds = alone_s(rollout.seconds, training.seconds, job.sync_s, job.staleness)
    usd = [cluster.rollout.usd_per_node_hour * rollout.nodes / 3600, cluster.training.usd_per_node_hour * training.nodes / 3600]
    own = (rollout.nodes, training.nodes) == (job.rollout.nodes, job.training.nodes)
    return JobShape(
        rollout, training, seconds, sum(usd) * seconds, usd[0] * rollout.seconds + usd[1] * training.seconds, own, False
    )


def _beats(other: JobShape, shape: JobShape) -> bool:
    """No worse in anything, and better in something."""
    theirs, ours = (other.alone_s, other.usd, other.busy_usd), (shape.alone_s, shape.usd, shape.busy_usd)
    better = any(a < b * (1 - _SAME) for a, b in zip(theirs, ours, strict=True))
    return better and all(a <= b * (1 + _SAME) for a, b in zip(theirs, ours, strict=True))


def _phase(time: PhaseTime) -> dict[str, Any]:
    return {"nodes": time.nodes, "worst_case_s": _rounded(time.seconds), "host_memory_gb": _rounded(time.host_gb)}


def _rounded(value: float) -> float:
    return round(value, 6)
