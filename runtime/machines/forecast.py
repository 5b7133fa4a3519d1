"""Memory that jobs will take on nodes, and the room of their checkpoints on a disk, from sizes alone, and whether it is there.

What a job's file does not say of its shapes is estimated from its profile, until it has been measured.
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
from rollmux_env.timing.shapes import Nodes, rollout_time, training_time
from rollmux_env.validation_errors import one_line
from runtime.checkpoints import CHECKPOINTS
from runtime.engines.memory import ModelSize, SamplingMemory, sampling_memory
from runtime.engines.model_files import read_model_files
from runtime.grpo.seats import parts_of, seats_of
from runtime.jobs.grpo_spec import TINY
from runtime.jobs.models import local_directory, tiny_config
from runtime.jobs.spec import JobSpec, TaskJob
from runtime.machine import Node, Pool
from runtime.machines.nodes import POOLS
from runtime.training.memory import TrainingPeak, size_of, tiny_size, training_peak

_LEAST_S = 1e-6

_BYTES = 12  # a parameter, of weights and Adam's two moments in float32
_LOOKS_S = 1.0
_AGAIN_S = 3.0  # between attempts, each of which may fill the disk for a moment
_LONGEST_S = 60.0  # a quota may have grown, which the file system does not tell


class Limits(NamedTuple):
    """GB that there are for a worker: of its device, of its node's host memory, and of the machine's; None where nobody says.

    A CPU is its own device.
    """

    device_gb: float | None
    node_gb: float | None
    machine_gb: float | None


class Forecast(NamedTuple):
    """What one job will take.

    Attributes:
        ranks: that train it. on_node: workers of each pool on a node: ranks, and engines that sample together.
        engines: that are built on a rollout node, of all sizes.
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
        """Bytes of its training state in the host memory of a node, between phases or in them."""
        return self.on_node["training"] * max(self.training.waiting, self.training.host)

    @property
    def written(self) -> int:
        """Bytes beside them, as long as a checkpoint is written and the state has gone on."""
        return self.on_node["training"] * self.training.written if self.spec.checkpoint.is_wanted else 0


def forecasts(specs: Sequence[JobSpec], nodes: Sequence[Node]) -> list[Forecast]:
    """Of jobs of the built-in kind, on as many nodes as they ask for.

    Raises:
        InputError: a rollout node cannot be cut into a job's engines; one line.
    """
    expected = []
    for spec in specs:
        if not isinstance(spec, TaskJob):
            continue
        first: dict[Pool, Node] = {pool: nodes_of(pool, nodes)[0] for pool in POOLS}
        on_gpu: dict[Pool, bool] = {pool: bool(node.gpus) for pool, node in first.items()}
        try:
            seats = seats_of((first["rollout"],), spec.rollout)
        except InputError as error:
            raise InputError(f"job {spec.id}: {error}") from None
        parallel = min(spec.rollout.all_sizes) if on_gpu["rollout"] else 1
        together = sum(seat.size == spec.rollout.tensor_parallel for seat in seats)
        on_node: dict[Pool, int] = {"rollout": together, "training": len(parts_of(first["training"], 1))}
        size, ranks = _size(spec), spec.training.nodes * on_node["training"]
        peak = training_peak(size, spec.algorithm, ranks, on_gpu["training"], spec.training.cpu_offload)
        length = spec.algorithm.max_prompt_tokens + spec.algorithm.max_tokens
        sampling = sampling_memory(size, length, parallel, on_gpu["rollout"])
        expected.append(Forecast(spec, size, ranks, on_node, len(seats), on_gpu, peak, sampling))
    return expected


def limits(nodes: Sequence[Node], gpu_gb: float | None) -> dict[Pool, Limits]:
    """What there is on the smallest node of each pool.

    Args:
        gpu_gb: of a GPU; None where it is not known.
    """
    there: dict[Pool, Limits] = {}
    for pool in POOLS:
        node = min(nodes_of(pool, nodes), key=lambda node: node.memory_gb)
        node_gb, machine_gb = node.memory_gb or None, sum(other.memory_gb for other in nodes if other.machine == node.machine)
        there[pool] = Limits(gpu_gb if node.gpus else node_gb, node_gb, machine_gb or None)
    return there


