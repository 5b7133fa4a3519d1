"""Suggestions for unknown names in error messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from functools import cache
from typing import Any, get_args, get_origin

from pydantic import BaseModel

Path = tuple[str | int, ...]

_BESIDE = {"jobs": "defaults"}  # keys that are allowed beside another one but are merged away before the check
_NEAR = 0.7  # smallest similarity of a suggestion (difflib's ratio; 1 is equal)
_MAX_PLACES = 3  # largest number of suggested places


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Return `; did you mean x?` if a known name is similar, else an empty text."""
    by_lower = {name.lower(): name for name in known}
    near = get_close_matches(word.lower(), by_lower, 1, _NEAR) if isinstance(word, str) and len(word) <= 100 else []
    return f"; did you mean {by_lower[near[0]]}?" if near else ""


def keys_at(model: type[BaseModel], path: Sequence[str | int]) -> set[str]:
    """Return the keys that a file format has at a path; none where the path is that of no mapping with fixed keys."""
    return {key for owner in _models_at(model, path) for key in _fields(owner)}


def meant_keys(model: type[BaseModel], path: Path) -> list[Path]:
    """Return the places where an unknown key was probably meant to be.

    Args:
        model: Model of the mapping in which the path begins.
        path: Path of the unknown key.

    Returns:
        Paths of known keys: the same key at another level, first in the same entry of a list, then the most similar key at the same
        place, then the same key anywhere. Empty if there is none.
    """
    *parents, word = path
    if not isinstance(word, str) or len(word) > 100:
        return []
    own = keys_at(model, parents)
    own |= {_BESIDE[key] for key in own if key in _BESIDE}
    near = get_close_matches(word.lower(), [key.lower() for key in own], 1, _NEAR)
    choices: tuple[list[Path], ...] = (
        [place for place in _paths_in_entry(model, parents) if place[-1] == word],
        [(*parents, key) for key in own if key.lower() in near],
        [place for lists in (False, True) for place in _paths(model, lists) if place[-1] == word],
    )
    matches = next(filter(None, choices), [])
    return sorted(dict.fromkeys(matches), key=len)[:_MAX_PLACES]


def _paths_in_entry(model: type[BaseModel], parents: Sequence[str | int]) -> Iterator[Path]:
    """Yield the paths of all keys in the list entry that contains a place."""
    places = [k + 1 for k, part in enumerate(parents) if isinstance(part, int)]
    entry = tuple(parents[: places[-1]]) if places else ()
    for owner in _models_at(model, entry):
        yield from ((*entry, *below) for below in _paths(owner, lists=False))


@cache
def _fields(model: type[BaseModel]) -> dict[str, Any]:
    """Return the types of the keys of a mapping."""
    return {field.alias or name: field.annotation for name, field in model.model_fields.items()}


def _models(annotation: Any) -> Iterator[tuple[type[BaseModel], bool]]:
    """Yield the mappings that a type allows, and whether they are entries of a list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation, False
    elif get_origin(annotation) is not dict:
        for part in get_args(annotation):
            for model, listed in _models(part):
                yield model, listed or get_origin(annotation) in (tuple, list)


def _models_at(model: type[BaseModel], path: Sequence[str | int]) -> list[type[BaseModel]]:
    """Return the mappings that the format has at a path."""
    here = [model]
    for part in path:
        if isinstance(part, str):
            here = [below for owner in here for below, _ in _models(_fields(owner).get(part))]
    return here


def _paths(model: type[BaseModel], lists: bool) -> Iterator[Path]:
    """Yield the paths of all keys below a mapping; with `lists` also those in the first entries of lists."""
    for key, annotation in _fields(model).items():
        yield (key,)
        for below, listed in _models(annotation):
            if lists or not listed:
                yield from ((key, *((0,) if listed else ()), *rest) for rest in _paths(below, lists))
