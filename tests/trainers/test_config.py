"""docs/guides/training.md has a line for every key of a configuration; presets say what each of their lines means."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from trainers.config import Config, preset_names, read_config
from trainers.problem import DispatchProblem, PlacementProblem, RolloutProblem, make_problem

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guides" / "training.md").read_text()
HEAD = "| key | default | range | meaning |\n|---|---|---|---|\n"


def rows(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str, str, str]]:
    """Key, default, range and meaning of every field, those of mappings within it after it."""
    schema = model.model_json_schema()
    for name, field in schema["properties"].items():
        inner = field.get("$ref") or next((kind["$ref"] for kind in field.get("anyOf", []) if "$ref" in kind), None)
        needed = name in schema.get("required", []) or "default" not in field
        default = "" if needed else "as below" if "$ref" in field else f"`{json.dumps(field['default'])}`"
        if field.get("type") == "object" and name not in schema.get("required", []):
            default = "`{}`"
        yield f"`{prefix}{name}`", default, span(field), field.get("description", "").replace("\n", " ")
        if inner:
            nested: Any = model.model_fields[name].annotation
            parts = (nested, *getattr(nested, "__args__", ()))
            owner = next(part for part in parts if isinstance(part, type) and issubclass(part, BaseModel))
            yield from rows(owner, f"{prefix}{name}.")


def span(field: dict[str, Any]) -> str:
    """What a field may be."""
    if "anyOf" in field:
        return " or ".join(span(kind) for kind in field["anyOf"])
    if "enum" in field or "const" in field:
        return ", ".join(f"`{choice}`" for choice in field.get("enum", [field.get("const")]))
    kind = field.get("type")
    if kind == "array":
        return f"list of {span(field['items'])}"
    if kind in ("integer", "number"):
        bounds = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
        said = [f"{sign} {field[bound]}" for bound, sign in bounds.items() if bound in field]
        return " ".join([str(kind), ", ".join(said)]).strip()
    return {"boolean": "`true`, `false`", "string": "text", "null": "null"}.get(str(kind), "mapping")


@pytest.mark.parametrize(
    ("model", "prefix"),
    [(Config, ""), (PlacementProblem, "environment."), (DispatchProblem, "environment."), (RolloutProblem, "environment.")],
)
def test_the_page_has_every_key_as_the_model_has_it(model: type[BaseModel], prefix: str) -> None:
    expected = [*rows(model, prefix)]
    assert all(meaning for *_, meaning in expected)
    table = HEAD + "".join(f"| {' | '.join(row)} |\n" for row in expected)
    assert table + "\n" in PAGE, f"docs/guides/training.md has not this table:\n{table}"


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_can_be_used_and_says_what_every_line_of_it_means(name: str) -> None:
    config = read_config(name)
    make_problem(config.environment, name)
    lines = (ROOT / "trainers" / "presets" / f"{name}.yaml").read_text().splitlines()
    settings = [line for line in lines if not line.startswith("#") and line.partition("#")[0].strip().partition(": ")[2]]
    assert settings and all(" # " in line for line in settings)
