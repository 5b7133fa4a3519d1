"""The README, the pages in docs/ and what agents read name commands, options, files and names that there are."""

from __future__ import annotations

import ast
import re
import runpy
import shlex
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import typer
from pydantic import Field

import rollmux
from policies.dispatch import DISPATCH
from policies.named import LEARNED
from policies.registry import PLACEMENT
from policies.rollout import ROLLOUT
from rollmux_env.bench.suites import SUITES
from rollmux_env.errors import InputError
from rollmux_env.fields import Count, FileModel, JobId, Positive
from rollmux_env.timing.work import SETTINGS
from rollmux_env.workloads import WORKLOADS, WorkloadOptions
from trainers.config import preset_names, read_config

ROOT = Path(__file__).parents[1]
FRONT = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "AGENTS.md")]
PAGES = [*FRONT, *(page for folder in ("docs", ".agents") for page in sorted((ROOT / folder).rglob("*.md")))]
FENCE = re.compile(r"^```.*?^```", re.S | re.M)
WORKLOAD_KEYS = {option.name for option in fields(WorkloadOptions)} - {"seed"}
PACKAGES = "rollmux_env|policies|trainers|runtime"


def page_name(page: Path) -> str:
    """Its path in the repository."""
    return str(page.relative_to(ROOT))


def named(text: str) -> Iterator[str]:
    """Code in a text: spans, and lines of blocks."""
    for block in FENCE.findall(text):
        yield from re.sub(r"\\\n", " ", block).splitlines()[1:-1]
    rest = FENCE.sub("", text)
    yield from (line for line in rest.splitlines() if line.startswith("    "))
    yield from (" ".join(span.split()) for span in re.findall(r"`([^`]+)`", rest))


def commands(text: str, program: str) -> Iterator[list[str]]:
    """Words of the commands of a program in a text, without the program."""
    for code in named(text):
        for part in re.split(r" && | \| | > | &$|\s#\s", code.removeprefix("$ ")):
            if found := re.fullmatch(rf"(?: {{4}}|\w+=\S+ )?{program} ([a-z].*)", part):
                yield shlex.split(found[1].replace("[", "").replace("]", ""))


@pytest.fixture(scope="module")
def known() -> dict[str, Any]:
    """Every command by its name."""
    group: Any = typer.main.get_command(rollmux.command())
    return dict(group.commands)


def check(text: str, known: dict[str, Any]) -> None:
    """Every command in a text is one, and has the options that it is given there."""
    for words in commands(text, "rollmux"):
        assert words[0] in known, f"rollmux {words[0]}"
        command = getattr(known[words[0]], "commands", {}).get(
            words[1] if len(words) > 1 else "", known[words[0]]
        )  # one of a group
        options = {option for param in command.params for option in (*param.opts, *param.secondary_opts)}
        own = words[: words.index("--")] if "--" in words else words  # behind it is a command of somebody else
        given = {word.partition("=")[0] for word in own if re.match("--?[a-z]", word)}
        assert given <= options | {"--help", "-h"}, f"rollmux {' '.join(words)}"
        settings = [words[k + 1].partition("=")[0] for k, word in enumerate(words) if word == "--set" and words[0] != "train"]
        allowed = {*SETTINGS} if words[0] == "allocate" else {*WORKLOAD_KEYS, "key", "workload"}
        is_own = ":" in "".join(words[1:2])  # a workload of the reader's own has options of its own
        assert is_own or {*settings} <= allowed, words
        policies = [words[k + 1].split(",")[0] for k, word in enumerate(words) if word in ("-p", "--policy")]
        assert all(name in PLACEMENT or ":" in name or name == "NAME" for name in policies), words
        if words[0] == "train":
            check_keys("".join(words[1:2]), [words[k + 1] for k, word in enumerate(words) if word in ("--set", "--sweep")])
    for words in commands(text, "python"):
        if words[0].endswith(".py"):
            script = (ROOT / words[0]).read_text()
            assert all(f'"{word}"' in script for word in words if word.startswith("--")), f"python {' '.join(words)}"


