"""The skills for coding agents: their form, and what their commands print."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
import rollmux_client
from ruamel.yaml import YAML

from tests.conftest import Command
from tests.runtime.pretend import Listening, attached_plan

SKILLS = Path(__file__).parents[1] / ".agents" / "skills"
NAMES = sorted(path.name for path in SKILLS.iterdir())
FRONT = re.compile(r"\A---\n(.*?)\n---\n", re.S)
FILE = re.compile(r"`([\w.]+)`:\n\n```(?:yaml|python)\n(.*?)^```", re.S | re.M)
BEGIN, END = "rollmux serve rollmux-service --no-ray &", "kill %1"


def text_of(name: str) -> str:
    return (SKILLS / name / "SKILL.md").read_text(encoding="utf-8")


def steps(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the commands that a skill ends with, and lines of what each prints."""
    (block,) = re.findall(r"^```console\n(.*?)^```", text.partition("\n## Try it\n")[2], re.S | re.M)
    for step in re.split(r"^\$ ", block, flags=re.M)[1:]:
        command, *printed = step.splitlines()
        yield command, printed


@contextmanager
def pair_of_nodes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Serve as `rollmux serve --no-ray` does, in this process: one node of each pool, and the environment names it."""
    service = Listening(attached_plan(folder, policy="rollmux,switches=true", dispatch="round-robin"))
    monkeypatch.setenv("ROLLMUX_URL", service.url)
    monkeypatch.setenv("ROLLMUX_TOKEN", service.token)
    try:
        yield
    finally:
        service.close()


@pytest.mark.parametrize("name", NAMES)
def test_the_front_matter_is_what_agents_read(name: str) -> None:
    front = FRONT.match(text_of(name))
    assert front is not None
    keys = YAML(typ="safe", pure=True).load(front[1])
    assert keys.keys() == {"name", "description"} and keys["name"] == name
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) and len(name) <= 64
    assert " Use when " in keys["description"] and len(keys["description"]) <= 1024 and "<" not in keys["description"]
    assert len(text_of(name).splitlines()) < 500, "more belongs into files that it names"


def test_the_index_has_every_skill() -> None:
    index = (SKILLS.parent / "README.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"\(skills/([\w-]+)/SKILL\.md\)", index)) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_the_commands_of_a_skill_print_what_it_says(
    name: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", str(Path(rollmux_client.__file__).parent))
    text = text_of(name)
    for file, content in FILE.findall(text.partition("\n## Try it\n")[2]):
        (tmp_path / file).write_text(content, encoding="utf-8")
    todo = list(steps(text))
    with pair_of_nodes(tmp_path / "rollmux-service", monkeypatch) if (BEGIN, []) in todo else nullcontext():
        for line, printed in todo:
            if line in (BEGIN, END):
                continue
            program, *words = shlex.split(line)
            assert program == "rollmux"
            status, out, err = command(*(sys.executable if word == "python" else word for word in words))
            said = " ".join(f"{out} {err}".split())
            assert status == 0, (line, err)
            assert [part for part in printed if " ".join(part.split()) not in said] == [], (line, said)
