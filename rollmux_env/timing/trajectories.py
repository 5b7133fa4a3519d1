"""Observed trajectories: the lines that runs write, and the formats of published ones.

A run writes one file per job with one JSON object per trajectory and line (docs/reference/trajectories.md). Published formats:

- PolyTrace (github.com/Zhou-jiecheng/PolyTrace): `packed_lengths_step_*.jsonl`, with one line per prompt that has the lengths of
  all responses; `multiturn_workload_step_*.jsonl`, with one line per trajectory that has its turns and tool calls;
  `reward_timings_step_*.jsonl`; and JSON files of steps with `input` and `output`.
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
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from rollmux_env.errors import InputError
from rollmux_env.files import DATA_BYTES, json_lines, read_text, text_lines
from rollmux_env.progress import say_read
from rollmux_env.validation_errors import one_line

_COMPLETE = 0.95  # smallest share of the prompts that must have the same number of responses
_VALIDATION, _EMPTY = "validation lines left out", "empty responses that count as one token"
_PROMPTLESS = "responses whose prompt counts as empty"
Number = Annotated[int, Field(strict=True, ge=0, lt=2**31)]
Sampled = Annotated[int, Field(strict=True, ge=1, lt=2**31)]
Seconds = Annotated[float, Field(strict=True, ge=0, lt=1e15)]
_NUMBERED = re.compile(r"(.*?)(\d+)(\.\w+)?$")


class Trajectory(NamedTuple):
    """A response to a prompt, with all its turns.

    Attributes:
        iteration: Number of the iteration, from 0.
        group: Number of the prompt in the iteration. Trajectories with the same group and iteration answer the same prompt.
        prompt: Length of the prompt, in tokens.
        outputs: Number of sampled tokens in each turn.
        observations: Number of tokens read between consecutive turns, such as those of a tool's output.
        seconds: Seconds from the beginning of the rollout to the trajectory's end, or None if not measured.
        switches: Number of times it was interrupted and resumed.
        tool_s: Seconds of each tool call.
        response: Number of the response in the iteration. A run that repeats an iteration writes the same numbers again.
    """

    iteration: Number
    group: Number
    prompt: Number
    outputs: tuple[Sampled, ...]
    observations: tuple[Number, ...] = ()
    seconds: Seconds | None = None
    switches: Number = 0
    tool_s: tuple[Seconds, ...] = ()
    response: Number = 0

    @property
    def tokens(self) -> int:
        """Number of sampled tokens of all turns."""
        return sum(self.outputs)

    def line(self) -> str:
        """Return the line of a run's file, without empty values."""
        return json.dumps({name: value for name, value in self._asdict().items() if value not in (None, ())})


class _Packed(BaseModel):
    """A prompt of PolyTrace's packed lengths."""

    step: Number
    input: Number
    output: tuple[Sampled, ...]


class _Turn(BaseModel):
    completion_tokens: Number
    engine_latency_s: Seconds


class _Call(BaseModel):
    latency_s: Seconds
    append_len: Number


class _Turns(BaseModel):
    """A trajectory of PolyTrace's multi-turn workloads."""

    step: Number
    prompt_group_id: Number
    prompt_len: Number
    turns: tuple[_Turn, ...]
    tool_calls: tuple[_Call, ...] = ()


class _Reward(BaseModel):
    """Reward timing of a step, measured by one rank, in PolyTrace's form."""

    step: Number
    reward_time_s: Seconds


class _Part(BaseModel):
    """Prompts and responses of a step, or of a part of it."""

    input: tuple[Number, ...]
    output: tuple[Sampled, ...]


_OWN_FORMAT = TypeAdapter(Trajectory)
_STEPS = TypeAdapter(dict[int, _Part | tuple[_Part, ...]])
_LENGTHS = TypeAdapter(tuple[Annotated[int, Field(ge=1, lt=2**31)], ...])


