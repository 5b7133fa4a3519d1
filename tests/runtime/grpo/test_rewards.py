"""Rewards in processes of their own: what takes too long counts as failed, and nothing of the user's runs beside the engine."""

from __future__ import annotations

import contextlib
import os
import select
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from policies.rollout.rounds import Rounds
from runtime.grpo.reward_process import RewardProcess
from runtime.grpo.rewards import FAILED, Rewards, merged, name_of
from runtime.grpo.rollout_worker import RolloutWorker
from runtime.grpo.shares import EngineShare, Prompts
from runtime.jobs.grpo_spec import RewardsSpec, TaskSpec
from runtime.jobs.spec import TaskJob
from runtime.jobs.tasks import TaskExample
from runtime.machine import Node
from tests.runtime.jobs.task_job import task_job

PATIENCE_S = 120.0  # for what is bound to happen
ONE, OTHER = TaskExample("1", "1"), TaskExample("2", "2")


def job(folder: Path, **options: Any) -> TaskJob:
    algorithm = {"prompts_per_iteration": 2, "group_size": 4, "max_tokens": 8, "minibatches": 1}
    spec: dict[str, Any] = {"id": "a", "slo": 2, "iterations": 1, "model": {"name": "tiny", "hidden_size": 64, "layers": 1}}
    spec |= {"algorithm": algorithm, "rollout": {"engine": "torch"}, "rewards": {"timeout": "adaptive"}}
    task = {"name": "tests.runtime.toy_tasks:Trap", "options": {"folder": str(folder), **options}}
    return task_job(spec | {"task": task})


class Scripted:
    """A place where rewards take as long as their text says, by a clock of its own; `late` ones earn nothing in time."""

    def __init__(self) -> None:
        self.limits: list[float | None] = []

    def score(self, example: TaskExample, response: str, limit_s: float | None) -> tuple[float, float] | None:
        self.limits.append(limit_s)
        seconds, _, wrong = response.partition(" ")
        return None if limit_s is not None and float(seconds) > limit_s else (0.0 if wrong else 1.0, float(seconds))

    def prompts(self, count: int, position: int) -> list[TaskExample]:
        return [ONE] * count

    def wait_until_ready(self) -> None: ...

    def close(self) -> None: ...


def scripted(tmp_path: Path, timeout: float | str = "adaptive") -> tuple[Rewards, Scripted]:
    spec, place = job(tmp_path).model_copy(update={"rewards": RewardsSpec.model_validate({"timeout": timeout})}), Scripted()
    return Rewards(spec, [place]), place  # type: ignore[list-item]


def test_a_reward_may_take_as_long_as_correct_ones_did_and_half_of_that_more(tmp_path: Path) -> None:
    rewards, place = scripted(tmp_path)
    given = [(ONE, "25 wrong"), (ONE, "31"), (ONE, "4"), (ONE, "5.9"), (ONE, "8.8"), (ONE, "13.4"), (OTHER, "0.1"), (OTHER, "2.1")]
    found = [rewards.submit(example, lambda text=text: text).result() for example, text in given]  # type: ignore[misc]
    assert found == [0.0, FAILED, 1.0, 1.0, 1.0, FAILED, 1.0, FAILED]
    assert place.limits == pytest.approx([30, 30, 30, 6, 8.85, 13.2, 30, 2])
    rewards.close()


def test_what_a_profile_runs_is_not_learned_from_and_what_others_saw_is(tmp_path: Path) -> None:
    rewards, place = scripted(tmp_path)
    rewards.learn({name_of(ONE): 4.0})
    rewards.learning = False
    rewards.submit(ONE, lambda: "5.5").result()
    assert rewards.grown_anchors() == ({}, 0)
    rewards.learning = True
    rewards.learn({name_of(ONE): 6.0})
    rewards.submit(ONE, lambda: "7").result()
    rewards.submit(ONE, lambda: "11").result()
    assert place.limits == pytest.approx([6, 9, 10.5])
    assert rewards.grown_anchors() == ({name_of(ONE): 7.0}, 1) and rewards.grown_anchors() == ({}, 0)
    rewards.close()
    assert merged({"a": 1.0, "b": 3.0}, [{"a": 2.0}, {"b": 1.0, "c": 1.0}]) == {"a": 2.0, "b": 3.0, "c": 1.0}


@pytest.mark.parametrize(("timeout", "limit_s", "expected"), [(7.5, 7.5, [1.0, FAILED]), ("none", None, [1.0, 1.0])])
def test_a_fixed_limit_is_the_same_for_all_and_what_is_stopped_is_in_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], timeout: float | str, limit_s: float | None, expected: list[float]
) -> None:
    rewards, place = scripted(tmp_path, timeout)
    assert [rewards.submit(ONE, lambda text=text: text).result() for text in ("7", "8")] == expected  # type: ignore[misc]
    assert place.limits == [limit_s] * 2 and rewards.grown_anchors() == ({}, expected.count(FAILED))
    rewards.close()
    line = "WARNING: the reward of '8' to the prompt '1' was stopped after 7.5 s and counts as 0\n"
    assert capsys.readouterr().out == line * expected.count(FAILED)


