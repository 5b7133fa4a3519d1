"""Read a recorded run of llm-d-rl-time-slicing (github.com/llm-d-incubation) as a table of `rollmux_env/published/llm_d.toml`.

    python benchmarks/import_timeslice.py rl-timeslice-replay.html --run 0 --from 2291.6

The page (docs/diagrams) embeds what its plots are drawn from: when each job got the lock of each GPU and gave it back. A
training is a hold of the trainer's lock without the time in which its job waits for the sampler's, which it needs for the new
weights. A rollout is a hold of the sampler's lock, so new weights are part of both; where rollouts have GPUs of their own, it
is the time from one training to the request for the next. What was before `--from` does not count: there models are loaded.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

LEAST_S = 0.1  # of a rollout that was over before


class Hold(NamedTuple):
    """A job's time with a lock: asked for, got and given back, seconds of the page's clock."""

    job: str
    asked_s: float
    got_s: float
    back_s: float


def read_run(path: Path, run: int) -> dict[str, list[Hold]]:
    """The holds of each lock, in order."""
    text = path.read_text(encoding="utf-8")
    data, _ = json.JSONDecoder().raw_decode(text[text.index("const DATA = ") + len("const DATA = ") :])
    holds: dict[str, list[Hold]] = {}
    got: dict[tuple[str, str], Mapping[str, Any]] = {}
    for event in data["runs"][run]["timeslice"]["events"]:
        key = event["pool"], event["job"]
        if event["kind"] == "acquired":
            got[key] = event
        elif event["kind"] == "yielded":
            first = got[key]
            asked_s = first["t"] - first["wait_ms"] / 1000
            holds.setdefault(event["pool"], []).append(Hold(event["job"], asked_s, first["t"], event["t"]))
    return {pool: sorted(each, key=lambda hold: hold.got_s) for pool, each in holds.items()}


def switch_s(holds: Sequence[Hold], from_s: float) -> float:
    """Seconds from one job's hold to that of another that waits for it, at the median; 0 where there is no such pair."""
    pairs = [(one, other) for one, other in pairwise(holds) if one.back_s >= from_s and one.job != other.job]
    return median([other.got_s - one.back_s for one, other in pairs if other.asked_s <= one.back_s] or [0.0])


def lines(trainings: Sequence[Hold], rollouts: Sequence[Hold] | None, from_s: float) -> list[tuple[str, float, float, float]]:
    """Job, rollout and training seconds, and when the training began, of every iteration; times from `from_s` on.

    Args:
        rollouts: holds of the lock of the GPU that samples; None where every job samples on one of its own.
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
