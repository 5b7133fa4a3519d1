"""Scores a placement policy that a program has written: `evaluate(path)`, as OpenEvolve and SkyDiscover ask for it.

    python examples/evolve/evaluator.py examples/evolve/initial_program.py

A program has a class `Evolved`, a placement policy. It runs in a separate process, with limits of time and memory, and is scored
as in RollMux-Bench, on streams that are not those of the leaderboard. It is no sandbox: a program may do what its user may.
"""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from statistics import median_high

STREAMS = [("mixed", seed, False) for seed in (100, 101, 102, 103)] + [("production", 100, False)]
TIME_S = 55
MEMORY_BYTES = 4 << 30
FAILED = -1000.0  # below every program that runs
MOST = 100.0  # what the optimum of every instant scores


def evaluate(program_path: str) -> dict[str, float | str]:
    """Score a program.

    Returns:
        `combined_score`, the mean score: 0 for the reference, 100 for the optimum. Beside it `slo_kept`, the share of streams on
        which every job kept its SLO, `usd_per_work_hour`, `moves` of jobs, and `decision_ms`. Of a program that fails, `FAILED`
        and `error`, one line.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copy(program_path, folder / "evolved_program.py")
        words = [sys.executable, str(Path(__file__).resolve()), "--measure", "result.json"]
        with (folder / "errors").open("wb") as errors:
            child = subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True)
            try:
                child.wait(TIME_S)
            except subprocess.TimeoutExpired:
                return {"combined_score": FAILED, "error": f"it took longer than {TIME_S} s"}
            finally:
                stop(child)
        if child.returncode != 0:
            lines = (folder / "errors").read_text(errors="replace").strip().splitlines()
            return {"combined_score": FAILED, "error": lines[-1] if lines else f"it ended with status {child.returncode}"}
        try:
            result: dict[str, float | str] = json.loads((folder / "result.json").read_text())
        except (OSError, ValueError):  # the program has ended its process, or written the file itself
            return {"combined_score": FAILED, "error": "it left no figures"}
        return result if can_be(result) else {"combined_score": FAILED, "error": "its figures cannot be"}


def can_be(result: dict[str, float | str]) -> bool:
    """Whether figures are within their bounds: the process that wrote them ran the program."""
    try:
        score, usd = float(result["combined_score"]), float(result["usd_per_work_hour"])
    except (KeyError, TypeError, ValueError):
        return False
    return FAILED < score <= MOST and usd > 0


def stop(child: "subprocess.Popen[bytes]") -> None:
    """End a process and what it has started."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def measure(file: str) -> None:
    """Score the program in this folder, and write the figures to a file."""
    from policies.commands.leaderboard import replaying_makers
    from rollmux_env.bench.leaderboard.entries import measure as measured
    from rollmux_env.bench.leaderboard.tracks import Entrant
    from rollmux_env.errors import InputError, PlanError

    try:
        results = [measured(Entrant("evolved_program:Evolved"), stream, replaying_makers()) for stream in STREAMS]
    except (InputError, PlanError) as error:
        sys.exit(str(error))
    figures = {
        "combined_score": max(FAILED + 1, sum(result.score for result in results) / len(results)),
        "slo_kept": sum(result.slo_kept for result in results) / len(results),
        "usd_per_work_hour": sum(result.figure for result in results) / len(results),
        "moves": float(sum(result.moves for result in results)),
        "decision_ms": median_high(result.decision_ms for result in results),
    }
    Path(file).write_text(json.dumps(figures))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (TIME_S, TIME_S))
        measure(sys.argv[2])
    else:
        print(json.dumps(evaluate(sys.argv[1]), indent=1))
