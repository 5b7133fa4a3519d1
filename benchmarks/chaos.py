"""Random kills (kill -9) of processes, nodes, the driver and Ray itself while many small jobs run on a Ray cluster.

The benchmark then checks what the journals prove.

python benchmarks/chaos.py --minutes 10 --seed 0

Rounds of jobs follow each other until the time is up. After a kill, nothing else is killed until every job that was set back has
done an iteration again: this time is the recovery. The seed determines what is killed and when. Which iteration it hits depends on
the machine. The exit status is 1 if anything was lost or counted twice.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from chaos_cluster import Pools, kill
from folders import kept_or_spare
from rich.table import Table

from rollmux_env.report.tables import show
from runtime.journal.audit import Audit, audit
from runtime.journal.facts import Fact, IterationSlice, JobFailed
from runtime.journal.write import JOURNAL, read_facts

HERE = Path(__file__).resolve().parent
KINDS = ("worker", "controller", "node", "driver", "coordinator", "ray")
ENDS_RUN = ("driver", "coordinator", "ray")  # kills after which the run must be resumed
TITLES = {"worker": "ray::Worker", "controller": "ray::Controller", "coordinator": "ray::Coordinator"}
Facts = list[tuple[int, str, dict[str, Any]]]  # facts of a journal: number, kind, body
_PATIENCE_S = 120.0  # time limit of a recovery, in seconds; a longer one is a problem
_NOBODY_S = 15.0  # time after which a kill counts as having hit no job, in seconds
_RESUMES = 3  # limit of resumes for one recovery; more are a problem too
_LOOK_S = 0.1


def last_line(path: Path) -> str:
    """Return the last line of a file, or a text that says it is empty."""
    return (path.read_text().splitlines() or ["nothing printed"])[-1]


@dataclass
class ResumedRun:
    """Run of some jobs, resumed as often as needed.

    Args:
        pools: Ray cluster.
        folder: Folder of the run.
        file: Job file.
        driver: Process of the current driver, None before the first one.
    """

    pools: Pools
    folder: Path
    file: Path
    driver: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        """File with the output of all drivers."""
        return self.file.with_suffix(".log")

    def start_driver(self) -> None:
        """Start the driver: with the jobs, or to resume the run."""
        begun = (self.folder / JOURNAL).exists() and self.facts_behind(0)
        what = ["--resume", str(self.folder)] if begun else [str(self.file), "--out", str(self.folder)]
        if not begun:
            shutil.rmtree(self.folder, ignore_errors=True)
        command = [sys.executable, "-c", "import rollmux; rollmux.main()", "run", *what, "--address", self.pools.cluster.address]
        with self.log.open("ab") as log:
            self.driver = subprocess.Popen(command, stdout=log, stderr=log)

    def over(self) -> bool:
        """Return whether the driver has ended."""
        return self.driver is not None and self.driver.poll() is not None

    def facts_behind(self, number: int) -> Facts:
        """Return the journal's facts after a number, or none if it cannot be read."""
        try:
            database = sqlite3.connect(f"file:{self.folder / JOURNAL}?mode=ro", uri=True)
        except sqlite3.Error:
            return []
        with contextlib.closing(database):
            try:
                rows = database.execute("SELECT number, kind, body FROM facts WHERE number > ? ORDER BY number", (number,))
                return [(row[0], row[1], json.loads(row[2])) for row in rows]
            except sqlite3.Error:
                return []


@dataclass(frozen=True)
class Strike:
    """A kill.

    Attributes:
        pause_s: Time after the last recovery, in seconds.
        kind: Kind of the target, one of `KINDS`.
        share: Position of the target among all of its kind: 0 is the first, and 1 would be behind the last.
    """

    pause_s: float
    kind: str
    share: float


@dataclass
class ChaosTally:
    """Results of all rounds.

    Attributes:
        kills: Number of kills by kind.
        recovered_s: Times from a kill until all jobs that it set back had done an iteration again, in seconds, by kind.
        slow: Lines about recoveries that took too long, and runs that did not end.
        audits: Audits of the rounds.
        failures: Lines about failed jobs.
        resumes: Number of resumes.
    """

    kills: Counter[str] = field(default_factory=Counter)
    recovered_s: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    slow: list[str] = field(default_factory=list)
    audits: list[Audit] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    resumes: int = 0


