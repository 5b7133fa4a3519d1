"""README and the pages of results show what the commands beside them printed: `benchmarks/freeze_outputs.py` keeps it.

The figures of a section are those of the kept outputs of the commands that it names and that stand at the head of its page, or else
of all that the page names. Numbers with a decimal point are looked for, in prose and in tables: whole numbers are too common, and
whole percentages and so many "times" are mostly computed from what is printed.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from tests.benchmarks import load_benchmark

ROOT = Path(__file__).parents[1]
OUTPUT = ROOT / "docs" / "results" / "output"
OUTPUTS = sorted(OUTPUT.glob("*.txt"))
RESULTS = sorted((ROOT / "docs" / "results").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "docs" / "reference" / "suites.md", *RESULTS]
BLOCK = re.compile(r"^```.*?^```$", re.S | re.M)
NUMBER = re.compile(r"(?<![\w.])\d[\d,]*\.\d+x?(?![\w.]*\w\.)")
ABOUT = re.compile(r"rollmux (bench \S+ |(run|profile) examples|train \S+)|python (benchmarks/|-m )")
NO_FIGURE = re.compile(r"`[^`]*`|\]\([^)]*\)|arXiv\s+\[?[\d.]+|Python [\d.]+|[Ss]ection \d\.\d|[\d.]+( (to|and) [\d.]+)?\s+times")
EXAMPLE = re.compile(r"--quick|my_module|freeze_|import_|(train|bench) toy")  # how to call a command, not what it printed


@cache
def kept() -> dict[str, str]:
    """What was printed, by command."""
    texts = [path.read_text(encoding="utf-8").partition("\n") for path in OUTPUTS]
    return {first.removeprefix("$ "): printed for first, _, printed in texts}


@cache
def numbers(text: str, ratios: bool = False) -> frozenset[float]:
    """All numbers of a text, or those that are ratios, as 1.5x."""
    found = re.findall(r"\d[\d,]*(?:\.\d+)?" + (r"(?=x|\])" if ratios else ""), text)
    return frozenset(float(number.replace(",", "")) for number in found if number.strip(","))


def commands(text: str) -> set[str]:
    """Commands that a text names with what they are about, a suite, a file, a benchmark, or by a link to their output."""
    blocks = "\n".join(BLOCK.findall(text)).replace("\\\n", " ").splitlines()
    spans = [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", BLOCK.sub("", text))]
    lines = [line.removeprefix("$ ") for line in blocks if line.startswith("$ ")]
    named = {re.sub(r"\s+#.*| --(workers|out) \S+", "", line).strip() for line in [*lines, *spans]}
    linked = {command_of(name) for name in re.findall(r"\]\([\w./]*output/([\w-]+)\.txt\)", text)}
    return linked | {line for line in named if ABOUT.match(line) and not EXAMPLE.search(line)}


def command_of(name: str) -> str:
    """The command whose output a file has."""
    return (OUTPUT / f"{name}.txt").read_text(encoding="utf-8").partition("\n")[0].removeprefix("$ ")


def sections(page: Path) -> list[tuple[str, str]]:
    """Heading and text of each section of a page, with what stands before the first."""
    first, *rest = re.split(r"^## ", page.read_text(encoding="utf-8"), flags=re.M)
    return [("", first), *((part.partition("\n")[0], part) for part in rest)]


def is_shown(figure: str, shown: frozenset[float], ratios: frozenset[float]) -> bool:
    """Whether a figure is printed, to as many places as it has; a ratio as one, where there are some."""
    number = figure.removesuffix("x")
    value, places = float(number.replace(",", "")), len(number.partition(".")[2])
    among = ratios if ratios and figure != number else shown
    return any(abs(value - other) <= 0.5001 * 10.0**-places for other in among)


def astray(page: Path) -> list[str]:
    """Figures of a page that no command beside them has printed."""
    whole, head = commands(page.read_text(encoding="utf-8")), commands(sections(page)[0][1])
    lost = []
    for heading, text in sections(page):
        if sources := commands(text) | head or whole:
            shown, ratios = (frozenset[float]().union(*(numbers(kept()[one], of) for one in sources)) for of in (False, True))
            prose = NO_FIGURE.sub(" ", BLOCK.sub("", text))
            lost += [f"{heading}: {figure}" for figure in NUMBER.findall(prose) if not is_shown(figure, shown, ratios)]
    return lost


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_figure_was_printed_by_a_command_beside_it(page: Path) -> None:
    assert astray(page) == []


@pytest.mark.parametrize("page", RESULTS, ids=lambda page: page.name)
def test_a_table_of_results_with_a_papers_figures_says_where_they_are_from(page: Path) -> None:
    """The column names the figure or table, its version, and whether it is comparable."""
    heads = re.findall(r"^(\|.*\|)\n\|[-| ]+\|$", page.read_text(encoding="utf-8"), re.M)
    theirs = [head for head in heads if re.search(r"\b(paper|Weave|elsewhere|claim)\b", head)]
    assert [head for head in theirs if not re.search(r"\| (source|comparable) \|", head)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_what_a_page_prints_below_a_command_is_what_is_kept_of_it(page: Path) -> None:
    for block in re.findall(r"^```console\n\$ (.*?)^```$", page.read_text(encoding="utf-8"), re.S | re.M):
        command, _, printed = block.partition("\n")
        if printed and not printed.startswith("$ "):
            assert printed == kept().get(command), f"{command}: python benchmarks/freeze_outputs.py keeps its output"


def test_of_every_command_the_output_is_kept() -> None:
    named = set[str]().union(*(commands(page.read_text(encoding="utf-8")) for page in PAGES))
    assert sorted(named - set(kept())) == []
    assert len(kept()) == len(OUTPUTS)


@pytest.mark.parametrize("path", [path for path in OUTPUTS if "--suite" in command_of(path.stem)], ids=lambda path: path.stem)
def test_the_remarks_below_a_kept_table_are_those_that_its_suite_prints_today(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert load_benchmark("freeze_outputs").with_remarks(text) == text, f"python benchmarks/freeze_outputs.py {path.stem} --remarks"


@pytest.mark.long
@pytest.mark.parametrize("name", ["temporal", "rollout-heavy", "spatial", "contention", "fidelity", "allocation_work"])
def test_what_draws_nothing_by_chance_and_measures_no_time_is_printed_again(name: str) -> None:
    assert load_benchmark("freeze_outputs").text_of(command_of(name)) == (OUTPUT / f"{name}.txt").read_text(encoding="utf-8")