@pytest.fixture
def process(tmp_path: Path) -> Iterator[RewardProcess]:
    found = RewardProcess(job(tmp_path, after=99))
    yield found
    found.close()


def test_a_reward_that_is_stopped_leaves_nothing_behind_and_the_next_one_runs(
    process: RewardProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert process.score(ONE, "good", 60) is not None
    child = tmp_path / "child"
    descriptors: list[int] = []
    poll = Connection.poll

    def over(line: Connection, limit_s: float) -> bool:
        """The time is over when the child that never ends is there."""
        while not child.exists():
            assert not poll(line, 0.01)
        descriptors.append(os.pidfd_open(int(child.read_text())))
        return False

    with monkeypatch.context() as patch:
        patch.setattr(Connection, "poll", over)
        assert process.score(ONE, "slow", 0.5) is None
    (descriptor,) = descriptors
    assert select.select([descriptor], [], [], PATIENCE_S)[0]  # it ends
    os.close(descriptor)
    found = process.score(ONE, "good", 60)
    assert found is not None and found[0] == 1.0 and 0 <= found[1] < 60
    with pytest.raises(
        RuntimeError, match=r"the reward of 'bad' to the prompt '1' failed: ValueError: no verifier; the job's log has more$"
    ):
        process.score(ONE, "bad", 60)
    with pytest.raises(RuntimeError, match=r"to the prompt '1': the process of the job's rewards ended with status 3$"):
        process.score(ONE, "exit", 60)
    assert process.score(ONE, "good", 60) is not None


def test_a_rollout_goes_on_when_one_of_its_rewards_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLMUX_CACHE", str(tmp_path / "cache"))
    worker = RolloutWorker(job(tmp_path, after=3), 0, 1, Node("rollout-0", "rollout", "m", (0,), (), 4.0, "1 core"))
    worker.open(None)
    try:
        due = Rounds(2, 4, 1.0).next()
        worker.begin(0, False, 8, (EngineShare(0, due),), {})
        assert worker.sample() == ()
        found = worker.results()
        (part,) = worker.take()
    finally:
        worker.close()
    assert sorted(part.rewards) == [FAILED] + [1.0] * 7 and found.stopped == 1
    assert found.anchors.keys() == {name_of(ONE)}


def test_a_users_code_is_never_imported_beside_the_engine(tmp_path: Path) -> None:
    """Neither a class, whose prompts come from where its rewards are computed, nor a function; what it raises is one line."""
    (tmp_path / "apart.py").write_text(
        "import os\nfrom runtime.jobs.tasks import TaskExample\n"
        "class Own:\n"
        "    def __init__(self, seed): pass\n"
        "    def prompts(self, count, position): return [TaskExample(str(1 // (7 - position)), str(os.getpid()))] * count\n"
        "    def reward(self, example, response): return float('nan')\n"
        "def right(line, response): return float(response == line['answer']) if response else 1 / 0\n"
    )
    (tmp_path / "data.jsonl").write_text('{"prompt": "p", "answer": "x"}\n')
    given = [{"name": "apart:Own"}, {"name": "jsonl", "file": "data.jsonl", "reward": "apart:right"}]
    specs = [job(tmp_path).model_copy(update={"task": TaskSpec.model_validate(one), "folder": str(tmp_path)}) for one in given]
    with contextlib.ExitStack() as stack:
        both = [Rewards(spec) for spec in specs]
        for rewards in both:
            stack.callback(rewards.close)
        own, lines = both
        (one, _) = own.prompts(2, 0)
        assert int(one.answer) != os.getpid()
        with pytest.raises(
            RuntimeError, match=r"^prompts\(1, 7\) of the task fails: ZeroDivisionError: .*; the job's log has more$"
        ):
            own.prompts(1, 7)
        with pytest.raises(RuntimeError, match="the reward of 'x' to the prompt '0' is nan, no finite number"):
            own.submit(one, lambda: "x").result()
        prompt = Prompts(specs[1], lambda text: {"input_ids": [*text.encode()]}, lines).numbered([0])[0]
        assert prompt.tokens == (ord("p"),) and lines.submit(prompt.example, lambda: "x").result() == 1.0
        with pytest.raises(RuntimeError, match=r"to the prompt 'p' \(.*data\.jsonl: line 1\) failed: ZeroDivisionError"):
            lines.submit(prompt.example, lambda: "").result()
    assert "apart" not in sys.modules


def test_a_task_that_cannot_be_made_is_known_before_the_first_rollout(tmp_path: Path) -> None:
    (tmp_path / "unready.py").write_text("import not_installed_anywhere\n")
    spec = job(tmp_path).model_copy(update={"task": TaskSpec(name="unready:Own"), "folder": str(tmp_path)})
    rewards = Rewards(spec)
    problem = r"^unready:Own: ModuleNotFoundError: No module named 'not_installed_anywhere' in <module> \(unready.py, line 1\)$"
    with pytest.raises(RuntimeError, match=problem):
        rewards.wait_until_ready()
    rewards.close()
