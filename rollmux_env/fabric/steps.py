"""The traffic that crosses the fabric in an iteration of a disaggregated job, step by step, and the slack before each step.

Training processes its mini-batches one after the other. Each is a `pipeline` step (activations between stages, and the messages of
experts and of tensor-parallel groups over several nodes, which overlap with computation) and a `gradients` step (reduce-scatter and
all-gather among replicas). Then the `weights` step sends the weights to the GPUs that generate. Generation for the next iteration
runs during the training, one step off-policy, and the `weights` step waits for both. The messages of generating replicas that span
several nodes are spread evenly over the pipeline steps; replicas within a node send nothing over the fabric. Traffic that the user
gives replaces that of its kind.

The fabric is idle before a `pipeline` step during the first stage's forward pass of the first micro-batch; before a `gradients`
step during the last backward pass of a micro-batch; and before the `weights` step during the optimizer's step and the wait for
generation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil, inf
from typing import NamedTuple

from rollmux_env.errors import InputError
from rollmux_env.fabric.traffic import (
    RankLayout,
    Traffic,
    data_traffic,
    expert_traffic,
    joined,
    pipeline_traffic,
    tensor_traffic,
    weight_traffic,
)
from rollmux_env.fidelity.batch import ResponseBatch
from rollmux_env.fidelity.rl_job import Workers, generation_s, load_of, training_plan
from rollmux_env.timing.calibration import PHYSICAL
from rollmux_env.timing.hardware import GPUS, HBM_SHARE
from rollmux_env.timing.models import ALL_SHAPES
from rollmux_env.timing.replica import MACHINE

PATTERNS = ("pipeline", "gradients", "weights")
PIPELINE, GRADIENTS, WEIGHTS = range(3)
_NUMBER_BYTES = 2  # bytes per value of transferred activations, gradients and weights
_SYSTEM = replace(PHYSICAL, controller_gb_s=inf)  # no controller sends whole batches: each response goes directly to its trainer
# Bytes read and written per parameter: gradient, master weight and both moments in fp32, and the new weight.
_OPTIMIZER_BYTES = 28


class FabricStep(NamedTuple):
    """A part of an iteration that uses the fabric.

    Attributes:
        pattern: Index into `PATTERNS`.
        before_s: Slack: seconds of computation before the step, in which the fabric is idle.
        beside_s: Seconds of computation that overlap with the step's traffic. The step takes the longer of the two.
    """

    pattern: int
    before_s: float
    beside_s: float


@dataclass(frozen=True)
class ExpectedIteration:
    """An expected iteration.

    Attributes:
        traffic: Flows of each pattern, in the order of `PATTERNS`.
        steps: Steps in order. The last one is the only `weights` step.
        generation_s: Seconds in which all responses are generated.
    """

    traffic: tuple[Traffic, ...]
    steps: tuple[FabricStep, ...]
    generation_s: float


@dataclass(frozen=True)
class FabricJob:
    """A job that fills a cluster: some GPUs generate, the others train.

    Attributes:
        model: Name of the model, a key of `ALL_SHAPES`.
        training: Parallelism of the training.
        generating: Number of GPUs that generate.
        replica: Number of GPUs of a generating replica.
        batch: Batch of an iteration.
        experts: Number of training replicas that hold all experts together.
        gpu: Type of all GPUs.
        flows: Flows of a step by its kind, a name of `PATTERNS`, that replace those computed from the model.
    """

    model: str
    training: RankLayout
    generating: int
    replica: int
    batch: ResponseBatch
    experts: int = 1
    gpu: str = "H800"
    flows: Mapping[str, Traffic] = field(default_factory=dict)

    @property
    def gpus(self) -> int:
        """Number of all GPUs."""
        return self.training.gpus + self.generating


def iteration_of(job: FabricJob) -> ExpectedIteration:
    """Return the traffic of an iteration of a job, and the computation between and during it.

    Raises:
        InputError: If a generating replica fills only a part of its last node, or the numbers do not fit together.
    """
    if job.generating < 1 or job.generating % job.replica or job.replica % min(job.replica, MACHINE):
        must = f"must fit into nodes or fill them, and divide {job.generating} GPUs"
        raise InputError(f"fabric job: replicas of {job.replica} GPUs {must}")
    layout, batch, model = job.training, job.batch, ALL_SHAPES[job.model]
    workers = Workers(job.gpu, layout.gpus, layout.tensor * layout.pipeline, layout.pipeline)
    load = load_of(batch, _SYSTEM)
    computing_s = training_plan(model, workers, _SYSTEM).computing_s(load) / batch.updates
    tokens = float((batch.prompt_tokens + batch.tokens()).sum()) / batch.updates / layout.data  # tokens of a replica in an update
    micro_batches = max(1, ceil(tokens / (batch.prompt_tokens + batch.lengths.cap)))
    micro_s = computing_s / (micro_batches + layout.pipeline - 1)
    forward_s = micro_s / load.passes
    steps = [
        step
        for _ in range(batch.updates)
        for step in (FabricStep(PIPELINE, forward_s, computing_s - micro_s), FabricStep(GRADIENTS, micro_s - forward_s, 0.0))
    ]
    hbm = GPUS[job.gpu].hbm_tb_s * 1e12 * HBM_SHARE
    steps.append(FabricStep(WEIGHTS, model.parameters * _OPTIMIZER_BYTES / layout.gpus / hbm, 0.0))
    generation = RankLayout(layout.first + layout.gpus, job.replica, 1, job.generating // job.replica)
    workers = Workers(job.gpu, job.generating, job.replica)
    beside = joined(_pipeline(job, tokens), _generation(job, generation, tokens * layout.data / generation.data))
    own = (beside, _gradients(job), weight_traffic(layout, generation, _gb(model.parameters)))
    traffic = tuple(job.flows.get(name, computed) for name, computed in zip(PATTERNS, own, strict=True))
    return ExpectedIteration(traffic, tuple(steps), generation_s(model, workers, batch, _SYSTEM))


def _gb(numbers: float) -> float:
    return numbers * _NUMBER_BYTES / 1e9


def _pipeline(job: FabricJob, tokens: float) -> Traffic:
    """Return the traffic of an update's pipeline step.

    All activations cross each boundary between stages. Each layer of a stage has four all-reduces of them, and two more since
    activations are recomputed. The transfers to the experts and back are counted in the same way.
    """
    layout, model = job.training, ALL_SHAPES[job.model]
    passes = 2 + _SYSTEM.recomputed
    layers = model.layers / layout.pipeline
    activations = _gb(tokens * model.hidden)
    parts = [pipeline_traffic(layout, activations), tensor_traffic(layout, 2 * passes * layers * activations, MACHINE)]
    if model.experts > 1:
        sent = 2 * passes * layers * activations * model.active / layout.tensor
        parts.append(expert_traffic(layout, job.experts, sent))
    return joined(*parts)


def _generation(job: FabricJob, layout: RankLayout, tokens: float) -> Traffic:
    """Return the all-reduces of generating replicas over several nodes, two per layer, for an update's share of the tokens."""
    model = ALL_SHAPES[job.model]
    return tensor_traffic(layout, 2 * model.layers * _gb(tokens * model.hidden), MACHINE)


def _gradients(job: FabricJob) -> Traffic:
    """Return the exchange of gradients and weights among replicas.

    Experts are reduced only among the groups of replicas that hold the same ones.
    """
    layout, model = job.training, ALL_SHAPES[job.model]
    shared = data_traffic(layout, _gb(model.parameters - model.expert_parameters))
    groups = layout.data // job.experts
    if model.experts == 1 or groups == 1:
        return shared
    # A group counts as one replica with the ranks of all its members, since its members hold different experts.
    wide = replace(layout, tensor=layout.tensor * job.experts, data=groups)
    return joined(shared, data_traffic(wide, _gb(model.expert_parameters)))
