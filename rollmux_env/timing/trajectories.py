"""Trajectories that were observed: the form of a line that runs write, and what others have published.

A run writes a file of each job, a JSON object a line and a trajectory (docs/reference/trajectories.md). Of others are read

- PolyTrace (github.com/Zhou-jiecheng/PolyTrace): `packed_lengths_step_*.jsonl`, a line a prompt with the lengths of all responses;
  `multiturn_workload_step_*.jsonl`, a line a trajectory with its turns and tool calls; `reward_timings_step_*.jsonl`; and JSON
  files of steps with `input` and `output`.
- RollMux's authors (github.com/wutianyuan1/ROLL): lines of a step and its response lengths (`output_lens*.log`), and seconds of
  steps (`drift_reference/*.csv`).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from rollmux_env.errors import InputError
from rollmux_env.files import DATA_BYTES, json_lines, read_text, text_lines
from rollmux_env.validation_errors import describe, one_line

_WHOLE = 0.95  # of the prompts have all their responses
_NUMBERED = re.compile(r"(.*?)(\d+)(\.\w+)?$")


class Trajectory(NamedTuple):
    """A response to a prompt, with all its turns.

    Attributes:
        iteration: from 0. group: number of its prompt; trajectories of a group and iteration have the same prompt.
        prompt: tokens of it. outputs: sampled, of each turn. observations: tokens read between two turns.
        seconds: from the beginning of the rollout to its end; None where that was not measured.
        switches: how often it was interrupted and went on.
        tool_s: of each tool call, seconds.
        response: number of it in the iteration, as a run wrote it; what was done again is known by it.
    """

    iteration: int
    group: int
    prompt: int
    outputs: tuple[int, ...]
    observations: tuple[int, ...] = ()
    seconds: float | None = None
    switches: int = 0
    tool_s: tuple[float, ...] = ()
    response: int = 0

    @property
    def tokens(self) -> int:
        """Sampled in all."""
        return sum(self.outputs)

    def line(self) -> str:
        """As a run writes it: what is nothing is left out."""
        return json.dumps({name: value for name, value in self._asdict().items() if value not in (None, ())})


def read_trajectories(path: Path) -> list[Trajectory]:
    """Read a file of trajectories in any of the forms above, or all files of a folder in one of them, by the number in their names.

    What a run did again counts once: the later lines. PolyTrace's validation lines are left out.

    Raises:
        InputError: a file cannot be read, or a line has none of the forms; one line.
    """
    if not path.is_dir():
        return _read(path)
    files = [file for file in path.iterdir() if file.suffix in (".jsonl", ".log") and not file.name.startswith("reward_timings")]
    trajectories = [one for file in sorted(files, key=_number) for one in _read(file)]
    if not trajectories:
        raise InputError(f"{one_line(str(path), 4096)}: holds no trajectories")
    return trajectories


def read_reward_s(path: Path) -> dict[int, float]:
    """Seconds of the rewards of each step, the slowest rank's, of a folder with PolyTrace's `reward_timings_step_*.jsonl`.

    Raises:
        InputError: a file cannot be read, or a line has another form; one line.
    """
    reward_s: dict[int, float] = {}
    for file in sorted(path.glob("reward_timings*.jsonl"), key=_number):
        for number, entry in json_lines(file, half=True):
            try:
                if not entry.get("validate"):
                    step = int(entry["step"])
                    reward_s[step] = max(reward_s.get(step, 0.0), float(entry["reward_time_s"]))
            except (KeyError, TypeError, ValueError):
                raise _not(file, number, "PolyTrace's reward timings") from None
    return reward_s


def read_step_s(path: Path) -> list[float]:
    """Seconds of consecutive steps: lines of a step's number and its seconds, as the RollMux authors' `drift_reference`.

    Raises:
        InputError: the file cannot be read, or a line has another form; one line.
    """
    seconds: list[float] = []
    for number, line in enumerate(text_lines(path), 1):
        if not line.strip():
            continue
        try:
            step, value = line.split(",")
            if int(step) != len(seconds) or not 0 < float(value) < 1e15:
                raise ValueError
        except ValueError:
            raise _not(path, number, "a step and its seconds, as 0,382.75") from None
        seconds.append(float(value))
    if not seconds:
        raise InputError(f"{one_line(str(path), 4096)}: holds no steps")
    return seconds


def groups_of(trajectories: Iterable[Trajectory]) -> tuple[tuple[int, ...], ...]:
    """Tokens of all responses, prompt by prompt, in the order of iterations and groups.

    Prompts with another number of responses than most are left out, where they are one in twenty at most: some were lost.

    Raises:
        InputError: more of them are; one line.
    """
    ordered = sorted(trajectories, key=lambda one: one[:2])
    groups = tuple(tuple(one.tokens for one in group) for _, group in groupby(ordered, key=lambda one: one[:2]))
    sizes = Counter(len(group) for group in groups).most_common()
    if sizes[0][1] < _WHOLE * len(groups):
        raise InputError(f"some prompts have {sizes[0][0]} responses and others {sizes[1][0]}: must be equally many")
    return tuple(group for group in groups if len(group) == sizes[0][0])


def _read(path: Path) -> list[Trajectory]:
    if path.suffix == ".json":
        return [*_compact(path)]
    if path.suffix == ".log":
        return [*_lengths(path)]
    trajectories: list[Trajectory] = []
    groups: dict[int, int] = {}  # of PolyTrace's packed lengths, by step
    for number, entry in json_lines(path, half=True):
        try:
            if entry.get("validate"):
                continue
            if "outputs" in entry:
                one = _own(entry)
                again = (one.iteration, one.response)
                while trajectories and again <= (trajectories[-1].iteration, trajectories[-1].response):
                    trajectories.pop()
                trajectories.append(one)
            elif "turns" in entry:
                trajectories.append(_turns(entry))
            else:
                step = _count(entry["step"])
                groups[step] = groups.get(step, -1) + 1
                trajectories += [Trajectory(step, groups[step], _count(entry["input"]), (_count(o, 1),)) for o in entry["output"]]
        except (KeyError, TypeError, ValueError, AttributeError):
            raise _not(path, number, "a trajectory") from None
    if not trajectories:
        raise InputError(f"{one_line(str(path), 4096)}: holds no trajectories")
    return trajectories


def _own(entry: Mapping[str, Any]) -> Trajectory:
    """A line that a run wrote."""
    seconds = entry.get("seconds")
    return Trajectory(
        _count(entry["iteration"]),
        _count(entry["group"]),
        _count(entry["prompt"]),
        tuple(_count(tokens, 1) for tokens in entry["outputs"]) or (1,),
        tuple(map(_count, entry.get("observations", ()))),
        None if seconds is None else _seconds(seconds),
        _count(entry.get("switches", 0)),
        tuple(map(_seconds, entry.get("tool_s", ()))),
        _count(entry["response"]),
    )


def _turns(entry: Mapping[str, Any]) -> Trajectory:
    """A line of PolyTrace's workloads of several turns."""
    turns, calls = entry["turns"], entry.get("tool_calls", ())
    tool_s = tuple(_seconds(call["latency_s"]) for call in calls)
    return Trajectory(
        _count(entry["step"]),
        _count(entry["prompt_group_id"]),
        _count(entry["prompt_len"]),
        tuple(max(1, _count(turn["completion_tokens"])) for turn in turns),
        tuple(_count(call["append_len"]) for call in calls),
        sum(_seconds(turn["engine_latency_s"]) for turn in turns) + sum(tool_s),
        0,
        tool_s,
    )


