"""Forecasts of the memory that jobs will take on nodes and of the disk space of their checkpoints, and checks of both.

They follow from sizes alone. The worst cases of shapes that a job's file does not state are estimated from its profile, until they
are measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import ceil
from pathlib import Path
from time import monotonic
from typing import NamedTuple, cast

from rollmux_env.errors import InputError
from rollmux_env.files import read_json
from rollmux_env.keys.cluster import SIDES, Cluster, Side
from rollmux_env.keys.job import Job
from rollmux_env.keys.phases import Phase
from rollmux_env.keys.shapes import PhaseShape, Shape, TrainingShape, named_keys
from rollmux_env.timing.hardware import hardware
from rollmux_env.timing.models import ModelShape, model_shape, shape_of
from rollmux_env.timing.replica import Parallelism
from rollmux_env.timing.rollouts import Responses
from rollmux_env.timing.shapes import PoolNodes, rollout_time, training_time
from rollmux_env.validation_errors import one_line
from runtime.checkpoints import CHECKPOINTS
from runtime.engines.memory import ModelSize, SamplingMemory, sampling_memory
from runtime.engines.model_files import read_model_files
from runtime.grpo.engine_slots import engine_slots_of, parts_of
from runtime.jobs.grpo_spec import TINY
from runtime.jobs.models import local_directory, tiny_config
from runtime.jobs.spec import JobSpec, TaskJob
from runtime.machine import Node, Pool
from runtime.machines.nodes import POOLS
from runtime.training.memory import TrainingPeak, size_of, tiny_size, training_peak

_LEAST_S = 1e-6

_BYTES = 12  # bytes per parameter: weight and Adam's two moments in float32
_LOOKS_S = 1.0
_AGAIN_S = 3.0  # interval between attempts, each of which may fill the disk for a moment
_LONGEST_S = 60.0  # longest wait: a quota may have grown, which the file system does not report


class MemoryLimits(NamedTuple):
    """Memory available to a worker; a value is None if it is unknown.

    Attributes:
        device_gb: Memory of its device, in GB. A CPU node's device is its host memory.
        node_gb: Host memory of its node, in GB.
        machine_gb: Host memory of the run's nodes on its machine, in GB.
    """

    device_gb: float | None
    node_gb: float | None
    machine_gb: float | None


class MemoryForecast(NamedTuple):
    """Forecast for one job.

    Attributes:
        spec: The job.
        size: Sizes of its model.
        ranks: Number of training ranks.
        on_node: Workers on a node, by pool: training ranks, and engines that sample at the same time.
        engines: Number of engines, of all sizes, on a rollout node.
        on_gpu: Whether the nodes have GPUs, by pool.
        training: Peak memory of a rank.
        sampling: Memory of an engine.
    """

    spec: TaskJob
    size: ModelSize
    ranks: int
    on_node: dict[Pool, int]
    engines: int
    on_gpu: dict[Pool, bool]
    training: TrainingPeak
    sampling: SamplingMemory

    @property
    def waiting(self) -> int:
        """Bytes of the job's training state in a node's host memory, between or during phases."""
        return self.on_node["training"] * max(self.training.waiting, self.training.host)

    @property
    def written(self) -> int:
        """Additional bytes for the copy from which a checkpoint is written while training continues."""
        return self.on_node["training"] * self.training.written if self.spec.checkpoint.is_wanted else 0


def forecasts(specs: Sequence[JobSpec], nodes: Sequence[Node]) -> list[MemoryForecast]:
    """Return the forecasts of all built-in jobs, on the numbers of nodes that they ask for.

    Args:
        specs: Jobs, of which only built-in ones are forecast.
        nodes: Nodes of the run.

    Raises:
        InputError: If a rollout node cannot be divided into a job's engines; one line.
    """
    expected = []
    for spec in specs:
        if not isinstance(spec, TaskJob):
            continue
        first: dict[Pool, Node] = {pool: nodes_of(pool, nodes)[0] for pool in POOLS}
        on_gpu: dict[Pool, bool] = {pool: bool(node.gpus) for pool, node in first.items()}
        try:
            seats = engine_slots_of((first["rollout"],), spec.rollout)
        except InputError as error:
            raise InputError(f"job {spec.id}: {error}") from None
        parallel = min(spec.rollout.all_sizes) if on_gpu["rollout"] else 1
        together = sum(seat.size == spec.rollout.tensor_parallel for seat in seats)
        on_node: dict[Pool, int] = {"rollout": together, "training": len(parts_of(first["training"], 1))}
        size, ranks = _size(spec), spec.training.nodes * on_node["training"]
        peak = training_peak(size, spec.algorithm, ranks, on_gpu["training"], spec.training.cpu_offload)
        length = spec.algorithm.max_prompt_tokens + spec.algorithm.max_tokens
        sampling = sampling_memory(size, length, parallel, on_gpu["rollout"])
        expected.append(MemoryForecast(spec, size, ranks, on_node, len(seats), on_gpu, peak, sampling))
    return expected


def limits(nodes: Sequence[Node], gpu_gb: float | None) -> dict[Pool, MemoryLimits]:
    """Return the memory of the smallest node of each pool.

    Args:
        nodes: Nodes of the run.
        gpu_gb: Memory of a GPU in GB, or None if unknown.
    """
    limits: dict[Pool, MemoryLimits] = {}
    for pool in POOLS:
        node = min(nodes_of(pool, nodes), key=lambda node: node.memory_gb)
        node_gb, machine_gb = node.memory_gb or None, sum(other.memory_gb for other in nodes if other.machine == node.machine)
        limits[pool] = MemoryLimits(gpu_gb if node.gpus else node_gb, node_gb, machine_gb or None)
    return limits


def nodes_of(pool: Pool, nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes that run the phases of a pool: with one device, all nodes."""
    return [node for node in nodes if node.pool == pool] or [*nodes]


