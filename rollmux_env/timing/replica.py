"""The cost of one rollout replica: a model on a group of tensor-parallel GPUs with continuous batching."""

from __future__ import annotations

from dataclasses import dataclass, fields

from rollmux_env.errors import InputError
from rollmux_env.kernel.tables import Floats


@dataclass(frozen=True)
class ReplicaTiming:
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

    step_s: float
    weights_s: float
    kv_s_per_token: float
    sequence_s: float
    prefill_s_per_token: float
    prefill_s_per_token2: float
    prefill_s: float
    kv_tokens: int

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (value >= 0 and value < float("inf")):
                raise InputError(f"replica timing: {field.name} must be a number of at least 0, not {value}")
        if self.kv_tokens < 1 or self.step_s + self.weights_s <= 0:
            raise InputError("replica timing: kv_tokens must be at least 1, and step_s + weights_s above 0")

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

    experts_s: float
    expert_share: float

    def weights_seconds(self, sequences: float | Floats) -> float | Floats:
        """See `ReplicaTiming`."""
        return self.weights_s + self.experts_s * (1 - (1 - self.expert_share) ** sequences)
