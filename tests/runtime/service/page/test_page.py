"""The page of a service, in a real browser: what it shows of a real service, and what it does with bad ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runtime.service.page import page_html
from tests.chromium import Browser, Tab, needs_chromium
from tests.runtime.service.http.conftest import Served
from tests.runtime.service.page.conftest import TOKEN, Answers

pytestmark = needs_chromium

JOB = {
    "class": "json:JSONDecoder",
    "slo": 1000,
    "iterations": 100_000,
    "checkpoint": {"every": 100_000},
    "options": {"phase_s": 0.02},
}
BIG = {"rollout": {"nodes": 2}, "training": {"nodes": 2}}
HOSTILE = [
    "<img src=x onerror=window.bad=1>",
    "</script><script>window.bad=1</script>",
    "\u202egnol\u0000\u0007",
    "\"'&lt;`${window.bad=1}`",
    "x" * 3000,
    "__proto__",
]
STATUS: dict[str, Any] = {
    "now_s": 1000.0, "policy": HOSTILE[0], "dispatch": HOSTILE[1], "stopping": False, "paused": HOSTILE[0], "usd_per_hour": 2.0,
    "usd_per_hour_solo": 4.0, "throughput_gain": 1.5, "pools": {}, "groups": [], "jobs": [],
}  # fmt: skip


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service with two jobs that take turns, one that waits for its profile's nodes, and one that has ended."""
    service = Served(tmp_path_factory.mktemp("service"))
    service.ask("POST", "/v1/jobs", {"id": "ended", **JOB, "iterations": 2})
    service.until("/v1/jobs/ended", lambda job: job["state"] == "done")
    for name in ("one", "two"):
        service.ask("POST", "/v1/jobs", {"id": name, **JOB, "user": "ann"})
    service.until("/v1/jobs/two", lambda job: job["iteration"] > 1)
    service.ask("POST", "/v1/jobs", {"id": "later", **JOB, "arrival_s": 1e6})
    yield service
    service.close()


def enter(tab: Tab, url: str, token: str) -> Tab:
    """Give a token to the page."""
    tab.open(url)
    tab.type_into("#token", token)
    tab.press("Enter")
    return tab


@pytest.fixture
def page(browser: Browser, served: Served) -> Tab:
    return shown(enter(Tab(browser), served.server.url, served.token))


def shown(tab: Tab) -> Tab:
    """Wait until phases are known."""
    tab.until("!document.querySelector('main').hidden && store.count > 4 && document.querySelectorAll('#jobs tr').length > 0")
    return tab


def test_it_asks_for_a_token_once_and_keeps_it_in_the_tab(browser: Browser, served: Served) -> None:
    tab = enter(Tab(browser), served.server.url, "wrong")
    tab.until("document.querySelector('#wrong').textContent === 'This token is not known to the service.'")
    assert tab.value("document.querySelector('main').hidden") and tab.value("sessionStorage.length") == 0
    tab.type_into("#token", served.token)
    tab.press("Enter")
    shown(tab)
    tab.call("Page.reload")
    tab.until("document.querySelector('#ask').hidden")
    shown(tab)
    assert served.token not in tab.value("document.documentElement.outerHTML") and tab.value("localStorage.length") == 0
    another = Tab(browser)
    another.open(served.server.url)
    another.until("!document.querySelector('#ask').hidden")
    asked = {url.partition("?")[0] for url in tab.requests()}
    assert asked <= {f"{served.server.url}{path}" for path in ("", "/", "/v1/status", "/v1/usage", "/v1/events")} | {"data:,"}


def test_it_shows_what_every_node_and_job_does(page: Tab) -> None:
    title = page.value("document.querySelector('#lanes h3').innerText")
    assert "Group" in title and "one" in title and "two" in title and "2.00 $/h, alone 4.00 $/h" in title
    rows = page.value("[...document.querySelectorAll('#jobs tr')].map((row) => [...row.cells].map((cell) => cell.innerText))")
    assert [row[0].split("\n") for row in rows] == [["one", "ann"], ["two", "ann"]]
    assert all(row[1].startswith("running") and "of 100000" in row[3] and row[8:] == ["1.00", "2.00"] for row in rows)
    page.until("[...document.querySelectorAll('#jobs tr')].every((row) => / of 1000.00x/.test(row.cells[7].innerText))")
    assert "all that are placed" in page.value("document.querySelector('#total').innerText")
    queue = page.value("[...document.querySelectorAll('#queue tr')].map((row) => [row.cells[0].innerText, row.cells[4].innerText])")
    assert queue == [["later", "it has not arrived yet"]]
    assert page.value("document.querySelector('#ended summary').innerText") == "1 job that has ended"
    page.until("/one: iteration /.test(document.querySelector('#log').innerText)")
    figures = page.value("document.querySelector('#figures').innerText")
    assert "alone $ 4.00: 50% saved" in figures and "2 nodes: " in figures
    assert page.problems() == []