def check_memory(expected: Sequence[MemoryForecast], available: dict[Pool, MemoryLimits], say: Callable[[str], None]) -> None:
    """Check that jobs fit into memory, and print a line about each job that may not.

    Args:
        expected: Forecasts of the jobs.
        available: Available memory, by pool.
        say: Callback for a line.

    Raises:
        InputError: If a job cannot fit, whatever the lengths of its sequences; one line.
    """
    for one in expected:
        for check in _checks(one, available):
            least_gb, most_gb = check.least / 1e9, check.most / 1e9
            if check.available_together_gb is not None and least_gb > check.available_together_gb:
                problem = f"{check.what} takes {least_gb:.1f} GB at least; there are {check.available_together_gb:.1f}"
                raise InputError(f"job {one.spec.id}: {problem}{check.advice}")
            if check.available_gb is not None and most_gb > check.available_gb:
                say(f"{one.spec.id}: {check.what} may take {most_gb:.1f} GB; there are {check.available_gb:.1f}{check.advice}")


class _MemoryCheck(NamedTuple):
    """Comparison of one kind of memory.

    Attributes:
        what: Use of the memory, for messages.
        least: Fewest bytes that the job needs.
        most: Most bytes that the job needs.
        available_gb: Available memory in GB, or None if unknown.
        available_together_gb: Available memory with that of other nodes in GB, or None if unknown.
        advice: Advice for messages.
    """

    what: str
    least: int
    most: int
    available_gb: float | None
    available_together_gb: float | None
    advice: str = ""


def _checks(one: MemoryForecast, available: dict[Pool, MemoryLimits]) -> Iterator[_MemoryCheck]:
    peak, sampling, limit = one.training, one.sampling, available["training"]
    on_gpu = one.on_gpu["training"]
    too_large = limit.device_gb is not None and peak.sure / 1e9 > limit.device_gb
    advice = "; more training nodes, or a lower algorithm.micro_batch_tokens, help"
    if too_large:
        advice = f"; more training nodes{', or training.cpu_offload: true' if on_gpu else ''}, help"
    whole_gb = limit.device_gb if on_gpu else limit.machine_gb
    yield _MemoryCheck("training on a rank", peak.sure, peak.device, limit.device_gb, whole_gb, advice)
    what, advice = "its training state in the host memory of a node", "; more training nodes help"
    waiting = max(one.waiting, peak.loading)
    yield _MemoryCheck(what, waiting, waiting, limit.node_gb, limit.machine_gb, advice)
    if limit.node_gb is None or waiting / 1e9 <= limit.node_gb:
        what += ", with the copy that a checkpoint is written from,"
        yield _MemoryCheck(what, waiting, one.waiting + one.written, limit.node_gb, limit.machine_gb, advice)
    limit = available["rollout"]
    whole_gb = limit.device_gb if one.on_gpu["rollout"] else limit.machine_gb
    yield _MemoryCheck("sampling", sampling.weights, sampling.device, limit.device_gb, whole_gb)
    waiting = one.engines * sampling.asleep + sampling.staged
    yield _MemoryCheck("its weights in the host memory of a rollout node", waiting, waiting, limit.node_gb, limit.machine_gb)


