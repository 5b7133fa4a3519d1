"""Convert a recorded run of llm-d-rl-time-slicing (github.com/llm-d-incubation) to a table of `rollmux_env/published/llm_d.toml`.

    python benchmarks/import_timeslice.py rl-timeslice-replay.html --run 0 --from 2291.6

The page (docs/diagrams) contains the data of its plots: when each job acquired and released the lock of each GPU. A training is a
hold of the trainer's lock, minus the time in which its job waits for the sampler's lock, which it needs for the new weights. A
rollout is a hold of the sampler's lock, so new weights are part of both. If rollouts have separate GPUs, a rollout is the time from
one training to the request for the next. Everything before `--from` is left out, since models are loaded there.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

LEAST_S = 0.1  # duration of a rollout that ended before `--from`, in seconds


class LockHold(NamedTuple):
    """A job's time with a lock.

    Attributes:
        job: Name of the job.
        asked_s: Time at which it asked for the lock, on the page's clock, in seconds.
        got_s: Time at which it acquired the lock.
        back_s: Time at which it released the lock.
    """

    job: str
    asked_s: float
    got_s: float
    back_s: float


def read_run(path: Path, run: int) -> dict[str, list[LockHold]]:
    """Read the holds of each lock, in order of time, from run number `run` of a page."""
    text = path.read_text(encoding="utf-8")
    data, _ = json.JSONDecoder().raw_decode(text[text.index("const DATA = ") + len("const DATA = ") :])
    holds: dict[str, list[LockHold]] = {}
    got: dict[tuple[str, str], Mapping[str, Any]] = {}
    for event in data["runs"][run]["timeslice"]["events"]:
        key = event["pool"], event["job"]
        if event["kind"] == "acquired":
            got[key] = event
        elif event["kind"] == "yielded":
            first = got[key]
            asked_s = first["t"] - first["wait_ms"] / 1000
            holds.setdefault(event["pool"], []).append(LockHold(event["job"], asked_s, first["t"], event["t"]))
    return {pool: sorted(each, key=lambda hold: hold.got_s) for pool, each in holds.items()}


def switch_s(holds: Sequence[LockHold], from_s: float) -> float:
    """Return the median time from a job's release to another, waiting job's hold, in seconds. It is 0 if there is no such pair."""
    pairs = [(one, other) for one, other in pairwise(holds) if one.back_s >= from_s and one.job != other.job]
    return median([other.got_s - one.back_s for one, other in pairs if other.asked_s <= one.back_s] or [0.0])


def lines(
    trainings: Sequence[LockHold], rollouts: Sequence[LockHold] | None, from_s: float
) -> list[tuple[str, float, float, float]]:
    """Return the iterations of all jobs.

    Args:
        trainings: Holds of the trainer's lock.
        rollouts: Holds of the sampler's lock, None means that every job has a separate GPU for sampling.
        from_s: Beginning of the table, on the page's clock, in seconds.

    Returns:
        For each iteration: job, duration of the rollout, duration of the training, and time from `from_s` to the training's
        beginning, all in seconds.
    """
    rows = []
    for job in dict.fromkeys(hold.job for hold in trainings):
        own = [hold for hold in trainings if hold.job == job]
        samples = [hold for hold in rollouts or () if hold.job == job]
        for k, hold in enumerate(own):
            if hold.got_s < from_s:
                continue
            waits_s = sum(each.got_s - each.asked_s for each in samples if hold.got_s < each.got_s <= hold.back_s)
            if rollouts is None:
                sampled_s = hold.asked_s - max(from_s, own[k - 1].back_s)
            else:
                before = max((each for each in samples if each.got_s <= hold.got_s), key=lambda each: each.got_s)
                sampled_s = before.back_s - max(from_s, before.got_s)
            rows.append((job, max(LEAST_S, sampled_s), hold.back_s - hold.got_s - waits_s, hold.got_s - from_s))
    return sorted(rows, key=lambda row: row[3])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path)
    parser.add_argument("--run", type=int, default=0, help="number of the run on the page")
    parser.add_argument("--from", type=float, default=0.0, dest="from_s", help="seconds of the page's clock")
    options = parser.parse_args()
    holds = read_run(options.page, options.run)
    trainings = next(each for pool, each in holds.items() if pool.startswith("trainer"))
    rollouts = holds.get("sampler")
    whole_s = max(hold.back_s for each in holds.values() for hold in each) - options.from_s
    print(f"switch_s = [{switch_s(rollouts or (), options.from_s):.1f}, {switch_s(trainings, options.from_s):.1f}]")
    print(f'whole_s = {whole_s:.1f}\niterations = """\nrow   job  rollout_s  training_s  training_at_s')
    for k, (job, rollout, training, at_s) in enumerate(lines(trainings, rollouts, options.from_s)):
        print(f"{k:<4}  {job:<3}  {rollout:>9.1f}  {training:>10.1f}  {at_s:>13.1f}")
    print('"""')


if __name__ == "__main__":
    main()
