"""The converter of GSM8K's format in examples/."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

GSM8K = runpy.run_path(str(Path(__file__).parents[1] / "examples" / "gsm8k.py"))
MODEL = runpy.run_path(str(Path(__file__).parents[1] / "examples" / "small_chat_model.py"))


def convert(folder: Path, lines: list[Any], *arguments: str) -> dict[str, list[Any]]:
    (folder / "raw.jsonl").write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    GSM8K["main"]([str(folder / "raw.jsonl"), "--to", str(folder / "out"), *arguments])
    return {path.stem: [json.loads(line) for line in path.read_text().splitlines()] for path in (folder / "out").iterdir()}


def problem(k: int) -> dict[str, str]:
    return {"question": f"{k}?", "answer": f"It is <<{k}={k}>>{k}.\n#### {k},000"}


def test_lines_are_converted_and_split_evenly(tmp_path: Path) -> None:
    found = convert(tmp_path, [*map(problem, range(6)), "", *map(problem, range(6, 10))], "--held-out", "3")
    assert [line["question"] for line in found["test"]] == ["0?", "3?", "6?"] and len(found["train"]) == 7
    assert found["train"][0] == {"question": "1?", "answer": "1,000", "solution": "It is <<1=1>>1.\n#### 1,000"}
    assert not [line for line in found["train"] if line in found["test"]]


def test_a_test_file_is_converted_whole(tmp_path: Path) -> None:
    assert {name: len(lines) for name, lines in convert(tmp_path, [problem(1)], "--held-out", "0").items()} == {"train": 1}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2: is no line of GSM8K: "),
        ("[]", "line 2: is no line of GSM8K: "),
        ({"question": "1?"}, "line 2: is no line of GSM8K: 'answer'"),
        ({"question": " ", "answer": "#### 1"}, "line 2: is no line of GSM8K: its question is empty"),
        ({"question": "1?", "answer": "It is 1."}, "line 2: is no line of GSM8K: its answer does not end in #### and a number"),
        ({"question": "1?", "answer": "#### one"}, "line 2: is no line of GSM8K: its answer does not end in #### and a number"),
    ],
)
def test_a_line_that_is_none_is_named_and_nothing_is_written(tmp_path: Path, line: Any, said: str) -> None:
    with pytest.raises(SystemExit, match=said) as refused:
        convert(tmp_path, [problem(1), line, problem(3)], "--held-out", "1")
    assert "\n" not in str(refused.value.code) and not (tmp_path / "out").exists()


def test_something_is_left_to_train_on(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="--held-out 200: there are 1 lines"):
        convert(tmp_path, [problem(1)])


def test_the_problems_of_the_small_model_are_of_this_format(tmp_path: Path) -> None:
    lines = MODEL["problems"]()
    found = convert(tmp_path, lines, "--held-out", "16")
    assert len(found["train"]) == len(lines) - 16 and {line["answer"] for line in found["train"]} == {"2", "3", "4"}
