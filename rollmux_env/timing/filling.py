"""Predicts the missing numbers of jobs that name a model.

Values that the job gives are kept. The others are predicted from its model on the cluster's GPUs: seconds and host memory of both
phases with all responses at the cap (`worst_case_s`), the fractions of it that the job's lengths take (`actual`), the sync,
training on more nodes, both phases co-located on the training nodes, and the parts of the phases (`timing`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from math import inf
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from rollmux_env.errors import InputError
from rollmux_env.fields import NodeCount
from rollmux_env.keys.cluster import SIDES, Cluster, Side
from rollmux_env.keys.model import Lengths, Model
from rollmux_env.timing.hardware import hardware
from rollmux_env.timing.jobs import actual_of, lengths_of, responses_of
from rollmux_env.timing.lengths import read_lengths
from rollmux_env.timing.models import model_shape
from rollmux_env.timing.replica import Parallelism, ReplicaTiming, replica_timing
from rollmux_env.timing.rollouts import worst_rollout_s
from rollmux_env.timing.shapes import PoolNodes
from rollmux_env.timing.training import MiniBatch, TrainingTiming, even_load, even_plan
from rollmux_env.timing.trajectories import groups_of, read_trajectories
from rollmux_env.timing.weights import rollout_memory_gb, sync_s, training_memory_gb
from rollmux_env.validation_errors import format_error, not_one_of, problems

Found = TypeVar("Found")
_MORE_NODES = (2, 4)  # multiples of training.nodes for which `by_nodes` is predicted
_PHASES = 3  # transfers of a batch by the controller: from the rollout, for log-probabilities, for the update


def fill_in(data: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return a file's mapping with the missing values of its jobs predicted. A job with `timing` is complete.

    Args:
        data: Mapping of a scenario file, with the defaults of its jobs merged.
        folder: Directory to which the paths of models, lengths and hardware are relative.

    Raises:
        InputError: If a model, GPU or distribution is invalid or does not fit the others. The message begins at `jobs[k]`.
    """
    if data.get("cluster") is None:
        raise InputError("cluster: is missing")
    cluster: Cluster = _parse_part(Cluster, data["cluster"], "cluster")
    jobs = []
    for k, job in enumerate(data["jobs"]):
        predicted = isinstance(job, dict) and job.get("model") is not None and job.get("timing") is None
        jobs.append(_fill_in(job, k, cluster, folder) if predicted else job)
    return data | {"jobs": jobs}


def _fill_in(job: dict[str, Any], k: int, cluster: Cluster, folder: Path) -> dict[str, Any]:
    description, path = job["model"], f"jobs[{k}]"
    model = _parse_part(Model, {"name": description} if isinstance(description, str) else description, "jobs", k, "model")
    if job.get("lengths") is None:
        raise InputError(f"{path}.lengths: is missing; a model needs it")
    lengths = _resolve_files(_parse_part(Lengths, job["lengths"], "jobs", k, "lengths"), path, folder)
    phases = {name: {} if job.get(name) is None else job[name] for name in SIDES}
    if not all(isinstance(phase, dict) for phase in phases.values()):
        return job  # the validation of the whole file reports it
    for name, phase in phases.items():
        if phase.get("actual") is not None:
            raise InputError(f"{path}.{name}.actual: does not go with a model, whose durations are drawn from its lengths")
    numbers = {name: _parse_part(NodeCount, phase.get("nodes", 1), "jobs", k, name, "nodes") for name, phase in phases.items()}
    places = {
        side: _place(phases[side].get("pool", side), side, numbers[side], cluster, path, folder) for side in reversed(cluster.sides)
    }
    if cluster.one_device:
        places["rollout"] = places["training"]
    prediction = _Prediction(path, model, lengths, places, folder)
    link_gb_s = inf if cluster.network is None else cluster.network.link_gbps / 8
    return (
        {"timing": prediction.timing(), **prediction.sync(link_gb_s), **prediction.colocated(phases["training"])}
        | job
        | {"lengths": lengths.model_dump(mode="json", exclude_none=True)}
        | {"rollout": prediction.rollout() | phases["rollout"], "training": prediction.training() | phases["training"]}
    )