def write_jobs(path: Path, rng: random.Random, jobs: int, real: bool) -> None:
    """Write a job file of small jobs.

    Args:
        path: File to write.
        rng: Random numbers.
        jobs: Number of small jobs.
        real: Whether one more job trains a language model.
    """
    listed: list[dict[str, Any]] = []
    for k in range(jobs):
        kind = ("Counter", "Crew")[k % 2]
        options = {"phase_s": rng.choice((0.05, 0.1, 0.2))}  # few values, so that most profiles are known after the first round
        base = {"id": f"{kind.lower()}-{k}", "arrival_s": round(rng.uniform(0.0, 2.0 * k), 1), "iterations": rng.randint(8, 24)}
        listed.append({**base, "class": f"chaos_jobs:{kind}", "options": options})
    if real:
        listed.append(
            {
                "id": "grpo",
                "iterations": 10,
                "task": "echo",
                "model": {"name": "tiny", "hidden_size": 64, "layers": 1},
                "algorithm": {"prompts_per_iteration": 4, "group_size": 4, "max_tokens": 16},
                "rollout": {"engine": "torch"},
            }
        )
    defaults = {"slo": 100, "folder": str(HERE), "checkpoint": {"every": 1}}
    path.write_text(json.dumps({"version": 1, "defaults": defaults, "jobs": listed}))


def strikes(rng: random.Random, until_s: float) -> Iterator[Strike]:
    """Yield random kills until a time on the clock of `time.monotonic`, in seconds."""
    while time.monotonic() < until_s:
        yield Strike(rng.uniform(0.5, 4.0), rng.choice(KINDS), rng.random())


def strike(round_: ResumedRun, target: Strike) -> bool:
    """Carry out a kill, and return whether there was anything of its kind to kill."""
    pools = round_.pools
    if target.kind == "ray":
        pools.kill()
    elif target.kind == "driver":
        assert round_.driver is not None
        kill(round_.driver.pid)
    elif target.kind == "node":
        counts = Counter(pools.pools.values())
        nodes = [node for node, pool in pools.pools.items() if counts[pool] > 1]
        if not nodes:
            return False
        pools.kill(nodes[int(target.share * len(nodes))])
    else:
        pids = pools.actors(TITLES[target.kind])
        if not pids:
            return False
        kill(pids[int(target.share * len(pids))])
    return True


def recover(round_: ResumedRun, kind: str, number: int, tally: ChaosTally) -> None:
    """Resume the run if necessary, and wait until every job that was set back has done an iteration again.

    Args:
        round_: The run.
        kind: Kind of what was killed, one of `KINDS`.
        number: Number of the last fact before the kill.
        tally: Results, to which the recovery is added.
    """
    began_s, resumed, gone = time.monotonic(), 0, kind in ENDS_RUN
    while True:
        facts = round_.facts_behind(number)
        if any(name == "Ended" for _, name, _ in facts):
            return
        if gone or round_.over():  # the driver also ends when its coordinator was on a killed node
            leave(round_)
            if kind == "ray" and not resumed:
                round_.pools.start()
            round_.pools.mend()
            round_.start_driver()
            gone, resumed = False, resumed + 1
            tally.resumes += 1
        back = {body["job_id"]: at for at, name, body in facts if name == "Restarted"}
        done = {body["job_id"]: at for at, name, body in facts if name in ("Iteration", "Failed")}
        if back and all(done.get(job_id, 0) > at for job_id, at in back.items()):
            tally.recovered_s[kind].append(time.monotonic() - began_s)
            return
        passed_s = time.monotonic() - began_s
        if not back and done and passed_s > _NOBODY_S and (resumed or kind not in ENDS_RUN):
            return
        if passed_s > _PATIENCE_S or resumed > _RESUMES:
            what = f"{resumed} resumes and {passed_s:.0f} s"
            tally.slow.append(f"{round_.folder.name}: no recovery from a killed {kind} by {what}: {last_line(round_.log)}")
            return
        time.sleep(_LOOK_S)


def leave(round_: ResumedRun) -> None:
    """Wait for a driver that has lost what it needs, and kill it if it does not end."""
    assert round_.driver is not None
    try:
        round_.driver.wait(timeout=20.0)
    except subprocess.TimeoutExpired:
        round_.driver.kill()
        round_.driver.wait()


def play(round_: ResumedRun, strikes: Iterable[Strike], tally: ChaosTally) -> None:
    """Play one round: kill and recover, then let the run end, and check its journal."""
    round_.start_driver()
    assert round_.driver is not None
    for one in strikes:
        began_s, facts = time.monotonic(), round_.facts_behind(0)
        while not round_.over() and not (works(facts) and time.monotonic() > began_s + one.pause_s):
            time.sleep(_LOOK_S)
            facts = round_.facts_behind(0)
        if round_.over() or any(name == "Ended" for _, name, _ in facts):
            break
        if strike(round_, one):
            tally.kills[one.kind] += 1
            recover(round_, one.kind, facts[-1][0], tally)
    try:
        round_.driver.wait(timeout=2 * _PATIENCE_S)
    except subprocess.TimeoutExpired:
        tally.slow.append(f"{round_.folder.name}: the run did not end: {last_line(round_.log)}")
        round_.driver.kill()
        round_.driver.wait()
    judge(round_, tally)


