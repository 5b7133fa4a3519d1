"""The work of one iteration of a job whose GPUs an allocator chooses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from rollmux_env.command_options import parse_pairs, parse_value
from rollmux_env.errors import InputError
from rollmux_env.fields import Checked, Staleness
from rollmux_env.kernel.dispatch.pace import alone_s
from rollmux_env.timing.models import ModelShape, model_shape
from rollmux_env.validation_errors import not_one_of

Number = Annotated[int, Field(ge=1, le=2**24)]
SETTINGS = ("responses", "prompt_tokens", "response_tokens", "cap", "updates")


@dataclass(frozen=True)
class IterationWork(Checked):
    """An iteration of an RL job.

    Attributes:
        model: Sizes of the trained model.
        responses: Number of responses of an iteration.
        prompt_tokens: Average length of a prompt, in tokens.
        response_tokens: Average length of a response, in tokens.
        cap: Largest number of tokens of a response. A training processes one sequence of that length at a time.
        updates: Number of mini-batches of a training.
        staleness: Largest number of versions by which the weights that sampled a response may be old.
        reads_cache: Whether decoding pays for reading the KV cache; HexGen's model leaves it out.

    Raises:
        InputError: If a number is out of range.
    """

    model: ModelShape
    responses: Number = 8192
    prompt_tokens: Number = 1024
    response_tokens: Number = 8192
    cap: Number = 27648
    updates: Number = 4
    staleness: Staleness = 4
    reads_cache: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.updates > self.responses:
            raise InputError(f"updates: must be at most the {self.responses} responses, not {self.updates}")
        if self.response_tokens > self.cap:
            raise InputError(f"response_tokens: must be at most the cap of {self.cap}, not {self.response_tokens}")

    @property
    def in_flight(self) -> int:
        """Largest number of responses that may be sampled at once.

        A rollout may start only while fewer than 1 + staleness iterations' responses were begun and not trained. Unless the job is
        on-policy, one of these iterations is being trained.
        """
        return self.responses * max(1, self.staleness)

    def iteration_s(self, rollout_s: float, training_s: float) -> float:
        """Return the seconds of a steady iteration: the longer side, or the sum of both if the job is on-policy."""
        return alone_s(rollout_s, training_s, 0.0, self.staleness)

    @property
    def sequence_tokens(self) -> int:
        """Average length of a prompt and its response, in tokens."""
        return self.prompt_tokens + self.response_tokens

    @property
    def micro_tokens(self) -> int:
        """Length of a prompt and the longest response, in tokens: a micro-batch of a training."""
        return self.prompt_tokens + self.cap


def make_work(model: str, staleness: int, settings: Iterable[str]) -> IterationWork:
    """Build the work of an iteration from the options of a command.

    Args:
        model: Size name, or the path of a `config.json`.
        staleness: Largest number of versions by which the weights that sampled a response may be old.
        settings: Texts `key=value` for the other fields of `IterationWork` that are counts.

    Raises:
        InputError: If the model or a key is unknown, or a value is out of range.
    """
    values: dict[str, Any] = {}
    for key, text in parse_pairs("--set", settings):
        if key not in SETTINGS:
            raise InputError(f"--set {key}: {not_one_of(key, SETTINGS)}")
        values[key] = parse_value(text)
    try:
        return IterationWork(model_shape(model), staleness=staleness, **values)
    except InputError as error:
        raise InputError(_at_option(str(error))) from None


def _at_option(problem: str) -> str:
    key = problem.partition(":")[0]
    if key in SETTINGS:
        return f"--set {problem}"
    return f"--{problem}" if key == "staleness" else f"MODEL: {problem}"