def read_trajectories(path: Path) -> list[Trajectory]:
    """Read a file of trajectories in any of the module's formats, or the `.jsonl` and `.log` files of a folder.

    Files of a folder are read in the order of the numbers in their names, and steps of a `.log` follow those of the one before;
    reward timings and other files are left out.
    If a run repeated an iteration, only its last lines count. PolyTrace's validation lines are skipped. A line on standard error
    counts what is left out or made up.

    Raises:
        InputError: If a file cannot be read, has no trajectories, or a line has none of the formats; or two files of a folder have
            the same prompt, such as those of two jobs.
    """
    notes, files = Counter[str](), [path]
    if path.is_dir():
        inside = [file for file in path.iterdir() if not file.name.startswith("reward_timings")]
        files = sorted((file for file in inside if file.suffix in (".jsonl", ".log")), key=_numbered_name)
        notes["other files left out"] = len(inside) - len(files)
    trajectories: list[Trajectory] = []
    owners: dict[tuple[int, int], Path] = {}  # first file that has each prompt
    for file in files:
        first = 1 + max((iteration for iteration, _ in owners), default=-1) if file.suffix == ".log" else 0
        read = _read(file, notes, first)
        for prompt in dict.fromkeys(one[:2] for one in read):
            if owners.setdefault(prompt, file) != file:
                both = f"{owners[prompt].name} and {file.name} have the same prompt, {prompt[1]} of iteration {prompt[0]}"
                raise InputError(f"{one_line(str(path), 4096)}: {one_line(both)}; give one file, or a folder of one run of one job")
        trajectories += read
    if not trajectories:
        raise InputError(f"{one_line(str(path), 4096)}: holds no trajectories")
    _report_notes(path, f"{len(trajectories):,} trajectories", notes)
    return trajectories


def read_reward_s(path: Path) -> dict[int, float]:
    """Read the seconds of the rewards of each step, as those of its slowest rank.

    Args:
        path: Folder with PolyTrace's `reward_timings_step_*.jsonl`.

    Returns:
        Seconds by number of the step.

    Raises:
        InputError: If a file cannot be read or a line has another form.
    """
    reward_s: dict[int, float] = {}
    notes = Counter[str]()
    for file in sorted(path.glob("reward_timings*.jsonl"), key=_numbered_name):
        for number, entry in json_lines(file, half=True):
            if entry.get("validate"):
                notes[_VALIDATION] += 1
                continue
            try:
                one = _Reward.model_validate(entry)
            except ValidationError:
                raise _line_error(file, number, "PolyTrace's reward timings") from None
            notes["ranks that were faster left out"] += one.step in reward_s
            reward_s[one.step] = max(reward_s.get(one.step, 0.0), one.reward_time_s)
    _report_notes(path, f"reward timings of {len(reward_s):,} steps", notes)
    return reward_s