def nodes_of(pool: Pool, nodes: Sequence[Node]) -> list[Node]:
    """The nodes that run the phases of a pool: with one device, those of the other."""
    return [node for node in nodes if node.pool == pool] or [*nodes]


def check_memory(expected: Sequence[Forecast], there: dict[Pool, Limits], say: Callable[[str], None]) -> None:
    """Say where memory may not do.

    Raises:
        InputError: it cannot, whatever is trained on; one line.
    """
    for one in expected:
        for check in _checks(one, there):
            least_gb, most_gb = check.least / 1e9, check.most / 1e9
            if check.all_gb is not None and least_gb > check.all_gb:
                problem = f"{check.what} takes {least_gb:.1f} GB at least; there are {check.all_gb:.1f}"
                raise InputError(f"job {one.spec.id}: {problem}{check.advice}")
            if check.there_gb is not None and most_gb > check.there_gb:
                say(f"{one.spec.id}: {check.what} may take {most_gb:.1f} GB; there are {check.there_gb:.1f}{check.advice}")


class _Check(NamedTuple):
    """One memory: bytes that a job needs at least and at most, and GB that are there for it, and with those of other nodes."""

    what: str
    least: int
    most: int
    there_gb: float | None
    all_gb: float | None
    advice: str = ""


def _checks(one: Forecast, there: dict[Pool, Limits]) -> Iterator[_Check]:
    peak, sampling, limit = one.training, one.sampling, there["training"]
    on_gpu = one.on_gpu["training"]
    too_large = limit.device_gb is not None and peak.sure / 1e9 > limit.device_gb
    advice = "; more training nodes, or a lower algorithm.micro_batch_tokens, help"
    if too_large:
        advice = f"; more training nodes{', or training.cpu_offload: true' if on_gpu else ''}, help"
    whole_gb = limit.device_gb if on_gpu else limit.machine_gb
    yield _Check("training on a rank", peak.sure, peak.device, limit.device_gb, whole_gb, advice)
    what, advice = "its training state in the host memory of a node", "; more training nodes help"
    waiting = max(one.waiting, peak.loading)
    yield _Check(what, waiting, waiting, limit.node_gb, limit.machine_gb, advice)
    if limit.node_gb is None or waiting / 1e9 <= limit.node_gb:
        what += ", with the copy that a checkpoint is written from,"
        yield _Check(what, waiting, one.waiting + one.written, limit.node_gb, limit.machine_gb, advice)
    limit = there["rollout"]
    whole_gb = limit.device_gb if one.on_gpu["rollout"] else limit.machine_gb
    yield _Check("sampling", sampling.weights, sampling.device, limit.device_gb, whole_gb)
    waiting = one.engines * sampling.asleep + sampling.staged
    yield _Check("its weights in the host memory of a rollout node", waiting, waiting, limit.node_gb, limit.machine_gb)


def _size(spec: TaskJob) -> ModelSize:
    if spec.model.name == TINY:
        return tiny_size(tiny_config(spec.model))
    folder = local_directory(spec.path(spec.model.name))
    return size_of(read_model_files(folder), read_json(folder / "config.json"))


def checkpoint_bytes(spec: JobSpec) -> int:
    """Bytes of a checkpoint; 0 of a job without any, and of a class, of which nobody knows.

    Raises:
        InputError: the model is not there; one line.
    """
    if not isinstance(spec, TaskJob) or not spec.checkpoint.is_wanted:
        return 0
    return _BYTES * _size(spec).parameters


def missing_bytes(spec: JobSpec, folder: Path) -> int:
    """Bytes that a job's checkpoints will yet take in the folder of its run: those that are kept, and one that is being written.

    A model that is not there counts as none: whoever loads it says so.
    """
    try:
        size = checkpoint_bytes(spec)
    except InputError:
        return 0
    if not size or not isinstance(spec, TaskJob):
        return 0
    return max(0, (spec.checkpoint.keep + 1) * size - _bytes_below(folder / CHECKPOINTS / spec.id))


def _bytes_below(folder: Path) -> int:
    """Bytes of the files in a folder that its job may be changing."""
    size = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                size += Path(place, name).lstat().st_size
    return size


