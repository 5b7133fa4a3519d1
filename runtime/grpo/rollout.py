"""One rollout on a job's engines: it stops and continues as the dispatch policy and the rollout policy decide."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from rollmux_env.rollout.policy import Round
from runtime.grpo.engines import RolloutEngines
from runtime.grpo.messages import ResponseStatus
from runtime.grpo.shares import RacedRollout, RolloutCourse
from runtime.jobs.spec import TaskJob
from runtime.phases import runtime_hook


def run_rollout(spec: TaskJob, engines: RolloutEngines, due: Round, anchors: Mapping[str, float]) -> None:
    """Sample the responses of a round, and evaluate the held-out prompts first if that is due.

    A tail may lose nodes to another job on the way (`runtime_hook.regroup`). From then on the rollout policy decides nothing.

    Args:
        spec: Specification of the job.
        engines: Engines of the job. Those in use are on their devices.
        due: Prompts to sample, and the number that suffices.
        anchors: Seconds of tests that the last rollout has measured.
    """
    number = max(runtime_hook.iteration, 0)
    course = _course_of(spec, engines, due)
    for size in (*spec.rollout.sizes, course.size) if runtime_hook.worst_case else (course.size,):
        engines.resize(size)  # a worst case includes every change of size
    beginnings = engines.begin(course.shares_by_engine(engines.share_count), number, anchors)
    is_whole = bool(spec.rollout.sizes) or len(runtime_hook.parts) == len(engines)  # no other job's tail has a part of the nodes
    if not is_whole:
        engines.hand_over(range(len(engines)), runtime_hook.parts)
    if spec.evaluation is not None and (runtime_hook.worst_case or spec.evaluation.is_due(number, spec.iterations)):
        engines.evaluate()  # before sampling, so that no tail waits for it
    parts, began_s = engines.in_use, time.monotonic()
    runtime_hook.wake(course.wake if is_whole or course.races else None)
    while engines.sample(parts, beginnings):
        beginnings = []
        runtime_hook.regroup(engines.sleep)
        is_whole = is_whole and engines.in_use == parts
        _change(engines, course, parts, is_whole, time.monotonic() - began_s)
        parts = engines.in_use
    if isinstance(course, RacedRollout) and course.wake is not None:  # all prompts were complete before the race was judged
        _judge(engines, course)
    if course.decides:
        _conclude(spec, engines, course, began_s)


def _course_of(spec: TaskJob, engines: RolloutEngines, due: Round) -> RolloutCourse:
    """Return how the rollout runs: as its rollout policy decides, as a race for the first complete prompts, or plainly."""
    if engines.control is None or runtime_hook.worst_case:
        is_race = len(due.prompts) > due.wanted and not runtime_hook.worst_case and len(engines) > 1
        return (RacedRollout if is_race else RolloutCourse)(due, spec.rollout.tensor_parallel)
    from runtime.grpo.control import ControlledRollout

    course = ControlledRollout(engines.control, due)
    course.begin()
    return course


def _change(engines: RolloutEngines, course: RolloutCourse, before: Sequence[int], is_whole: bool, now_s: float) -> None:
    """Decide where a rollout that has stopped continues.

    Args:
        engines: Engines of the job.
        course: Course of the rollout.
        before: Numbers of the engines that sampled until now.
        is_whole: Whether the rollout has lost no nodes.
        now_s: Seconds since the rollout began.
    """
    parts = engines.in_use
    if parts != before:
        engines.wake(part for part in parts if part not in before)
        engines.hand_over(before, parts)
    elif is_whole and course.decides and course.wake is not None:
        moved = course.act(_statuses(engines), now_s)
        engines.resize(course.size)
        engines.move(moved)
    if isinstance(course, RacedRollout):
        _judge(engines, course)
    runtime_hook.wake(course.wake if is_whole or course.races else None)


def _conclude(spec: TaskJob, engines: RolloutEngines, course: RolloutCourse, began_s: float) -> None:
    """Tell the rollout policy how the rollout went that began at `began_s`, and report the sizes of engines in use."""
    seconds, preemptions = time.monotonic() - began_s, sum(engines.ask("preemptions"))
    course.end(_statuses(engines), seconds, preemptions)
    if spec.rollout.sizes:
        runtime_hook.report(engine_size=course.size, resizes=course.resizes, preemptions=preemptions)


def _statuses(engines: RolloutEngines) -> list[ResponseStatus]:
    """Return the status of every response of the rollout."""
    return [one for own in engines.ask("status") for one in own]


def _judge(engines: RolloutEngines, course: RacedRollout) -> None:
    """End a race on all engines if enough of its prompts are complete."""
    parts = engines.ask("standings")
    standings = {prompt: one for _, own in parts for prompt, one in own.items()}
    if (first := course.ends(sum(done for done, _ in parts), standings)) is not None:
        engines.ask("end", first)