def _place(name: Any, side: Side, number: int, cluster: Cluster, path: str, folder: Path) -> PoolNodes:
    """Return the nodes that a phase asks for."""
    if not isinstance(name, str) or name not in cluster.pools:
        raise InputError(f"{path}.{side}.pool: {not_one_of(name, cluster.pools)}")
    pool, named = cluster.pools[name], f"cluster.pools.{name}" if cluster.by_name else f"cluster.{side}"
    return PoolNodes(name, _look_up(hardware, pool.gpu, f"{named}.gpu", folder), number, pool.gpus_per_node)


def _look_up(look: Callable[[str, Path], Found], name: str, path: str, folder: Path) -> Found:
    try:
        return look(name, folder)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _parse_part(model: Any, value: Any, *path: str | int) -> Any:
    """Validate a part of the file before the whole file is validated."""
    try:
        return TypeAdapter(model).validate_python(value)
    except ValidationError as error:
        raise InputError(format_error(problems(error)[0], model if isinstance(model, type) else None, *path)) from None


def _resolve_files(lengths: Lengths, path: str, folder: Path) -> Lengths:
    """Return lengths that no longer refer to a file."""
    try:
        if lengths.file is not None:
            points = read_lengths(folder / lengths.file, lengths.cap).points
            lengths = lengths.model_copy(update={"file": None, "quantiles": points})
        if lengths.trace is not None:
            trace = folder / lengths.trace
            observed = groups_of(read_trajectories(trace), trace)
            lengths = _parse_part(Lengths, lengths.model_dump(exclude_none=True, exclude={"trace"}) | {"observed": observed})
        lengths_of(lengths)
    except InputError as error:
        raise InputError(f"{path}.lengths: {error}") from None
    return lengths


