"""Shapes of a scenario job with a model: the nodes on which its phases can run, how long they take there, and what that costs.

Seconds and memory are computed for every tensor, pipeline and data parallelism that fits on some nodes, and scaled to the job: on
its own nodes a phase has the seconds and host memory that the job gives, whether they were predicted or measured. Other shapes are
relative to the job as written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rollmux_env.errors import InputError
from rollmux_env.keys.cluster import Cluster
from rollmux_env.keys.job import Job
from rollmux_env.keys.phases import Phase
from rollmux_env.keys.shapes import MAX_SHAPES
from rollmux_env.timing.hardware import Hardware, hardware
from rollmux_env.timing.jobs import responses_of
from rollmux_env.timing.models import ModelShape, model_shape
from rollmux_env.timing.replica import Parallelism, replica_timing
from rollmux_env.timing.rollouts import Responses, worst_rollout_s
from rollmux_env.timing.training import even_load, even_plan
from rollmux_env.timing.weights import rollout_memory_gb, training_memory_gb
from rollmux_env.validation_errors import not_one_of

STAGES = (1, 2, 4, 8)  # numbers of pipeline stages that are tried
_SAME = 1e-9  # relative difference below which two values count as equal


@dataclass(frozen=True)
class PoolNodes:
    """Nodes of one pool.

    Attributes:
        pool: Name of the pool.
        hardware: Rates of one GPU.
        number: Number of nodes.
        gpus: Number of GPUs per node.
    """

    pool: str
    hardware: Hardware
    number: int
    gpus: int

    @property
    def devices(self) -> int:
        """Number of GPUs of all nodes."""
        return self.number * self.gpus


class PhaseTime(NamedTuple):
    """Time and memory of a phase on some nodes with one parallelism.

    Attributes:
        pool: Name of the pool.
        nodes: Number of nodes.
        tensor_parallel: Number of GPUs that share each layer.
        stages: Number of pipeline stages.
        copies: Number of copies of the model.
        worst_case_s: Longest duration, in seconds.
        device_gb: Memory of the fullest GPU while the phase runs, in GB.
        host_memory_gb: Host memory per node that keeps the job resident, in GB.
    """

    pool: str
    nodes: int
    tensor_parallel: int
    stages: int
    copies: int
    worst_case_s: float
    device_gb: float
    host_memory_gb: float

    @property
    def place(self) -> tuple[str, int]:
        """Pool and number of nodes."""
        return self.pool, self.nodes


def parallelisms(nodes: PoolNodes, layers: int) -> Iterator[Parallelism]:
    """Yield every parallelism that uses all GPUs of some nodes.

    Tensor parallelism stays within a machine; pipelines have 1, 2, 4 or 8 stages, but not more than layers.
    """
    for tensor in (2**k for k in range(nodes.gpus.bit_length())):
        for stages in STAGES:
            if nodes.gpus % tensor == 0 and nodes.devices % (tensor * stages) == 0 and stages <= layers:
                yield Parallelism(tensor, stages, nodes.devices // (tensor * stages))


def rollout_time(model: ModelShape, nodes: PoolNodes, parallelism: Parallelism, responses: Responses, cap: int) -> PhaseTime:
    """Return time and memory of a rollout whose responses all reach the cap.

    Args:
        model: Sizes of the model.
        nodes: Nodes of the rollout.
        parallelism: Division of the model among their GPUs.
        responses: Size of the rollout.
        cap: Number of sampled tokens of each turn.

    Raises:
        InputError: If the weights leave no room for a KV cache, or a response exceeds it.
    """
    share, number_bytes = -(-responses.batch // parallelism.copies), nodes.hardware.number_bytes
    timing = replica_timing(model, nodes.hardware, parallelism.tensor, parallelism.stages, nodes.gpus)
    cached = min(timing.kv_tokens, share * responses.tokens(cap)) * model.cached * number_bytes
    together = parallelism.tensor * parallelism.stages
    return PhaseTime(
        nodes.pool,
        nodes.number,
        *parallelism,
        worst_rollout_s(timing, parallelism.copies, responses, cap),
        (model.parameters * number_bytes + cached) / together / 1e9,
        rollout_memory_gb(model, nodes.gpus, together, number_bytes),
    )


def training_time(model: ModelShape, nodes: PoolNodes, parallelism: Parallelism, responses: Responses, cap: int) -> PhaseTime:
    """Return time and memory of a training whose sequences all reach the cap. Whether it fits is not checked.

    Args:
        model: Sizes of the model.
        nodes: Nodes of the training.
        parallelism: Division of the model among their GPUs.
        responses: Size of the rollout whose responses are trained.
        cap: Number of sampled tokens of each turn.

    Raises:
        InputError: If the hardware's training rate is unknown, or there are more stages than layers.
    """
    plan, tokens = even_plan(model, nodes.hardware, parallelism, nodes.gpus), responses.tokens(cap)
    seconds = plan.seconds(even_load(nodes.hardware.system, responses.batch, tokens, tokens))
    host_gb = training_memory_gb(model, nodes.gpus, nodes.number)
    return PhaseTime(nodes.pool, nodes.number, *parallelism, seconds, plan.memory_gb(tokens), host_gb)


TimeOf = Callable[[PoolNodes, Parallelism], PhaseTime]
"""Function that returns time and memory of a phase on some nodes, or raises an InputError if a cache has no room."""


@dataclass(frozen=True)
class ShapeSearch:
    """The space of nodes in which shapes are searched.

    Attributes:
        cluster: Cluster with its pools.
        layers: Number of layers of the model.
        most_nodes: Largest number of nodes of a phase; its own number is always included.
        pools: Pools that a phase may use in addition to its own.
        folder: Directory to which a path of hardware is relative.
    """

    cluster: Cluster
    layers: int
    most_nodes: int
    pools: tuple[str, ...]
    folder: Path

    def times(self, phase: Phase, time_of: TimeOf, tensor: int | None = None) -> tuple[PhaseTime, tuple[PhaseTime, ...]]:
        """Return the phase as written, and every parallelism that fits, ordered by pool and nodes, then from fastest to slowest.

        On the phase's own nodes the predicted seconds and GB are scaled to those written. On others the same factors apply.

        Args:
            phase: Phase as written.
            time_of: Function that predicts the phase on some nodes.
            tensor: Tensor parallelism of the phase as written, or None for the fastest that fits.

        Raises:
            InputError: If the GPU of a pool is unknown, or the phase as written leaves no room for a cache.
        """
        nodes = self._nodes(phase.pool, phase.nodes)
        most_gb = nodes.hardware.memory_gb
        if tensor is None:
            own = min(self._every(time_of, nodes), key=lambda time: (max(time.device_gb, most_gb), time.worst_case_s))
        else:
            own = time_of(nodes, Parallelism(tensor, 1, nodes.devices // tensor))

        def scaled(time: PhaseTime) -> PhaseTime:
            seconds = phase.worst_case_s * (time.worst_case_s / own.worst_case_s)
            host_gb = phase.host_memory_gb * (time.host_memory_gb / own.host_memory_gb)
            return time._replace(worst_case_s=seconds, host_memory_gb=host_gb)

        listed: list[PhaseTime] = []
        for place in self._places(phase):
            node_gb = self.cluster.pools[place.pool].node_memory_gb
            times = [scaled(time) for time in self._every(time_of, place) if time.device_gb <= place.hardware.memory_gb]
            fitting = [time for time in times if node_gb is None or time.host_memory_gb <= node_gb]
            listed += sorted(fitting, key=lambda time: (time.worst_case_s, time.tensor_parallel, time.stages, time.copies))
        return scaled(own), tuple(listed)

    def _places(self, phase: Phase) -> Iterator[PoolNodes]:
        """Yield the nodes to search: those of the phase's own pool, then those of the others, by number."""
        for pool in dict.fromkeys((phase.pool, *self.pools)):
            numbers = {2**k for k in range(self.most_nodes.bit_length())} | ({phase.nodes} if pool == phase.pool else set())
            for number in sorted(numbers):
                if number <= (self.cluster.pools[pool].max_nodes or number):
                    yield self._nodes(pool, number)

    def _nodes(self, pool: str, number: int) -> PoolNodes:
        try:
            gpu = hardware(self.cluster.pools[pool].gpu, self.folder)
        except InputError as error:
            raise InputError(f"cluster.{pool}.gpu: {error}") from None
        return PoolNodes(pool, gpu, number, self.cluster.pools[pool].gpus_per_node)

    def _every(self, time_of: TimeOf, nodes: PoolNodes) -> Iterator[PhaseTime]:
        """Yield the phase with every parallelism that leaves room for a cache on some nodes."""
        for parallelism in parallelisms(nodes, self.layers):
            with suppress(InputError):
                yield time_of(nodes, parallelism)