def test_lanes_are_drawn_in_the_colours_of_their_jobs_and_move_on(page: Tab) -> None:
    page.value(
        "document.querySelector('#window').value = '15'; document.querySelector('#window').dispatchEvent(new Event('change')); 0"
    )
    colours = """((node) => {
      const canvas = document.querySelector(`canvas[data-node="${node}"]`);
      const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data, seen = new Set();
      const hex = (k) => "#" + [0, 1, 2].map((c) => data[k + c].toString(16).padStart(2, "0")).join("");
      for (let k = 0; k < data.length; k += 4) seen.add(hex(k));
      return seen;
    })"""
    for node in ("rollout-0", "training-0"):
        page.until(
            f"(() => {{ const seen = {colours}('{node}'); return seen.has(colourOf('one')) && seen.has(colourOf('two')); }})()"
        )
    page.until(f"{colours}('rollout-0').has('#f6e7c3')")  # a bubble
    assert page.value(f"!{colours}('rollout-1').has(colourOf('one'))")
    at = page.value("store.slices.get('rollout-0').length && store.slices.get('rollout-0').slice(-1)[0].end")
    page.until(f"store.slices.get('rollout-0').slice(-1)[0].end > {at}")
    page.value("document.querySelector('#pause').click(); 0")
    still = page.value("nowS()")
    assert page.value("new Promise((yes) => setTimeout(() => yes(nowS()), 300))") == still


def test_phases_are_read_out_by_the_keyboard(page: Tab) -> None:
    page.until("store.slices.get('training-0').filter((slice) => !slice.profile).length > 5")
    page.value("$('pause').click(); 0")
    canvas = "document.querySelector('canvas[data-node=\"training-0\"]')"
    page.until(f"({canvas}.focus(), document.activeElement === {canvas})")
    page.press("ArrowLeft")
    page.until("/^training-0: (one|two) training/.test(document.querySelector('#detail').textContent)")
    page.press("ArrowLeft")
    page.press("ArrowLeft")
    page.until("/; iteration [0-9]+; /.test(document.querySelector('#detail').textContent)")
    assert page.value("document.querySelector('#detail').getAttribute('role')") == "status"
    page.until(f"/^training-0: .* of the time shown$/.test({canvas}.getAttribute('aria-label'))")  # once it has been drawn


CONTRAST = """(() => {
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (rgb) => rgb.slice(0, 3).map((v) => v / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, k) => sum + v * [0.2126, 0.7152, 0.0722][k], 0);
  const behind = (node) => { for (; node; node = node.parentElement) { const c = parts(getComputedStyle(node).backgroundColor);
    if (c.length < 4 || c[3] > 0) return c; } return [255, 255, 255]; };
  const poor = [];
  for (const node of document.body.querySelectorAll("*")) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    if (!own || ["SCRIPT", "STYLE"].includes(node.tagName) || !node.checkVisibility()) continue;
    const [a, b] = [light(parts(getComputedStyle(node).color)), light(behind(node))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) poor.push([node.tagName, node.textContent.slice(0, 40), ratio]);
  }
  return poor;
})()"""


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (400, True)])
def test_it_can_be_read_wide_and_narrow_light_and_dark(browser: Browser, served: Served, width: int, dark: bool) -> None:
    page = shown(enter(Tab(browser, width, dark=dark), served.server.url, served.token))
    assert page.value("document.documentElement.scrollWidth") == width
    assert page.value(CONTRAST) == []
    controls = "[...document.querySelectorAll('input, select, button')].filter((it) => it.checkVisibility())"
    assert page.value(f"{controls}.filter((it) => !it.labels?.length && !it.innerText.trim()).map((it) => it.outerHTML)") == []
    assert page.value("getComputedStyle(document.body).backgroundColor") == ("rgb(14, 17, 22)" if dark else "rgb(245, 246, 248)")


