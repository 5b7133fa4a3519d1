"""Reading YAML and JSON files into plain mappings, and saying in one line what is wrong with them."""

from __future__ import annotations

import json
import reprlib
from pathlib import Path
from typing import Any

from rollmux_env.errors import InputError

_brief = reprlib.Repr()
_brief.maxstring, _brief.maxother, _brief.maxlong, _brief.maxdict, _brief.maxlist, _brief.maxlevel = 40, 40, 24, 2, 2, 2


def describe(value: Any) -> str:
    """A value in a few printable characters, however long it is."""
    return _brief.repr(value)


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a YAML 1.2 or (by its suffix) JSON file whose top level is a mapping.

    Raises:
        InputError: unreadable, not UTF-8, malformed, a key given twice, or not a mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{path}: is not a text file (UTF-8)") from None
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        raise InputError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    try:
        data = _parse_json(text) if path.suffix == ".json" else _parse_yaml(text)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except RecursionError:
        raise InputError(f"{path}: is nested too deeply") from None
    if not isinstance(data, dict):
        raise InputError(f"{path}: must hold a mapping, not {describe(data)}")
    return data


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping: dict[str, Any] = {}
    for key, value in pairs:
        if key in mapping:
            raise InputError(f"the key {describe(key)} is given twice")
        mapping[key] = value
    return mapping


def _no_constant(name: str) -> Any:
    raise InputError(f"{name} is not a number that JSON has")


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise InputError(f"line {error.lineno}: {error.msg}") from None
    except InputError:
        raise
    except ValueError as error:  # an integer of thousands of digits
        raise InputError(str(error).partition(";")[0]) from None


def _parse_yaml(text: str) -> Any:
    from ruamel.yaml import YAML
    from ruamel.yaml.constructor import DuplicateKeyError
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        return YAML(typ="safe", pure=True).load(text)
    except MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        problem = str(error.problem or error.context).splitlines()[0]
        if isinstance(error, DuplicateKeyError):
            problem = problem.partition(" with value")[0]
        raise InputError(f"{line}{problem[:160]}") from None
    except YAMLError as error:
        raise InputError(str(error).splitlines()[0][:160]) from None
    except RecursionError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:  # what its scalar constructors let through
        raise InputError(f"is not YAML: {str(error).partition(';')[0][:160]}") from None


def merge_defaults(data: dict[str, Any]) -> dict[str, Any]:
    """Take `defaults` out of a file's mapping and lay it, key by key and level by level, under every job."""
    if "defaults" not in data:
        return data
    rest = {key: value for key, value in data.items() if key != "defaults"}
    defaults = data["defaults"]
    if not isinstance(defaults, dict):
        raise InputError(f"defaults: must be a mapping, not {describe(defaults)}")
    if "id" in defaults:
        raise InputError("defaults.id: every job needs an id of its own")
    if isinstance(rest.get("jobs"), list):
        rest["jobs"] = [_merged(defaults, job) if isinstance(job, dict) else job for job in rest["jobs"]]
    return rest


def _merged(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(under)
    for key, value in over.items():
        below = under.get(key)
        merged[key] = _merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged
