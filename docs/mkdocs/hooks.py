"""What MkDocs asks while it builds the site of docs/: the navigation, links that leave docs/, and formulas.

docs/ reads the same in the repository and on the site. The navigation is what its README.md pages list in their tables, under their
headings; a page that no table has follows the others of its folder. Formulas become MathML: no script is needed for them.
"""

from __future__ import annotations

import html
import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

_LINK = re.compile(  # or code, which is skipped; the words of a link may hold code
    r"^ *```.*?^ *```$|`[^`\n]+`|\[((?:`[^`\n]+`|[^\[\]`])*)\]\((?!\w+:|#)([^)\s#]+)(#[^)\s]*)?\)", re.S | re.M
)
_SOURCE = os.environ.get("ROLLMUX_REPOSITORY", "").rstrip("/")  # address of the repository, where it is known
_ROW = re.compile(r"^\| \[(.+?)\]\(([^)#]+\.md)\) \|", re.M)
_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.S)

Navigation = list[str | dict[str, Any]]


def navigation(docs: Path, index: str = "README.md") -> Navigation:
    """Return the pages of a folder in the order of its index, which comes first.

    A heading of the index is a section of the pages below it.

    Args:
        docs: Folder of all pages.
        index: Path of one folder's README.md in it.
    """
    folder = PurePosixPath(index).parent
    pages: Navigation = [index]
    listed = {index}
    for part in re.split(r"^## ", (docs / index).read_text(encoding="utf-8"), flags=re.M):
        rows: Navigation = []
        for title, target in _ROW.findall(part):
            path = os.path.normpath(folder / target)
            if path.startswith("..") or path in listed or not PurePosixPath(path).is_relative_to(folder):
                continue
            listed.add(path)
            rows.append({title.replace("`", ""): navigation(docs, path) if path.endswith("/README.md") else path})
        heading = part.partition("\n")[0]
        has_heading = len(rows) > 1 and not part.startswith("#") and folder.name
        pages += [{heading: rows}] if has_heading else rows
    beside = (path.relative_to(docs).as_posix() for path in sorted((docs / folder).glob("*.md")))
    return pages + [path for path in beside if path not in listed]


def with_links_to_the_repository(text: str, page: str, root: Path, source: str) -> str:
    """Return a page whose links to files outside docs/ lead to them in the repository.

    Args:
        text: Text of the page, in Markdown.
        page: Path of the page in docs/.
        root: Folder of the repository.
        source: Address of the repository, or an empty text if it is not known: then such links become plain text.
    """

    def whole(link: re.Match[str]) -> str:
        if link[2] is None:
            return link[0]
        path = os.path.normpath(PurePosixPath("docs", page).parent / link[2])
        if path.startswith("docs/") and not (root / path).is_dir():
            return link[0]
        if not source:
            return link[1]
        return f"[{link[1]}]({source}/{'tree' if (root / path).is_dir() else 'blob'}/main/{path}{link[3] or ''})"

    return _LINK.sub(whole, text)


def on_config(config: Any) -> Any:
    """Make the navigation of the site, and link to the repository. With `repo_url`, each page would ask GitHub for stars."""
    if _SOURCE:
        config.extra["social"] = [{"icon": "fontawesome/brands/git-alt", "link": _SOURCE, "name": "Source"}]
    first, *others = navigation(Path(config.docs_dir))
    config.nav = [{"Home": first}, *others]
    return config


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Link a page to the repository, and give the first page all of the window."""
    if page.is_homepage:
        page.meta["hide"] = ["navigation", "toc"]
    root = Path(config.config_file_path).parent
    return with_links_to_the_repository(markdown, page.file.src_uri, root, _SOURCE)


def on_page_content(text: str, page: Any, config: Any, files: Any) -> str:
    """Turn the formulas of a page into MathML."""
    from latex2mathml.converter import convert

    def formula(found: re.Match[str]) -> str:
        latex = html.unescape(found[2]).replace(r"\_", "_").strip()  # an underscore in a text
        return convert(latex, display="block" if found[1] == "div" else "inline")

    return _FORMULA.sub(formula, text)
