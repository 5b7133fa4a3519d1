"""Worlds on a seed, many of them: service, client, scheduler and journal on a simulated clock, network and disk, with faults.

    python benchmarks/simulate.py --from 0 --seeds 10000

What it has seen is added to `benchmarks/results/simulated.json`, so that several runs make one sum, of seeds that were not run
before. `--only SEED` runs one with a log of what happens in it, and makes it smaller where it fails. docs/reference/simulation.md
describes it.
The status is 1 where anything was not as it must be.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import sys
import time
from collections import Counter
from pathlib import Path

from rollmux_env.files import write_whole

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "clients" / "python")]
SUM = HERE / "results" / "simulated.json"
_CHUNK = 50  # seeds between two collections of garbage


def main() -> None:
    """Run the seeds, print what was seen, and add it to the sum."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--from", type=int, default=None, dest="first", help="seed; without it, the first that was not run yet")
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=None, help="end after so long, whatever is left")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only", type=int, default=None, help="this seed alone, with its log; nothing is added to the sum")
    asked = parser.parse_args()
    if asked.only is not None:
        sys.exit(look_at(asked.only))
    summary = json.loads(SUM.read_text()) if SUM.exists() else {"next_seed": 0, "seconds": 0.0, "counts": {}, "violations": []}
    first = summary["next_seed"] if asked.first is None else asked.first
    if first < summary["next_seed"]:
        sys.exit(f"--from {first}: seeds before {summary['next_seed']} were run already")
    began_s = time.monotonic()
    until_s = None if asked.minutes is None else began_s + 60 * asked.minutes
    counts, wrong, done = Counter(summary["counts"]), [], 0
    with multiprocessing.get_context("spawn").Pool(asked.processes, initializer=os.nice, initargs=(5,)) as pool:
        for counted, problems in pool.imap(run_chunk, chunks(first, asked.seeds)):
            counts += Counter(counted)
            done += counted["schedules"]
            wrong += problems
            for seed, problem in problems:
                print(f"{seed}: {problem}", flush=True)
            if until_s is not None and time.monotonic() >= until_s:
                break
    seconds = time.monotonic() - began_s
    violations = summary["violations"] + wrong
    summary = {"next_seed": first + done, "seconds": round(summary["seconds"] + seconds, 1)}
    summary |= {"counts": dict(sorted(counts.items())), "violations": violations}
    write_whole(SUM, (json.dumps(summary, indent=1) + "\n").encode())
    print(f"{done} schedules in {seconds:.0f} s, {done / seconds:.1f} a second; {len(wrong)} violations; all runs together:")
    print(json.dumps(summary["counts"]))
    sys.exit(1 if wrong else 0)


def chunks(first: int, seeds: int) -> list[range]:
    """The seeds in parts."""
    return [range(begin, min(begin + _CHUNK, first + seeds)) for begin in range(first, first + seeds, _CHUNK)]


def run_chunk(seeds: range) -> tuple[dict[str, int], list[tuple[int, str]]]:
    """Run some seeds; what has happened in them, and what should not have."""
    from tests.simulation.schedule import drawn
    from tests.simulation.world import carry_out, simulated

    counts, wrong = Counter[str](), []
    with simulated():
        for seed in seeds:
            outcome = carry_out(drawn(seed))
            counts += Counter(outcome.counts)
            counts["schedules"] += 1
            wrong += [(seed, problem) for problem in outcome.problems[:1]]
    gc.collect()
    return dict(counts), wrong


def look_at(seed: int) -> int:
    """Print what happens in the world of a seed, or in the smallest one that fails as it does; the status."""
    from tests.simulation.schedule import drawn, shrunk
    from tests.simulation.world import carry_out, simulated

    with simulated():
        schedule = drawn(seed)
        if carry_out(schedule).problems:
            schedule = shrunk(schedule, lambda smaller: bool(carry_out(smaller).problems))
        outcome = carry_out(schedule, keeps_log=True)
    print("\n".join([schedule.text(), *outcome.log, *outcome.problems, outcome.digest]))
    return 1 if outcome.problems else 0


if __name__ == "__main__":
    main()
