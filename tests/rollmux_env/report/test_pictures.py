"""`rollmux trace`: what it shows unless told otherwise, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollmux_env.errors import InputError
from rollmux_env.report.lanes import Membership
from rollmux_env.report.pictures import META_ITERATIONS, GanttWindow, choose_view
from tests.conftest import Command

H = 3600.0
MEMBERSHIPS = [
    Membership(0, 1 * H, ("a",), 100),
    Membership(1, 2 * H, ("b",), 200),
    Membership(0, 3 * H, ("a", "c"), 150),
    Membership(1, 4 * H, ("b", "d"), 300),
    Membership(0, 5 * H, ("c",), 100),
    Membership(1, 9 * H, (), 0),
    Membership(0, 10 * H, (), 0),
]


def test_the_view_is_where_most_members_are_together_for_longest() -> None:
    assert choose_view(MEMBERSHIPS, H) == GanttWindow(1, 4 * H, 4 * H + META_ITERATIONS * 300)


def test_a_group_or_a_window_narrows_the_choice() -> None:
    assert choose_view(MEMBERSHIPS, H, group=0) == GanttWindow(0, 3 * H, 3 * H + META_ITERATIONS * 150)
    assert choose_view(MEMBERSHIPS, H, from_h=2.5) == GanttWindow(0, 3.5 * H, 3.5 * H + META_ITERATIONS * 150)
    assert choose_view(MEMBERSHIPS, H, from_h=0, hours=1.5) == GanttWindow(0, 1 * H, 2.5 * H)
    assert choose_view(MEMBERSHIPS, H, hours=0.5) == GanttWindow(1, 4 * H, 4.5 * H)


def test_the_view_ends_with_the_replay_unless_its_length_is_given() -> None:
    assert choose_view(MEMBERSHIPS, H, from_h=8.99) == GanttWindow(0, 9.99 * H, 10 * H)
    assert choose_view(MEMBERSHIPS, H, from_h=8.99, hours=2) == pytest.approx((0, 9.99 * H, 11.99 * H))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group": 2}, "--group 2: there is no such group; the last one is 1"),
        ({"from_h": 9.5}, "--from 9.5: no job runs then; the replay has jobs from 0.00 to 9.00 h"),
        ({"group": 1, "from_h": 0.5}, "--from 0.5: no job runs then; group 1 has jobs from 1.00 to 8.00 h"),
        ({"from_h": -1.0}, "--from -1: must be a number of hours, 0 or more"),
        ({"hours": 0.0}, "--hours 0: must be a number of hours, above 0"),
        ({"hours": float("inf")}, "--hours inf: must be a number of hours, above 0"),
        ({"from_h": float("nan")}, "--from nan: must be a number of hours, 0 or more"),
    ],
)
def test_what_cannot_be_shown_is_refused_in_one_line(options: dict[str, float], message: str) -> None:
    with pytest.raises(InputError) as refused:
        choose_view(MEMBERSHIPS, H, **options)  # type: ignore[arg-type]
    assert str(refused.value) == message


def test_trace_writes_a_gantt_and_a_trace(command: Command, tmp_path: Path) -> None:
    status, out, err = command("trace", "micro-rollout-heavy", "--out", str(tmp_path / "new" / "folder"))
    assert (status, err) == (0, "")
    folder = tmp_path / "new" / "folder"
    assert sorted(path.name for path in folder.iterdir()) == ["group-0.png", "trace.json"]
    lines = out.splitlines()
    assert lines[0].startswith(f"{folder}/group-0.png: group 0, 0.00 to 0.88 h, bubbles: rollout ")
    assert lines[1] == f"{folder}/trace.json: all groups, the whole replay, for ui.perfetto.dev"
    records = json.loads((folder / "trace.json").read_text())["traceEvents"]
    assert {record["args"]["job"] for record in records if record["ph"] == "X"} == {"D-0", "D-1", "E-2"}


def test_trace_draws_what_dies(command: Command, tmp_path: Path) -> None:
    words = ("trace", "micro-rollout-heavy", "--failures", "script=killed_job.yaml", "--from", "0", "--hours", "1.75")
    assert command(*words, "--out", str(tmp_path))[0] == 0
    records = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    runs = [record["ts"] / 1e6 for record in records if record["ph"] == "X" and record["args"]["job"] == "E-2"]
    assert runs and not [at_s for at_s in runs if 2180 < at_s < 4480] and max(runs) > 4480


def test_sharing_fills_the_bubbles(command: Command, tmp_path: Path) -> None:
    # A runs 130.9 + 126.8 s. Alone, each pool waits for the other; two of them have a period of 261.8 s.
    for policy, rollout, training in (("solo", 1 - 130.9 / 257.7, 1 - 126.8 / 257.7), ("rollmux", 0, 1 - 2 * 126.8 / 261.8)):
        status, out, _ = command("trace", "micro-temporal", "-p", policy, "--from", "1", "--out", str(tmp_path))
        assert status == 0
        assert f"bubbles: rollout {100 * rollout:.1f}%, training {100 * training:.1f}%" in out


def test_trace_of_one_group_and_window_shows_no_more(command: Command, tmp_path: Path) -> None:
    arguments = ("trace", "micro-temporal", "-p", "solo", "--dispatch", "fifo", "--group", "1", "--from", "1", "--hours", "0.5")
    assert command(*arguments, "--out", str(tmp_path))[0] == 0
    first = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert sorted(first) == ["group-1.png", "trace.json"]
    records = json.loads(first["trace.json"])["traceEvents"]
    assert {record["args"]["job"] for record in records if record["ph"] == "X"} == {"A-1"}
    assert [record["args"] for record in records if record["name"] == "nodes"] == [{"rollout": 1, "training": 1}]
    assert command(*arguments, "--out", str(tmp_path))[0] == 0
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == first


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["micro-temporal", "--group", "7"], "--group 7: there is no such group"),
        (["micro-temporal", "--from", "1000"], "--from 1000: no job runs then"),
        (["micro-temporal", "--dispatch", "lifo"], "lifo"),
        (["micro-temporal", "--failures", "job_h=0"], "job_h must be a number above 0"),
        (["no-such-workload"], "no-such-workload"),
    ],
)
def test_trace_refuses_in_one_line_and_writes_nothing(command: Command, tmp_path: Path, arguments: list[str], message: str) -> None:
    status, out, err = command("trace", *arguments, "--out", str(tmp_path))
    assert (status, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_trace_has_help_with_an_example(command: Command) -> None:
    status, out, _ = command("trace", "--help")
    assert status == 0
    assert "Example" in out
