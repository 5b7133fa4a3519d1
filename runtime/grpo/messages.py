"""What a job's workers hand to each other and to the job."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from runtime.engines.interface import Response
from runtime.residency.footprint import Footprint
from runtime.sync.plan import Ranges

if TYPE_CHECKING:
    from runtime.residency.layout import Layout

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
class Kept:
    """New weights that a training rank holds ready.

    Attributes:
        version: of them. layout: of all of their bytes. ranges: those that this rank holds.
    """

    version: int
    layout: Layout
    ranges: Ranges


class Stages:
    """Seconds of the parts of a load or offload."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        began = monotonic()
        yield
        self.seconds[name] = monotonic() - began
