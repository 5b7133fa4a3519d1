"""Tables of the keys of files, from the JSON Schema of their models: default, values, and the text below the field."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import BaseModel

from rollmux_env.fields import LARGEST

_UNBOUNDED = (2**31, LARGEST)  # limits that hold for every number
_SIGNS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
Schema = Mapping[str, Any]


class Row(NamedTuple):
    """A row of a table.

    Attributes:
        key: Path of the key below the mapping of the table.
        default: Default value in Markdown.
        values: Allowed values in Markdown.
        meaning: Text below the field, in one line.
    """

    key: str
    default: str
    values: str
    meaning: str


def key_table(
    model: type[BaseModel], base: type[BaseModel] | None, elsewhere: Collection[type[BaseModel]], hidden: str | None
) -> str:
    """Return the table of a model's keys, with those of nested mappings.

    Args:
        model: Model of the mapping.
        base: Model whose rows are left out, or None.
        elsewhere: Models of nested mappings that have a table of their own.
        hidden: Key that is left out, or None.
    """
    known = {*_rows(base, elsewhere, hidden)} if base else set[Row]()
    merged: dict[tuple[str, ...], list[str]] = {}  # keys by what else is in their row
    for key, *others in (row for row in _rows(model, elsewhere, hidden) if row not in known):
        merged.setdefault((*others,), []).append(f"`{key}`")
    lines = ["| key | default | values | meaning |", "|---|---|---|---|"]
    return "\n".join([*lines, *(f"| {' | '.join((', '.join(keys), *others))} |" for others, keys in merged.items())])


def _rows(model: type[BaseModel], elsewhere: Collection[type[BaseModel]], hidden: str | None) -> Iterator[Row]:
    schema = model.model_json_schema()
    without = {other.__name__ for other in elsewhere}
    yield from _rows_of(schema, {name: own for name, own in schema.get("$defs", {}).items() if name not in without}, hidden)


def _rows_of(schema: Schema, models: Mapping[str, Schema], hidden: str | None, prefix: str = "") -> Iterator[Row]:
    for name, key in schema["properties"].items():
        if name == hidden:
            continue
        below = [(models[nested], step) for nested, step in _nested(key) if nested in models]
        if not (below and isinstance(key.get("default"), dict)):  # the keys of a mapping that is always there say enough
            meaning = " ".join(key.get("description", "").split()).replace("|", "\\|")
            yield Row(prefix + name, _default(key, name in schema.get("required", ())), values(key), meaning)
        for nested, step in below:
            yield from _rows_of(nested, models, hidden, f"{prefix}{name}.{step}")


def _nested(key: Schema) -> Iterator[tuple[str, str]]:
    """Yield the models of a key's mapping, and what precedes their keys in a path."""
    for choice in key.get("anyOf", (key,)):
        if "$ref" in choice:
            yield choice["$ref"].rpartition("/")[2], ""
        for further in choice.get("patternProperties", {}).values():
            yield further["$ref"].rpartition("/")[2], "NAME."


def _default(key: Schema, is_required: bool) -> str:
    default = key.get("default")
    if is_required:
        return "required"
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, int | float):
        return f"{default:.10g}"
    if default and isinstance(default, list):
        return f"`{json.dumps(default)}`"
    return f"`{default}`" if default and isinstance(default, str) else ""


def values(key: Schema) -> str:
    """Return the allowed values of a key, in Markdown. Null, which is the same as leaving the key out, is not named.

    Args:
        key: JSON Schema of the key.
    """
    if "anyOf" in key:
        return " or ".join(values(choice) for choice in key["anyOf"] if choice.get("type") != "null")
    if "enum" in key or "const" in key:
        return ", ".join(f"`{value}`" for value in key.get("enum", [key.get("const")]))
    match key.get("type"):
        case "integer" | "number" as kind:
            limits = _range(key)
            return f"integer {limits}".strip() if kind == "integer" else limits or "number"
        case "string":
            return f"`{key['pattern'].strip('^$')}`" if "pattern" in key else "text"
        case "array":
            if "prefixItems" in key:
                return "pair"
            several = re.sub(r"^(mapping|list|pair)\b", r"\1s", values(key["items"]))
            return f"list of {several}" + (f", at most {key['maxItems']}" if "maxItems" in key else "")
        case "boolean":
            return "boolean"
        case _:
            further = key.get("additionalProperties")
            return f"mapping of {values(further)}" if isinstance(further, dict) else "mapping"


def _range(key: Schema) -> str:
    limits = {name: limit for name, limit in key.items() if name in _SIGNS and abs(limit) not in _UNBOUNDED}
    if {*limits} == {"minimum", "maximum"}:
        return f"{limits['minimum']:.10g} to {limits['maximum']:.10g}"
    return ", ".join(f"{sign} {limits[name]:.10g}" for name, sign in _SIGNS.items() if name in limits)