class _Prediction:
    """The prediction for a job's model, as keys of a scenario file.

    Args:
        path: Path of the job in the file, for error messages.
        model: Model that the job names.
        lengths: Response lengths that do not refer to a file.
        places: Nodes of the job's phases, by side.
        folder: Directory to which the model's path is relative.
    """

    def __init__(self, path: str, model: Model, lengths: Lengths, places: dict[Side, PoolNodes], folder: Path) -> None:
        at = f"{path}.model"
        self._model = model
        self._lengths = lengths
        self._responses = responses_of(lengths)
        self._longest = self._responses.tokens(lengths.cap)
        self._places = places
        self._shape = _look_up(model_shape, model.name, f"{at}.name", folder)
        parallel, devices, of_one = model.tensor_parallel, places["rollout"].devices, places["rollout"].gpus
        if devices % parallel:
            raise InputError(f"{at}.tensor_parallel: must divide the {devices} GPUs of its rollout nodes, not be {parallel}")
        for size in model.sizes:
            if devices % size or size > of_one:
                inside = f"the {devices} GPUs of its rollout nodes, and be at most the {of_one} of one"
                raise InputError(f"{at}.sizes: must divide {inside}, not {size}")
        try:
            self._measured = {size: _look_up(hardware, file, f"measured.{size}", folder) for size, file in model.measured.items()}
            self._replica = self._replica_on("rollout", parallel)
            self._sizes = [(size, self._replica_of(size)) for size in (parallel, *model.sizes)] if model.sizes else []
            self._training = self._training_on(places["training"].devices)
            self._worst_s = worst_rollout_s(self._replica, devices // parallel, self._responses, lengths.cap)
            self._actual = actual_of(self._replica, devices // parallel, self._training, lengths)
        except InputError as error:
            raise InputError(f"{at}: {error}") from None

    def timing(self) -> dict[str, Any]:
        """Return the key `timing`."""
        training = self._training
        sizes = [{"tensor_parallel": size, **asdict(replica)} for size, replica in self._sizes]
        return {
            "replicas": self._places["rollout"].devices // self._model.tensor_parallel,
            **asdict(self._replica),
            "update_s": training.update_s,
            "training_s_per_token": training.s_per_token,
            "training_s_per_token2": training.s_per_token2,
            "training_copies": training.copies,
            "training_padded": training.padded,
            **({"sizes": sizes} if sizes else {}),
        }

    def rollout(self) -> dict[str, Any]:
        """Return the predicted keys of `rollout`."""
        place = self._places["rollout"]
        sizes = (self._model.tensor_parallel, *self._model.sizes)  # the engines of all sizes stay in host memory
        memory_gb = sum(rollout_memory_gb(self._shape, place.gpus, size, place.hardware.number_bytes) for size in sizes)
        return {"worst_case_s": _round(self._worst_s), "host_memory_gb": _round(memory_gb), "actual": self._actual[0]}

    def training(self) -> dict[str, Any]:
        """Return the predicted keys of `training`."""
        place = self._places["training"]
        by_nodes = {
            f"{factor * place.number}": _round(self._worst_training_s(self._training_on(factor * place.devices)))
            for factor in _MORE_NODES
        }
        return {
            "worst_case_s": _round(self._worst_training_s(self._training)),
            "host_memory_gb": _round(training_memory_gb(self._shape, place.gpus, place.number)),
            "actual": self._actual[1],
            "by_nodes": by_nodes,
        }

    def sync(self, link_gb_s: float) -> dict[str, Any]:
        """Return `sync_s`, and `sync_gb` if the link between the pools has a finite rate.

        Args:
            link_gb_s: Rate of the link between the pools, in GB/s.
        """
        rollout, training = self._places["rollout"], self._places["training"]
        weights_gb = self._shape.parameters * rollout.hardware.number_bytes / 1e9
        sides = training.hardware, training.devices, rollout.hardware, rollout.devices
        seconds = {"sync_s": _round(sync_s(weights_gb, *sides, rollout.number, link_gb_s))}
        return seconds if link_gb_s == inf else seconds | {"sync_gb": _round(weights_gb)}

    def colocated(self, training: dict[str, Any]) -> dict[str, Any]:
        """Return the key `colocated`, or nothing if the model does not fit the training nodes.

        Args:
            training: Values that the job gives for its training.
        """
        training_s = training.get("worst_case_s", _round(self._worst_training_s(self._training)))
        parallel, place = self._model.tensor_parallel, self._places["training"]
        while place.devices % parallel == 0:
            try:
                replica = self._replica_on("training", parallel)
                rollout_s = worst_rollout_s(replica, place.devices // parallel, self._responses, self._lengths.cap)
            except InputError:  # training GPUs may have less memory than rollout GPUs, so that a copy needs more of them
                parallel *= 2
                continue
            return {"colocated": {"nodes": place.number, "rollout_s": _round(rollout_s), "training_s": training_s}}
        return {}

    def _replica_on(self, side: Side, size: int) -> ReplicaTiming:
        """Return a replica of `size` GPUs of a side. A measured engine counts as one device."""
        place = self._places[side]
        if side == "rollout" and size in self._measured:
            return replica_timing(self._shape, self._measured[size])
        return replica_timing(self._shape, place.hardware, size, machine=place.gpus)

    def _replica_of(self, size: int) -> ReplicaTiming:
        """Return a rollout replica of another size.

        Raises:
            InputError: If its KV cache cannot hold the longest response.
        """
        replica = self._replica_on("rollout", size)
        if replica.kv_tokens <= self._longest:
            room = f"holds {replica.kv_tokens} tokens, and a response has up to {self._longest}"
            raise InputError(f"the cache of a copy on {size} GPUs {room}")
        return replica

    def _training_on(self, devices: int) -> TrainingTiming:
        """Return the cost of a training with one copy of the model per GPU.

        The fixed part includes the controller, which sends the batch to each phase, and the rewards.
        """
        place, batch, tokens = self._places["training"], self._lengths.batch, self._longest
        plan = even_plan(self._shape, place.hardware, Parallelism(1, 1, devices), place.gpus)
        system = place.hardware.system
        timing = plan.timing(even_load(system, batch, tokens, tokens))
        around_s = _PHASES * system.controller_s(batch * tokens) + batch * system.response_s
        return replace(timing, update_s=timing.update_s + around_s)

    def _worst_training_s(self, timing: TrainingTiming) -> float:
        return timing.seconds(MiniBatch.even(self._lengths.batch, self._longest))


def _round(value: float) -> float:
    """Round to a microsecond or a kilobyte, so that a scenario has the same hash on every machine."""
    return round(value, 6)
