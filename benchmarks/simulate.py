"""Simulated worlds, one for each seed: service, client, scheduler and journal on a simulated clock, network and disk, with faults.

    python benchmarks/simulate.py --minutes 25
    python benchmarks/simulate.py --seeds 200000 300000

A run appends a line to `benchmarks/results/simulated.jsonl` with its seeds, the commit, and counts of what happened. So the runs of
several days and machines have one sum. Seeds that were run before are refused. Ctrl-C ends a run when its processes have done the
seeds that they have begun. `--only SEED` runs one seed with a log of its events, and shrinks it if it fails.
docs/reference/simulation.md describes the simulation.
The exit status is 1 if there was a violation.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "clients" / "python")]
RUNS = HERE / "results" / "simulated.jsonl"
_CHUNK = 400  # seeds of a process: its garbage is never collected, and pages that it shares with its parent are copied once
_WARM = 20  # seeds that the parent runs before it forks
_MOST = 1_000_000_000  # end of the seeds if none is given


def main() -> None:
    """Run the seeds, print what happened, and append it to the earlier runs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs=2, metavar=("FROM", "TO"), help="without them, those behind all that were run")
    parser.add_argument("--minutes", type=float, default=10.0, help="end after so long, whatever is left")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only", type=int, default=None, help="this seed alone, with its log; it counts for no run")
    asked = parser.parse_args()
    if asked.only is not None:
        sys.exit(look_at(asked.only))
    runs: list[dict[str, Any]] = [json.loads(line) for line in RUNS.read_text().splitlines()]
    first, last = asked.seeds or (max(run["to"] for run in runs), _MOST)
    for run in runs:
        if asked.seeds and first < run["to"] and run["from"] < last:
            sys.exit(f"--seeds: {run['from']} to {run['to']} were run already, on commit {run['commit']}")
    run = simulate(first, last, asked.minutes, asked.processes)
    if run["to"] == first:
        sys.exit("interrupted before any seed was done")
    with open(RUNS, "a") as file:
        file.write(json.dumps(run) + "\n")
    done, seconds = run["to"] - first, run["seconds"]
    print(f"seeds {first} to {run['to']}: {done} schedules in {seconds:.0f} s, {done / seconds:.1f} a second, ", end="")
    print(f"{done / run['cpu_s']:.1f} a second of a core; {len(run['violations'])} violations")
    print(json.dumps(run["counts"]))
    runs.append(run)
    schedules, violations = (sum(how_many(run) for run in runs) for how_many in (_schedules, _violations))
    print(f"all {len(runs)} runs together: {schedules} schedules, {violations} violations")
    sys.exit(1 if run["violations"] else 0)


def _schedules(run: dict[str, Any]) -> int:
    return int(run["to"] - run["from"])


def _violations(run: dict[str, Any]) -> int:
    return len(run["violations"])


def simulate(first: int, last: int, minutes: float, processes: int) -> dict[str, Any]:
    """Run seeds from `first` to before `last`, until the minutes are over, and return the line of the run."""
    from tests.simulation.world import simulated

    counts, wrong, done, cpu_s, began_s = Counter[str](), [], first, 0.0, time.monotonic()
    os.nice(5)
    fork, room, ends = multiprocessing.get_context("fork"), threading.Semaphore(processes + 1), threading.Event()
    signal.signal(signal.SIGINT, lambda number, frame: ends.set())

    def chunks() -> Iterator[range]:
        """Yield ranges of seeds, each one only when a process can take it."""
        size = min(_CHUNK, math.ceil((last - first) / processes))
        for begin in range(first, last, size):
            room.acquire()  # otherwise all chunks would be queued at once
            if ends.is_set() or (begin > first and time.monotonic() >= began_s + 60 * minutes):
                return
            yield range(begin, min(begin + size, last))

    with simulated():
        run_chunk(range(_WARM))  # imports and compiles everything before processes are forked
        with fork.Pool(processes, signal.signal, (signal.SIGINT, signal.SIG_IGN), maxtasksperchild=1) as pool:
            try:
                for seeds, counted, problems, took_s in pool.imap(run_chunk, chunks()):
                    room.release()
                    counts += Counter(counted)
                    wrong += problems
                    cpu_s += took_s
                    done = seeds.stop
                    for seed, problem in problems:
                        print(f"{seed}: {problem}", flush=True)
            finally:  # the pool ends only after the generator of its chunks has ended
                ends.set()
                room.release()
    seconds = round(time.monotonic() - began_s, 1)
    run = {"from": first, "to": done, "commit": commit(), "processes": processes, "seconds": seconds, "cpu_s": round(cpu_s, 1)}
    return run | {"counts": dict(sorted(counts.items())), "violations": wrong}


def commit() -> str:
    """Return the commit that is simulated, with a `+` if files differ from it."""
    git = ["git", "-C", str(HERE.parent)]
    head = subprocess.run([*git, "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    changes = subprocess.run([*git, "status", "--porcelain", "*.py"], capture_output=True, text=True, check=True).stdout
    return head + ("+" if changes.strip() else "")


def run_chunk(seeds: range) -> tuple[range, dict[str, int], list[tuple[int, str]], float]:
    """Run some seeds.

    Returns:
        The seeds, counts of what happened, violations as (seed, problem), and the CPU time in seconds.
    """
    from tests.simulation.schedule import drawn
    from tests.simulation.world import carry_out

    counts, wrong, began_s = Counter[str](), [], time.process_time()
    for seed in seeds:
        outcome = carry_out(drawn(seed))
        counts += Counter(outcome.counts)
        wrong += [(seed, problem) for problem in outcome.problems[:1]]
    return seeds, dict(counts), wrong, time.process_time() - began_s


def look_at(seed: int) -> int:
    """Print the log of a seed's world, or of the smallest one that fails in the same way. Returns the exit status."""
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
