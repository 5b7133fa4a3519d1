"""A sweep trains every combination of values, keeps the best one's configuration, and sends figures to a user's logger."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest

from tests.conftest import Command
from trainers.config import read_config

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


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--logger", "sent:three"), "--logger sent:three returned 3, which has no `write` and `close`"),
        (("--logger", "sent"), "--logger sent: must be module:name"),
        (("--logger", "sent:four"), "has no function or class 'four'"),
        (("--logger", "sent:Broken"), "--logger sent:Broken raised OSError: no network"),
        (("--sweep", "ppo.copies=3"), "ppo.copies: must divide streams"),
        (("--sweep", "ppo.copies"), "'ppo.copies' is not of the form key=value,value,..."),
    ],
)
def test_what_cannot_be_swept_or_logged_is_one_line(command: Command, words: tuple[str, ...], error: str) -> None:
    status, out, err = command("train", "toy", *SHORT, *words)
    assert (status, out) == (2, "") and error in err.splitlines()[-1]
