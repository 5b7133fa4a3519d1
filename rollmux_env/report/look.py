"""The look of figures: their width in a paper, and the labels of policies. `drawn_as` sets it for what is drawn inside."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from rollmux_env.errors import InputError

_LEAST_IN, _MOST_IN = 1.5, 40.0


@dataclass(frozen=True)
class Look:
    """The look of figures.

    Attributes:
        width_in: Width of a figure's file in inches, such as 3.3 for a column of a paper; None for a screen.
        labels: Label of a policy by its name and options; others are labelled by that.

    Raises:
        InputError: The width is out of range.
    """

    width_in: float | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.width_in is not None and not _LEAST_IN <= self.width_in <= _MOST_IN:
            raise InputError(f"--width {self.width_in:g}: must be from {_LEAST_IN:g} to {_MOST_IN:g} inches")

    @property
    def is_column(self) -> bool:
        """Whether the figure is as narrow as a column, so that panels are below each other."""
        return self.width_in is not None and self.width_in < 5


_SCREEN = Look()
_LOOK: ContextVar[Look] = ContextVar("look", default=_SCREEN)


@contextmanager
def drawn_as(look: Look) -> Iterator[None]:
    """Draw figures with a look."""
    token = _LOOK.set(look)
    try:
        yield
    finally:
        _LOOK.reset(token)


def current_look() -> Look:
    """Return the look of the figures that are drawn now."""
    return _LOOK.get()


def label_of(policy: str) -> str:
    """Return the label of a policy."""
    return current_look().labels.get(policy, policy)


def parse_labels(pairs: Iterable[str]) -> dict[str, str]:
    """Return labels by policy from texts such as `rollmux=Algorithm 1`; what precedes the last `=` is the policy.

    Raises:
        InputError: A text has another form.
    """
    labels = {}
    for pair in pairs:
        policy, equals, text = pair.rpartition("=")
        if not equals or not policy or not text:
            raise InputError(f"--label: '{pair}' is not of the form POLICY=TEXT")
        labels[policy] = text
    return labels
