"""The cost of one rollout replica: a model, or a stage's layers of it, on a tensor-parallel group with continuous batching.

In every step decoding reads the weights and the cached keys and values, or is limited by arithmetic if many sequences share the
step. Prefill is arithmetic. The formulas are those of roofline models such as HexGen's (in AReaL-Hex, arXiv 2511.00796), and add
the reading of the KV cache.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Annotated, ClassVar, NamedTuple

from pydantic import Field

from rollmux_env.errors import InputError
from rollmux_env.fields import Checked, NonNegative
from rollmux_env.kernel.tables import Floats
from rollmux_env.timing.hardware import Hardware, Link
from rollmux_env.timing.models import ModelShape

MESSAGES = 4  # of tensor parallelism in a layer's forward pass: two all-reduces, each a scatter and a gather
MACHINE = 8  # GPUs, where nobody says
SIZES = (1, 2, 4, 8)  # GPUs of a replica that rollout policies choose from


class Parallelism(NamedTuple):
    """How a phase divides the model and its batch.

    Attributes:
        tensor: GPUs that share each layer. stages: of a pipeline. copies: of the model, which share the batch.
    """

    tensor: int
    stages: int
    copies: int


@dataclass(frozen=True)
class ReplicaTiming(Checked):
    """Seconds of a replica's steps, and the room in its KV cache.

    A decode step of B sequences whose contexts (prompt and sampled tokens) sum to C tokens takes
    `step_s + max(weights_s + kv_s_per_token * C, sequence_s * B)` seconds: memory traffic or arithmetic, whichever is larger.
    The prefill of n tokens takes `prefill_s + prefill_s_per_token * n + prefill_s_per_token2 * n**2` seconds.

    Attributes:
        step_s: fixed overhead of a decode step. weights_s: reading the weights, once a step.
        kv_s_per_token: reading one cached token. sequence_s: arithmetic of one sequence's token.
        prefill_s: fixed overhead of a prefill. prefill_s_per_token: arithmetic of one token. prefill_s_per_token2: of attention,
            for each pair of tokens of one sequence.
        kv_tokens: capacity of the KV cache, tokens; sequences beyond it are preempted and recomputed.

    Raises:
        InputError: a negative time, or no room in the cache.
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

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.step_s + self.weights_s <= 0:
            raise InputError("replica timing: step_s + weights_s must be above 0")

    @property
    def costs(self) -> tuple[float, ...]:
        """(9,) its seconds, as a simulated rollout reads them: in the order of STEP to EXPERT_SHARE of
        `rollmux_env.kernel.rollout_records`."""
        return (
            self.step_s,
            self.weights_s,
            self.kv_s_per_token,
            self.sequence_s,
            self.prefill_s_per_token,
            self.prefill_s_per_token2,
            self.prefill_s,
            0.0,
            0.0,
        )

    def weights_seconds(self, sequences: float | Floats) -> float | Floats:
        """Seconds to read the weights of a step, by the number of sequences."""
        return self.weights_s

    def decode_s(self, sequences: float, context_tokens: float) -> float:
        """Seconds of one decode step, by the number of sequences and the total tokens of context."""
        memory_s = float(self.weights_seconds(sequences)) + self.kv_s_per_token * context_tokens
        return self.step_s + max(memory_s, self.sequence_s * sequences)

    def prefill_seconds(self, tokens: int) -> float:
        """Seconds to prefill one sequence."""
        return self.prefill_s + self.prefill_s_per_token * tokens + self.prefill_s_per_token2 * tokens * tokens


@dataclass(frozen=True)
class MixtureTiming(ReplicaTiming):
    """A replica of a mixture of experts. A step reads those that any of its sequences' tokens is sent to, each by itself.

    Attributes:
        experts_s: reading all experts; `weights_s` is what every step reads. expert_share: that one token is sent to.
    """

    experts_s: NonNegative
    expert_share: NonNegative

    @property
    def costs(self) -> tuple[float, ...]:
        """With its experts."""
        return (*super().costs[:-2], self.experts_s, self.expert_share)

    def weights_seconds(self, sequences: float | Floats) -> float | Floats:
        """Seconds to read the weights of a step, and of its experts those that so many sequences are sent to."""
        return self.weights_s + self.experts_s * (1 - (1 - self.expert_share) ** sequences)