def check_space(specs: Iterable[JobSpec], folder: Path, where: str) -> None:
    """Make sure that there is room for the checkpoints of jobs.

    Args:
        folder: of their run. where: what error messages begin with.

    Raises:
        InputError: there is less; one line.
    """
    needed = sum(missing_bytes(spec, folder) for spec in specs)
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise InputError(
            f"{where}: {one_line(str(folder), 4096)} is on a disk with {free / 1e9:.1f} GB free; checkpoints need "
            f"{needed / 1e9:.1f} GB: those that checkpoint.keep says, and one more"
        )


async def wait_for_room(folder: Path, least: int, over: Callable[[], bool]) -> None:
    """Wait until the file system of a folder has more free bytes than it has had since there was no room, or for a minute.

    Args:
        least: free bytes when there was none. over: nobody waits any more.
    """
    began_s = monotonic()
    while not over():
        await asyncio.sleep(_LOOKS_S)
        passed_s, free = monotonic() - began_s, free_bytes(folder)
        least = min(least, free)  # others write there too: what is made free need not be more than there was
        if passed_s > _LONGEST_S or (passed_s > _AGAIN_S and free > least):
            return


def free_bytes(folder: Path) -> int:
    """Of the file system of a folder; 0 where nobody says."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return 0


def with_shapes(spec: JobSpec, profiled: Job, cluster: Cluster, nodes: Sequence[Node]) -> Job:
    """A profiled job with its shapes, each with worst cases and memory.

    Seconds are the profile's, times what the timing model (docs/reference/timing.md) says of these numbers of nodes against the
    job's own. Where it does not know the GPU of a pool, which has to be named in the cluster, or there is none, the work is taken
    to be divided evenly. Host memory of a training node is the profile's, more or less by what the forecast of memory differs;
    that of a rollout node, and GPU memory between phases, are the profile's.

    Args:
        nodes: of the run, of both pools.
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
    """What is known anew of a job's shapes, a line for each of them."""
    for number, pair in enumerate(zip(former.shapes, job.shapes, strict=True), 1):
        if pair[0] != pair[1]:
            seconds = [phase.worst_case_s for phase in job.phases(number)]
            yield f"in shape {number} it is planned with rollout {seconds[0]:.2f} s, training {seconds[1]:.2f} s from now on"


class _Estimate:
    """Of a phase of a job with a task, on other numbers of nodes."""

    def __init__(self, forecast: Forecast, cluster: Cluster, nodes: Sequence[Node], side: Side) -> None:
        self._forecast, self._spec, self._side = forecast, forecast.spec, side
        self._pool, self._folder = cluster.pools[side], Path(forecast.spec.folder)
        self._gpus = len(nodes_of(side, nodes)[0].gpus)

    def times(self, own: int, wanted: int) -> float:
        """How many times as long the phase takes on `wanted` nodes as on `own`."""
        try:
            return self._seconds(wanted) / self._seconds(own)
        except InputError:  # a GPU that nobody has measured, none at all, or a model that it is too small for
            return self._share(wanted) / self._share(own)

    def more_gb(self, own: int, wanted: int) -> float:
        """Host memory on a node beside what it takes on `own` nodes, GB."""
        if self._side == "rollout":
            return 0.0
        return (self._waiting(wanted) - self._waiting(own)) / 1e9

    def _waiting(self, number: int) -> int:
        workers, on_gpu = self._forecast.on_node["training"], self._forecast.on_gpu["training"]
        offloads = self._spec.training.cpu_offload
        return workers * training_peak(self._forecast.size, self._spec.algorithm, number * workers, on_gpu, offloads).waiting

    def _share(self, number: int) -> int:
        """Responses of the worker that has most of them."""
        return ceil(self._batch / (number * self._forecast.on_node[self._side]))

    def _seconds(self, number: int) -> float:
        """As the timing model has it.

        Raises:
            InputError: it does not know the GPU, or how fast that trains.
        """
        if not self._gpus:
            raise InputError("a CPU is not in the catalogue")
        gpus = Nodes(self._side, hardware(self._pool.gpu, self._folder), number, self._gpus)
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
