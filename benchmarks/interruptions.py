"""Repeated interruptions of `rollmux run` and `rollmux serve` at random times (SIGINT, SIGTERM, kill -9), each checked and resumed.

python benchmarks/interruptions.py --seed 0

After each interruption, the command must end with the right status, print at most one line on stderr, and leave no process (except
for a service after kill -9, whose processes stay). `rollmux journal audit` must find nothing. Then it continues: `run --resume
DIR`, or `serve DIR`. At the end all jobs must have done all their iterations, each once. The exit status is 1 if anything was
different.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from folders import kept_or_spare
from rich.table import Table

from rollmux_env.report.tables import show
from runtime.journal.audit import audit
from runtime.journal.facts import IterationSlice
from runtime.journal.write import JOURNAL, is_begun, read_facts, record_of

HERE = Path(__file__).resolve().parent
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
_AT_START = 0.2  # fraction of the interruptions that come before the first iteration
_PATIENCE_S = 600.0
_STARTS_S = 8.0  # time within which an interruption at the start comes, in seconds
_LOOK_S = 0.05


@dataclass
class InterruptionTally:
    """Results of the interruptions.

    Attributes:
        counts: Number of interruptions by command, signal, place and outcome.
        problems: Lines about what should not have happened.
    """

    counts: Counter[tuple[str, str, str, str]] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


@dataclass
class Command:
    """A `rollmux` command in a new session, with its own environment.

    Args:
        folder: Folder of the run or the service.
        mark: Variable in the environment of all its processes, set at the start.
        process: The process, None before the start.
    """

    folder: Path
    mark: str = ""
    process: subprocess.Popen[bytes] | None = None

    @property
    def out(self) -> Path:
        """File of the standard output."""
        return self.folder.with_suffix(".out")

    @property
    def err(self) -> Path:
        """File of the standard error."""
        return self.folder.with_suffix(".err")

    def start(self, *arguments: str) -> None:
        """Start the command with some arguments."""
        self.mark = f"INTERRUPTIONS={os.getpid()}.{time.monotonic_ns()}"
        name, value = self.mark.split("=")
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                command(*arguments), env={**os.environ, name: value}, stdout=out, stderr=err, start_new_session=True
            )

    def says(self, text: str) -> bool:
        """Return whether the command has printed a text."""
        return text in self.out.read_text(errors="replace")

    def left(self) -> list[int]:
        """Return the ids of its processes that have not ended."""
        pids = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                marked = entry.name.isdigit() and self.mark.encode() in (entry / "environ").read_bytes()
                if marked and (entry / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                    pids.append(int(entry.name))
        return pids


def command(*arguments: str) -> list[str]:
    """Return the words of a `rollmux` command."""
    return [sys.executable, "-u", "-c", "import rollmux; rollmux.main()", *arguments]


def wait_for(holds: Callable[[], bool], what: str) -> None:
    """Wait until a condition holds. `what` describes it in the error."""
    until_s = time.monotonic() + _PATIENCE_S
    while not holds():
        if time.monotonic() > until_s:
            raise TimeoutError(what)
        time.sleep(_LOOK_S)


def status_of(one: Command) -> int:
    """Return the exit status of a command that has ended or is about to."""
    assert one.process is not None
    return one.process.wait(timeout=_PATIENCE_S)


def write_jobs(path: Path, prefix: str, iterations: int) -> list[str]:
    """Write a job file of small jobs that count their iterations, and return their ids."""
    kinds = {f"{prefix}-counter": "Counter", f"{prefix}-crew": "Crew", f"{prefix}-late": "Counter"}
    jobs = [
        {"id": name, "class": f"chaos_jobs:{kind}", "iterations": iterations, "options": {"phase_s": 0.1}}
        for name, kind in kinds.items()
    ]
    path.write_text(json.dumps({"version": 1, "defaults": {"slo": 100, "folder": str(HERE)}, "jobs": jobs}))
    return [*kinds]


def interrupt(one: Command, number: int, rng: random.Random, is_idle: Callable[[], bool] = lambda: False) -> str | None:
    """Interrupt a command that has just been started.

    Args:
        one: The command.
        number: Number of the signal.
        rng: Random numbers, for the time of the interruption.
        is_idle: Whether no iteration is to come.

    Returns:
        `iteration` or `start`, by whether it was in its iterations. None means that it ended before.
    """
    process = one.process
    assert process is not None
    if rng.random() >= _AT_START:
        wait_for(lambda: one.says(": iteration ") or process.poll() is not None or is_idle(), "an iteration")
        time.sleep(rng.uniform(0.0, 1.0))
    else:
        time.sleep(rng.uniform(0.5, _STARTS_S))
    where = "iteration" if one.says(": iteration ") else "start"
    if process.poll() is not None:
        return None
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as a terminal does
    else:
        process.send_signal(number)
    process.wait(timeout=_PATIENCE_S)
    return where


def check(one: Command, what: str, expected: tuple[int, ...], status: int, tally: InterruptionTally, stays: bool) -> str:
    """Check what an interruption has left, and return its outcome in a few words.

    Args:
        one: The command.
        what: Description of the interruption, for problems.
        expected: Allowed exit statuses.
        status: Exit status of the command.
        tally: Results, to which problems are added.
        stays: Whether processes may be left.
    """
    err = one.err.read_text(errors="replace")
    if status not in expected or err.count("\n") > 1 or "Traceback" in err:
        tally.problems.append(f"{what}: status {status}: {err[-2000:] or one.out.read_text()[-2000:]}")
    if not stays:
        with contextlib.suppress(TimeoutError):
            wait_for(lambda: status == -signal.SIGKILL or not one.left(), "processes to end")
        if status != -signal.SIGKILL and one.left():
            tally.problems.append(f"{what}: processes are left: {one.left()}")
    outcome = {0: "done", 130: "stopped", -signal.SIGKILL: "killed"}.get(status, f"status {status}")
    if not (one.folder / JOURNAL).exists() or not is_begun(one.folder / JOURNAL):
        return f"{outcome}, nothing begun"
    done = subprocess.run(command("journal", "audit", str(one.folder)), capture_output=True, text=True, check=False)
    if done.returncode:
        tally.problems.append(f"{what}: audit: {done.stdout[-1000:]}{done.stderr[-1000:]}")
    ended = record_of(read_facts(one.folder / JOURNAL)).ended
    return f"{outcome}, journal {ended.outcome if ended else 'open'}"


def judge(folder: Path, names: list[str], iterations: int, tally: InterruptionTally) -> None:
    """Check that all iterations of all jobs were done once."""
    facts = read_facts(folder / JOURNAL)
    tally.problems += [f"{folder.name}: {problem}" for problem in audit(facts).problems]
    for name in names:
        counts = [done.metrics["count"] for done in record_of(facts).iterations if done.job_id == name]
        if counts != [*range(1, iterations + 1)]:
            tally.problems.append(f"{folder.name}: job {name} counted {counts}")
    print(f"{folder.name}: {sum(isinstance(fact, IterationSlice) for fact in facts)} iterations recorded", flush=True)


def interrupt_run(home: Path, times: int, rng: random.Random, tally: InterruptionTally) -> None:
    """Interrupt runs, and resume each until it is done."""
    done = 0
    for number in range(times):
        one, file, iterations = Command(home / f"run-{number}"), home / f"run-{number}.json", 60
        names = write_jobs(file, "job", iterations)
        while True:
            begun = (one.folder / JOURNAL).exists() and is_begun(one.folder / JOURNAL)
            one.start("run", *(["--resume", str(one.folder)] if begun else [str(file), "--out", str(one.folder)]))
            if done == times:
                check(one, "the last resume", (0,), status_of(one), tally, stays=False)
                break
            chosen = rng.choice(SIGNALS)
            where = interrupt(one, chosen, rng)
            if where is None and (status := status_of(one)) == 0:
                break
            if where is None:
                check(one, "run, before an interruption", (0,), status, tally, stays=False)
                continue
            done, status = done + 1, status_of(one)
            what = f"run, interruption {done} by {chosen.name}"
            expected: tuple[int, ...] = (-signal.SIGKILL,) if chosen == signal.SIGKILL else (130, 0)  # 0: it was about to end
            if where == "start" and chosen == signal.SIGTERM:
                expected += (-signal.SIGTERM,)  # before Python has run any line of the command
            outcome = check(one, what, expected, status, tally, stays=False)
            tally.counts["run", chosen.name, where, outcome] += 1
            print(f"{what}: {outcome}", flush=True)
            if outcome.endswith("journal done"):
                break
        judge(one.folder, names, iterations, tally)
        if done == times:
            return


def interrupt_service(home: Path, times: int, rng: random.Random, tally: InterruptionTally) -> None:
    """Interrupt a service. Jobs are submitted to it at every fourth start, and earlier if it has done all of its jobs."""
    one, names, iterations = Command(home / "service"), list[str](), 80

    def is_idle() -> bool:
        """Return whether all jobs have done their last iteration, which they do also while the command is away."""
        facts = read_facts(one.folder / JOURNAL)
        counts = Counter(fact.job_id for fact in facts if isinstance(fact, IterationSlice) and fact.number == iterations - 1)
        return all(counts[name] for name in names)

    for number in range(times + 1):
        submits = number % 4 == 0 or is_idle()
        one.start("serve", str(one.folder))
        if submits:
            wait_for(lambda: one.says("serving from") or one.process.poll() is not None, "the service")  # type: ignore[union-attr]
            file = home / f"submit-{number}.json"
            names += write_jobs(file, f"j{number}", iterations)
            subprocess.run(command("submit", str(file), "--at", str(one.folder)), check=True, stdout=subprocess.DEVNULL)
        if number == times:
            break
        chosen = rng.choice(SIGNALS)
        where = interrupt(one, chosen, rng, is_idle)
        status = status_of(one)
        if where is None:
            check(one, "serve, before an interruption", (), status, tally, stays=False)
            continue
        what = f"serve, interruption {number + 1} by {chosen.name}"
        expected = (-signal.SIGKILL,) if chosen == signal.SIGKILL else (0, 130)
        outcome = check(one, what, expected, status, tally, stays=chosen == signal.SIGKILL)
        tally.counts["serve", chosen.name, where, outcome] += 1
        print(f"{what}: {outcome}", flush=True)

    wait_for(is_idle, "the jobs")
    assert one.process is not None
    one.process.send_signal(signal.SIGTERM)
    check(one, "the last stop", (0,), status_of(one), tally, stays=False)
    judge(one.folder, names, iterations, tally)


def report(tally: InterruptionTally) -> None:
    """Print the results."""
    table = Table("command", "signal", "place", "outcome", "times")
    for key, times in sorted(tally.counts.items()):
        table.add_row(*key, str(times))
    show(table)
    inside = sum(times for (_, _, where, _), times in tally.counts.items() if where == "iteration")
    print(f"{tally.counts.total()} interruptions, {inside} of them in the middle of iterations")
    print("\n".join(tally.problems) or "nothing lost or doubled, and nothing left behind")


def main() -> None:
    """Interrupt runs and a service, and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--run", type=int, default=20, help="interruptions of `rollmux run`")
    parser.add_argument("--serve", type=int, default=10, help="interruptions of `rollmux serve`")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="keep journals and logs here")
    arguments = parser.parse_args()
    rng, tally = random.Random(arguments.seed), InterruptionTally()
    with kept_or_spare(arguments.out, "interruptions") as home:
        os.environ |= {
            "ROLLMUX_CACHE": str(home / "cache"),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE.parent), os.environ.get("PYTHONPATH")])),
        }
        interrupt_run(home, arguments.run, rng, tally)
        interrupt_service(home, arguments.serve, rng, tally)
    report(tally)
    sys.exit(1 if tally.problems else 0)


if __name__ == "__main__":
    main()
