"""Entries of job files that are compared: a job that is in the hands of a service keeps the one with which it was submitted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from runtime.jobs.spec import JobSpec, job_of

_OF_A_SUBMISSION = {"folder", "user", "arrival_s"}  # said by who submits, and when


def entry_of(spec: JobSpec) -> dict[str, Any]:
    """Return the entry of a job as its file says it, without what belongs to its submission."""
    return spec.model_dump(mode="json", exclude_unset=True, by_alias=True, exclude=_OF_A_SUBMISSION)


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, ...]:
    """Compare two entries of the same job; a key that is left out has its default.

    Args:
        before: Entry that was submitted.
        now: Entry as its file says it now.

    Returns:
        A text for each key whose value differs, as `iterations (60, now 200)`.
    """
    try:
        one, other = (dict(_flat(_with_defaults(entry))) for entry in (before, now))
    except ValidationError:  # one of them is of another version of RollMux
        one, other = (dict(_flat(entry)) for entry in (before, now))
    keys = [key for key in {**one, **other} if one.get(key) != other.get(key)]
    return tuple(f"{key} ({_shown(one.get(key))}, now {_shown(other.get(key))})" for key in keys)


def _with_defaults(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an entry with the keys that it leaves out; raises ValidationError where it cannot be one."""
    return job_of(entry).model_dump(mode="json", by_alias=True)


def _flat(entry: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in entry.items():
        if not prefix and key in _OF_A_SUBMISSION:
            continue
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _shown(value: Any) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