def read_step_s(path: Path) -> list[float]:
    """Read the seconds of consecutive steps.

    Args:
        path: File whose lines hold a step's number and its seconds, as the RollMux authors' `drift_reference`.

    Raises:
        InputError: If the file cannot be read, has no steps, or a line has another form.
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
            raise _line_error(path, number, "a step and its seconds, as 0,382.75") from None
        seconds.append(float(value))
    if not seconds:
        raise InputError(f"{one_line(str(path), 4096)}: holds no steps")
    return seconds


def groups_of(trajectories: Iterable[Trajectory], path: Path) -> tuple[tuple[int, ...], ...]:
    """Return the number of sampled tokens of each response, prompt by prompt, in the order of iterations and groups.

    Prompts with another number of responses than most are left out if they are at most one in twenty; some of their responses were
    lost. A line on standard error counts them.

    Args:
        trajectories: Trajectories in any order.
        path: Path of the file or folder that they come from.

    Raises:
        InputError: If more than one prompt in twenty has another number of responses.
    """
    ordered = sorted(trajectories, key=lambda one: one[:2])
    groups = tuple(tuple(one.tokens for one in group) for _, group in groupby(ordered, key=lambda one: one[:2]))
    sizes = Counter(len(group) for group in groups).most_common()
    if sizes[0][1] < _COMPLETE * len(groups):
        raise InputError(f"some prompts have {sizes[0][0]} responses and others {sizes[1][0]}: must be equally many")
    whole = tuple(group for group in groups if len(group) == sizes[0][0])
    left_out = len(groups) - len(whole)
    _report_notes(path, f"{len(whole):,} prompts", Counter({"prompts left out with another number of responses": left_out}))
    return whole


def _report_notes(path: Path, summary: str, notes: Counter[str]) -> None:
    """Report what was left out or made up, if anything was."""
    said = "; ".join(f"{what}: {count:,}" for what, count in notes.items() if count)
    if said:
        say_read(path, f"{summary}; {said}")


def _read(path: Path, notes: Counter[str], first: int = 0) -> list[Trajectory]:
    """Read the trajectories of a file.

    Args:
        path: File to read.
        notes: Numbers of what is left out or made up, written.
        first: Iteration of the first step of a `.log`.
    """
    if path.suffix == ".json":
        return [*_read_steps(path, notes)]
    if path.suffix == ".log":
        return [*_read_lengths(path, notes, first)]
    trajectories: list[Trajectory] = []
    groups: dict[int, int] = {}  # last group of each step of PolyTrace's packed lengths
    for number, entry in json_lines(path, half=True):
        if entry.get("validate"):
            notes[_VALIDATION] += 1
            continue
        try:
            if "outputs" in entry:
                one = _own_trajectory(entry)
                again = (one.iteration, one.response)
                while trajectories and again <= (trajectories[-1].iteration, trajectories[-1].response):
                    trajectories.pop()
                    notes["lines left out that were done again"] += 1
                trajectories.append(one)
                notes[_EMPTY] += not entry["outputs"]
            elif "turns" in entry:
                turns = _Turns.model_validate(entry)
                trajectories.append(_multiturn_trajectory(turns))
                notes[_EMPTY] += sum(not turn.completion_tokens for turn in turns.turns)
            else:
                packed = _Packed.model_validate(entry)
                groups[packed.step] = groups.get(packed.step, -1) + 1
                trajectories += [Trajectory(packed.step, groups[packed.step], packed.input, (tokens,)) for tokens in packed.output]
        except (KeyError, ValidationError):
            raise _line_error(path, number, "a trajectory") from None
    if not trajectories:
        raise InputError(f"{one_line(str(path), 4096)}: holds no trajectories")
    return trajectories


def _own_trajectory(entry: Mapping[str, Any]) -> Trajectory:
    """Return the trajectory of a line that a run wrote."""
    named = {name: entry[name] for name in Trajectory._fields if name in entry}
    return _OWN_FORMAT.validate_python(named | {"outputs": entry["outputs"] or (1,), "response": entry["response"]})


def _multiturn_trajectory(line: _Turns) -> Trajectory:
    tool_s = tuple(call.latency_s for call in line.tool_calls)
    return Trajectory(
        line.step,
        line.prompt_group_id,
        line.prompt_len,
        tuple(max(1, turn.completion_tokens) for turn in line.turns),
        tuple(call.append_len for call in line.tool_calls),
        sum(turn.engine_latency_s for turn in line.turns) + sum(tool_s),
        0,
        tool_s,
    )


def _read_steps(path: Path, notes: Counter[str]) -> Iterator[Trajectory]:
    """Read PolyTrace's steps, each with `input` and `output`, or a list of such parts.

    Several outputs of one input form a group.
    """
    try:
        steps = _STEPS.validate_json(read_text(path, DATA_BYTES))
    except ValidationError:
        raise InputError(f"{one_line(str(path), 4096)}: must be steps with input and output, as PolyTrace has them") from None
    for step, whole in steps.items():
        parts = whole if isinstance(whole, tuple) else (whole,)
        inputs, outputs = ([tokens for part in parts for tokens in getattr(part, name)] for name in ("input", "output"))
        each = len(outputs) // len(inputs) if inputs and len(outputs) % len(inputs) == 0 else 0
        for k, tokens in enumerate(outputs):
            group, prompt = (k // each, inputs[k // each]) if each else (k, 0)
            notes[_PROMPTLESS] += not each
            yield Trajectory(step, group, prompt, (tokens,))


def _read_lengths(path: Path, notes: Counter[str], step: int) -> Iterator[Trajectory]:
    """Read lines of a step's name and its response lengths, as the RollMux authors log them, from iteration `step` on.

    No two responses share a prompt.
    """
    for number, line in enumerate(text_lines(path), 1):
        _, *words = line.split() or [""]
        if not words:
            continue
        notes[_PROMPTLESS] += len(words)
        try:
            yield from (Trajectory(step, group, 0, (tokens,)) for group, tokens in enumerate(_LENGTHS.validate_python(words)))
        except ValidationError:
            raise _line_error(path, number, "a step and its response lengths") from None
        step += 1


def _numbered_name(path: Path) -> tuple[str, int]:
    """Return a sort key that orders files of steps by their numbers."""
    match = _NUMBERED.fullmatch(path.name)
    return (match[1], int(match[2])) if match else (path.name, 0)


def _line_error(path: Path, number: int, what: str) -> InputError:
    return InputError(f"{one_line(str(path), 4096)}: line {number}: is not {what}")
