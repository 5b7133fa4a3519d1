"""Tasks: data is a position that counts, and rewards are what they say."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from rollmux_env.errors import InputError
from runtime.jobs.grpo_spec import TaskSpec
from runtime.jobs.making import make_task
from runtime.jobs.tasks import BUILT_IN, GrpoTask, TaskExample, score

OWN = """
from runtime.jobs.tasks import TaskExample
class Own:
    def __init__(self, seed, word): self.word = word
    def prompts(self, count, position): return [TaskExample(f"{position + k}") for k in range(count)]
    def reward(self, example, response): return 1.0 if self.word in response else 0.0
class Half:
    def __init__(self, seed): pass
    def prompts(self, count, position): return []
class Empty(Half):
    def reward(self, example, response): return 0.0
class Bare(Empty):
    def prompts(self, count, position): return ["a prompt"] * count
class Stuck(Empty):
    def prompts(self, count, position): raise OSError("no data")
def shout(example, response): return float(response == example["answer"].upper())
def broken(example, response): return float("nan") if response else 1 / 0
def wordy(example, response): return "1"
half = 0.5
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "own_task", raising=False)
    (tmp_path / "own_task.py").write_text(OWN)
    (tmp_path / "half_made.py").write_text("import sys\nsys.absent\n")
    lines = [json.dumps({"prompt": f"word {k}", "answer": f"answer {k}"}) for k in range(5)]
    (tmp_path / "data.jsonl").write_text("\n\n".join(lines))
    return tmp_path


@pytest.mark.parametrize("name", [*BUILT_IN, "jsonl"])
def test_examples_are_numbered_so_that_a_resumed_job_sees_what_it_would_have_seen(name: str, folder: Path) -> None:
    def make(seed: int) -> GrpoTask:
        return make_task(TaskSpec(name=name, file="data.jsonl" if name == "jsonl" else None), seed, str(folder))

    whole = make(3).prompts(40, 0)
    assert make(3).prompts(7, 0) + make(3).prompts(33, 7) == whole
    assert make(4).prompts(40, 0) != whole


def test_a_jsonl_file_is_gone_through_once_before_anything_comes_again(folder: Path) -> None:
    task = make_task(TaskSpec(name="jsonl", file="data.jsonl"), 0, str(folder))
    found = [example.prompt for example in task.prompts(15, 0)]
    assert all(sorted(found[k : k + 5]) == [f"word {n}" for n in range(5)] for k in (0, 5, 10))
    assert len({tuple(found[k : k + 5]) for k in (0, 5, 10)}) > 1
    assert score(task, TaskExample("", "2"), " 2\n") == 1.0
    assert score(task, TaskExample("", "2"), "22") == 0.0


def test_a_line_of_a_jsonl_file_ends_where_json_says_so(folder: Path) -> None:
    record = {"prompt": "a\u2028b\u0085c", "answer": "d"}
    (folder / "data.jsonl").write_text(json.dumps(record, ensure_ascii=False) + "\r\n", encoding="utf-8", newline="")
    task = make_task(TaskSpec(name="jsonl", file="data.jsonl"), 0, str(folder))
    assert task.prompts(1, 0)[0].record == record


@pytest.mark.parametrize(
    ("name", "prompt", "response", "reward"),
    [
        ("echo", "33333333=", "3" * 32, 1.0),
        ("echo", "33333333=", "3" * 16, 0.5),
        ("echo", "33333333=", "12" * 16 + "3" * 32, 0.0),
        ("count", "8", "90123456789012345678901234567890", 1.0),
        ("count", "8", "9012" + "2" * 28, 4 / 32),
        ("count", "8", "", 0.0),
        ("long-tail", "007B", "fghf", 0.5),
        ("long-tail", "007B", "f" * 300, 1.0),
        ("long-tail", "007B", "", 0.0),
    ],
)
def test_built_in_rewards(name: str, prompt: str, response: str, reward: float) -> None:
    assert score(BUILT_IN[name](0), TaskExample(prompt, "f"), response) == reward


@pytest.mark.parametrize("name", ["echo", "count"])
def test_the_answer_of_an_example_earns_everything(name: str) -> None:
    task = BUILT_IN[name](1)
    assert all(score(task, example, example.answer) == 1.0 for example in task.prompts(20, 100))


def test_a_task_of_ones_own_gets_seed_and_options(folder: Path) -> None:
    task = make_task(TaskSpec(name="own_task:Own", options={"word": "yes"}), 0, str(folder))
    assert score(task, TaskExample("?"), "oh yes") == 1.0


def test_a_reward_function_of_ones_own_gets_the_line(folder: Path) -> None:
    task = make_task(TaskSpec(name="jsonl", file="data.jsonl", reward="own_task:shout"), 0, str(folder))
    example = task.prompts(1, 0)[0]
    assert score(task, example, example.answer.upper()) == 1.0


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("own_task:Own", "own_task:Own: TypeError: .*word"),
        ("own_task:Half", "own_task:Half: has no method reward"),
        ("own_task:Empty", r"own_task:Empty: prompts\(1, 0\) gives a list, not a list of one TaskExample"),
        ("own_task:Bare", r"own_task:Bare: prompts\(1, 0\) gives a list, not a list of one TaskExample"),
        ("own_task:Stuck", r"own_task:Stuck: prompts\(1, 0\) fails: OSError: no data"),
        ("own_task:None_such", "the module own_task has no None_such"),
        ("own_tusk:Own", "ModuleNotFoundError: No module named 'own_tusk'"),
        ("half_made:Own", "half_made:Own: AttributeError: module 'sys' has no attribute 'absent'"),
    ],
)
def test_a_task_that_cannot_be_made_is_refused_in_one_line(folder: Path, name: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem) as refused:
        make_task(TaskSpec(name=name), 0, str(folder))
    assert "\n" not in str(refused.value)


def test_a_broken_reward_is_an_error_that_names_the_response(folder: Path) -> None:
    task = make_task(TaskSpec(name="jsonl", file="data.jsonl", reward="own_task:broken"), 0, str(folder))
    example = TaskExample("hi", "", {})
    with pytest.raises(RuntimeError, match="the reward of 'x' to the prompt 'hi' is nan, no finite number"):
        score(task, example, "x")
    with pytest.raises(RuntimeError, match="the reward of '' to the prompt 'hi' failed: ZeroDivisionError: division by zero"):
        score(task, example, "")
    task = make_task(TaskSpec(name="jsonl", file="data.jsonl", reward="own_task:wordy"), 0, str(folder))
    with pytest.raises(RuntimeError, match="the reward of 'x' to the prompt 'hi' is '1', no finite number"):
        score(task, example, "x")


def test_a_reward_that_is_no_function_is_refused(folder: Path) -> None:
    with pytest.raises(InputError, match=r"own_task:half: is no function, but 0\.5"):
        make_task(TaskSpec(name="jsonl", file="data.jsonl", reward="own_task:half"), 0, str(folder))
