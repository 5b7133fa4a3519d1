"""What a job's process may send to the coordinator: numbers, text and messages of ours, which are read without the user's code.

Ray pickles what it carries. An object of a user's class, be it a number's, would import the user's module where it is read.
"""

from __future__ import annotations

import dataclasses
from numbers import Integral, Real
from typing import Any

import ray

from runtime.execution.messages import Checkpoint, Done, Report
from runtime.machine import Node
from runtime.residency.choice import Level, Waits

_MOST = 10_000


def plain(value: Any) -> Any:
    """The same without anything of a user's classes: numbers that look like floats or integers become these.

    Raises:
        TypeError, ValueError: it is something else, or too much; one line.
    """
    kind = type(value)
    if kind in (tuple, list, dict, str) and len(value) > _MOST:
        raise ValueError(f"a job can tell the run {_MOST} values or characters at a time, not {len(value)}")
    if value is None or kind in (bool, int, float, str) or isinstance(value, ray.actor.ActorHandle):
        return value
    if kind in (tuple, list):
        return kind(plain(item) for item in value)
    if kind is dict:
        return {plain(key): plain(item) for key, item in value.items()}
    if kind in (Checkpoint, Done, Report, Node, Level, Waits):
        return kind(**{field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)})
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    raise TypeError(f"a job can tell the run numbers and text, not {kind.__name__}")
