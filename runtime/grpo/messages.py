"""What a job's workers hand to each other and to the job."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, NamedTuple

from rollmux_segment import Footprint

from runtime.engines.interface import Response
from runtime.phases import Reported
from runtime.residency.layout import Layout
from runtime.sync.plan import Ranges

Timed = tuple[Footprint, dict[str, float]]


@dataclass(frozen=True)
class Sampled:
    """A share of what was sampled in one iteration.

    Attributes:
        place: which of the job's shares it is; training goes by it, whichever engine sampled it.
        prompts: token ids, one a response: those of a group are alike and stand together.
        responses, rewards: one each.
    """

    place: int
    prompts: tuple[tuple[int, ...], ...]
    responses: tuple[Response, ...]
    rewards: tuple[float, ...]


class Line(NamedTuple):
    """What is said of a response that is trained on.

    Attributes:
        place: of its share. prompt: number of its prompt. prompt_tokens, tokens: of the prompt, and of the response.
        seconds: from the beginning of its share to its end. switches: how often it was interrupted and went on.
    """

    place: int
    prompt: int
    prompt_tokens: int
    tokens: int
    seconds: float
    switches: int
    reward: float


class Results(NamedTuple):
    """What an engine says of the shares that ended there.

    Attributes:
        lines: of each response. sample: the first prompt, the responses to it and their rewards, to be shown.
        anchors: of the rewards' timeout, those that have grown. stopped: rewards that took too long.
    """

    lines: list[Line]
    sample: tuple[str, list[str], list[float]] | None
    anchors: dict[str, float]
    stopped: int


class Status(NamedTuple):
    """A response as its engine has it.

    Attributes:
        place: of its share. tokens: sampled so far. end_s: seconds from the rollout's beginning to its end; None: it runs.
    """

    place: int
    tokens: int
    end_s: float | None


@dataclass(frozen=True)
class Rolled:
    """What a rollout has brought.

    Attributes:
        samples: of each engine a list of `Sampled`, or a call of a worker that gives it. complete: numbers of its prompts.
    """

    samples: tuple[Any, ...] = ()
    complete: Sequence[int] = ()


@dataclass(frozen=True)
class Rollout:
    """A rollout that waits for its training.

    Attributes:
        number: from 0, of the iteration that trains on it. rolled: what it has brought. reported: what it has said of itself.
    """

    number: int
    rolled: Rolled
    reported: Reported = field(default_factory=Reported)


@dataclass(frozen=True)
class Kept:
    """New weights that a training rank holds ready.

    Attributes:
        version: of them. layout: of all of their bytes. ranges: those that this rank holds.
    """

    version: int
    layout: Layout
    ranges: Ranges


@contextlib.contextmanager
def stage(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Measure a part of a load or offload: how long it took goes under its name."""
    began = monotonic()
    yield
    seconds[name] = monotonic() - began


def timed(name: str, move: Callable[..., Footprint], *arguments: Any) -> Timed:
    """Let state be moved: its footprint then, and the seconds that it took, by name."""
    seconds: dict[str, float] = {}
    with stage(seconds, name):
        footprint = move(*arguments)
    return footprint, seconds
