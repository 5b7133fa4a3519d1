"""What crosses the fabric in an iteration of a disaggregated job, step by step, and how long the fabric idles before each step.

One iteration of training goes through its mini-batches. Each is a `pipeline` step (activations between stages, and what experts or
wide tensor-parallel groups send, beside the computing) and a `gradients` step (reduce-scatter and all-gather among replicas). Then
the `weights` go to the GPUs that generate. Generation for the next iteration runs beside the training, one step off-policy, and the
weights wait for both. What replicas over several nodes send while they generate crosses beside the pipeline steps, evenly; those
that fit into nodes send nothing over the fabric. Traffic that the user gives takes the place of a kind's own.

Idle before a `pipeline` step: the first stage's forward pass of the first micro-batch. Before `gradients`: the last backward pass
of a micro-batch, after its stage has sent what it had to. Before `weights`: the optimizer, and the wait for generation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil, inf
from typing import NamedTuple

from rollmux_env.errors import InputError
from rollmux_env.network.traffic import (
    Layout,
    Traffic,
    data_traffic,
    expert_traffic,
    joined,
    pipeline_traffic,
    tensor_traffic,
    weight_traffic,
)
from rollmux_env.timing.batch import Batch
from rollmux_env.timing.calibration import PHYSICAL
from rollmux_env.timing.hardware import GPUS, HBM_SHARE
from rollmux_env.timing.models import ALL_SHAPES
from rollmux_env.timing.replica import MACHINE
from rollmux_env.timing.rl_job import Workers, generation_s, load_of, training_plan

PATTERNS = ("pipeline", "gradients", "weights")
PIPELINE, GRADIENTS, WEIGHTS = range(3)
_NUMBER_BYTES = 2  # of activations, gradients and weights on their way
_SYSTEM = replace(PHYSICAL, controller_gb_s=inf)  # responses go to their trainers one by one: no controller sends whole batches
_OPTIMIZER_BYTES = 28  # read and written for each parameter: gradient, master weight and both moments in fp32, and the new weight


class Step(NamedTuple):
    """A part of an iteration that uses the fabric.

    Attributes:
        pattern: index into `PATTERNS`. before_s: computing before it, in which the fabric idles: the slack. beside_s: computing
            that its traffic goes on beside: the step takes the longer of the two.
    """

    pattern: int
    before_s: float
    beside_s: float


@dataclass(frozen=True)
class Iteration:
    """What an iteration is expected to be.

    Attributes:
        traffic: flows of each pattern. steps: in order; the last is the only `weights`. generation_s: of all responses.
    """

    traffic: tuple[Traffic, ...]
    steps: tuple[Step, ...]
    generation_s: float


@dataclass(frozen=True)
class FabricJob:
    """A job that fills a cluster: generation on some GPUs, training on the others.

    Attributes:
        model: a key of `ALL_SHAPES`. training: tensor, pipeline, data. generating, replica: GPUs that generate, and
            of a replica. batch: of an iteration. experts: replicas of training that hold all experts together. gpu: of all.
        flows: of steps of a kind, a name of `PATTERNS`, in place of those that the model sends.
    """

    model: str
    training: Layout
    generating: int
    replica: int
    batch: Batch
    experts: int = 1
    gpu: str = "H800"
    flows: Mapping[str, Traffic] = field(default_factory=dict)

    @property
    def gpus(self) -> int:
        """All of them."""
        return self.training.gpus + self.generating


def iteration_of(job: FabricJob) -> Iteration:
    """What crosses the fabric in an iteration of a job, and what it computes meanwhile.

    Raises:
        InputError: a replica that generates fills part of a node, or numbers that do not go together; one line.
    """
    if job.generating < 1 or job.generating % job.replica or job.replica % min(job.replica, MACHINE):
        must = f"must fit into nodes or fill them, and divide {job.generating} GPUs"
        raise InputError(f"fabric job: replicas of {job.replica} GPUs {must}")
    layout, batch, model = job.training, job.batch, ALL_SHAPES[job.model]
    workers = Workers(job.gpu, layout.gpus, layout.tensor * layout.pipeline, layout.pipeline)
    load = load_of(batch, _SYSTEM)
    computing_s = training_plan(model, workers, _SYSTEM).computing_s(load) / batch.updates
    tokens = float((batch.prompt_tokens + batch.tokens()).sum()) / batch.updates / layout.data  # of a replica in an update
    micro_batches = max(1, ceil(tokens / (batch.prompt_tokens + batch.lengths.cap)))
    micro_s = computing_s / (micro_batches + layout.pipeline - 1)
    forward_s = micro_s / load.passes
    steps = [
        step
        for _ in range(batch.updates)
        for step in (Step(PIPELINE, forward_s, computing_s - micro_s), Step(GRADIENTS, micro_s - forward_s, 0.0))
    ]
    hbm = GPUS[job.gpu].hbm_tb_s * 1e12 * HBM_SHARE
    steps.append(Step(WEIGHTS, model.parameters * _OPTIMIZER_BYTES / layout.gpus / hbm, 0.0))
    generation = Layout(layout.first + layout.gpus, job.replica, 1, job.generating // job.replica)
    workers = Workers(job.gpu, job.generating, job.replica)
    beside = joined(_pipeline(job, tokens), _generation(job, generation, tokens * layout.data / generation.data))
    own = (beside, _gradients(job), weight_traffic(layout, generation, _gb(model.parameters)))
    traffic = tuple(job.flows.get(name, computed) for name, computed in zip(PATTERNS, own, strict=True))
    return Iteration(traffic, tuple(steps), generation_s(model, workers, batch, _SYSTEM))


def _gb(numbers: float) -> float:
    return numbers * _NUMBER_BYTES / 1e9


def _pipeline(job: FabricJob, tokens: float) -> Traffic:
    """Of an update: activations of all tokens over each boundary; four all-reduces of them in each layer of a stage, and two more
    as activations are recomputed; to the experts and back likewise."""
    layout, model = job.training, ALL_SHAPES[job.model]
    passes = 2 + _SYSTEM.recomputed
    layers = model.layers / layout.pipeline
    activations = _gb(tokens * model.hidden)
    parts = [pipeline_traffic(layout, activations), tensor_traffic(layout, 2 * passes * layers * activations, MACHINE)]
    if model.experts > 1:
        sent = 2 * passes * layers * activations * model.active / layout.tensor
        parts.append(expert_traffic(layout, job.experts, sent))
    return joined(*parts)


def _generation(job: FabricJob, layout: Layout, tokens: float) -> Traffic:
    """All-reduces of replicas that generate over several nodes, two in each layer, for their part of an update's tokens."""
    model = ALL_SHAPES[job.model]
    return tensor_traffic(layout, 2 * model.layers * _gb(tokens * model.hidden), MACHINE)


def _gradients(job: FabricJob) -> Traffic:
    """Gradients and weights of what every replica has; experts are reduced among groups of replicas that hold the same ones."""
    layout, model = job.training, ALL_SHAPES[job.model]
    shared = data_traffic(layout, _gb(model.parameters - model.expert_parameters))
    groups = layout.data // job.experts
    if model.experts == 1 or groups == 1:
        return shared
    # Each of the groups is taken as one replica with the ranks of all its members, whose experts are different ones.
    wide = replace(layout, tensor=layout.tensor * job.experts, data=groups)
    return joined(shared, data_traffic(wide, _gb(model.expert_parameters)))