def _size(spec: TaskJob) -> ModelSize:
    if spec.model.name == TINY:
        return tiny_size(tiny_config(spec.model))
    folder = local_directory(spec.path(spec.model.name))
    return size_of(read_model_files(folder), read_json(folder / "config.json"))


def checkpoint_bytes(spec: JobSpec) -> int:
    """Return the bytes of a checkpoint, or 0 for a job without any and for one whose checkpoints have unknown size.

    Raises:
        InputError: If the model is missing; one line.
    """
    if not isinstance(spec, TaskJob) or not spec.checkpoint.is_wanted:
        return 0
    return _BYTES * _size(spec).parameters


def missing_bytes(spec: JobSpec, folder: Path) -> int:
    """Return the additional bytes that a job's checkpoints will take in its run's folder: those to keep, and one being written.

    A missing model counts as 0 bytes: it is reported when it is loaded.

    Args:
        spec: The job.
        folder: Folder of the run.
    """
    try:
        size = checkpoint_bytes(spec)
    except InputError:
        return 0
    if not size or not isinstance(spec, TaskJob):
        return 0
    return max(0, (spec.checkpoint.keep + 1) * size - _bytes_below(folder / CHECKPOINTS / spec.id))


def _bytes_below(folder: Path) -> int:
    """Return the bytes of the files in a folder, which may change meanwhile."""
    size = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                size += Path(place, name).lstat().st_size
    return size


def check_space(specs: Iterable[JobSpec], folder: Path, where: str) -> None:
    """Check that there is disk space for the checkpoints of jobs.

    Args:
        specs: The jobs.
        folder: Folder of their run.
        where: Beginning of error messages.

    Raises:
        InputError: If there is too little; one line.
    """
    needed = sum(missing_bytes(spec, folder) for spec in specs)
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise InputError(
            f"{where}: {one_line(str(folder), 4096)} is on a disk with {free / 1e9:.1f} GB free; checkpoints need "
            f"{needed / 1e9:.1f} GB: those that checkpoint.keep says, and one more"
        )


async def wait_for_room(folder: Path, least: int, over: Callable[[], bool]) -> None:
    """Wait until a folder's file system has more free bytes than at any time since it was full, or for a minute.

    Args:
        folder: The folder.
        least: Free bytes when it was full.
        over: Function that returns whether to stop waiting.
    """
    began_s = monotonic()
    while not over():
        await asyncio.sleep(_LOOKS_S)
        passed_s, free = monotonic() - began_s, free_bytes(folder)
        least = min(least, free)  # other programs write there too, and may take what was freed
        if passed_s > _LONGEST_S or (passed_s > _AGAIN_S and free > least):
            return


