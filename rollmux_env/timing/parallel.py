"""Seconds and memory of a scenario job's phases for every tensor, pipeline and data parallelism that fits on some nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rollmux_env.errors import InputError
from rollmux_env.keys.cluster import Cluster
from rollmux_env.keys.phases import Phase
from rollmux_env.timing.hardware import Hardware, hardware
from rollmux_env.timing.models import ModelShape
from rollmux_env.timing.replica import Parallelism, replica_timing
from rollmux_env.timing.rollouts import Responses, worst_rollout_s
from rollmux_env.timing.training import even_load, even_plan
from rollmux_env.timing.weights import rollout_memory_gb, training_memory_gb

STAGES = (1, 2, 4, 8)  # of a pipeline


@dataclass(frozen=True)
class Nodes:
    """Nodes of one pool.

    Attributes:
        pool: its name. hardware: of their GPUs. number: of nodes. gpus: of one.
    """

    pool: str
    hardware: Hardware
    number: int
    gpus: int

    @property
    def devices(self) -> int:
        """GPUs of all nodes."""
        return self.number * self.gpus


class PhaseTime(NamedTuple):
    """A phase on some nodes.

    Attributes:
        pool, nodes: which, and how many. parallelism: on them. seconds: at worst case. device_gb: on the GPU that holds most, while
            the phase runs. host_gb: that keep the job resident on each node.
    """

    pool: str
    nodes: int
    parallelism: Parallelism
    seconds: float
    device_gb: float
    host_gb: float


def parallelisms(nodes: Nodes, layers: int) -> Iterator[Parallelism]:
    """Every one that uses all GPUs: tensor parallelism within a machine, pipelines of 1, 2, 4 or 8 stages."""
    for tensor in (2**k for k in range(nodes.gpus.bit_length())):
        for stages in STAGES:
            if nodes.gpus % tensor == 0 and nodes.devices % (tensor * stages) == 0 and stages <= layers:
                yield Parallelism(tensor, stages, nodes.devices // (tensor * stages))


def rollout_time(shape: ModelShape, nodes: Nodes, parallelism: Parallelism, responses: Responses, cap: int) -> PhaseTime:
    """A rollout whose responses all reach the cap.

    Raises:
        InputError: the weights leave no room for a KV cache, or a response exceeds it; one line.
    """
    share, number_bytes = -(-responses.batch // parallelism.copies), nodes.hardware.number_bytes
    timing = replica_timing(shape, nodes.hardware, parallelism.tensor, share, parallelism.stages, nodes.gpus)
    cached = min(timing.kv_tokens, share * responses.tokens(cap)) * shape.cached * number_bytes
    together = parallelism.tensor * parallelism.stages
    return PhaseTime(
        nodes.pool,
        nodes.number,
        parallelism,
        worst_rollout_s(timing, parallelism.copies, responses, cap),
        (shape.parameters * number_bytes + cached) / together / 1e9,
        rollout_memory_gb(shape, nodes.gpus, together, number_bytes),
    )


def training_time(shape: ModelShape, nodes: Nodes, parallelism: Parallelism, responses: Responses, cap: int) -> PhaseTime:
    """A training whose sequences all reach the cap; whether it fits is for the caller to see.

    Raises:
        InputError: the hardware's rate of training is not known, or there are more stages than layers; one line.
    """
    plan, tokens = even_plan(shape, nodes.hardware, parallelism, nodes.gpus), responses.tokens(cap)
    seconds = plan.seconds(even_load(nodes.hardware.system, responses.batch, tokens, tokens))
    host_gb = training_memory_gb(shape, nodes.gpus, nodes.number)
    return PhaseTime(nodes.pool, nodes.number, parallelism, seconds, plan.memory_gb(tokens), host_gb)


TimeOf = Callable[[Nodes, Parallelism], PhaseTime]
"""Of a phase on some nodes; raises InputError where it leaves no room for a cache."""


@dataclass(frozen=True)
class Search:
    """Where to look.

    Attributes:
        cluster: with its pools. layers: of the model. most_nodes: of a phase, beside its own number. pools: that a phase may use,
            beside its own. folder: what a path of hardware is relative to.
    """

    cluster: Cluster
    layers: int
    most_nodes: int
    pools: tuple[str, ...]
    folder: Path

    def times(self, phase: Phase, time_of: TimeOf, tensor: int | None = None) -> tuple[PhaseTime, tuple[PhaseTime, ...]]:
        """The phase as written, and every parallelism that fits, by pool and nodes, the fastest first.

        On the phase's own nodes the model's seconds and GB are scaled to those written; on others they are in proportion.

        Args:
            tensor: tensor parallelism of the phase as written; None where it is the fastest that fits.

        Raises:
            InputError: the GPU of a pool is not known, or the phase as written leaves no room for a cache; one line.
        """
        nodes = self._nodes(phase.pool, phase.nodes)
        if tensor is None:
            own = min(self._every(time_of, nodes), key=lambda time: (max(time.device_gb, nodes.hardware.memory_gb), time.seconds))
        else:
            own = time_of(nodes, Parallelism(tensor, 1, nodes.devices // tensor))

        def scaled(time: PhaseTime) -> PhaseTime:
            seconds = phase.worst_case_s * (time.seconds / own.seconds)
            return time._replace(seconds=seconds, host_gb=phase.host_memory_gb * (time.host_gb / own.host_gb))

        listed: list[PhaseTime] = []
        for place in self._places(phase):
            most_gb = self.cluster.pools[place.pool].node_memory_gb
            times = [scaled(time) for time in self._every(time_of, place) if time.device_gb <= place.hardware.memory_gb]
            fitting = [time for time in times if most_gb is None or time.host_gb <= most_gb]
            listed += sorted(fitting, key=lambda time: (time.seconds, time.parallelism))
        return scaled(own), tuple(listed)

    def _places(self, phase: Phase) -> Iterator[Nodes]:
        """Nodes to look at: of the phase's own pool, then of the others, by number."""
        for pool in dict.fromkeys((phase.pool, *self.pools)):
            numbers = {2**k for k in range(self.most_nodes.bit_length())} | ({phase.nodes} if pool == phase.pool else set())
            for number in sorted(numbers):
                if number <= (self.cluster.pools[pool].max_nodes or number):
                    yield self._nodes(pool, number)

    def _nodes(self, pool: str, number: int) -> Nodes:
        try:
            gpu = hardware(self.cluster.pools[pool].gpu, self.folder)
        except InputError as error:
            raise InputError(f"cluster.{pool}.gpu: {error}") from None
        return Nodes(pool, gpu, number, self.cluster.pools[pool].gpus_per_node)

    def _every(self, time_of: TimeOf, nodes: Nodes) -> Iterator[PhaseTime]:
        """Of every parallelism on some nodes that leaves room for a cache."""
        for parallelism in parallelisms(nodes, self.layers):
            with suppress(InputError):
                yield time_of(nodes, parallelism)
