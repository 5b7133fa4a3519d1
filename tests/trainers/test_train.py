"""Training: it learns, it resumes exactly, and what it cannot use it refuses in one line."""

from __future__ import annotations

import csv
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from sb3_contrib import MaskablePPO
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from policies.placement.policy_file import read_policy
from rollmux_env.command_options import parse_pairs
from rollmux_env.envs.placement.generator import Toy
from rollmux_env.errors import InputError
from rollmux_env.locks import only_writer
from tests.conftest import Command
from trainers.checkpoint import read_checkpoint
from trainers.config import read_config
from trainers.problem import Figures
from trainers.problems.catalogue import make_problem
from trainers.train import BEST, CHECKPOINT, TrainingRun, train
from trainers.vec_env import Observation, play

ROOT = Path(__file__).parents[2]
SMALL = (
    'environment={"name": "placement", "workload": "mixed", "options": {"jobs": 12}, "moves": true, "reference": "rollmux"}',
    "steps=1536",
    "streams=4",
    "ppo.copies=2",
    "evaluation.seeds=2",
    "evaluation.every=512",
    "evaluation.references=[]",
    "checkpoint_every=384",
    "ppo.n_epochs=2",
    "ppo.linear=true",
)


def small(*changes: str) -> list[str]:
    """Return `SMALL` with changes, which take the place of its own."""
    return [f"{key}={text}" for key, text in (dict(parse_pairs("--set", SMALL)) | dict(parse_pairs("--set", changes))).items()]


class Stopped(Exception):
    pass


def run_of(folder: Path, changes: Sequence[str], stop_at: int | None = None) -> TrainingRun:
    config = read_config("toy", changes)
    folder.mkdir(exist_ok=True)
    no_references: Figures = {}

    def tell(steps: int, curve: Sequence[dict[str, float]]) -> None:
        if stop_at is not None and steps >= stop_at:
            raise Stopped

    return TrainingRun(config, make_problem(config.environment, "toy"), no_references, config.seed, folder, tell)


def test_group_ppo_reaches_the_toys_optimum_and_nothing_random_does(tmp_path: Path) -> None:
    curve = train(run_of(tmp_path, ["evaluation.references=[]", "steps=6144"]))
    assert min(row["dollars_over_solo"] for row in curve) == pytest.approx(Toy.best)
    assert read_policy(tmp_path / BEST)[0].provenance["dollars_over_solo"] == pytest.approx(Toy.best)

    rng = np.random.default_rng(0)

    def at_random(observation: Observation) -> np.ndarray:
        return np.array([rng.choice(np.flatnonzero(mask)) for mask in observation["mask"]])

    env = make_problem(read_config("toy").environment, "toy").environment(64, autoreset=False)
    assert play(env, range(64), at_random)["cost_over_solo"].min() > Toy.best + 0.05


def test_what_the_mask_is_worth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    ppo = importlib.import_module("unmasked").ppo
    mixed = 'environment={"name": "placement", "workload": "mixed", "options": {"jobs": 40}}'
    changes = [mixed, "steps=8192", "ppo.n_epochs=4", "evaluation.seeds=4", "evaluation.every=8192", "evaluation.references=[]"]
    masked = train(run_of(tmp_path / "masked", changes))[-1]
    changes += ["algorithm=maskable-ppo", "ppo.n_steps=64"]
    unmasked = train(replace(run_of(tmp_path / "unmasked", changes), learner=ppo))[-1]
    assert masked["dollars_over_solo"] < 0.9
    assert unmasked["dollars_over_solo"] > 0.95  # it has learned to isolate every job: that is never forbidden


def test_a_run_can_begin_with_what_a_policy_file_knows(tmp_path: Path) -> None:
    quick = ["evaluation.references=[]", "steps=2048"]
    best = max(row["return"] for row in train(run_of(tmp_path / "first", quick)))
    start = f'start={{"file": "{tmp_path / "first" / BEST}", "sharpness": 3}}'
    assert train(run_of(tmp_path / "second", [*quick, start]))[0]["return"] == pytest.approx(best)


def test_a_start_that_does_not_fit_is_said_in_a_line(tmp_path: Path) -> None:
    train(run_of(tmp_path / "first", ["evaluation.references=[]", "steps=1024"]))
    start = f'start={{"file": "{tmp_path / "first" / BEST}"}}'
    with pytest.raises(InputError, match=r"^start.file: .*best.safetensors: its widths are not this run's$"):
        train(run_of(tmp_path / "second", [start, "widths=[8]"]))
    with pytest.raises(InputError, match=r"its candidate_features are not"):
        train(run_of(tmp_path / "third", [start, 'environment={"name": "placement", "workload": "toy", "moves": true}']))


MASKABLE = ("algorithm=maskable-ppo", 'ppo={"linear": true, "n_epochs": 2, "n_steps": 32, "batch_size": 128}')