def _compact(path: Path) -> Iterator[Trajectory]:
    """PolyTrace's steps: `input` and `output` of each, or a list of such; several outputs of an input are a group."""
    text = read_text(path, DATA_BYTES)
    try:
        for key, step in json.loads(text).items():
            parts = step if isinstance(step, list) else [step]
            inputs, outputs = ([tokens for part in parts for tokens in part[name]] for name in ("input", "output"))
            each = len(outputs) // len(inputs) if inputs and len(outputs) % len(inputs) == 0 else 0
            for k, tokens in enumerate(outputs):
                group, prompt = (k // each, _count(inputs[k // each])) if each else (k, 0)
                yield Trajectory(int(key), group, prompt, (_count(tokens, 1),))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise InputError(f"{one_line(str(path), 4096)}: must be steps with input and output, as PolyTrace has them") from None


def _lengths(path: Path) -> Iterator[Trajectory]:
    """Lines of a step's name and its response lengths, as the RollMux authors log them; each response has a prompt of its own."""
    step = -1
    for number, line in enumerate(text_lines(path), 1):
        words = line.split()
        if len(words) < 2:
            continue
        step += 1
        try:
            for group, tokens in enumerate(words[1:]):
                yield Trajectory(step, group, 0, (_count(int(tokens), 1),))
        except (ValueError, TypeError):
            raise _not(path, number, "a step and its response lengths") from None


def _count(value: Any, least: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**31:
        raise ValueError(f"no count: {describe(value)}")
    return value


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e15:
        raise ValueError(f"no seconds: {describe(value)}")
    return float(value)


def _number(path: Path) -> tuple[str, int]:
    """Files of steps in their order."""
    match = _NUMBERED.fullmatch(path.name)
    return (match[1], int(match[2])) if match else (path.name, 0)


def _not(path: Path, number: int, what: str) -> InputError:
    return InputError(f"{one_line(str(path), 4096)}: line {number}: is not {what}")
