"""Observed trajectories: every form is read, and a replay goes through them in their order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from policies.dispatch import make_dispatch
from policies.placement.baselines import Solo
from policies.rollout import make_rollout
from rollmux_env.errors import InputError
from rollmux_env.replay.event import Watch, replay_events
from rollmux_env.rollout.job import JobRollouts
from rollmux_env.rollout.setting import setting_of
from rollmux_env.scenario import Scenario, load_scenario, parse_scenario
from rollmux_env.timing.drift import observed_drift
from rollmux_env.timing.trajectories import Trajectory, groups_of, read_reward_s, read_step_s, read_trajectories
from runtime.phases import RuntimeHook
from runtime.samples import write_trajectories
from tests.conftest import Command

POOLS = {
    "rollout": {"gpu": "H20", "gpus_per_node": 8, "usd_per_gpu_hour": 1.85},
    "training": {"gpu": "H800", "gpus_per_node": 8, "usd_per_gpu_hour": 5.28},
}


def lines(path: Path, *entries: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


def job(**lengths: Any) -> dict[str, Any]:
    described = {"batch": 16, "prompt_tokens": 100, "cap": 4096, **lengths}
    return {"id": "a", "arrival_s": 0, "iterations": 4, "slo": 2, "model": "7B", "lengths": described}


def scenario(folder: Path, **lengths: Any) -> Scenario:
    return parse_scenario({"version": 1, "cluster": POOLS, "jobs": [job(**lengths)]}, folder=folder)


def a_run(path: Path, tokens: tuple[int, ...] = (50, 3000, 400)) -> list[Trajectory]:
    """What a run would write: an iteration of each of these lengths, of 16 responses to 4 prompts."""
    hook, written = RuntimeHook(), []
    for iteration, length in enumerate(tokens):
        hook.renew()
        for k in range(16):
            hook.trajectory(4 * iteration + k // 4, 100, [length + k])
        written.append([one._replace(iteration=iteration) for one in hook.reported.trajectories])
        write_trajectories(path, written[-1])
    return [one for part in written for one in part]


def test_what_a_run_writes_is_read_and_what_was_done_again_counts_once(tmp_path: Path) -> None:
    path = tmp_path / "trajectories" / "a.jsonl"
    written = a_run(path)
    assert read_trajectories(path) == written
    assert path.stat().st_mode & 0o777 == 0o600
    again = [one._replace(outputs=(9,), observations=(2, 3), seconds=1.5, switches=1) for one in written[16:32]]
    write_trajectories(path, again)
    with path.open("a") as file:
        file.write('{"iteration": 2, "gro')  # a kill
    assert read_trajectories(path) == written[:16] + again
    assert groups_of(written, path)[1] == (54, 55, 56, 57)


def test_a_replay_goes_through_the_trajectories_of_a_run(tmp_path: Path) -> None:
    """Rollouts of its lengths, one iteration after the other, and from the first again."""
    a_run(tmp_path / "a.jsonl")
    problem = scenario(tmp_path, trace="a.jsonl")
    assert load_like(problem) == problem  # with what was read, and no file beside it
    run = replay_events(
        problem, Solo(), make_dispatch("fifo"), 0, Watch(check=True, keep_phases=True), rollout=make_rollout("plain")
    )
    seconds = {name: [p.end_s - p.start_s for p in run.phases if p.phase == name] for name in ("rollout", "training")}
    for k, tokens in enumerate((50, 3000, 400, 50)):
        same = scenario(tmp_path, quantiles=[[0.0, tokens], [1.0, tokens + 15]])
        setting = setting_of(same.jobs[0])
        assert setting is not None
        alike = JobRollouts(setting, make_rollout("plain"), 0).next().seconds
        assert seconds["rollout"][k] == pytest.approx(alike, rel=0.1)
    assert seconds["rollout"][3] == pytest.approx(seconds["rollout"][0])
    assert seconds["training"][1] > seconds["training"][2] > seconds["training"][0]


def load_like(problem: Scenario) -> Scenario:
    return parse_scenario(json.loads(problem.canonical_json()))


def test_a_round_that_launches_more_takes_the_next_prompts_and_the_first_responses_again(tmp_path: Path) -> None:
    a_run(tmp_path / "a.jsonl")
    setting = setting_of(scenario(tmp_path, trace="a.jsonl").jobs[0])
    assert setting is not None and (setting.prompts, setting.responses) == (4, 4)
    rollouts = JobRollouts(setting, make_rollout("tail-batching"), 0)
    due = rollouts.rounds.next()
    drawn = rollouts._draw(due).reshape(len(due.prompts), due.responses)  # noqa: SLF001 (lengths are kept from everybody else)
    assert len(due.prompts) == due.responses == 5
    assert drawn[1].tolist() == [54, 55, 56, 57, 54] and drawn[4].tolist() == [3000, 3001, 3002, 3003, 3000]
    assert sum(int(rollouts.next().counted_tokens.size) for _ in range(3)) == 48


PACKED = {"step": 0, "rank": 0, "dp_rank": 0, "input": 336, "output": [11, 39], "n_sampling": 2, "validate": False}
TURNS = {
    "step": 3,
    "prompt_len": 317,
    "turns": [
        {"turn": 0, "completion_tokens": 40, "engine_latency_s": 2.5, "finish_reason": "tool_calls"},
        {"turn": 1, "completion_tokens": 131, "engine_latency_s": 4.0, "finish_reason": "stop"},
    ],
    "tool_calls": [{"turn": 0, "tool_name": "search", "latency_s": 0.25, "append_len": 1041}],
    "validate": False,
    "prompt_group_id": 7,
    "sample_id": 1,
}


def test_polytraces_forms(tmp_path: Path) -> None:
    folder = tmp_path / "packed"
    folder.mkdir()
    lines(folder / "packed_lengths_step_10.jsonl", {**PACKED, "step": 10}, {**PACKED, "step": 10, "validate": True})
    lines(folder / "packed_lengths_step_2.jsonl", {**PACKED, "step": 2}, {**PACKED, "step": 2, "input": 5, "rank": 4})
    timing = {"step": 2, "rank": 0, "batch_size": 64, "reward_time_s": 77.5, "validate": False}
    lines(folder / "reward_timings_step_2.jsonl", timing, {**timing, "rank": 4, "reward_time_s": 87.25})
    found = read_trajectories(folder)
    assert found[0] == Trajectory(2, 0, 336, (11,)) and found[3] == Trajectory(2, 1, 5, (39,))
    assert [one.iteration for one in found] == [2, 2, 2, 2, 10, 10]
    assert groups_of(found, folder) == ((11, 39),) * 3
    assert read_reward_s(folder) == {2: 87.25}
    turned = read_trajectories(lines(tmp_path / "multiturn_workload_step_3.jsonl", TURNS, {**TURNS, "validate": True}))
    assert turned == [Trajectory(3, 7, 317, (40, 131), (1041,), 6.75, 0, (0.25,))] and turned[0].tokens == 171
    steps = {"0": {"input": [5, 6], "output": [1, 2, 3, 4]}, "1": [{"input": [7], "output": [8]}, {"input": [9], "output": [10]}]}
    (tmp_path / "workloads.json").write_text(json.dumps(steps))
    compact = read_trajectories(tmp_path / "workloads.json")
    assert [one[:4] for one in compact[:3]] == [(0, 0, 5, (1,)), (0, 0, 5, (2,)), (0, 1, 6, (3,))]
    assert [one[:4] for one in compact[4:]] == [(1, 0, 7, (8,)), (1, 1, 9, (10,))]


def test_what_readers_leave_out_or_make_up_is_said_once_with_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = Trajectory(0, 0, 5, (7,)).line()
    half = tmp_path / "half.jsonl"
    half.write_text(f"{own}\n{own}\n{own[:9]}")
    silent = {**TURNS, "turns": [{"completion_tokens": 0, "engine_latency_s": 1.0}]}
    turned = lines(tmp_path / "multiturn_workload_step_3.jsonl", TURNS, silent, {**TURNS, "validate": True})
    log = tmp_path / "output_lens_10.log"
    log.write_text("step0: 334 537\n")
    folder = tmp_path / "packed"
    folder.mkdir()
    lines(folder / "packed_lengths_step_1.jsonl", PACKED)
    (folder / "notes.txt").write_text("ours")
    timing = {"step": 2, "reward_time_s": 77.5}
    lines(folder / "reward_timings_step_2.jsonl", timing, timing, {**timing, "validate": True})
    for path in (half, turned, log, folder, folder):
        read_trajectories(path)
    read_reward_s(folder)
    assert capsys.readouterr().err.splitlines() == [
        f"read {half}: line 3, the last, is half-written and left out",
        f"read {half}: 1 trajectories; lines left out that were done again: 1",
        f"read {turned}: 2 trajectories; empty responses that count as one token: 1; validation lines left out: 1",
        f"read {log}: 2 trajectories; responses whose prompt counts as empty: 2",
        f"read {folder}: 2 trajectories; other files left out: 1",
        f"read {folder}: reward timings of 1 steps; ranks that were faster left out: 1; validation lines left out: 1",
    ]


def test_files_of_a_folder_continue_each_other_and_are_not_mixed(tmp_path: Path) -> None:
    """The files of two jobs, or of two logs, begin with the same numbers."""
    for number, text in ((2, "step0: 5 6\n"), (1, "step0: 1 2\nstep1: 3 4\n")):
        (tmp_path / f"output_lens_{number}.log").write_text(text)
    assert groups_of(read_trajectories(tmp_path), tmp_path) == ((1,), (2,), (3,), (4,), (5,), (6,))
    jobs = tmp_path / "trajectories"
    a_run(jobs / "a.jsonl")
    a_run(jobs / "b.jsonl")
    with pytest.raises(InputError, match=r"a\.jsonl and b\.jsonl have the same prompt, 0 of iteration 0; give one file, or a"):
        read_trajectories(jobs)


@pytest.mark.parametrize("wrong", [{"step": 2.7}, {"reward_time_s": -1.0}, {"reward_time_s": float("nan")}, {"step": True}])
def test_reward_timings_are_not_rounded_or_guessed(wrong: dict[str, float], tmp_path: Path) -> None:
    lines(tmp_path / "reward_timings_step_2.jsonl", {"step": 2, "reward_time_s": 77.5} | wrong)
    with pytest.raises(InputError, match="line 1: is not PolyTrace's reward timings"):
        read_reward_s(tmp_path)


def test_prompts_that_lost_responses_are_left_out_unless_they_are_many(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = [Trajectory(0, group, 5, (group + 1,)) for group in range(40) for _ in range(2)]
    assert groups_of(whole[:-1], tmp_path) == groups_of(whole, tmp_path)[:-1]
    said = f"read {tmp_path}: 39 prompts; prompts left out with another number of responses: 1"
    assert capsys.readouterr().err.splitlines() == [said]
    with pytest.raises(InputError, match="some prompts have 2 responses and others 1: must be equally many"):
        groups_of(whole[:60] + whole[60::2], tmp_path)


def test_the_forms_of_rollmuxs_authors(tmp_path: Path) -> None:
    (tmp_path / "output_lens_10.log").write_text("step0: 334 537 4137\nstep1: 249 352 4096\n")
    found = read_trajectories(tmp_path / "output_lens_10.log")
    assert [(one.iteration, one.group, one.tokens) for one in found[2:4]] == [(0, 2, 4137), (1, 0, 249)]
    (tmp_path / "7b.csv").write_text("0,400.5\n1,380.25\n\n2,377.5")
    step_s = read_step_s(tmp_path / "7b.csv")
    assert step_s == [400.5, 380.25, 377.5]
    slower, faster = observed_drift(step_s, -1.0), observed_drift(step_s, 0.5)
    assert [one.rollout for one in slower] == pytest.approx([1, 2 - 380.25 / 400.5, 2 - 377.5 / 400.5])
    assert [one.rollout for one in faster] == pytest.approx([1, (1 + 380.25 / 400.5) / 2, (1 + 377.5 / 400.5) / 2])
    assert {one.training for one in slower} == {1.0}
    with pytest.raises(InputError, match="a step would take no time"):
        observed_drift([10, 2], 1.5)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no trajectories"),
        ('{"iteration": 0}\n', "line 1: is not a trajectory"),
        ('{"iteration": 0, "response": 0, "group": 0, "prompt": 1, "outputs": [0]}\n', "line 1: is not a trajectory"),
        ('{"iteration": -1, "response": 0, "group": 0, "prompt": 1, "outputs": [2]}\n', "line 1: is not a trajectory"),
        ('{"step": 0, "input": 1, "output": 3}\n', "line 1: is not a trajectory"),
        ("[]\n", "line 1: must be a mapping, not a list"),
        ("nothing\n{}\n", "line 1: is not JSON"),
    ],
)
def test_what_is_none_is_said_in_a_line(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(text)
    with pytest.raises(InputError, match=said):
        read_trajectories(tmp_path / "a.jsonl")
    with pytest.raises(InputError, match=r"jobs\[0\].lengths: .*a.jsonl: "):
        scenario(tmp_path, trace="a.jsonl")


@pytest.mark.parametrize(
    ("lengths", "said"),
    [
        ({"cap": 60}, "observed: a response of 65 tokens passes the cap of 60"),
        ({"batch": 6}, "batch: must be a multiple of the 4 responses to each prompt, not 6"),
        ({"turns": 2}, "turns: must be 1"),
        ({"median": 5, "sigma": 1}, "takes at most one of"),
    ],
)
def test_what_does_not_go_with_a_trace(lengths: dict[str, Any], said: str, tmp_path: Path) -> None:
    a_run(tmp_path / "a.jsonl", (50,))
    with pytest.raises(InputError, match=said):
        scenario(tmp_path, trace="a.jsonl", **lengths)


def test_bench_replays_a_trace(command: Command, tmp_path: Path) -> None:
    a_run(tmp_path / "a.jsonl")
    file = tmp_path / "scenario.json"
    file.write_text(json.dumps({"version": 1, "cluster": POOLS, "jobs": [job(trace="a.jsonl")]}))
    assert load_scenario(file).jobs[0].lengths.observed[0] == (50, 51, 52, 53)  # type: ignore[union-attr, index]
    status, out, _ = command("bench", str(file), "-p", "solo", "--fidelity", "event", "--format", "json")
    assert status == 0
    hours = json.loads(out)["runs"][0]["figures"]["hours"]
    worst = scenario(tmp_path).jobs[0]
    assert 0 < hours * 3600 < 4 * worst.solo_s and np.isfinite(hours)
