"""What the distributions say of themselves: one version, addresses in one place, links that hold on an index page, a citation."""

from __future__ import annotations

import importlib
import re
import runpy
import tomllib
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from ruamel.yaml import YAML

import rollmux
from tests.test_docs import FENCE

ROOT = Path(__file__).parents[1]
TEXT = {"type": "string", "minLength": 1}
ADDRESS = {"type": "string", "pattern": "^https://"}
# What version 1.2.0 of the Citation File Format asks of the keys that are used here.
CITATION = {
    "type": "object",
    "required": ["authors", "cff-version", "message", "title"],
    "additionalProperties": False,
    "properties": {
        "abstract": TEXT,
        "authors": {
            "type": "array",
            "minItems": 1,
            "uniqueItems": True,
            "items": {"type": "object", "required": ["name"], "additionalProperties": False, "properties": {"name": TEXT}},
        },
        "cff-version": {"const": "1.2.0"},
        "identifiers": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["type", "value"],
                "additionalProperties": False,
                "properties": {"type": {"enum": ["doi", "url", "swh", "other"]}, "value": TEXT, "description": TEXT},
            },
        },
        "keywords": {"type": "array", "minItems": 1, "uniqueItems": True, "items": TEXT},
        "license": TEXT,
        "message": TEXT,
        "repository-code": ADDRESS,
        "title": TEXT,
        "type": {"enum": ["software", "dataset"]},
        "url": ADDRESS,
    },
}


def project(folder: str = ".") -> dict[str, Any]:
    """The metadata of a distribution, as its `pyproject.toml` has it."""
    found: dict[str, Any] = tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return found


def test_both_distributions_have_one_version_and_one_source_of_addresses() -> None:
    ours, client = project(), project("clients/python")
    for key in ("version", "authors", "license"):
        assert client[key] == ours[key]
    assert (ROOT / "LICENSE").read_bytes() == (ROOT / "clients" / "python" / "LICENSE").read_bytes()


def test_the_changelog_has_what_is_to_come_first_and_names_the_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = [line for line in text.splitlines() if line.startswith("## ")]
    assert headings[0] == "## [Unreleased]"
    assert project()["version"] in text
    kinds = {line.removeprefix("### ") for line in text.splitlines() if line.startswith("### ")}
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_the_citation_file_is_one() -> None:
    citation = YAML(typ="safe", pure=True).load(ROOT / "CITATION.cff")
    jsonschema.validate(citation, CITATION)
    ours = project()
    assert [author["name"] for author in citation["authors"]] == [author["name"] for author in ours["authors"]]
    assert citation["license"] == ours["license"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(citation | {"authors": []}, CITATION)


def test_links_of_the_readme_hold_on_an_index_page() -> None:
    whole = runpy.run_path(str(ROOT / "setup.py"))["with_whole_links"]
    at = "https://github.com/a/b"
    text = "[a](docs/README.md#y) ![b](p.png) [c](#results) [d](https://e.org) [f\ng](h) ![i](https://e.org/p)\n```\n[j](k)\n```\n[l](m)"
    assert whole(text, at, "1.2") == (
        f"[a]({at}/blob/v1.2/docs/README.md#y) ![b]({at}/raw/v1.2/p.png) [c]({at}/blob/v1.2/README.md#results) [d](https://e.org)"
        f" [f\ng]({at}/blob/v1.2/h) ![i](https://e.org/p)\n```\n[j](k)\n```\n[l]({at}/blob/v1.2/m)"
    )
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    before, after = (relative_links(one) for one in (readme, whole(readme, at, "1.2")))
    assert len(before) > 15 and after == []
    assert whole(text, "", "1.2") == "a  c [d](https://e.org) f\ng ![i](https://e.org/p)\n```\n[j](k)\n```\nl"
    assert relative_links((ROOT / "clients" / "python" / "README.md").read_text(encoding="utf-8")) == [], "built as it is"


def test_no_address_is_named_that_is_not_known() -> None:
    """Where the repository is published is told by ROLLMUX_REPOSITORY when distributions and the site are built."""
    for folder in (".", "clients/python"):
        assert "urls" not in project(folder)
    assert "urls" in project()["dynamic"]
    for name in ("pyproject.toml", "clients/python/pyproject.toml", "CITATION.cff", "mkdocs.yml"):
        assert re.findall(r"github\.\w+", (ROOT / name).read_text(encoding="utf-8")) == [], name


def relative_links(text: str) -> list[str]:
    """Targets of links in a text that lead to a file beside it."""
    return re.findall(r"\]\((?!\w+:)([^)\s]+)\)", FENCE.sub("", text))


def test_types_and_help_have_every_public_name() -> None:
    stub = (ROOT / "rollmux-stubs" / "__init__.pyi").read_text(encoding="utf-8")
    names = {name: home for home, name in re.findall(r"^from (\S+) import \w+ as (\w+)$", stub, re.M)}
    assert {*names, "main"} == {*rollmux.__all__}
    assert all(getattr(importlib.import_module(home), name) is getattr(rollmux, name) for name, home in names.items())
    assert {*rollmux.__all__} <= {*dir(rollmux)}