def works(facts: Facts) -> bool:
    """Return whether a run has done iterations."""
    return any(name == "Iteration" for _, name, _ in facts)


def judge(round_: ResumedRun, tally: ChaosTally) -> None:
    """Check the journal of a run, and add the result."""
    facts: list[Fact] = read_facts(round_.folder / JOURNAL)
    result = audit(facts)
    wrong = [
        f"A2: job {fact.job_id} counted {fact.metrics['count']:.0f} in iteration {fact.number}"
        for fact in facts
        if isinstance(fact, IterationSlice) and fact.metrics.get("count", fact.number + 1) != fact.number + 1
    ]
    left = [f"A1: job {job_id} did not end" for job_id, outcome in result.jobs.items() if outcome == "present"]
    problems = [f"{round_.folder.name}: {problem}" for problem in (*result.problems, *wrong, *left)]
    tally.audits.append(Audit(result.jobs, result.iterations, result.repeated, result.restarts, result.relaunches, tuple(problems)))
    tally.failures += [f"{fact.job_id}: {fact.where}: {fact.problem}" for fact in facts if isinstance(fact, JobFailed)]


@contextlib.contextmanager
def cluster(nodes: int, folder: Path) -> Iterator[Pools]:
    """Start a cluster, and set the environment for it and its drivers, during the block.

    Args:
        nodes: Number of nodes of each pool.
        folder: Folder in which profiles are kept.
    """
    before = dict(os.environ)
    short = tempfile.mkdtemp(prefix="chaos-", dir="/tmp")  # a short path, since sockets are there
    os.environ |= {
        "RAY_TMPDIR": short,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_worker_niceness": "0",
        "ROLLMUX_CACHE": str(folder / "cache"),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE.parent), os.environ.get("PYTHONPATH")])),
    }
    pools = Pools(nodes)
    try:
        pools.start()
        yield pools
    finally:
        pools.stop()
        shutil.rmtree(short, ignore_errors=True)
        os.environ.clear()
        os.environ |= before


def chaos(minutes: float, seed: int, nodes: int, jobs: int, folder: Path) -> ChaosTally:
    """Play rounds until the time is up.

    Args:
        minutes: Time, in minutes.
        seed: Seed of the jobs and kills.
        nodes: Number of nodes of each pool.
        jobs: Number of small jobs of a round. In every other round, one more job trains a language model.
        folder: Folder for all files.
    """
    rng, tally = random.Random(seed), ChaosTally()
    with cluster(nodes, folder) as pools:
        until_s, number = time.monotonic() + 60.0 * minutes, 0
        while time.monotonic() < until_s:
            file = folder / f"jobs-{number}.json"
            write_jobs(file, rng, jobs, real=number % 2 == 0)
            pools.mend()
            play(ResumedRun(pools, folder / f"run-{number}", file), strikes(rng, until_s), tally)
            number += 1
    return tally


def report(tally: ChaosTally) -> list[str]:
    """Print the results, and return the problems."""
    table = Table("killed", "kills", "set jobs back", "recovery: median s", "worst s")
    for kind, seconds in tally.recovered_s.items():
        times = (f"{np.median(seconds):.1f}", f"{max(seconds):.1f}") if seconds else ("", "")
        table.add_row(kind, str(tally.kills[kind]), str(len(seconds)), *times)
    show(table)
    everything = [second for seconds in tally.recovered_s.values() for second in seconds]
    if everything:
        print(f"recovery: {np.median(everything):.1f} s in the median, {max(everything):.1f} s at worst")
    outcomes = Counter(outcome for result in tally.audits for outcome in result.jobs.values())
    print(f"{len(tally.audits)} rounds, {tally.resumes} resumes; jobs: " + ", ".join(f"{n} {name}" for name, n in outcomes.items()))
    counted, repeated, restarts = (
        sum(getattr(one, name) for one in tally.audits) for name in ("iterations", "repeated", "restarts")
    )
    print(f"iterations: {counted}, each counted once; jobs set back {restarts} times, by {repeated} recorded iterations in all")
    failed = [f"failed: {failure}" for failure in tally.failures]
    problems = [problem for result in tally.audits for problem in result.problems] + tally.slow + failed
    print("\n".join(problems) or "nothing lost or doubled")
    return problems


def main() -> None:
    """Play rounds, report, and exit with status 1 if there are problems."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--nodes", type=int, default=2, help="of each pool")
    parser.add_argument("--jobs", type=int, default=6, help="of a round")
    parser.add_argument("--out", type=Path, help="keep journals and logs here")
    arguments = parser.parse_args()
    with kept_or_spare(arguments.out, "chaos") as folder:
        problems = report(chaos(arguments.minutes, arguments.seed, arguments.nodes, arguments.jobs, folder))
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
