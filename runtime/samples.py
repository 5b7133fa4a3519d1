"""The samples and trajectories of a run's rollouts, in a file for each job.

Samples are for people to read: some prompts of every iteration with their responses and rewards, as a JSON object per iteration
with `iteration`, from 0, and `groups` of prompt, responses and rewards. Each trajectory is a line of another file.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from rollmux_env.errors import InputError
from rollmux_env.files import read_text
from rollmux_env.suggestions import did_you_mean
from rollmux_env.timing.trajectories import Trajectory
from rollmux_env.validation_errors import one_line
from runtime.output import append_bounded

SAMPLES, TRAJECTORIES = "samples", "trajectories"
LARGEST = 8 << 20  # bytes of a file; a larger one loses its older half
MOST = 8  # groups recorded per iteration
_LARGEST_TRAJECTORIES = 64 << 20
_LONGEST = 20_000  # characters of a text


@dataclass(frozen=True)
class SampleGroup:
    """Responses to one prompt, with their rewards.

    Attributes:
        prompt: Text of the prompt.
        responses: Texts of the responses.
        rewards: Reward of each response.
    """

    prompt: str
    responses: tuple[str, ...]
    rewards: tuple[float, ...]


@dataclass(frozen=True)
class _SampledIteration:
    iteration: int
    groups: tuple[SampleGroup, ...]


def make_group(prompt: str, responses: Sequence[str], rewards: Sequence[float]) -> SampleGroup:
    """Return a group whose texts are cut to `_LONGEST` characters.

    Raises:
        TypeError: If the prompt or a response is not a text, or a reward is not a number.
        ValueError: If there are not as many rewards as responses.
    """
    if len(responses) != len(rewards):
        raise ValueError(f"{len(responses)} responses and {len(rewards)} rewards: must be equally many")
    if not all(isinstance(text, str) for text in (prompt, *responses)):
        raise TypeError("prompt and responses must be text")
    texts = tuple(text[:_LONGEST] for text in responses)
    return SampleGroup(prompt[:_LONGEST], texts, tuple(float(reward) for reward in rewards))


def write_samples(path: Path, iteration: int, groups: Sequence[SampleGroup]) -> None:
    """Append an iteration's groups to a job's file, if there is room on the disk."""
    append_bounded(path, json.dumps(asdict(_SampledIteration(iteration, tuple(groups[:MOST])))) + "\n", LARGEST)


def write_trajectories(path: Path, trajectories: Sequence[Trajectory]) -> None:
    """Append an iteration's trajectories to a job's file, if there is room on the disk."""
    append_bounded(path, "".join(one.line() + "\n" for one in trajectories), _LARGEST_TRAJECTORIES)


def read_samples(folder: Path, job_id: str) -> dict[int, tuple[SampleGroup, ...]]:
    """Return the samples of a job by iteration, in order.

    A repeated iteration replaces the earlier one. Incomplete lines are skipped.

    Args:
        folder: Folder of a run or a service.
        job_id: Id of the job.

    Raises:
        InputError: If there are none; one line.
    """
    path = folder / SAMPLES / f"{job_id}.jsonl"
    adapter, by_iteration = TypeAdapter(_SampledIteration), dict[int, tuple[SampleGroup, ...]]()
    if Path(job_id).name == job_id and path.is_file():
        for line in read_text(path).splitlines():
            with contextlib.suppress(ValidationError):
                one = adapter.validate_json(line)
                while by_iteration and next(reversed(by_iteration)) >= one.iteration:
                    by_iteration.popitem()
                by_iteration[one.iteration] = one.groups
    if not by_iteration:
        names = [file.stem for file in path.parent.glob("*.jsonl")]
        raise InputError(f"job {one_line(job_id, 100)}: there are no samples of it in {folder}{did_you_mean(job_id, names)}")
    return by_iteration