def hostile_job(name: str, state: str) -> dict[str, Any]:
    figures = {"iteration_s": 3.0, "alone_s": 1.0, "usd_per_hour": 1.0, "usd_per_hour_solo": 2.0}
    numbers = {"iteration": 1, "iterations": 2, "slo": 2.0, "slowdown": 3.0, "usd": 1.0, "position": None, "eta_s": None}
    words = {key: name for key in ("id", "user", "reason", "problem")}
    place = {"group": 0, "nodes": [name], "phase": "rollout", "metrics": {"reward": 0.5}, "profile": None, "at_risk": True}
    return words | place | figures | numbers | {"priority": 0, "state": state}


def test_nothing_that_users_write_becomes_a_part_of_the_page(browser: Browser, answering: Answers) -> None:
    states = ("running", "waiting", "failed")
    status = STATUS | {
        "jobs": [hostile_job(f"{name}{state}", state) for name in HOSTILE for state in states],
        "users": [
            {"user": name, "jobs": 1, "nodes": 1.5, "usd_per_hour": 2.0, "node_hours": 7.0, "quota": {"nodes": 4}}
            for name in HOSTILE
        ],
        "groups": [{"id": 0, "jobs": HOSTILE, "nodes": HOSTILE, "period_s": 1.0, "usd_per_hour": 2.0, "usd_per_hour_solo": 4.0}],
    }
    kinds = ("Failed", "Restarted", "PhaseSlice", "Submitted", HOSTILE[0])
    body = {
        "at_s": 999.0,
        "where": HOSTILE[0],
        "why": HOSTILE[1],
        "iteration": 0,
        "phase": "rollout",
        "start_s": 990.0,
        "end_s": 999.0,
    }
    body |= {"asked_s": 989.0, "run_s": 991.0, "done_s": 998.0, "ok": False, "profile": False, "cold": True, "spans": []}
    entries = [
        {"number": 0, "kind": kind, "body": body | {"job_id": name, "problem": name, "nodes": [name], "spec": {"id": name}}}
        for kind in kinds
        for name in HOSTILE
    ]
    entries = [entry | {"number": number} for number, entry in enumerate(entries, 1)]
    server = answering(status, lambda number: entries[number : number + 1000])
    spent = {"month": "2026-12", "usd": 3.0, "saved_usd": 4.5, "wait_h": 0.5, "parks": 2}
    server.usage = [spent | {"user": HOSTILE[0]}, spent | {"user": HOSTILE[0], "month": "2026-11", "parks": 9}]
    page = enter(Tab(browser, 400), server.url, TOKEN)
    page.until(f"store.lines.length === {len(entries)} && document.querySelectorAll('#jobs tr').length === {len(HOSTILE)}")
    page.value("draw(); for (const canvas of document.querySelectorAll('canvas')) { canvas.focus(); } 0")
    page.press("ArrowLeft")
    assert page.value("window.bad === undefined && ({}).bad === undefined")
    assert page.value("document.querySelectorAll('img, iframe, object').length") == 0
    assert page.value("document.querySelectorAll('script').length") == 1
    assert HOSTILE[0] in page.value("document.querySelector('#jobs').innerText")
    assert HOSTILE[1] in page.value("document.querySelector('#log').innerText")
    page.until("usage.size === 1")
    first = page.value("[...document.querySelector('#users tr').cells].map((cell) => cell.textContent)")
    assert first == [HOSTILE[0], "1", "1.5 of 4", "2.00", "7.0", "3.00", "4.50", "0.5", "2"]
    assert page.value("document.documentElement.scrollWidth") == 400
    assert page.problems() == [] and all(url.startswith((server.url, "data:,")) for url in page.requests())


def test_it_shows_when_a_waiting_job_would_be_placed_with_one_more_node(browser: Browser, answering: Answers) -> None:
    waits = hostile_job("waits", "parked") | {"eta_s": STATUS["now_s"] + 7200.0}
    pool = {"nodes": 1, "busy": 1, "idle": 0, "free": 0, "suspect": 0, "draining": 0, "utilization": 0.5}
    server = answering(STATUS | {"jobs": [waits], "pools": {"rollout": pool, "training": pool}}, lambda number: [])
    server.what_if = {"after": {"jobs": [{"job": "waits", "admitted_s": STATUS["now_s"] + 600.0}]}}
    page = enter(Tab(browser, 1000), server.url, TOKEN)
    cell = "document.querySelector('#queue tr td:nth-child(4)').innerText"
    page.until(f"document.querySelector('#queue tr') && {cell} === 'in 2.0 h'")
    offered = page.value("[...document.querySelector('#more').options].map((one) => [one.value, one.text])")
    assert ['{"training":"+1"}', "one more training node"] in offered
    page.value("$('more').selectedIndex = 1; $('more').dispatchEvent(new Event('change')); 0")
    page.until(f"{cell} === 'in 2.0 h\\n→ in 10 min'")
    assert page.problems() == []


