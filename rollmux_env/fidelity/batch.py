"""The batch of responses that a training step samples and trains on."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rollmux_env.timing.lengths import LengthDistribution, Piecewise, Tokens, typical


@dataclass(frozen=True)
class ResponseBatch:
    """Size and lengths of the responses of a training step.

    Attributes:
        prompts: Number of prompts of a step.
        responses: Number of responses to each prompt.
        updates: Number of mini-batches that the step trains on, one after the other.
        prompt_tokens: Length of a prompt, in tokens.
        lengths: Distribution of the length of a response over all its turns, in tokens.
        turns: Number of turns of a response.
        environment_s: Wait for the environment before each further turn, in seconds.
    """

    prompts: int
    responses: int
    updates: int
    prompt_tokens: int
    lengths: LengthDistribution
    turns: int = 1
    environment_s: float = 0.0

    @property
    def count(self) -> int:
        """Number of responses of a step."""
        return self.prompts * self.responses

    @property
    def micro_tokens(self) -> int:
        """Length of a prompt and the longest possible response, in tokens."""
        return self.prompt_tokens + self.lengths.cap

    def tokens(self) -> Tokens:
        """Return the lengths of a representative batch, shape (count,), ascending."""
        return typical(self.lengths, self.count)

    def at_cap(self) -> ResponseBatch:
        """Return the batch with every response at the longest possible length."""
        return replace(self, lengths=Piecewise(self.lengths.cap, ((0.0, float(self.lengths.cap)),)))
