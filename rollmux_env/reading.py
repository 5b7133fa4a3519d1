"""Reading of YAML 1.2 and JSON files into plain mappings of strings, numbers, booleans, nulls, lists and mappings."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from rollmux_env.errors import InputError
from rollmux_env.files import read_text
from rollmux_env.progress import ProgressLines
from rollmux_env.validation_errors import describe, field_of, format_error, one_line, path_of, problems

Read = TypeVar("Read", bound=BaseModel)

DEEPEST = 40  # largest number of nesting levels; the formats of this package have fewer than ten
MAX_REPEATED = 200_000  # largest number of values that aliases may repeat, since nested aliases multiply
WIDEST = 100_000  # largest number of keys of a mapping, since each unknown key makes an error
_SHARED = "write the keys out, or put those that jobs share into `defaults`"
_LOOKS = 4096  # values between two reports of progress

# The core schema of YAML 1.2, section 10.3.2. Dates, merge keys, 1_000, 1:30, yes and no are text there.
_INTEGER = re.compile(r"[-+]?[0-9]+")
_BASED = re.compile(r"0o[0-7]{1,20}|0x[0-9a-fA-F]{1,16}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_WORDS = {"": None, "~": None} | {
    spelling: value
    for word, value in (("null", None), ("true", True), ("false", False))
    for spelling in (word, word.capitalize(), word.upper())
}


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a YAML 1.2 or (by its suffix) JSON file whose top level is a mapping.

    Raises:
        InputError: As in `rollmux_env.files.read_text`, or if it is malformed, has a duplicate key, or is not a mapping.
    """
    name = one_line(str(path), 4096)
    text = read_text(path)
    if not text.strip():
        raise InputError(f"{name}: is empty")
    try:
        data = _parse_json(text) if path.suffix.lower() == ".json" else _parse_yaml(text, name)
    except InputError as error:
        raise InputError(f"{name}: {one_line(str(error))}") from None
    except RecursionError:
        raise InputError(f"{name}: is nested too deeply") from None
    if not isinstance(data, dict):
        raise InputError(f"{name}: must hold a mapping, not {describe(data)}")
    return data


def _integer(text: str) -> int | float:
    # Beyond 18 digits no count is valid, so a float suffices; it also avoids Python's limit on digits.
    return int(text) if len(text) <= 18 else float(text)


class _DuplicateKey:
    """Placeholder for a duplicate JSON key until its path is known."""


