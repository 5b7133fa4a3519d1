"""The leaderboard: scores, bounds that no policy passes, and a page that is of its entries."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from policies.commands.leaderboard import enter, files_of, replaying_makers, sources_of
from policies.dispatch import make_dispatch
from policies.rollout import make_rollout
from rollmux_env.bench.leaderboard.bounds import full_replicas_s, group_usd_per_work_hour, without_tails
from rollmux_env.bench.leaderboard.entries import (
    LeaderboardEntry,
    StreamResult,
    entry_json,
    entry_of,
    file_name,
    list_streams,
    measure,
    read_entry,
    track_score,
)
from rollmux_env.bench.leaderboard.tracks import KINDS, REFERENCE, TRACKS, Entrant, own_track
from rollmux_env.bench.streams import workload
from rollmux_env.envs.dispatch.generator import SHAPES, RandomGroups
from rollmux_env.envs.dispatch.replay import figures, replay_group
from rollmux_env.errors import InputError
from rollmux_env.report.leaderboard import LOWER, page
from rollmux_env.rollout.job import JobRollouts
from rollmux_env.rollout.setting import setting_of
from rollmux_env.workloads.modelled import with_models
from tests.benchmarks import load_benchmark
from tests.conftest import Command

ROOT = Path(__file__).parents[3]
ENTRIES = sorted((ROOT / "benchmarks" / "leaderboard").glob("*.json"))
BY_NAME = {track.name: track for track in TRACKS}


def result(usd: float, kind: str = "groups", *, fresh: bool = False, kept: bool = True, moves: int = 0) -> StreamResult:
    """A stream whose reference costs 20 $ a work-hour and whose bound 10 $."""
    return StreamResult(kind, 0, "", fresh, usd, 20.0, 10.0, kept, moves, 1.0)


def entry(*streams: StreamResult, **policies: str) -> LeaderboardEntry:
    return entry_of(Entrant(**policies), streams, {})


def test_a_score_is_0_for_the_reference_100_for_the_bound_and_never_above_0_where_an_slo_is_broken() -> None:
    assert [result(usd).score for usd in (20.0, 15.0, 10.0, 25.0)] == [0.0, 50.0, 100.0, -50.0]
    assert [result(usd, kept=False).score for usd in (10.0, 25.0)] == [0.0, -50.0]


def test_a_track_means_fixed_streams_and_marks_fresh_ones_that_are_worse() -> None:
    fixed = [result(usd) for usd in (14.0, 15.0, 16.0)]
    alike, worse = ([result(usd + more, fresh=True) for usd in (14.0, 15.0, 16.0)] for more in (0.5, 4.0))
    scores = [track_score(BY_NAME["dispatch"], entry(*fixed, *fresh, dispatch="fifo")) for fresh in (alike, worse)]
    assert all(score is not None and score.fixed.mean == pytest.approx(50.0) for score in scores)
    assert [score is not None and score.agrees for score in scores] == [True, False]
    assert LOWER in page([entry(*fixed, *worse, dispatch="fifo")])


def test_entries_that_break_slos_rank_below_and_ties_share_a_rank() -> None:
    fixed, broken = [result(15.0)], [result(11.0, kept=True), result(11.0, kept=False)]
    rows = {"b": fixed, "a": fixed, "late": broken, "last": [result(19.0)], "clairvoyant": [result(14.0)]}
    entries = [entry(*own, *(replace(one, fresh=True) for one in own), dispatch=name) for name, own in rows.items()]
    entries[0] = replace(entries[0], author="Ann", link="https://example.org", files={"b": "b.py"}, sources={"b": "0"})
    table = page(entries).split("## Dispatch")[1].split("##")[0]
    ranked = [line.split(" | ")[:3] for line in table.splitlines() if "`" in line]
    assert [(rank.removeprefix("| "), name.partition("dispatch ")[2].partition("`")[0]) for rank, name, _ in ranked] == [
        ("", "clairvoyant"), ("1=", "a"), ("1=", "b"), ("3", "last"), ("4", "late")
    ]  # fmt: skip
    assert ranked[2][1:] == ["[`dispatch b`](https://example.org), `b.py`", "Ann"]


def test_entries_of_one_score_share_a_rank_whatever_their_intervals() -> None:
    scores = {"a": (9.04, 11.04), "b": (8.02, 12.02), "c": (9.01, 11.01), "d": (8.9, 10.9)}
    streams = {name: [result(20 - score / 10) for score in own] for name, own in scores.items()}
    entries = [entry(*own, *(replace(one, fresh=True) for one in own), dispatch=name) for name, own in streams.items()]
    table = page(entries).split("## Dispatch")[1].split("##")[0]
    assert [line.split(" | ")[0] for line in table.splitlines() if "`" in line] == ["| 1=", "| 1=", "| 1=", "| 4"]


def test_an_author_is_one_cell_of_the_page() -> None:
    own = replace(entry(result(15.0), result(15.0, fresh=True), dispatch="a"), author="Ann | <b>\nLee")
    assert r"| Ann \| &lt;b&gt; Lee |" in page([own])


def test_an_own_workload_is_measured_beside_the_tracks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "streams.py").write_text(
        "from rollmux_env.workloads import WorkloadOptions, make_workload\n"
        "def few(seed):\n    return make_workload('mixed', WorkloadOptions(seed=seed, jobs=4))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    track = own_track("streams:few")
    streams = [stream for stream in list_streams(Entrant("rollmux"), [track]) if not stream[2]]
    assert streams == [("streams:few", seed, False) for seed in range(5)]
    one = measure(Entrant("rollmux"), streams[0], replaying_makers())
    assert one.score == 0.0 and one.sha256 == workload("mixed", 0, jobs=4).sha256


def test_whatever_moves_jobs_is_not_in_the_track_without_moves() -> None:
    stays, moves = (entry(result(15.0, "mixed"), result(15.0, "mixed", fresh=True, moves=n), placement="x") for n in (0, 1))
    assert [track_score(BY_NAME["placement"], one) is not None for one in (stays, moves)] == [True, False]
    assert track_score(BY_NAME["moves"], moves) is not None
    assert track_score(BY_NAME["dispatch"], stays) is None


def test_an_entrant_plays_the_fixed_streams_of_its_tracks_and_as_many_that_are_drawn() -> None:
    streams = list_streams(Entrant(dispatch="fifo"))
    fixed = [(kind, seed) for kind, seed, fresh in streams if not fresh]
    drawn = [(kind, seed) for kind, seed, fresh in streams if fresh]
    assert {kind for kind, _ in fixed} == {"groups", "worst cases", "lengths"}
    assert [kind for kind, _ in fixed] == [kind for kind, _ in drawn]
    assert not {seed for _, seed in drawn} & {seed for _, seed in fixed}
    assert drawn != [(kind, seed) for kind, seed, fresh in list_streams(Entrant(dispatch="fifo")) if fresh]


def test_the_reference_scores_0() -> None:
    streams = [("groups", seed, False) for seed in range(3)]
    assert [measure(REFERENCE, stream, replaying_makers()).score for stream in streams] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("shape", SHAPES)
def test_no_order_of_phases_beats_the_bound_of_a_group(shape: str) -> None:
    for seed in range(3):
        group = RandomGroups(shape, rounds=8).group(seed)
        least = group_usd_per_work_hour(group)
        for name in ("round-robin,migrate=0.8", "fifo,migrate=0.8", "longest-first,migrate=0.8"):
            usd = figures(group, replay_group(group, make_dispatch(name)))["usd_per_work_hour"]
            assert 0 < least <= usd * (1 + 1e-9)


def test_rollouts_that_sample_all_responses_take_longer_than_their_bound_and_limits_stay() -> None:
    scenario = with_models(workload("production", 0, jobs=6))
    for job, ideal in zip(scenario.jobs, without_tails(scenario).jobs, strict=True):
        setting = setting_of(job)
        assert setting is not None
        rollouts = JobRollouts(setting, make_rollout("plain"), 0)
        assert 0 < full_replicas_s(setting) < np.mean([rollouts.next().seconds for _ in range(5)])
        assert ideal.slo * ideal.solo_s == pytest.approx(job.slo * job.solo_s)


def test_an_entry_is_read_as_it_was_written_and_another_version_is_refused(tmp_path: Path) -> None:
    one = entry(result(15.0), result(16.0, fresh=True), dispatch="fifo")
    path = tmp_path / file_name(one.entrant)
    path.write_text(entry_json(one))
    assert path.name == "dispatch-fifo.json"
    assert read_entry(path) == one
    path.write_text(entry_json(replace(one, benchmark=0)))
    with pytest.raises(InputError, match="benchmark: is 0"):
        read_entry(path)
    path.write_text("{}")
    with pytest.raises(InputError) as error:
        read_entry(path)
    assert str(error.value).startswith(f"{path}: ") and "\n" not in str(error.value)


def test_files_of_ones_own_are_identified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT / "examples")
    assert {*sources_of(Entrant("first_fit:FirstFit,most_new_nodes=0", "fifo"))} == {"first_fit:FirstFit"}
    searched = Entrant("search:first_fit:FirstFit,rows=2,order=response_ratio:ResponseRatio")
    assert {*sources_of(searched)} == {"first_fit:FirstFit", "response_ratio:ResponseRatio"}
    assert files_of(searched)["first_fit:FirstFit"] == "first_fit.py"


@pytest.mark.parametrize(("entrant", "problem"), [(Entrant(), "give --policy"), (Entrant("optimal-work"), "yardstick")])
def test_what_cannot_enter_is_refused_in_one_line(entrant: Entrant, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        enter(entrant)


def test_one_command_prints_the_scores_and_writes_the_entry(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = [("groups", 2, False), ("groups", 70000, True)]
    monkeypatch.setattr("policies.commands.leaderboard.list_streams", lambda entrant, tracks: streams)
    monkeypatch.chdir(tmp_path)
    words = ("bench", "--suite", "leaderboard", "--dispatch", "fifo,migrate=0.8", "--set", "author=Ann")
    status, out, err = command(*words)
    assert (status, err) == (0, "") and "dispatch" in out and "written: dispatch-fifo-migrate-0-8.json" in out
    written = read_entry(tmp_path / "dispatch-fifo-migrate-0-8.json")
    assert [(one.kind, one.seed, one.fresh) for one in written.streams] == streams
    assert (written.author, written.files) == ("Ann", {"fifo": "policies/dispatch/rules.py"})
    assert "the leaderboard takes author, link, workload alone" in command(*words, "--set", "jobs=3")[2]
    status, _, err = command(*words)
    assert status == 2 and "--overwrite" in err
    assert "takes one policy at a time" in command("bench", "--suite", "leaderboard", "-p", "solo", "-p", "rollmux")[2]
    assert "a suite has its own" in command("bench", "--suite", "leaderboard", "-p", "solo", "--seeds", "3")[2]


def test_the_page_is_that_of_the_entries() -> None:
    module = load_benchmark("leaderboard")
    assert module.PAGE.read_text() == page([read_entry(path) for path in ENTRIES]), "python benchmarks/leaderboard.py writes it"
    assert {file_name(entrant) for entrant in module.BASELINES} <= {path.name for path in ENTRIES}


def test_entries_are_of_the_streams_that_there_are() -> None:
    """Of every kind and seed: a change of the workloads makes another version of the leaderboard."""
    hashes = {(one.kind, one.seed): one.sha256 for path in ENTRIES for one in read_entry(path).streams if not one.fresh}
    assert {kind for kind, _ in hashes} == {*KINDS}
    assert {key: KINDS[key[0]].sha256(key[1]) for key in hashes} == hashes