def check_keys(preset: str, changes: list[str]) -> None:
    """A training with this preset has every key that is changed. Values are not checked, since brackets are left out of words."""
    try:
        read_config(preset, changes)
    except InputError as error:
        assert preset not in preset_names() or "is not a key" not in str(error), f"rollmux train {preset}: {error}"


@pytest.mark.parametrize("page", [*PAGES, *sorted((ROOT / "benchmarks").glob("*.py"))], ids=page_name)
def test_every_command_on_a_page_is_one(page: Path, known: dict[str, Any]) -> None:
    text = page.read_text()
    check(text if page.suffix == ".md" else ast.get_docstring(ast.parse(text)) or "", known)


def test_every_command_in_a_help_text_is_one(known: dict[str, Any]) -> None:
    for command in known.values():
        check(command.help, known)


def test_every_option_of_a_workload_is_documented_and_in_the_help(known: dict[str, Any]) -> None:
    page = (ROOT / "docs" / "reference" / "workloads.md").read_text()
    assert {key for key in WORKLOAD_KEYS if f"`{key}`" not in page} == set()
    assert {key for key in WORKLOAD_KEYS if not re.search(rf"\b{key}\b", known["workload"].help)} == set()


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.read_text())):
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        there = (page.parent / name).resolve() if name else page
        assert there.exists(), target
        headings = re.findall(r"^#+ (.*)$", there.read_text(), re.M) if anchor else []
        assert not anchor or anchor in {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}, target


def links(page: Path) -> set[Path]:
    """Files of this repository that a page links to."""
    targets = re.findall(r"\]\(([^)\s#]+)", FENCE.sub("", page.read_text()))
    return {(page.parent / target).resolve() for target in targets if not target.startswith("http")}


@pytest.fixture(scope="module")
def tables() -> dict[str, Any]:
    """The functions of the generator of parts of pages."""
    return runpy.run_path(str(ROOT / "docs" / "tables"))


def test_generated_parts_of_pages_are_as_their_sources_are(tables: dict[str, Any]) -> None:
    other = [page_name(page) for page in PAGES if tables["generate"](page.read_text(), page) != page.read_text()]
    assert other == [], "`make docs-tables` writes them"
    parts = [part for page in PAGES for part in re.findall(r"^<!-- keys of .*?^<!-- end -->", page.read_text(), re.S | re.M)]
    assert parts and [part for part in parts if "|  |\n" in part] == [], "each key says what it means"


class Part(FileModel):
    size_gb: Positive = 2.0
    """Size, GB."""


class Named(FileModel):
    name: JobId
    """Name."""


class Whole(Named):
    left: Part = Part()
    """Left part."""
    right: Part | None = None
    """Right part."""
    kind: Literal["a", "b"] = "a"
    """Kind,
    or none."""
    many: Annotated[Count | None, Field(le=9)] = None
    """Number of parts."""
    secret: int = 0
    """Nothing to show."""


def test_a_table_has_the_keys_of_nested_mappings_and_no_row_of_the_base(tables: dict[str, Any]) -> None:
    assert tables["key_table"](Whole, Named, set(), "secret").splitlines()[2:] == [
        "| `left.size_gb`, `right.size_gb` | 2 | > 0 | Size, GB. |",
        "| `right` |  | mapping | Right part. |",
        "| `kind` | `a` | `a`, `b` | Kind, or none. |",
        "| `many` |  | integer 1 to 9 | Number of parts. |",
    ]
    assert tables["key_table"](Named, None, set(), None).splitlines()[2:] == [
        "| `name` | required | `[A-Za-z0-9._-]{1,64}` | Name. |"
    ]
    assert "| `left` |  | mapping | Left part. |" in tables["key_table"](Whole, None, {Part}, None)


def test_the_index_leads_to_every_page() -> None:
    reached, front = set[Path](), {ROOT / "docs" / "README.md"}
    while front:
        reached |= front
        front = {target for page in front for target in links(page) if target.suffix == ".md"} - reached
    assert {*PAGES} - reached <= {*FRONT}


