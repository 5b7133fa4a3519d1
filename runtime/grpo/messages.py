"""Messages between the workers of a job, and from them to the job."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, NamedTuple

from rollmux_segment import Footprint

from runtime.engines.interface import Response
from runtime.phases import IterationReports
from runtime.residency.layout import WeightLayout
from runtime.sync.plan import Ranges

Timed = tuple[Footprint, dict[str, float]]


@dataclass(frozen=True)
class ShareSamples:
    """Sampled responses of one share of an iteration.

    Attributes:
        place: Number of the share. Training orders the shares by it, whichever engine sampled them.
        prompts: Token ids of the prompt of each response. Responses to the same prompt follow each other.
        responses: The responses.
        rewards: Reward of each response.
    """

    place: int
    prompts: tuple[tuple[int, ...], ...]
    responses: tuple[Response, ...]
    rewards: tuple[float, ...]


class ResponseLine(NamedTuple):
    """Report about a response that is trained on.

    Attributes:
        place: Number of its share.
        prompt: Number of its prompt.
        prompt_tokens: Number of tokens of the prompt.
        tokens: Number of tokens of the response.
        seconds: Time from the beginning of its share to its end, in seconds.
        switches: Number of times that it was interrupted and continued.
        reward: Reward of the response.
    """

    place: int
    prompt: int
    prompt_tokens: int
    tokens: int
    seconds: float
    switches: int
    reward: float


class ShareResults(NamedTuple):
    """Report of an engine about the shares that ended there.

    Attributes:
        lines: A line for each response.
        sample: First prompt, the responses to it, and their rewards, as an example to show. None means there are no responses.
        anchors: Anchors of the rewards' timeout that have grown, in seconds, by test.
        stopped: Number of rewards that took too long.
    """

    lines: list[ResponseLine]
    sample: tuple[str, list[str], list[float]] | None
    anchors: dict[str, float]
    stopped: int


class ResponseStatus(NamedTuple):
    """Status of a response at its engine.

    Attributes:
        place: Number of its share.
        tokens: Number of tokens sampled so far.
        end_s: Time from the rollout's beginning to the response's end, in seconds, None means it is running.
    """

    place: int
    tokens: int
    end_s: float | None


@dataclass(frozen=True)
class RolloutSamples:
    """Samples of a rollout.

    Attributes:
        samples: Lists of `ShareSamples` from each engine, or worker's calls that return them.
        complete: Numbers of the complete prompts.
    """

    samples: tuple[Any, ...] = ()
    complete: Sequence[int] = ()


@dataclass(frozen=True)
class SampledRollout:
    """A rollout that waits for its training.

    Attributes:
        number: Number of the iteration that trains on it, from 0.
        rolled: Samples of the rollout.
        reported: Metrics, samples and trajectories that the rollout has reported.
    """

    number: int
    rolled: RolloutSamples
    reported: IterationReports = field(default_factory=IterationReports)


@dataclass(frozen=True)
class StagedShard:
    """New weights that a training rank holds ready to be sent.

    Attributes:
        version: Version of the weights.
        layout: Layout of the bytes of all weights.
        ranges: Bytes that this rank holds.
    """

    version: int
    layout: WeightLayout
    ranges: Ranges


@contextlib.contextmanager
def stage(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Measure the time of the block, and store it under a name, in seconds."""
    began = monotonic()
    yield
    seconds[name] = monotonic() - began


def timed(name: str, move: Callable[..., Footprint], *arguments: Any) -> Timed:
    """Call `move`, which moves state. Returns the footprint it returns, and its time in seconds by name."""
    seconds: dict[str, float] = {}
    with stage(seconds, name):
        footprint = move(*arguments)
    return footprint, seconds
