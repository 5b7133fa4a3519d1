"""Convert problems in GSM8K's own format for a job of the task `jsonl`: `python examples/gsm8k.py .../train.jsonl`.

A line of GSM8K is `{"question": ..., "answer": ...}`, and its answer ends in `#### NUMBER`. In gsm8k/ beside this script,
train.jsonl and test.jsonl get lines with `question`, `answer` (only the number) and `solution` (the whole answer). The lines of
test.jsonl are taken evenly from the whole file. Convert GSM8K's own test file with `--held-out 0`, into another
folder.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from rollmux_env.errors import InputError
from rollmux_env.files import text_lines, write_whole

MARK = "####"
HERE = Path(__file__).parent / "gsm8k"


def convert(path: Path) -> list[dict[str, str]]:
    """Return the lines of a file in GSM8K's format, converted.

    Raises:
        InputError: If a line does not have this format; one line that names it.
    """
    lines = []
    for number, text in enumerate(text_lines(path), 1):
        if text.strip():
            try:
                lines.append(_converted(json.loads(text)))
            except (ValueError, TypeError, KeyError) as error:
                raise InputError(f"{path}: line {number}: is no line of GSM8K: {error}") from None
    return lines


def _converted(line: dict[str, Any]) -> dict[str, str]:
    question, solution = line["question"], line["answer"]
    if not question.strip():
        raise ValueError("its question is empty")
    _, mark, number = solution.rpartition(MARK)
    if not mark or not any(character.isdigit() for character in number):
        raise ValueError(f"its answer does not end in {MARK} and a number")
    return {"question": question, "answer": number.strip(), "solution": solution}


def split(lines: list[dict[str, str]], held_out: int) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Return the lines to train on and those held out, which are evenly spaced.

    Raises:
        InputError: If no line would be left to train on; one line.
    """
    if held_out >= len(lines):
        raise InputError(f"--held-out {held_out}: there are {len(lines)} lines")
    chosen = {k * len(lines) // held_out for k in range(held_out)} if held_out else set()
    return [line for k, line in enumerate(lines) if k not in chosen], [lines[k] for k in sorted(chosen)]


def main(arguments: list[str] | None = None) -> None:
    """Convert a file."""
    parser = argparse.ArgumentParser(description="Convert problems in GSM8K's own format for a job of the task jsonl.")
    help_file = "train.jsonl of GSM8K, or another file like it (default: what small_chat_model.py has written)"
    parser.add_argument("file", type=Path, nargs="?", default=HERE / "problems.jsonl", help=help_file)
    parser.add_argument("--to", type=Path, default=HERE, metavar="FOLDER", help="gets train.jsonl and test.jsonl")
    parser.add_argument("--held-out", type=int, default=200, metavar="N", help="lines of test.jsonl (default: 200)")
    options = parser.parse_args(arguments)
    try:
        train, test = split(convert(options.file), max(0, options.held_out))
        options.to.mkdir(parents=True, exist_ok=True)
        for name, lines in (("train", train), ("test", test)):
            if lines:
                write_whole(options.to / f"{name}.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
                print(f"{options.to / name}.jsonl: {len(lines)} lines")
    except (InputError, OSError) as error:
        sys.exit(f"gsm8k.py: {error}")


if __name__ == "__main__":
    main()