def test_every_page_named_in_code_exists() -> None:
    files = [
        path
        for folder in ("rollmux_env", "policies", "trainers", "runtime", "clients", "benchmarks", "examples", "tests")
        for path in (ROOT / folder).rglob("*")
    ]
    for path in files:
        if path.suffix in (".py", ".yaml", ".sh", ".sbatch"):
            assert all((ROOT / name).exists() for name in re.findall(r"docs/[\w/-]+\.md", path.read_text())), path


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_prose_is_wrapped_at_100_columns(page: Path) -> None:
    text = re.sub(r"\A---\n.*?^---\n", "", page.read_text(), flags=re.S | re.M)  # in front of a skill a value is one line
    prose = re.sub(r"^\$\$.*?\$\$$", "", FENCE.sub("", text), flags=re.S | re.M)
    whole = ("|", "#", "![", "    ")  # tables, headings, images and blocks of code have lines of their own
    lines = [line for line in prose.splitlines() if not line.startswith(whole) and " " in line.strip()]
    assert [line for line in lines if len(line) > 100] == []


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_a_table_begins_with_its_heading(page: Path) -> None:
    """Rows behind a blank line are shown as text."""
    first = re.findall(r"\n\n(\|.*)\n(.*)", FENCE.sub("", page.read_text()))
    assert [row for row, rule in first if not re.fullmatch(r"\|[ :|-]+\|", rule)] == []


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_every_file_and_module_on_a_page_exists(page: Path) -> None:
    for code in named(page.read_text()):
        for path in re.findall(rf"(?<![\w./])(?:benchmarks|tests|examples|docs|{PACKAGES})/[\w./*{{}},-]*", code):
            assert "{" in path or any(ROOT.glob(path.rstrip("/."))), path
        for name in re.findall(rf"(?<![\w./])(?:{PACKAGES})(?:\.\w+)+", code):
            assert is_defined(name), name
        for module, names in re.findall(rf"^from ((?:{PACKAGES})[\w.]*) import ([\w, ]+)", code):
            assert [name for name in names.split(", ") if not is_defined(f"{module}.{name.split()[0]}")] == [], module


def is_defined(name: str) -> bool:
    """Whether a dotted name is a module, or is defined or imported at the top of one."""
    *parents, last = name.split(".")
    if any(ROOT.joinpath(*parents, f"{last}{end}").exists() for end in ("", ".py")):
        return True
    modules = [ROOT.joinpath(*parents[:-1], f"{parents[-1]}.py"), ROOT.joinpath(*parents, "__init__.py")]
    trees = [ast.parse(module.read_text()) for module in modules if module.exists()]
    return any(last in {getattr(node, "name", None) for node in tree.body} | _bound(tree) for tree in trees)


def _bound(tree: ast.Module) -> set[str]:
    targets = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
    imported = {alias.asname or alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    return imported | {target.id for target in targets if isinstance(target, ast.Name)}


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("policies.md", [*PLACEMENT, f"{LEARNED}default"]),
        ("dispatch.md", [*DISPATCH, f"{LEARNED}default"]),
        ("rollout_policies.md", [*ROLLOUT]),
        ("workloads.md", [*WORKLOADS]),
        ("suites.md", [*SUITES]),
    ],
)
def test_a_page_has_all_names_of_its_kind(page: str, names: list[str]) -> None:
    text = (ROOT / "docs" / "reference" / page).read_text()
    assert [name for name in names if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text)] == []


@pytest.mark.parametrize(("title", "most"), [("The short way", 20), ("The same permit over HTTP", 12)])
def test_the_walkthrough_names_files_that_there_are_and_needs_few_for_a_permit(title: str, most: int) -> None:
    page = (ROOT / "docs" / "guides" / "walkthrough.md").read_text()
    names = re.findall(r"`((?:clients|policies|rollmux_env|runtime)/[\w/]+\.py)`", page)
    assert [name for name in names if not (ROOT / name).exists()] == []
    section = page.partition(f"### {title}\n")[2].partition("\n### ")[0]
    assert 0 < len({*re.findall(r"`([\w/]+\.py)`", section)}) <= most
