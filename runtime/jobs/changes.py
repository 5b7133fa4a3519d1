"""Comparison of job-file entries: a service keeps the entry with which a job was submitted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from runtime.jobs.spec import JobSpec, job_of

_OF_A_SUBMISSION = {"folder", "user", "arrival_s"}  # set by the submission, not by the file


def entry_of(spec: JobSpec) -> dict[str, Any]:
    """Return the entry of a job as in its file, without the keys that its submission sets."""
    return spec.model_dump(mode="json", exclude_unset=True, by_alias=True, exclude=_OF_A_SUBMISSION)


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, ...]:
    """Compare two entries of the same job. A key that is left out has its default.

    Args:
        before: Entry that was submitted.
        now: Present entry of the file.

    Returns:
        A text for each key whose value differs, such as `iterations (60, now 200)`.
    """
    try:
        one, other = (dict(_flat(_with_defaults(entry))) for entry in (before, now))
    except ValidationError:  # one of them is from another version of RollMux
        one, other = (dict(_flat(entry)) for entry in (before, now))
    keys = [key for key in {**one, **other} if one.get(key) != other.get(key)]
    return tuple(f"{key} ({_shown(one.get(key))}, now {_shown(other.get(key))})" for key in keys)


def _with_defaults(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an entry with the defaults of the keys that it leaves out.

    Raises:
        ValidationError: If it is not a valid entry.
    """
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