def test_it_says_when_the_service_is_gone_and_goes_on_when_it_is_back(browser: Browser, answering: Answers) -> None:
    done: list[dict[str, Any]] = [{"number": 1, "kind": "Cancelled", "body": {"at_s": 990.0, "job_id": "before"}}]
    granted = {"at_s": 900.0, "start_s": 900.0, "job_id": "holds", "phase": "rollout", "iteration": 0}
    done.append({"number": 2, "kind": "Granted", "body": granted})
    holds = hostile_job("holds", "running") | {"nodes": ["rollout-0"], "phase": "rollout"}
    server = answering(STATUS | {"paused": None, "jobs": [holds]}, lambda number: done[number:])
    page = enter(Tab(browser), server.url, TOKEN)
    page.until("/before: cancelled/.test(document.querySelector('#log').innerText)")
    page.until("store.watched.get('rollout-0')[0].from === 900")  # the status was read first
    server.gone = True
    page.until("document.querySelector('#link').textContent === 'the service is gone'")
    assert "does not answer since" in page.value("document.querySelector('#alert').innerText")
    assert "before: cancelled" in page.value("document.querySelector('#log').innerText")
    done[:] = [{"number": 1, "kind": "Cancelled", "body": {"at_s": 999.0, "job_id": "after"}}]  # another journal
    server.gone = False
    page.until("/after: cancelled/.test(document.querySelector('#log').innerText)")
    assert page.value("document.querySelector('#link').textContent") == "live"
    assert page.value("document.querySelector('#alert').hidden")
    assert "before" not in page.value("document.querySelector('#log').innerText")


@pytest.mark.parametrize(("total", "shown_s"), [(20_000, 15), pytest.param(200_000, 300, marks=pytest.mark.long)])
def test_of_a_long_journal_it_reads_the_time_shown_and_keeps_no_more(
    browser: Browser, answering: Answers, total: int, shown_s: int
) -> None:
    every_s = STATUS["now_s"] / total

    def entry(number: int) -> dict[str, Any]:
        end_s = number * every_s
        body = {
            "job_id": f"job-{number % 7}",
            "phase": "rollout",
            "profile": False,
            "iteration": number,
            "group": 0,
            "pool": "rollout",
        }
        times = {"asked_s": end_s - 0.02, "start_s": end_s - 0.002, "run_s": end_s - 0.002, "done_s": end_s, "end_s": end_s}
        return {"number": number, "kind": "PhaseSlice", "body": body | times | {"nodes": [f"rollout-{number % 9}"], "ok": True}}

    server = answering(STATUS, lambda after: [entry(number) for number in range(after + 1, min(total, after + 1000) + 1)])
    page = Tab(browser)
    page.open(server.url)
    page.value(f"sessionStorage.setItem('rollmux-window', '{shown_s}'); 0")
    page = enter(page, server.url, TOKEN)
    page.until(f"store.lines.length && store.lines[store.lines.length - 1].number === {total}")
    searched = server.asked.index(total) - shown_s / every_s / 1000  # requests
    assert searched < 25 and len(server.asked) < 100 + total / 1000 / 2, "what is older is searched by halving, not read"
    assert page.value("store.count <= MOST_SLICES && store.lines.length <= MOST_LINES")
    assert (
        page.value("[...store.slices.values()].reduce((sum, items) => sum + items.length, 0)") >= min(30_000, shown_s / every_s) - 1
    )


def test_it_is_one_file_that_asks_nobody_else(tmp_path: Path) -> None:
    html = page_html()
    assert "default-src 'none'" in html and "/* style.css */" not in html and "--bubble" in html
    assert "http://" not in html.replace("http://www.w3.org/2000/svg", "") and "https://" not in html and "innerHTML" not in html
