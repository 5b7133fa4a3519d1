"""The site of docs/: every page has its place in the navigation, and links that leave docs/ hold."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.test_package import ROOT

DOCS = ROOT / "docs"
CONFIG = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
HOOKS: dict[str, Any] = runpy.run_path(str(DOCS / "mkdocs" / "hooks.py"))


def paths(pages: list[Any]) -> Iterator[str]:
    """Pages of a navigation, in order."""
    for page in pages:
        if isinstance(page, str):
            yield page
        else:
            (within,) = page.values()
            yield from paths([within] if isinstance(within, str) else within)


def test_every_page_is_in_the_navigation_once() -> None:
    pages = [*paths(HOOKS["navigation"](DOCS))]
    assert sorted(pages) == sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))


def test_the_navigation_is_what_the_tables_list_under_their_headings(tmp_path: Path) -> None:
    def write(name: str, text: str) -> None:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)

    write("README.md", "# Home\n\nSee [b](b.md).\n\n## Pages\n\n| [Guides](guides/README.md) | g |\n| [A](a.md) | a |\n")
    write(
        "guides/README.md",
        "# Guides\n\n## One\n\n| [`x`](x.md) | |\n| [Y](y.md) | |\n| [A](../a.md#b) | |\n\n## Two\n\n| [Z](z.md) | |\n",
    )
    for name in ("a.md", "b.md", "guides/x.md", "guides/y.md", "guides/z.md", "guides/new.md"):
        write(name, "# A page\n")
    guides = ["guides/README.md", {"One": [{"x": "guides/x.md"}, {"Y": "guides/y.md"}]}, {"Z": "guides/z.md"}, "guides/new.md"]
    assert HOOKS["navigation"](tmp_path) == ["README.md", {"Guides": guides}, {"A": "a.md"}, "b.md"]


def test_links_that_leave_docs_lead_to_the_repository() -> None:
    at = "https://github.com/a/b"
    whole = HOOKS["with_links_to_the_repository"]
    text = "[a](../../Makefile#x) [b](walkthrough.md#y) [c](../../examples/mini) [d](https://e.org) [e](#f) `[g](../../Makefile)`"
    text += " [h `i`](../../Makefile)"
    assert whole(text, "guides/attach.md", ROOT, at) == (
        f"[a]({at}/blob/main/Makefile#x) [b](walkthrough.md#y) [c]({at}/tree/main/examples/mini) [d](https://e.org) [e](#f)"
        f" `[g](../../Makefile)` [h `i`]({at}/blob/main/Makefile)"
    )
    plain = "a [b](walkthrough.md#y) c [d](https://e.org) [e](#f) `[g](../../Makefile)` h `i`"
    assert whole(text, "guides/attach.md", ROOT, "") == plain
    for page in DOCS.rglob("*.md"):
        shown = re.sub(
            r"^ *```.*?^ *```$",
            "",
            whole(page.read_text(encoding="utf-8"), page.relative_to(DOCS).as_posix(), ROOT, ""),
            flags=re.S | re.M,
        )
        targets = re.findall(r"\]\((?!\w+:|#)([^)\s#]+)", shown)
        assert [target for target in targets if not (page.parent / target).resolve().is_relative_to(DOCS)] == [], page


@pytest.mark.long
def test_the_site_builds_without_a_broken_link(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="MkDocs is not installed: `make docs` does it")
    pytest.importorskip("material", reason="Material for MkDocs is not installed: `make docs` does it")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    home = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert [door for door in ("Compare policies", "Train agents", "Run jobs") if f"<strong>{door}</strong>" not in home] == []
    assert "<math" in (tmp_path / "site" / "reference" / "grpo" / "index.html").read_text(encoding="utf-8")
    assert 'id="arrivalpolicy"' in (tmp_path / "site" / "reference" / "api" / "policies" / "index.html").read_text()
    assert [folder for folder in ("mkdocs", "tables") if (tmp_path / "site" / folder).exists()] == []
