"""Generator of parts of the pages in docs/: tables of keys and of commands, and descriptions of the names that a program imports.

A generated part stands between two comments of its page, of which the second is `<!-- end -->`. The first names the source:

    <!-- keys of MODULE.CLASS -->                             the keys of a mapping
    <!-- keys of MODULE.CLASS beyond MODULE.BASE -->          without the rows that another mapping has too
    <!-- keys of MODULE.CLASS without KEY -->                 without a key
    <!-- commands of HEADING -->                              the commands under a heading of `rollmux --help`
    <!-- names of MODULE -->                                  the names in a module's `__all__`
    <!-- names of MODULE: NAME NAME -->                       these names

`make docs-tables` writes the parts. tests/test_docs.py holds that pages are as they would be written.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from command_tables import command_table
from import_pages import descriptions
from key_tables import key_table

DOCS = Path(__file__).resolve().parents[1]
_PART = re.compile(r"^<!-- ((?:keys|commands|names) of .+?) -->\n.*?^<!-- end -->$", re.S | re.M)
_KEYS = re.compile(r"keys of (\S+)(?: beyond (\S+))?(?: without (\S+))?")
_COMMANDS = re.compile(r"commands of (.+)")
_NAMES = re.compile(r"names of (\S+?)(?:: (.+))?")


def generate(text: str, page: Path) -> str:
    """Return the text of a page with its generated parts as their sources are now.

    Args:
        text: Text of the page, in Markdown.
        page: Path of the page.
    """
    return _PART.sub(lambda found: f"<!-- {found[1]} -->\n\n{_part(found[1], page)}\n\n<!-- end -->", text)


@cache
def _with_table() -> set[Any]:
    """Return the models of mappings that have a table on any page."""
    sources = [found[1] for page in DOCS.rglob("*.md") for found in _PART.finditer(page.read_text(encoding="utf-8"))]
    return {_attribute(keys[1]) for source in sources if (keys := _KEYS.fullmatch(source))}


def _part(source: str, page: Path) -> str:
    if keys := _KEYS.fullmatch(source):
        model, base, hidden = keys.groups()
        return key_table(_attribute(model), _attribute(base) if base else None, _with_table(), hidden)
    if commands := _COMMANDS.fullmatch(source):
        return command_table(commands[1])
    names = _NAMES.fullmatch(source)
    assert names is not None
    module = import_module(names[1])
    return descriptions(module, names[2].split() if names[2] else module.__all__, page)


def _attribute(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def main() -> None:
    """Write the generated parts of all pages."""
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        if (now := generate(text, page)) != text:
            page.write_text(now, encoding="utf-8")
            print(f"wrote {page.relative_to(DOCS.parent)}")


if __name__ == "__main__":
    main()
