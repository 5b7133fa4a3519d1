"""Workloads of users: a function of the seed, or an object with `scenario(seed)`, also by name as `module:name`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from rollmux_env.errors import InputError
from rollmux_env.factories import make_with, own_object, parameters, read_options
from rollmux_env.keys.cluster import Cluster
from rollmux_env.scenario import Scenario
from rollmux_env.user_code import brief, guarded, seeded

_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


class OwnWorkload(Protocol):
    """Source of streams. `bench` needs only `scenario`; an environment makes its tables by `cluster` and `jobs`.

    Attributes:
        cluster: Cluster of all streams.
        jobs: Largest number of jobs of a stream.
    """

    cluster: Cluster
    jobs: int

    def scenario(self, seed: int) -> Scenario:
        """Return the stream of a seed, the same every time."""
        ...


Source = Callable[[int], Scenario] | OwnWorkload
"""Workload of a user: a function from seed to scenario, or an object that has it as `scenario`."""


class SeededFunction:
    """A function of the seed as an `OwnWorkload`. The cluster and the most jobs are those of seed 0.

    Args:
        function: Function from seed to scenario.
    """

    def __init__(self, function: Callable[[int], Scenario]) -> None:
        self._function = function
        first = draw(function, 0)
        self.cluster, self.jobs = first.cluster, len(first.jobs)

    def scenario(self, seed: int) -> Scenario:
        """Return the stream of a seed."""
        return draw(self._function, seed)


def is_own(target: str) -> bool:
    """Return whether a target has the form `module:name`, and is no file."""
    return _NAME.fullmatch(target) is not None and not Path(target).exists()


def options_of(name: str) -> tuple[str, ...]:
    """Return the names of the options of the workload `module:name`: keyword arguments of its function or class."""
    own = own_object(f"workload {name}", name, "workload")
    if isinstance(own, type):
        return parameters(own)
    return () if hasattr(own, "scenario") else parameters(own)[1:]


def own_source(name: str, pairs: Iterable[str] = ()) -> Source:
    """Return the workload that `module:name` names, with its options.

    Args:
        name: Module, and name in it of a function of the seed, of a class with `scenario(seed)`, or of an object of such a class.
        pairs: Options as `key=value`, passed to the class, or to the function after the seed.

    Raises:
        InputError: There is no such module, name or option, or the object has no `scenario`.
    """
    label, pairs = f"workload {name}", [*pairs]
    own = own_object(label, name, "workload")
    if isinstance(own, type):
        made: Any = make_with(label, name, own, pairs)
        if not callable(getattr(made, "scenario", None)):
            raise InputError(f"{label}: {name} has no method `scenario`")
        return made  # type: ignore[no-any-return]
    options = read_options(label, name, options_of(name), pairs)
    return partial(own, **options) if options else own


def own_stream(name: str, seed: int, quick: bool = False) -> Scenario:
    """Return the stream of a workload `module:name`; with all arguments but the seed bound, it is a suite's stream.

    Args:
        name: Module and name of the workload.
        seed: Seed of the stream.
        quick: Ignored; a workload of a user has one length.
    """
    return draw(own_source(name), seed, name)


def draw(source: Source, seed: int, name: str = "") -> Scenario:
    """Return the stream of a seed.

    Args:
        source: Workload of a user.
        seed: Seed of the stream. The global generators of Python and NumPy have it, too.
        name: Name of the workload in error messages, or empty for its own.

    Raises:
        InputError: What it returns is no scenario.
        PlanError: It raised anything else.
    """
    who = f"the workload {name or name_of(source)}"
    function: Callable[[int], object] = getattr(source, "scenario", None) or source  # type: ignore[assignment]
    with seeded(seed):
        scenario = guarded(function, who)(seed)
    if not isinstance(scenario, Scenario):
        raise InputError(f"{who} returned {brief(scenario)}, which is no Scenario")
    return scenario


def name_of(thing: object) -> str:
    """Return the name of a function, a class, or the class of an object; a text is its own name."""
    if isinstance(thing, str):
        return thing
    while isinstance(thing, partial):
        thing = thing.func
    return getattr(thing, "__name__", type(thing).__name__)
