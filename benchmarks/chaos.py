"""Many small jobs on a Ray cluster while their processes, their nodes, the driver and Ray itself are killed (kill -9) at random,
and what the journals prove afterwards.

python benchmarks/chaos.py --minutes 10 --seed 0

Rounds of jobs follow each other until the time is up; the last one ends in peace. After a kill nothing else is killed until every
job that was set back has done an iteration again: that time is the recovery. What is killed, and when, is drawn from the seed;
which iteration it meets is up to the machine. The status is 1 where anything was lost or doubled.
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
from runtime.journal.facts import Fact, Failed, Iteration
from runtime.journal.write import JOURNAL, read_facts

HERE = Path(__file__).resolve().parent
KINDS = ("worker", "controller", "node", "driver", "coordinator", "ray")
ENDS_RUN = ("driver", "coordinator", "ray")  # the run has to be resumed
TITLES = {"worker": "ray::Worker", "controller": "ray::Controller", "coordinator": "ray::Coordinator"}
Facts = list[tuple[int, str, dict[str, Any]]]  # of a journal: number, kind, body
_PATIENCE_S = 120.0  # for a recovery; what takes longer is a problem
_NOBODY_S = 15.0  # when no job has been set back by then, none was hit
_RESUMES = 3  # for one recovery; as well
_LOOK_S = 0.1


def last_line(path: Path) -> str:
    return (path.read_text().splitlines() or ["nothing printed"])[-1]


@dataclass
class Round:
    """A run of some jobs, resumed as often as it must be.

    Args:
        pools: the cluster. folder: of the run. file: its jobs.
    """

    pools: Pools
    folder: Path
    file: Path
    driver: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        """What the drivers print."""
        return self.file.with_suffix(".log")

    def go_on(self) -> None:
        """Start the driver: with the jobs, or to resume."""
        begun = (self.folder / JOURNAL).exists() and self.facts_behind(0)
        what = ["--resume", str(self.folder)] if begun else [str(self.file), "--out", str(self.folder)]
        if not begun:
            shutil.rmtree(self.folder, ignore_errors=True)
        command = [sys.executable, "-c", "import rollmux; rollmux.main()", "run", *what, "--address", self.pools.cluster.address]
        with self.log.open("ab") as log:
            self.driver = subprocess.Popen(command, stdout=log, stderr=log)

    def over(self) -> bool:
        """Whether the driver has ended."""
        return self.driver is not None and self.driver.poll() is not None

    def facts_behind(self, number: int) -> Facts:
        """What the journal has after a fact: numbers, kinds, bodies."""
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
    """Something to kill.

    Attributes:
        pause_s: after the last recovery. share: which of those there are: 0 is the first, below 1.
    """

    pause_s: float
    kind: str
    share: float


@dataclass
class Tally:
    """What happened.

    Attributes:
        recovered_s: seconds from each kill until all jobs that it set back had done an iteration again, by kind.
        slow: recoveries that took too long, and runs that did not end.
        audits: of the rounds. failures: of jobs.
    """

    kills: Counter[str] = field(default_factory=Counter)
    recovered_s: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    slow: list[str] = field(default_factory=list)
    audits: list[Audit] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    resumes: int = 0


def write_jobs(path: Path, rng: random.Random, jobs: int, real: bool) -> None:
    """A job file of small jobs.

    Args:
        real: one more of them trains a language model.
    """
    listed: list[dict[str, Any]] = []
    for k in range(jobs):
        kind = ("Counter", "Crew")[k % 2]
        options = {"phase_s": rng.choice((0.05, 0.1, 0.2))}  # few, so that most profiles are known after the first round
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
    """Strikes at random until a time."""
    while time.monotonic() < until_s:
        yield Strike(rng.uniform(0.5, 4.0), rng.choice(KINDS), rng.random())


def strike(round_: Round, target: Strike) -> bool:
    """Kill what is meant; False where there is nothing of the kind."""
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


def recover(round_: Round, kind: str, number: int, tally: Tally) -> None:
    """Resume the run if need be, and wait until every job that was set back has done an iteration again.

    Args:
        number: of the last fact before the kill.
    """
    began_s, resumed, gone = time.monotonic(), 0, kind in ENDS_RUN
    while True:
        facts = round_.facts_behind(number)
        if any(name == "Ended" for _, name, _ in facts):
            return
        if gone or round_.over():  # also a driver that has lost its coordinator with a node
            leave(round_)
            if kind == "ray" and not resumed:
                round_.pools.start()
            round_.pools.mend()
            round_.go_on()
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


def leave(round_: Round) -> None:
    """Wait for a driver that has lost what it needs, and kill it where it does not end."""
    assert round_.driver is not None
    try:
        round_.driver.wait(timeout=20.0)
    except subprocess.TimeoutExpired:
        round_.driver.kill()
        round_.driver.wait()


def play(round_: Round, strikes: Iterable[Strike], tally: Tally) -> None:
    """One round: kill and recover, then let it end, and read its journal."""
    round_.go_on()
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
    """Whether a run is under way."""
    return any(name == "Iteration" for _, name, _ in facts)


def judge(round_: Round, tally: Tally) -> None:
    """Read the journal."""
    facts: list[Fact] = read_facts(round_.folder / JOURNAL)
    result = audit(facts)
    wrong = [
        f"A2: job {fact.job_id} counted {fact.metrics['count']:.0f} in iteration {fact.number}"
        for fact in facts
        if isinstance(fact, Iteration) and fact.metrics.get("count", fact.number + 1) != fact.number + 1
    ]
    left = [f"A1: job {job_id} did not end" for job_id, outcome in result.jobs.items() if outcome == "present"]
    problems = [f"{round_.folder.name}: {problem}" for problem in (*result.problems, *wrong, *left)]
    tally.audits.append(Audit(result.jobs, result.iterations, result.repeated, result.restarts, result.relaunches, tuple(problems)))
    tally.failures += [f"{fact.job_id}: {fact.where}: {fact.problem}" for fact in facts if isinstance(fact, Failed)]


@contextlib.contextmanager
def cluster(nodes: int, folder: Path) -> Iterator[Pools]:
    """A cluster for as long as it is needed, and the environment that it and its drivers have.

    Args:
        nodes: of each pool. folder: profiles are kept there.
    """
    before = dict(os.environ)
    short = tempfile.mkdtemp(prefix="chaos-", dir="/tmp")  # a short path: sockets go there
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


def chaos(minutes: float, seed: int, nodes: int, jobs: int, folder: Path) -> Tally:
    """Play rounds for so many minutes.

    Args:
        nodes: of each pool. jobs: small jobs of a round; every other round has one more that trains a language model.
    """
    rng, tally = random.Random(seed), Tally()
    with cluster(nodes, folder) as pools:
        until_s, number = time.monotonic() + 60.0 * minutes, 0
        while time.monotonic() < until_s:
            file = folder / f"jobs-{number}.json"
            write_jobs(file, rng, jobs, real=number % 2 == 0)
            pools.mend()
            play(Round(pools, folder / f"run-{number}", file), strikes(rng, until_s), tally)
            number += 1
    return tally


def report(tally: Tally) -> list[str]:
    """Print everything; the problems."""
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
    for failure in tally.failures:
        print(f"failed: {failure}")
    problems = [problem for result in tally.audits for problem in result.problems] + tally.slow
    print("\n".join(problems) or "nothing lost or doubled")
    return problems


def main() -> None:
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