class JobShape(NamedTuple):
    """A job on some nodes.

    Attributes:
        rollout: The rollout at its worst case.
        training: The training at its worst case.
        alone_s: Seconds of an iteration on nodes that the job has for itself.
        usd: Cost of an iteration there in dollars, with all nodes provisioned throughout.
        busy_usd: Cost of the two phases alone in dollars, as if other jobs filled every bubble.
        own: Whether this is the job as written.
        pareto: Whether no other shape is at least as good in seconds and both costs, and better in one of them.
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
    """All shapes of a job.

    Attributes:
        job: Job as written.
        rollouts: Rollouts with every parallelism that fits, by pool and nodes, then from fastest to slowest.
        trainings: Trainings in the same order.
        shapes: Every pair of nodes with the fastest parallelism of each phase, ordered by `usd`, then by seconds.
    """

    job: Job
    rollouts: tuple[PhaseTime, ...]
    trainings: tuple[PhaseTime, ...]
    shapes: tuple[JobShape, ...]

    def in_file(self) -> list[dict[str, Any]]:
        """Return the Pareto-optimal shapes as `shapes` of a scenario file.

        The job's own shape is left out. There are at most `MAX_SHAPES`, the cheapest ones.
        """
        chosen = [shape for shape in self.shapes if shape.pareto and not shape.own][:MAX_SHAPES]
        return [self._entry(shape) for shape in chosen]

    def _entry(self, shape: JobShape) -> dict[str, Any]:
        entry: dict[str, Any] = {}
        if shape.rollout.place != _written_place(self.job.rollout):
            entry["rollout"] = _phase(shape.rollout, self.job.rollout)
        if shape.training.place != _written_place(self.job.training):
            pool, nodes = shape.training.place
            fastest = _fastest(self.trainings)
            more = {key[1]: _round(time.worst_case_s) for key, time in fastest.items() if key[0] == pool and key[1] > nodes}
            entry["training"] = _phase(shape.training, self.job.training) | ({"by_nodes": more} if more else {})
        return entry


def shapes_of(job: Job, cluster: Cluster, most_nodes: int, pools: Sequence[str], folder: Path) -> ShapesOf:
    """Return the shapes of a job on 1, 2, 4, ... nodes of either side, and on its own numbers of nodes.

    Args:
        job: Job with a model.
        cluster: Cluster with its pools.
        most_nodes: Largest number of nodes of a side; the job's own number is always included.
        pools: Pools that both sides may use in addition to their own.
        folder: Directory to which the paths of the model and of hardware are relative.

    Raises:
        InputError: If the job has no model, both phases share one device, or a pool or its GPU is unknown.
    """
    if job.model is None or job.lengths is None:
        raise InputError(f"{job.id}: has no model, from which the seconds of other shapes could be predicted")
    if cluster.one_device:
        raise InputError("cluster.one_device: both phases run on the same devices; shapes need two sides")
    for name in pools:
        if name not in cluster.pools:
            raise InputError(f"--pool: {not_one_of(name, cluster.pools)}")
    lengths, model = job.lengths, model_shape(job.model.name, folder)
    responses = responses_of(lengths)
    search = ShapeSearch(cluster, model.layers, most_nodes, tuple(pools), folder)
    tensor = job.model.tensor_parallel
    own_rollout, rollouts = search.times(
        job.rollout, lambda nodes, parallelism: rollout_time(model, nodes, parallelism, responses, lengths.cap), tensor
    )
    own_training, trainings = search.times(
        job.training, lambda nodes, parallelism: training_time(model, nodes, parallelism, responses, lengths.cap)
    )
    pairs = [
        _shape(job, cluster, first, second)
        for first in (_fastest(rollouts) | {own_rollout.place: own_rollout}).values()
        for second in (_fastest(trainings) | {own_training.place: own_training}).values()
        if _room(cluster, first, second)
    ]
    shapes = [shape._replace(pareto=not any(_beats(other, shape) for other in pairs)) for shape in pairs]
    return ShapesOf(job, rollouts, trainings, tuple(sorted(shapes, key=lambda shape: (shape.usd, shape.alone_s))))


def _written_place(phase: Phase) -> tuple[str, int]:
    return phase.pool, phase.nodes


def _fastest(times: Sequence[PhaseTime]) -> dict[tuple[str, int], PhaseTime]:
    """Return the fastest time for each pool and number of nodes, from times sorted by speed."""
    fastest: dict[tuple[str, int], PhaseTime] = {}
    for time in times:
        fastest.setdefault(time.place, time)
    return fastest


def _room(cluster: Cluster, rollout: PhaseTime, training: PhaseTime) -> bool:
    """Return whether a pool that both sides share has enough nodes for both."""
    most = cluster.pools[rollout.pool].max_nodes
    return most is None or rollout.pool != training.pool or rollout.nodes + training.nodes <= most


def _shape(job: Job, cluster: Cluster, rollout: PhaseTime, training: PhaseTime) -> JobShape:
    seconds = job.iteration_s(rollout.worst_case_s, training.worst_case_s, job.sync_s)
    rollout_usd, training_usd = (cluster.pools[one.pool].usd_per_node_hour * one.nodes / 3600 for one in (rollout, training))
    own = rollout.place == _written_place(job.rollout) and training.place == _written_place(job.training)
    busy_usd = rollout_usd * rollout.worst_case_s + training_usd * training.worst_case_s
    return JobShape(rollout, training, seconds, (rollout_usd + training_usd) * seconds, busy_usd, own, False)


def _beats(other: JobShape, shape: JobShape) -> bool:
    """Return whether `other` is no worse than `shape` in any of seconds and costs, and better in one."""
    theirs, ours = (other.alone_s, other.usd, other.busy_usd), (shape.alone_s, shape.usd, shape.busy_usd)
    better = any(a < b * (1 - _SAME) for a, b in zip(theirs, ours, strict=True))
    return better and all(a <= b * (1 + _SAME) for a, b in zip(theirs, ours, strict=True))


def _phase(time: PhaseTime, written: Phase) -> dict[str, Any]:
    pool = {"pool": time.pool} if time.pool != written.pool else {}
    return pool | {
        "nodes": time.nodes,
        "worst_case_s": _round(time.worst_case_s),
        "host_memory_gb": _round(time.host_memory_gb),
    }


def _round(value: float) -> float:
    return round(value, 6)
