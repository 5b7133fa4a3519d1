"""The cost of one rollout replica: a model, or the layers of a pipeline stage, on a tensor-parallel group with continuous batching.

Each decode step reads the weights and the cached keys and values, or is limited by arithmetic if many sequences share the step.
Prefill is limited by arithmetic. The formulas are those of roofline models such as HexGen's (in AReaL-Hex, arXiv 2511.00796), with
the reading of the KV cache added.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, ClassVar, NamedTuple

from pydantic import Field

from rollmux_env.errors import InputError
from rollmux_env.fields import Checked, NonNegative
from rollmux_env.kernel.tables import Floats
from rollmux_env.timing.hardware import Hardware, Link
from rollmux_env.timing.models import ModelShape

ALL_REDUCES = (
    2  # all-reduces of tensor parallelism per layer and forward pass: after the attention and after the feed-forward network
)
MACHINE = 8  # default number of GPUs per machine
SIZES = (1, 2, 4, 8)  # numbers of GPUs per replica from which rollout policies choose


class Parallelism(NamedTuple):
    """The division of a model and its batch among the GPUs of a phase.

    Attributes:
        tensor: Number of GPUs that share each layer.
        stages: Number of pipeline stages.
        copies: Number of copies of the model, which share the batch.
    """

    tensor: int
    stages: int
    copies: int


@dataclass(frozen=True)
class ReplicaTiming(Checked):
    """Seconds of a replica's steps, and the size of its KV cache.

    A decode step of B sequences whose contexts (prompt and sampled tokens) sum to C tokens takes `step_s + message_s * B +
    max(weights_s + kv_s_per_token * C, sequence_s * B)` seconds: memory traffic or arithmetic, whichever is larger. The prefill of
    n tokens takes `prefill_s + prefill_s_per_token * n + prefill_s_per_token2 * n**2` seconds.

    Attributes:
        step_s: Fixed overhead of a decode step, in seconds.
        weights_s: Time to read the weights, once per step, in seconds.
        kv_s_per_token: Time to read one cached token, in seconds.
        sequence_s: Arithmetic of one token of one sequence in a decode step, in seconds.
        prefill_s_per_token: Arithmetic of one prefilled token, in seconds.
        prefill_s_per_token2: Attention of a prefill per pair of tokens of one sequence, in seconds.
        prefill_s: Fixed overhead of a prefill, in seconds.
        kv_tokens: Capacity of the KV cache, in tokens. Sequences beyond it are preempted and recomputed.
        message_s: Messages of one token of one sequence between the replica's GPUs in a decode step, in seconds.

    Raises:
        InputError: If a time is negative or the cache has no room.
    """

    what: ClassVar[str] = "replica timing"
    step_s: NonNegative
    weights_s: NonNegative
    kv_s_per_token: NonNegative
    sequence_s: NonNegative
    prefill_s_per_token: NonNegative
    prefill_s_per_token2: NonNegative
    prefill_s: NonNegative
    kv_tokens: Annotated[int, Field(ge=1)]
    message_s: NonNegative = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.step_s + self.weights_s <= 0:
            raise InputError("replica timing: step_s + weights_s must be above 0")

    @property
    def costs(self) -> tuple[float, ...]:
        """The seconds as a simulated rollout reads them, shape (COSTS,).

        The order is that of STEP to EXPERT_SHARE in `rollmux_env.kernel.rollout_records`.
        """
        return (
            self.step_s,
            self.weights_s,
            self.kv_s_per_token,
            self.sequence_s,
            self.prefill_s_per_token,
            self.prefill_s_per_token2,
            self.prefill_s,
            self.message_s,
            0.0,
            0.0,
        )

    def weights_seconds(self, sequences: float | Floats) -> float | Floats:
        """Return the seconds in which a step of `sequences` sequences reads the weights."""
        return self.weights_s

    def decode_s(self, sequences: float, context_tokens: float) -> float:
        """Return the seconds of one decode step.

        Args:
            sequences: Number of sequences of the step.
            context_tokens: Total length of their contexts, in tokens.
        """
        memory_s = float(self.weights_seconds(sequences)) + self.kv_s_per_token * context_tokens
        return self.step_s + self.message_s * sequences + max(memory_s, self.sequence_s * sequences)

    def prefill_seconds(self, tokens: int) -> float:
        """Return the seconds to prefill one sequence of `tokens` tokens."""
        return self.prefill_s + self.prefill_s_per_token * tokens + self.prefill_s_per_token2 * tokens * tokens


@dataclass(frozen=True)
class MixtureTiming(ReplicaTiming):
    """Seconds of a replica of a mixture of experts.

    A step reads the experts to which at least one of its sequences' tokens is routed. Each token chooses independently.

    Attributes:
        experts_s: Time to read all experts, in seconds; `weights_s` covers the weights that every step reads.
        expert_share: Share of the experts to which one token is routed.
    """

    experts_s: NonNegative
    expert_share: NonNegative

    @property
    def costs(self) -> tuple[float, ...]:
        """The seconds as a simulated rollout reads them, with those of the experts, shape (COSTS,)."""
        return (*super().costs[:-2], self.experts_s, self.expert_share)

    def weights_seconds(self, sequences: float | Floats) -> float | Floats:
        """Return the seconds in which a step of `sequences` sequences reads the common weights and the experts in use."""
        return self.weights_s + self.experts_s * (1 - (1 - self.expert_share) ** sequences)


def stage_timing(model: ModelShape, hardware: Hardware, gpus: int, layers: float, link: Link | None = None) -> ReplicaTiming:
    """Return the seconds of some layers of a model on a tensor-parallel group, including the messages inside it.

    Args:
        model: Sizes of the whole model.
        hardware: Rates of one GPU.
        gpus: Number of GPUs of the group.
        layers: Number of layers.
        link: Link between the GPUs, or None for the link inside a machine.

    Raises:
        InputError: If the weights leave no room for a KV cache.
    """
    if gpus < 1:
        raise InputError(f"tensor_parallel: must be at least 1, not {gpus}")
    part = layers / model.layers
    weights, experts = (part * count * hardware.number_bytes for count in (model.parameters, model.expert_parameters))
    cached = part * model.cached * hardware.number_bytes
    room = hardware.memory_gb * 1e9 * gpus - weights
    if room < cached:
        have = f"{gpus} x {hardware.name} with {hardware.memory_gb:.10g} GB for it"
        raise InputError(f"{weights / 1e9:.1f} GB of weights leave no room for a KV cache on {have}")
    fixed_s, token_s = message_seconds(model, hardware, gpus, layers, link or hardware.machine_link)
    product, share = part * 2 * model.matrix_parameters, hardware.arithmetic_of(model)
    dense = ReplicaTiming(
        step_s=part * hardware.step_s + layers * hardware.layer_s + fixed_s,
        weights_s=(weights - experts) / (hardware.weights_gb_s * 1e9 * gpus),
        kv_s_per_token=cached / (hardware.kv_gb_s * 1e9 * gpus),
        sequence_s=product / (hardware.decode_tflops * 1e12 * gpus * share),
        prefill_s_per_token=product / (hardware.prefill_tflops * 1e12 * gpus * share) + token_s,
        prefill_s_per_token2=part * model.attended / (hardware.attention_tflops * 1e12 * gpus * share),
        prefill_s=part * hardware.prefill_s + fixed_s,
        kv_tokens=int(room // cached),
        message_s=token_s,
    )
    if not experts:
        return dense
    experts_s = experts / (hardware.weights_gb_s * 1e9 * gpus)
    return MixtureTiming(**asdict(dense), experts_s=experts_s, expert_share=model.active / model.experts)


def message_seconds(model: ModelShape, hardware: Hardware, gpus: int, layers: float, link: Link) -> tuple[float, float]:
    """Return the fixed seconds and the seconds per token of tensor parallelism's messages in a forward pass.

    Each layer has two all-reduces on a ring of the GPUs. Both results are 0 on a single GPU.

    Args:
        model: Sizes of the whole model.
        hardware: Rates of one GPU.
        gpus: Number of GPUs that share each layer.
        layers: Number of layers.
        link: Link between the GPUs.
    """
    all_reduces = ALL_REDUCES * layers
    fixed_s = all_reduces * link.all_reduce_s(0.0, gpus)
    return fixed_s, all_reduces * link.all_reduce_s(token_bytes(model, hardware), gpus) - fixed_s


def token_bytes(model: ModelShape, hardware: Hardware) -> float:
    """Return the bytes of a token's hidden state between two layers."""
    return model.hidden * hardware.number_bytes