@pytest.mark.parametrize("changes", [MASKABLE, ('environment={"name": "dispatch", "rounds": 2}',)], ids=["maskable", "dispatch"])
def test_a_stopped_run_goes_on_exactly(tmp_path: Path, changes: Sequence[str]) -> None:
    changes = [pair for pair in small("steps=768", *changes) if changes != MASKABLE or not pair.startswith("ppo.")]
    whole = train(run_of(tmp_path / "whole", changes))
    with pytest.raises(Stopped):
        train(run_of(tmp_path / "stopped", changes, stop_at=600))
    assert 384 <= reached(tmp_path / "stopped" / CHECKPOINT) < 768
    np.random.seed(0)  # noqa: NPY002 (whatever has been drawn in between)
    resumed = train(run_of(tmp_path / "stopped", changes), resume=True)
    assert [row["return"] for row in resumed] == [row["return"] for row in whole]
    same_checkpoints(tmp_path / "whole", tmp_path / "stopped")


def test_a_killed_run_goes_on_exactly(tmp_path: Path, command: Command) -> None:
    options = [word for change in small("steps=768") for word in ("--set", change)]
    assert command("train", "toy", *options, "--out", str(tmp_path / "whole"))[0] == 0
    killed = tmp_path / "killed"
    arguments = [sys.executable, "-m", "rollmux", "train", "toy", *options, "--out", str(killed)]
    checkpoint = killed / "seed-0" / CHECKPOINT
    with subprocess.Popen(arguments, cwd=ROOT, stderr=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"}) as running:
        while running.poll() is None and not (checkpoint.exists() and reached(checkpoint) >= 384):
            time.sleep(0.01)
        running.send_signal(signal.SIGKILL)
    assert reached(checkpoint) > 0
    status, out, _ = command("train", "toy", *options, "--out", str(killed), "--resume")
    assert status == 0
    assert "return" in out
    same_checkpoints(tmp_path / "whole" / "seed-0", killed / "seed-0")


def reached(checkpoint: Path) -> int:
    return int(read_checkpoint(checkpoint)[1]["counters"]["num_timesteps"])


def same_checkpoints(one: Path, other: Path) -> None:
    for name in (CHECKPOINT, "last.safetensors", BEST):
        first, second = load_file(one / name), load_file(other / name)
        assert first.keys() == second.keys()
        for key in first:
            assert first[key].tobytes() == second[key].tobytes(), f"{name}: {key}"


def test_a_run_goes_on_beyond_its_plan(tmp_path: Path, command: Command) -> None:
    def train_toy(name: str, steps: int, *more: str) -> tuple[int, str, str]:
        changes = small(f"steps={steps}", "ppo.linear=false")
        return command(
            "train", "toy", *(word for change in changes for word in ("--set", change)), "--out", str(tmp_path / name), *more
        )

    assert train_toy("longer", 384)[0] == train_toy("longer", 768, "--resume")[0] == train_toy("whole", 768)[0] == 0
    assert json.loads((tmp_path / "longer" / "config.json").read_text())["steps"] == 768
    whole, longer = (load_file(tmp_path / name / "seed-0" / "last.safetensors") for name in ("whole", "longer"))
    assert {key: value.tobytes() for key, value in whole.items()} == {key: value.tobytes() for key, value in longer.items()}
    assert "steps is 768 there, and 384 here" in train_toy("longer", 384, "--resume")[2]


def test_a_run_whose_learning_rate_falls_to_its_end_has_no_more_steps(tmp_path: Path, command: Command) -> None:
    for steps, more in ((128, ()), (256, ("--resume",))):
        options = [word for change in small(f"steps={steps}") for word in ("--set", change)]
        status, _, err = command("train", "toy", *options, "--out", str(tmp_path), *more)
    assert status == 2 and err.count("\n") == 1 and "with ppo.linear the learning rate has fallen to 0 by then" in err


def test_a_resumed_run_hides_no_figures_of_its_first_part(tmp_path: Path) -> None:
    for steps in (256, 512):
        train(run_of(tmp_path, small(f"steps={steps}", "evaluation.every=128", "ppo.linear=false")), resume=True)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    shown = [event.step for event in events.Scalars("evaluation/return")]
    curve = [*csv.DictReader((tmp_path / "curve.csv").read_text().splitlines())]
    assert shown == [int(row["steps"]) for row in curve] and len(shown) > 3
    about_decisions = {"action_mask", "choices_left_out", "discount", "invalid_action", "truncated"}
    assert not {f"rollout/{name}" for name in about_decisions} & {*events.Tags()["scalars"]}


def test_runs_with_consecutive_seeds_play_other_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[set[int]] = []

    def learn(model: Any, *_: Any, **__: Any) -> None:
        model.env.reset()
        played.append({int(info["stream_seed"]) for info in model.env.reset_infos})

    monkeypatch.setattr(MaskablePPO, "learn", learn)
    for seed in (0, 1):
        train(replace(run_of(tmp_path / str(seed), ["algorithm=maskable-ppo", "ppo={}", "evaluation.references=[]"]), seed=seed))
    assert len(played[0]) == 16 and not played[0] & played[1]


def test_a_folder_has_one_writer(tmp_path: Path, command: Command) -> None:
    with only_writer(tmp_path):
        status, out, err = command(
            "train", "toy", *(word for change in SMALL for word in ("--set", change)), "--out", str(tmp_path)
        )
    assert (status, out, err.count("\n")) == (2, "", 1) and "under way in this folder" in err and str(os.getpid()) in err
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_checkpoint_is_one_line(tmp_path: Path, command: Command) -> None:
    options = [word for change in small("steps=256") for word in ("--set", change)]
    arguments = ("train", "toy", *options, "--out", str(tmp_path / "run"))
    assert command(*arguments)[0] == 0
    file = tmp_path / "run" / "seed-0" / CHECKPOINT
    whole = file.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    for damaged in (b"", whole[:-1], whole[:1000], bytes(flipped), b"\x80\x04K\x01."):
        file.write_bytes(damaged)
        status, out, err = command(*arguments, "--resume")
        assert (status, out) == (2, "")
        assert err.count("\n") == 1 and CHECKPOINT in err and "damaged" in err


def test_a_checkpoint_of_another_network_is_refused(tmp_path: Path) -> None:
    train(run_of(tmp_path, small("steps=256")))
    with pytest.raises(InputError, match=r"checkpoint\.safetensors: is of another configuration"):
        train(run_of(tmp_path, small("widths=[16]")), resume=True)


def test_speed_and_the_environments_share_are_measured(tmp_path: Path) -> None:
    last = train(run_of(tmp_path, small("steps=256")))[-1]
    assert 0 < last["environment_share"] < 1
    assert last["frames_per_s"] > 0


def test_several_seeds_a_table_and_references_once(tmp_path: Path, command: Command) -> None:
    folder = tmp_path / "runs"
    options = [word for change in small("steps=256", 'evaluation.references=["rollmux"]')[1:] for word in ("--set", change)]
    status, out, _ = command("train", "toy", *options, "--seeds", "2", "--out", str(folder))
    assert status == 0
    assert "dollars over rollmux" in out and "mean" in out
    assert {path.name for path in folder.iterdir()} == {"config.json", "references.json", "seed-0", "seed-1"}
    assert len(json.loads((folder / "references.json").read_text())) == 2
    assert (folder / "seed-1" / "curve.csv").read_text().startswith("steps,return,dollars_over_solo,dollars_over_rollmux")
    assert list((folder / "seed-1").glob("events.out.tfevents.*"))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("toyy",), "presets are"),
        (("nowhere.yaml",), "nowhere.yaml"),
        (
            (str(ROOT / "examples" / "quickstart.yaml"),),
            "is a scenario file, not a configuration; `rollmux train production --set environment.workload=",
        ),
        (("toy", "--set", "steps"), "--set: 'steps' is not of the form key=value"),
        (("toy", "--set", "stepss=3"), "--set: stepss: is not a key"),
        (("toy", "--set", "ppo.copies=1.5"), "--set: ppo.copies: must be a whole number, not 1.5"),
        (("toy", "--set", "ppo.copies=3"), "--set: ppo.copies: must divide streams"),
        (("toy", "--set", "ppo.clip_range.low=1"), "ppo.clip_range"),
        (("toy", "--set", "algorithm=maskable-ppo", "--set", "ppo.batch_size=77"), "--set: ppo.batch_size: must divide"),
        (("toy", "--set", "ppo.batch_size=1"), "--set: ppo.batch_size: must be at least 2, not 1"),
        (("toy", "--set", "seed=4294967296"), "--set: seed: "),
        (("toy", "--set", "seed=4294967295", "--seeds", "2"), "--seeds"),
        (("toy", "--set", "algorithm=dqn"), "--set: algorithm: must be one of group-ppo, maskable-ppo, not 'dqn'"),
        (("toy", "--set", "evaluation.first_seed=65536"), "evaluation.first_seed"),
        (("toy", "--set", "environment.name=chess"), "placement, dispatch"),
        (("toy", "--set", "environment.workload=chess"), "a scenario file (.yaml, .json), or module:name of your own, not 'chess'"),
        (("toy", "--set", "environment.options.rounds=0"), "rounds"),
        (("toy", "--set", "environment.movs=true"), "environment.movs"),
        (("toy", "--set", 'evaluation.references=["nobody"]'), "nobody"),
        (("toy", "--resume"), "config.json"),
    ],
)
def test_what_cannot_be_used_is_one_line(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], named: str
) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, err = command("train", *arguments)
    assert (status, out) == (2, "")
    assert err.startswith("rollmux: ") and err.count("\n") == 1 and named in err, err


def test_a_folder_with_runs_is_not_written_over(command: Command, tmp_path: Path) -> None:
    options = [word for change in small("steps=256")[1:] for word in ("--set", change)]
    arguments = ("train", "toy", *options, "--out", str(tmp_path))
    assert command(*arguments)[0] == 0
    assert "--resume continues them" in command(*arguments)[2]
    assert "seed is 0 there, and 1 here" in command(*arguments, "--set", "seed=1", "--resume")[2]
