"""A sweep trains every combination of values, keeps the best one's configuration, and sends figures to a user's logger."""

from __future__ import annotations

import csv
import io
import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rollmux_env.errors import InputError
from tests.conftest import Command
from trainers.config import AnyConfig, read_config
from trainers.sweeps import combinations, sweep, sweep_table

LOGGERS = """
class Lines:
    def __init__(self, folder):
        self.file = open(folder / "lines.txt", "a")
    def write(self, key_values, key_excluded, step):
        self.file.write(f"{step} {key_values.get('evaluation/return')}\\n")
    def close(self):
        self.file.close()

def three(folder):
    return 3

class Broken(Lines):
    def write(self, *_):
        raise OSError("no network")
"""
SHORT = ("--set", "steps=128", "--set", "evaluation.seeds=1", "--set", 'evaluation.references=["solo"]')


@pytest.fixture(autouse=True)
def loggers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module with loggers, in the folder in which the commands run."""
    (tmp_path / "sent.py").write_text(LOGGERS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "sent", raising=False)


def test_a_sweep_trains_every_combination_and_goes_on(command: Command) -> None:
    words = (
        "train",
        "toy",
        *SHORT,
        "--sweep",
        "ppo.copies=4,8",
        "--sweep",
        "ppo.gamma=0.9",
        "--out",
        "s",
        "--logger",
        "sent:Lines",
    )
    status, out, err = command(*words)
    assert status == 0, err
    assert "ppo.copies=4,ppo.gamma=0.9" in out and "cost over the best rule" in out
    folders = ["00-ppo.copies=4,ppo.gamma=0.9", "01-ppo.copies=8,ppo.gamma=0.9"]
    assert sorted(path.name for path in Path("s").iterdir()) == [*folders, "best.json"]
    best = read_config("s/best.json")
    assert best.steps == 128 and best.ppo.gamma == 0.9
    for folder in folders:
        run = Path("s") / folder / "seed-0"
        curve = [*csv.DictReader((run / "curve.csv").read_text().splitlines())]
        lines = (run / "lines.txt").read_text().split("\n")
        assert lines[0].split() == [curve[0]["steps"], curve[0]["return"]]
    assert len({(Path("s") / folder / "references.json").read_text() for folder in folders}) == 1
    (Path("s") / folders[1] / "config.json").unlink()
    for file in (Path("s") / folders[1] / "seed-0").iterdir():
        file.unlink()
    assert command(*words, "--resume")[0] == 0 and json.loads((Path("s") / folders[1] / "config.json").read_text())


def test_a_folder_has_a_short_name_and_a_file_in_its_place_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainers.sweeps.run_all", lambda *_, **__: {0: [{"return": 1.0, "steps": 1.0}]})
    configs = {f"start.file=runs/{'x' * 300}": read_config("toy")}
    sweep(configs, "toy", 1, tmp_path / "s", False)
    (folder,) = (path for path in (tmp_path / "s").iterdir() if path.is_dir())
    assert folder.name.startswith("00-start.file=runs_xxx")
    folder.rmdir()
    folder.write_text("")
    with pytest.raises(InputError, match=r"--out .*: File exists"):
        sweep(configs, "toy", 1, tmp_path / "s", False)


def test_combinations_with_other_rewards_are_compared_by_their_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = {None: {"return": -0.5, "over_best_rule": 0.9}, "rollmux": {"return": 0.1, "over_best_rule": 1.1}}

    def run_all(config: AnyConfig, name: str, seeds: int, folder: Path, *_: Any, **__: Any) -> dict[int, list[dict[str, float]]]:
        (folder / "references.json").write_text("{}")
        return {0: [{"steps": 1.0, **results[config.environment["reference"]]}]}

    monkeypatch.setattr("trainers.sweeps.run_all", run_all)
    configs = combinations("toy", [], {"environment.reference": ["rollmux", None]})
    curves = sweep(configs, "toy", 1, tmp_path / "s", False)
    assert read_config(str(tmp_path / "s" / "best.json")).environment["reference"] is None
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(sweep_table("toy", tmp_path / "s", configs, curves))
    table = console.export_text()
    assert table.index("reference=null") < table.index("reference=rollmux")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--logger", "sent:three"), "--logger sent:three returned 3, which has no `write` and `close`"),
        (("--logger", "sent"), "--logger sent: must be module:name"),
        (("--logger", "sent:four"), "has no function or class 'four'"),
        (("--logger", "sent:Broken"), "--logger sent:Broken raised OSError: no network"),
        (("--sweep", "ppo.copies=3"), "--sweep: ppo.copies: must divide streams"),
        (("--sweep", "ppo.copies=4,x"), "--sweep: ppo.copies: must be a whole number, not 'x'"),
        (("--sweep", "ppo.gamma="), "--sweep ppo.gamma: give one value or more, each once"),
        (("--sweep", "ppo.gamma=0.9,0.9"), "--sweep ppo.gamma: give one value or more, each once"),
        (("--sweep", "steps=64,128"), "--sweep steps: is changed by --set too; give it once"),
        (("--sweep", "steps.few=1"), "--sweep steps.few: steps is not a mapping"),
        (("--sweep", "ppo.copies"), "'ppo.copies' is not of the form key=value,value,..."),
    ],
)
def test_what_cannot_be_swept_or_logged_is_one_line(command: Command, words: tuple[str, ...], error: str) -> None:
    before = {*threading.enumerate()}
    status, out, err = command("train", "toy", *SHORT, *words)
    assert (status, out) == (2, "") and error in err.splitlines()[-1]
    assert {*threading.enumerate()} <= before