def free_bytes(folder: Path) -> int:
    """Return the free bytes of a folder's file system, or 0 if unknown."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return 0


def with_shapes(spec: JobSpec, profiled: Job, cluster: Cluster, nodes: Sequence[Node]) -> Job:
    """Return a profiled job with its shapes, each with worst cases and memory.

    Seconds are those of the profile, scaled by the timing model (docs/reference/timing.md) from the job's own number of nodes to
    the shape's. If the model does not know the GPU of a pool (which the cluster names), or there is none, the work is assumed to be
    divided evenly. Host memory of a training node is the profile's, changed by the difference between memory forecasts. Host memory
    of a rollout node and GPU memory between phases are the profile's.

    Args:
        spec: The job.
        profiled: The job with its profile.
        cluster: Cluster with its pools.
        nodes: Nodes of the run, of both pools.
    """
    forecast = next(iter(forecasts([spec], nodes)), None) if spec.shapes else None
    shapes = []
    for number, shape in enumerate(spec.shapes, 1):
        parts: dict[str, PhaseShape] = {}
        for side in SIDES:
            if values := named_keys(getattr(shape, side)):
                wanted, own = spec.nodes_in(number)[side], cast("Phase", getattr(profiled, side))
                if forecast is not None and wanted != own.nodes:
                    estimate = _Estimate(forecast, cluster, nodes, side)
                    seconds = max(_LEAST_S, own.worst_case_s * estimate.times(own.nodes, wanted))
                    host_gb = max(0.0, own.host_memory_gb + estimate.more_gb(own.nodes, wanted))
                    values = {"worst_case_s": seconds, "host_memory_gb": host_gb} | values
                parts[side] = (PhaseShape if side == "rollout" else TrainingShape).model_validate(values)
        shapes.append(Shape.model_validate(parts))
    return profiled.model_copy(update={"shapes": tuple(shapes)})


def shape_lines(former: Job, job: Job) -> Iterator[str]:
    """Yield a line for each of a job's shapes whose planned seconds have changed."""
    for number, pair in enumerate(zip(former.shapes, job.shapes, strict=True), 1):
        if pair[0] != pair[1]:
            seconds = [phase.worst_case_s for phase in job.phases(number)]
            yield f"in shape {number} it is planned with rollout {seconds[0]:.2f} s, training {seconds[1]:.2f} s from now on"


class _Estimate:
    """Estimate of a phase of a built-in job on other numbers of nodes."""

    def __init__(self, forecast: MemoryForecast, cluster: Cluster, nodes: Sequence[Node], side: Side) -> None:
        self._forecast, self._spec, self._side = forecast, forecast.spec, side
        self._pool, self._folder = cluster.pools[side], Path(forecast.spec.folder)
        self._gpus = len(nodes_of(side, nodes)[0].gpus)

    def times(self, own: int, wanted: int) -> float:
        """Return the ratio of the phase's duration on `wanted` nodes to that on `own` nodes."""
        try:
            return self._seconds(wanted) / self._seconds(own)
        except InputError:  # the GPU is not in the catalogue, too small for the model, or there is none
            return self._share(wanted) / self._share(own)

    def more_gb(self, own: int, wanted: int) -> float:
        """Return the additional host memory per node on `wanted` nodes, compared with `own` nodes, in GB."""
        if self._side == "rollout":
            return 0.0
        return (self._waiting(wanted) - self._waiting(own)) / 1e9

    def _waiting(self, number: int) -> int:
        workers, on_gpu = self._forecast.on_node["training"], self._forecast.on_gpu["training"]
        offloads = self._spec.training.cpu_offload
        return workers * training_peak(self._forecast.size, self._spec.algorithm, number * workers, on_gpu, offloads).waiting

    def _share(self, number: int) -> int:
        """Return the largest number of responses of a worker."""
        return ceil(self._batch / (number * self._forecast.on_node[self._side]))

    def _seconds(self, number: int) -> float:
        """Return the phase's duration by the timing model, in seconds.

        Raises:
            InputError: If the model does not know the GPU or its training rate.
        """
        if not self._gpus:
            raise InputError("a CPU is not in the catalogue")
        gpus = PoolNodes(self._side, hardware(self._pool.gpu, self._folder), number, self._gpus)
        tensor = self._spec.rollout.tensor_parallel if self._side == "rollout" else 1
        parallelism = Parallelism(tensor, 1, max(1, gpus.devices // tensor))
        settings = self._spec.algorithm
        responses = Responses(self._batch, settings.max_prompt_tokens)
        time_of = rollout_time if self._side == "rollout" else training_time
        return time_of(self._model(), gpus, parallelism, responses, settings.max_tokens).worst_case_s

    @property
    def _batch(self) -> int:
        return self._spec.algorithm.prompts_per_iteration * self._spec.algorithm.group_size

    def _model(self) -> ModelShape:
        model = self._spec.model
        return shape_of(tiny_config(model), TINY) if model.name == TINY else model_shape(str(self._spec.path(model.name)))