def _parse_json(text: str) -> Any:
    duplicates: list[str] = []

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        if len(pairs) > WIDEST:
            raise InputError(f"a mapping holds more than {WIDEST} keys")
        for key, value in pairs:
            if key in mapping:
                duplicates.append(key)
                value = _DuplicateKey()
            mapping[key] = value
        return mapping

    def duplicate_paths(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        if isinstance(value, _DuplicateKey):
            yield path
        elif isinstance(value, dict | list):
            for key, below in value.items() if isinstance(value, dict) else enumerate(value):
                yield from duplicate_paths(below, (*path, key))

    try:
        data = json.loads(text, object_pairs_hook=unique, parse_int=_integer)
    except json.JSONDecodeError as error:
        raise InputError(f"line {error.lineno}: {error.msg[0].lower()}{error.msg[1:]}") from None
    if duplicates:
        raise InputError(f"{path_of(next(duplicate_paths(data, ()), (duplicates[0],)))}: is given twice")
    return data


def _parse_yaml(text: str, name: str) -> Any:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        with ProgressLines(f"reading {name}") as progress:
            lines = text.count("\n") + 1
            builder = _YamlBuilder(
                YAML(typ="safe", pure=True).parse(text), lambda line: progress.report(f"line {line:,} of {lines:,}")
            )
            return builder.document()
    except MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise InputError(f"{line}{str(error.problem or error.context).partition(chr(10))[0]}") from None
    except YAMLError as error:
        raise InputError(str(error).partition("\n")[0]) from None
    except (ValueError, OverflowError) as error:  # an escape or a %YAML version that its scanner cannot read
        if isinstance(error, InputError):
            raise
        raise InputError(f"is not YAML: {error}") from None


class _YamlBuilder:
    """Builder of values from ruamel.yaml's events.

    ruamel.yaml's constructor supports dates, merge keys and tags, which the core schema does not have. Its error for a duplicate
    key has no path, and prints whole values, which repeated aliases can make as large as memory.
    """

    def __init__(self, events: Iterator[Any], reached: Callable[[int], None]) -> None:
        self.events = events
        self.reached = reached  # callback for progress, with the line
        self.anchors: dict[str, tuple[Any, int]] = {}  # each value, and the number of values in it
        self.built = 0  # number of values so far, including repeated ones
        self.repeated = 0  # number of values repeated by aliases

    def document(self) -> Any:
        from ruamel.yaml import events as ev

        data = None
        started = False
        for event in self.events:
            if isinstance(event, ev.DocumentStartEvent):
                if started:
                    raise InputError(f"line {event.start_mark.line + 1}: a second document starts here; a file holds one")
                started = True
            elif isinstance(event, ev.NodeEvent):
                data = self.value(event, ())
        return data

    def value(self, event: Any, path: tuple[Any, ...]) -> Any:
        from ruamel.yaml import events as ev

        line = f"line {event.start_mark.line + 1}"
        if len(path) > DEEPEST:
            raise InputError(f"{line}: is nested too deeply")
        if isinstance(event, ev.AliasEvent):
            return self.repeat(event, line)
        before = self.built
        self.built += 1
        if not self.built % _LOOKS:
            self.reached(event.start_mark.line + 1)
        if event.tag is not None:
            raise InputError(f"{line}: the tag {event.tag} is not used in this file format")
        if event.anchor:
            self.anchors.pop(event.anchor, None)
        value: Any
        if isinstance(event, ev.SequenceStartEvent):
            value = []
            while not isinstance(item := next(self.events), ev.SequenceEndEvent):
                value.append(self.value(item, (*path, len(value))))
        elif isinstance(event, ev.MappingStartEvent):
            value = self.mapping(path, line)
        else:
            value = _scalar(event.value) if event.implicit[0] else event.value
        if event.anchor:
            self.anchors[event.anchor] = (value, self.built - before)
        return value

    def repeat(self, event: Any, line: str) -> Any:
        """Return the value of an alias."""
        if event.anchor not in self.anchors:
            raise InputError(f"{line}: *{event.anchor} stands for nothing that is complete above it")
        value, size = self.anchors[event.anchor]
        self.built += size
        self.repeated += size
        if self.repeated > MAX_REPEATED:
            raise InputError(f"{line}: aliases repeat more than {MAX_REPEATED} values")
        return value

    def mapping(self, path: tuple[Any, ...], line: str) -> dict[Any, Any]:
        """Return the mapping that begins at a line."""
        from ruamel.yaml import events as ev

        value: dict[Any, Any] = {}
        while not isinstance(item := next(self.events), ev.MappingEndEvent):
            if getattr(item, "value", None) == "<<" and (item.tag is not None or item.implicit[0]):
                place = f"line {item.start_mark.line + 1}: {path_of((*path, '<<'))}"
                raise InputError(f"{place}: is a merge key of YAML 1.1, which YAML 1.2 does not have: {_SHARED}")
            key = self.value(item, (*path, "key"))
            if isinstance(key, dict | list):
                raise InputError(f"line {item.start_mark.line + 1}: a key must be plain text or a number")
            if key in value:
                raise InputError(f"line {item.start_mark.line + 1}: {path_of((*path, key))}: is given twice")
            value[key] = self.value(next(self.events), (*path, key))
            if len(value) > WIDEST:
                raise InputError(f"{line}: the mapping that begins here holds more than {WIDEST} keys")
        return value


def _scalar(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return _integer(text)
    if _BASED.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        return float(re.sub(r"\.(?=[in])", "", text.lower()))  # Python has no dot in .inf and .nan
    return text


def merge_defaults(
    data: dict[str, Any], of_job: Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]] = lambda defaults, _: defaults
) -> dict[str, Any]:
    """Remove `defaults` from a file's mapping and merge it, key by key and level by level, under every job.

    Args:
        data: Mapping of the file.
        of_job: Function that returns those defaults, its first argument, that are for a job, its second.
    """
    if "defaults" not in data:
        return data
    rest = {key: value for key, value in data.items() if key != "defaults"}
    defaults = data["defaults"]
    if not isinstance(defaults, dict):
        raise InputError(f"defaults: must be a mapping, not {describe(defaults)}")
    if "id" in defaults:
        raise InputError("defaults.id: every job needs an id of its own")
    if isinstance(rest.get("jobs"), list):
        rest["jobs"] = [_merge(of_job(defaults, job), job) if isinstance(job, dict) else job for job in rest["jobs"]]
    return rest


def _merge(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(under)
    for key, value in over.items():
        below = under.get(key)
        merged[key] = _merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def has_key(data: dict[str, Any], key: str) -> bool:
    """Return whether a job of a file, or the defaults, has a key."""
    jobs = data.get("jobs")
    return any(isinstance(job, dict) and key in job for job in (*(jobs if isinstance(jobs, list) else ()), data.get("defaults")))


def only_in_defaults(data: dict[str, Any], field: tuple[str | int, ...]) -> bool:
    """Return whether a field of a merged job comes from `defaults`."""

    def holds(value: Any) -> bool:
        for part in field[2:]:
            if not isinstance(value, dict) or part not in value:
                return False
            value = value[part]
        return True

    return len(field) > 2 and field[0] == "jobs" and holds(data.get("defaults")) and not holds(data["jobs"][field[1]])


def checked(
    model: type[Read],
    data: dict[str, Any],
    source: str,
    prepare: Callable[[dict[str, Any]], dict[str, Any]],
    other: str = "",
    hint: str = "",
) -> Read:
    """Validate a file's mapping as a model.

    Args:
        model: Model of the file.
        data: Mapping of the file.
        source: Name of the file, with which error messages begin.
        prepare: Function that merges `defaults` under every job and fills in missing values.
        other: Problem that replaces all others, if the file is of another format; else empty.
        hint: Words behind any other problem, if the file may be of another format; else empty.

    Raises:
        InputError: If the mapping is invalid. The message names the source, the path of the field and the problem.
    """
    try:
        return model.model_validate(prepare(data))
    except ValidationError as error:
        first = problems(error)[0]
        problem = format_error(first, model) + (" (set by defaults)" if only_in_defaults(data, field_of(first)) else "")
    except InputError as error:
        problem = str(error)
    except RecursionError:
        problem = "is nested too deeply"
    raise InputError(f"{one_line(source, 4096)}: {other or one_line(problem) + hint}")
