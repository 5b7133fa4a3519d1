"""The result of `bench` as one HTML file: what is in it, and what a browser makes of it."""

from __future__ import annotations

import re
from pathlib import Path

from rich.console import Group
from rich.text import Text

from rollmux_env.report.folder import results_page
from rollmux_env.report.html import to_html
from rollmux_env.report.latex import to_latex
from rollmux_env.report.tables import heading, make_table
from tests.chromium import Browser, Tab, needs_chromium
from tests.conftest import Command

PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c49444154789c63f8cfc000000301010018dd8db00000000049454e44ae426082"
)
HOSTILE = "<script>window.bad=1</script>"


def test_bench_writes_all_that_it_found_into_one_file(command: Command, tmp_path: Path) -> None:
    status, _, errors = command("bench", "examples/quickstart.yaml", "-p", "solo", "-p", "rollmux", "--out", str(tmp_path))
    assert status == 0, errors
    html = (tmp_path / "results.html").read_text()
    assert {"results.json", "runs.csv", "jobs.csv", "results.html", "saving.png"} <= {path.name for path in tmp_path.iterdir()}
    assert html.count("data:image/png;base64,") == len([*tmp_path.glob("*.png")]), "every plot is in it"
    assert "<summary>rollmux: " in html and "iterations" in html and "alone $" in html
    assert not re.search(r'(?:src|href)="(?!data:)', html) and "url(" not in html and "@import" not in html, "nothing is outside"


def test_a_table_of_a_terminal_is_the_same_in_html() -> None:
    table = make_table("case", "policy", "saving", left=2)
    table.add_row("one", "a & b", "1.50x")
    table.add_row("", "b", "1,200.00x", style="red")
    html = to_html(Group(heading("A title"), table, Text("a note", style="dim")))
    assert html.startswith("<h2>A title</h2>") and html.endswith('<p class="dim">a note</p>')
    rows = [re.findall(r'<span class="name">(.*?)</span>', row) for row in html.split("<tr")[2:]]
    assert rows == [["one", "a &amp; b", "1.50x"], ["one", "b", "1,200.00x"]], "what is said once in a terminal is said again"
    assert '<tr role="row" class="bad">' in html and html.count('<td role="cell" class="n"') == 2


def test_latex_reads_cells_as_they_are() -> None:
    """A bracket behind the end of a line would be its optional argument, and `<` prints as an inverted exclamation mark."""
    table = make_table("slo", "policy", left=2)
    table.add_row("[1, 2]", "<lambda>")
    table.add_row("*", "a|b_c")
    lines = to_latex(table).splitlines()
    assert lines[-4:-2] == [r"{}[1, 2] & \textless{}lambda\textgreater{} \\", r"{}* & a\textbar{}b\_c \\"]


def test_every_key_of_a_swept_line_is_said_again() -> None:
    table = make_table("slo", "virtual_cluster", "policy", "saving", left=3)
    for slo, cluster in (("1.2", "a"), ("1.2", "b"), ("2", "")):
        table.add_section()
        table.add_row(slo, cluster, "solo", "1.00x")
        table.add_row("", "", "rollmux", "1.50x")
    rows = [re.findall(r"<td.*?>(?:<span class=.name.>(.*?)</span>)?</td>", row)[:2] for row in to_html(table).split("<tr")[2:]]
    assert rows == [["1.2", "a"]] * 2 + [["1.2", "b"]] * 2 + [["2", ""]] * 2


@needs_chromium
def test_a_browser_sorts_it_and_runs_nothing_that_is_in_it(browser: Browser, tmp_path: Path) -> None:
    table = make_table("policy", "cost $")
    for name, cost in ((HOSTILE, "1.2e+09"), ("b", "90.5 ± 2"), ("a10", ""), ("a9", "200")):
        table.add_row(name, cost)
    path = tmp_path / "results.html"
    path.write_text(results_page(HOSTILE, Group(heading(HOSTILE), table), {f"{HOSTILE}.png": PIXEL}))
    page = Tab(browser, 400, dark=True)
    page.open(path.as_uri())
    names = "[...document.querySelectorAll('tbody tr')].map((row) => row.cells[0].innerText)"
    assert page.value(names) == [HOSTILE, "b", "a10", "a9"]
    for column, order in ((1, ["b", "a9", HOSTILE, "a10"]), (1, [HOSTILE, "a9", "b", "a10"]), (0, [HOSTILE, "a9", "a10", "b"])):
        page.value(f"document.querySelectorAll('th button')[{column}].click()")
        assert page.value(names) == order
    assert page.value("document.querySelectorAll('th')[0].getAttribute('aria-sort')") == "ascending"
    assert page.value("window.bad === undefined && document.querySelectorAll('script').length === 1")
    assert page.value("document.querySelector('img').naturalWidth") == 1 and page.value("document.title") == HOSTILE
    assert page.value("document.documentElement.scrollWidth") == 400
    assert page.problems() == [] and page.requests()[0] == path.as_uri()
    assert all(url.startswith("data:") for url in page.requests()[1:])