def replica_timing(
    model: ModelShape, hardware: Hardware, tensor: int = 1, stages: int = 1, machine: int = MACHINE
) -> ReplicaTiming:
    """Return the timing of a replica on `tensor * stages` GPUs of one type, including the messages of its parallelism.

    The stages of a pipeline work on as many micro-batches at the same time. Each of them reads all weights of its stage, so only
    tensor parallelism shortens the reading of weights. Arithmetic and cache are divided by both.

    Args:
        model: Sizes of the model.
        hardware: Rates of one GPU.
        tensor: Number of GPUs that share each layer.
        stages: Number of pipeline stages.
        machine: Number of GPUs per machine.

    Raises:
        InputError: If the weights leave no room for a KV cache.
    """
    inside, between = (hardware.link(gpus, machine) for gpus in (tensor, tensor * stages))
    stage = stage_timing(model, hardware, tensor, model.layers / stages, inside)
    if stages == 1:
        return stage
    hop_s = token_bytes(model, hardware) / (between.gb_s * 1e9)
    if isinstance(stage, MixtureTiming):  # a micro-batch has 1 / stages of the sequences and reads its own experts
        share = 1 - (1 - stage.expert_share) ** (1 / stages)
        stage = replace(stage, experts_s=stages * stage.experts_s, expert_share=share)
    return replace(
        stage,
        step_s=stages * (stage.step_s + between.latency_s),
        weights_s=stages * stage.weights_s,
        prefill_s=stages * (stage.prefill_s + between.latency_s),
        prefill_s_per_token=stage.prefill_s_per_token + hop_s,
        message_s=stage.message_s + hop_s,
    )


def fitting_replicas(model: ModelShape, hardware: Hardware, gpus: int, longest: int) -> tuple[tuple[int, ReplicaTiming], ...]:
    """Return the replica sizes (1, 2, 4 or 8 GPUs) that divide `gpus` and whose cache holds the longest response.

    Args:
        model: Sizes of the model.
        hardware: Rates of one GPU.
        gpus: Number of GPUs of all replicas together.
        longest: Length of the longest response with its prompts, in tokens.

    Returns:
        Pairs of the number of GPUs and the timing, by ascending number of GPUs.
    """
    fitting = []
    for size in (size for size in SIZES if gpus % size == 0):
        with suppress(InputError):  # the weights alone are too large
            timing = replica_timing(model, hardware, size)
            if timing.kv_tokens > longest:
                fitting.append((size, timing))
    return tuple(fitting)
