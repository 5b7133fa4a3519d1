"""The work of one iteration of a job whose GPUs are to be chosen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rollmux_env.command_options import parse_pairs, parse_value
from rollmux_env.errors import InputError
from rollmux_env.kernel.dispatch.pace import alone_s
from rollmux_env.timing.models import ModelShape, model_shape
from rollmux_env.validation_errors import describe, not_one_of

MOST_STALENESS = 64
MOST = 2**24  # of any count
SETTINGS = ("responses", "prompt_tokens", "response_tokens", "cap", "updates")


@dataclass(frozen=True)
class Work:
    """An iteration of an RL job.

    Attributes:
        model: that is trained. responses: of an iteration. prompt_tokens, response_tokens: of one, on average.
        cap: most tokens of a response; a training takes one sequence of that length at a time.
        updates: mini-batches of a training. staleness: most versions that the weights of a sample may be old.
        reads_cache: whether decoding pays for reading the KV cache; HexGen's model has it without.

    Raises:
        InputError: a number out of its range; one line.
    """

    model: ModelShape
    responses: int = 8192
    prompt_tokens: int = 1024
    response_tokens: int = 8192
    cap: int = 27648
    updates: int = 4
    staleness: int = 4
    reads_cache: bool = True

    def __post_init__(self) -> None:
        for name in SETTINGS:
            if not 1 <= (value := getattr(self, name)) <= MOST:
                raise InputError(f"{name}: must be from 1 to {MOST}, not {describe(value)}")
        if not 0 <= self.staleness <= MOST_STALENESS:
            raise InputError(f"staleness: must be from 0 to {MOST_STALENESS}, not {self.staleness}")
        if self.updates > self.responses:
            raise InputError(f"updates: must be at most the {self.responses} responses, not {self.updates}")
        if self.response_tokens > self.cap:
            raise InputError(f"response_tokens: must be at most the cap of {self.cap}, not {self.response_tokens}")

    @property
    def in_flight(self) -> int:
        """Most responses that may be sampled at once.

        A rollout may start only while fewer than 1 + staleness iterations' responses were begun and not trained, and one
        iteration's are being trained, unless the job is on-policy.
        """
        return self.responses * max(1, self.staleness)

    def iteration_s(self, rollout_s: float, training_s: float) -> float:
        """Of a steady iteration: the longer side, or on-policy both."""
        return alone_s(rollout_s, training_s, 0.0, self.staleness)

    @property
    def sequence_tokens(self) -> int:
        """Tokens of a prompt and its response, on average."""
        return self.prompt_tokens + self.response_tokens

    @property
    def micro_tokens(self) -> int:
        """Tokens of a prompt and the longest response: a micro-batch of a training."""
        return self.prompt_tokens + self.cap


def make_work(model: str, staleness: int, settings: Iterable[str]) -> Work:
    """Work from the options of a command.

    Args:
        model: a size name or the path of a `config.json`. settings: key=value, other fields of `Work` that are counts.

    Raises:
        InputError: no such model or key, or a value that it cannot have; one line.
    """
    values: dict[str, Any] = {}
    for key, text in parse_pairs("--set", settings):
        if key not in SETTINGS:
            raise InputError(f"--set {key}: {not_one_of(key, SETTINGS)}")
        value = parse_value(text)
        if not isinstance(value, int) or isinstance(value, bool):
            raise InputError(f"--set {key}: must be a whole number, not {describe(value)}")
        values[key] = value
    try:
        return Work(model_shape(model), staleness=staleness, **values)
    except InputError as error:
        raise InputError(_at_option(str(error))) from None


def _at_option(problem: str) -> str:
    key = problem.partition(":")[0]
    if key in SETTINGS:
        return f"--set {problem}"
    return f"--{problem}" if key == "staleness" else f"MODEL: {problem}"
