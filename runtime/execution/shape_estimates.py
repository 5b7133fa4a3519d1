"""Shapes of a job that runs: what its file does not say of them is estimated from its profile, until it has been measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil
from pathlib import Path
from typing import Any, cast

from rollmux_env.errors import InputError
from rollmux_env.keys.cluster import SIDES, Cluster, Side
from rollmux_env.keys.job import Job
from rollmux_env.keys.phases import Phase
from rollmux_env.keys.shapes import PhaseShape, Shape, TrainingShape
from rollmux_env.timing.hardware import hardware
from rollmux_env.timing.models import ModelShape, model_shape
from rollmux_env.timing.replica import Parallelism
from rollmux_env.timing.rollouts import Responses
from rollmux_env.timing.shapes import Nodes, rollout_time, training_time
from runtime.execution.forecast import Forecast, forecasts, nodes_of
from runtime.jobs.grpo_spec import TINY
from runtime.jobs.models import tiny_config
from runtime.jobs.shapes import named, nodes_in
from runtime.jobs.spec import JobSpec
from runtime.machine import Node
from runtime.training.memory import training_peak

_LEAST_S = 1e-6


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
            if values := named(shape, side):
                wanted, own = nodes_in(spec, number)[side], cast("Phase", getattr(profiled, side))
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
        if model.name != TINY:
            return model_shape(str(self._spec.path(model.name)))
        config: dict[str, Any] = tiny_config(model)
        heads, hidden = config["num_attention_heads"], config["hidden_size"]
        return ModelShape(
            hidden=hidden,
            layers=config["num_hidden_layers"],
            heads=heads,
            kv_heads=config["num_key_value_heads"],
            head=hidden // heads,
            intermediate=config["intermediate_size"],
            vocabulary=config["vocab_size"],
            tied=False,
        )