def stage_timing(
    model: ModelShape, hardware: Hardware, gpus: int, layers: float, sequences: float, link: Link | None = None
) -> ReplicaTiming:
    """Seconds of some layers of a model on a tensor-parallel group, with the messages inside it.

    Args:
        sequences: at once, at most; messages of a decode step are counted for so many. link: between the GPUs; None: the machine's.

    Raises:
        InputError: the weights leave no room for a KV cache; one line.
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
        step_s=part * hardware.step_s + layers * hardware.layer_s + fixed_s + token_s * sequences,
        weights_s=(weights - experts) / (hardware.weights_gb_s * 1e9 * gpus),
        kv_s_per_token=cached / (hardware.kv_gb_s * 1e9 * gpus),
        sequence_s=product / (hardware.decode_tflops * 1e12 * gpus * share),
        prefill_s_per_token=product / (hardware.prefill_tflops * 1e12 * gpus * share) + token_s,
        prefill_s_per_token2=part * model.attended / (hardware.attention_tflops * 1e12 * gpus * share),
        prefill_s=part * hardware.prefill_s + fixed_s,
        kv_tokens=int(room // cached),
    )
    if not experts:
        return dense
    experts_s = experts / (hardware.weights_gb_s * 1e9 * gpus)
    return MixtureTiming(**asdict(dense), experts_s=experts_s, expert_share=model.active / model.experts)


def message_seconds(model: ModelShape, hardware: Hardware, gpus: int, layers: float, link: Link) -> tuple[float, float]:
    """Seconds of the messages of tensor parallelism in a forward pass: fixed, and for each token; none on one GPU."""
    if gpus == 1:
        return 0.0, 0.0
    messages = MESSAGES * layers
    return messages * link.latency_s, messages * token_bytes(model, hardware) / gpus / (link.gb_s * 1e9)


def token_bytes(model: ModelShape, hardware: Hardware) -> float:
    """Bytes of a token between two layers."""
    return model.hidden * hardware.number_bytes


def replica_timing(
    model: ModelShape, hardware: Hardware, tensor: int = 1, sequences: float = 1, stages: int = 1, machine: int = MACHINE
) -> ReplicaTiming:
    """A replica on `tensor * stages` GPUs of a type, with the messages of its parallelism.

    A pipeline's stages work on as many micro-batches at the same time. Each of these reads all weights of its stage, so that only
    tensor parallelism makes the reading of weights shorter; arithmetic and cache are divided by both.

    Args:
        sequences: at once, at most; messages of a decode step are counted for so many. machine: GPUs of a machine.

    Raises:
        InputError: the weights leave no room for a KV cache; one line.
    """
    inside, between = (hardware.link(gpus, machine) for gpus in (tensor, tensor * stages))
    stage = stage_timing(model, hardware, tensor, model.layers / stages, sequences / stages, inside)
    if stages == 1:
        return stage
    hop_s = between.seconds(sequences / stages * token_bytes(model, hardware))
    if isinstance(stage, MixtureTiming):  # a micro-batch has its part of the sequences
        share = 1 - (1 - stage.expert_share) ** (1 / stages)
        stage = replace(stage, experts_s=stages * stage.experts_s, expert_share=share)
    return replace(
        stage,
        step_s=stages * (stage.step_s + hop_s),
        weights_s=stages * stage.weights_s,
        prefill_s=stages * (stage.prefill_s + between.latency_s),
        prefill_s_per_token=stage.prefill_s_per_token + token_bytes(model, hardware) / (between.gb_s * 1e9),
    )


def fitting_replicas(
    model: ModelShape, hardware: Hardware, gpus: int, sequences: int, longest: int
) -> tuple[tuple[int, ReplicaTiming], ...]:
    """Replicas of 1, 2, 4 or 8 GPUs among so many, by size, whose cache holds the longest response.

    Args:
        sequences: of all replicas at once. longest: tokens of it, its prompts included.
    """
    fitting = []
    for size in (size for size in SIZES if gpus % size == 0):
        with suppress(InputError):  # the weights alone are too large
            timing = replica_timing(model, hardware, size, sequences * size / gpus)
            if timing.kv_tokens > longest:
                fitting.append((size, timing))
    return tuple(fitting)
