"""What is skipped is told once, with what would help."""

from __future__ import annotations

import re
from pathlib import Path

from tests.skips import told

ROOT = Path(__file__).parents[1]


def test_each_reason_is_told_once_with_its_files_and_what_installs_it() -> None:
    page, checker = "no Chromium (Debian: chromium)", "no promtool (Debian: prometheus)"
    assert told([("a.py", checker), ("b.py", page), ("b.py", f"Skipped: {page}"), ("a.py", page), ("c.py", "no GPU")]) == [
        f"   3  {page}: a.py, b.py (2)",
        "   1  no GPU: c.py",
        f"   1  {checker}: a.py",
        "make packages (as root, on Debian or Ubuntu) installs what is missing: chromium prometheus",
    ]
    assert told([("c.py", "no GPU")]) == ["   1  no GPU: c.py"]


def test_what_reasons_name_is_installed_by_make_packages() -> None:
    installed = re.search(r"^PACKAGES := ([^#\n]+)", (ROOT / "Makefile").read_text(), re.M)
    assert installed is not None
    sources = (path.read_text() for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__))
    assert {name for text in sources for name in re.findall(r"\(Debian: ([a-z0-9-]+)\)", text)} == {*installed[1].split()}
