"""The prompts of a job: lines that are too long are left out with a count, and held-out ones are always the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rollmux_env.errors import InputError
from runtime.grpo.rewards import Rewards
from runtime.grpo.shares import Prompts
from runtime.jobs.spec import TaskJob
from tests.runtime.jobs.task_job import task_job


def tokenizer(text: str) -> dict[str, list[int]]:
    return {"input_ids": [*text.encode()]}


def spec_of(folder: Path, lengths: list[int], held_out: list[int], **evaluation: Any) -> TaskJob:
    for name, counts in (("train", lengths), ("test", held_out)):
        (folder / f"{name}.jsonl").write_text("\n".join(json.dumps({"q": name[1] * count, "answer": count}) for count in counts))
    task = {"name": "jsonl", "file": "train.jsonl", "prompt": "q", "reward": "number"}
    job = {"id": "a", "slo": 2, "iterations": 9, "task": task, "algorithm": {"max_prompt_tokens": 3}}
    return task_job(job | evaluation, folder)


def prompts_of(spec: TaskJob) -> Prompts:
    rewards = Rewards(spec)
    rewards.close()
    return Prompts(spec, tokenizer, rewards)


def test_lines_that_are_too_long_are_left_out_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = prompts_of(spec_of(tmp_path, [1, 2, 3, 4, 5], []))
    found = [prompt.example.prompt for prompt in prompts.numbered(range(9)).values()]
    assert {*found} == {"r", "rr", "rrr"} and prompts.held_out == ()
    line = "train.jsonl: 2 of 5 prompts have more tokens than max_prompt_tokens, 3: left out\n"
    assert capsys.readouterr().out == line
    with pytest.raises(InputError, match=r"^train\.jsonl: all of the 2 prompts have more tokens than max_prompt_tokens, 3$"):
        prompts_of(spec_of(tmp_path, [4, 5], []))


def test_held_out_prompts_are_the_first_that_are_not_too_long(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, [1, 2], [9, 1, 2, 9, 3, 1], evaluation={"file": "test.jsonl", "prompts": 3})
    assert [prompt.example.prompt for prompt in prompts_of(spec).held_out] == ["e", "ee", "eee"]
    assert prompts_of(spec).held_out == prompts_of(spec).held_out
    evaluation = spec.evaluation
    assert evaluation is not None and [k for k in range(24) if evaluation.is_due(k, 24)] == [0, 10, 20, 23]
