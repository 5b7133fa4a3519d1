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
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from ray.cluster_utils import Cluster
from rich.table import Table

from rollmux_env.report.tables import show
from runtime.audit import Audit, audit
from runtime.journal import JOURNAL, read_facts
from runtime.record import Fact, Failed, Iteration

HERE = Path(__file__).resolve().parent
KINDS = ("worker", "controller", "node", "driver", "coordinator", "ray")
ENDS_RUN = ("driver", "coordinator", "ray")  # the run has to be resumed
TITLES = {"worker": "ray::Worker", "controller": "ray::Controller", "coordinator": "ray::Coordinator"}
_PATIENCE_S = 90.0  # for a recovery; what takes longer is a problem
_LOOK_S = 0.1


@dataclass
class Pools:
    """A Ray cluster of raylets on this machine: a head that is no node, and the nodes of both pools.

    Args:
        nodes: how many of each pool; of one each the head is both.
    """

    nodes: int
    cluster: Any = None
    pools: dict[Any, str] = field(default_factory=dict)  # Ray nodes that are alive, and their pool

    def start(self) -> None:
        """Start all of it."""
        both = {"rollout_node": 1.0, "training_node": 1.0} if self.nodes == 1 else {}
        args = {"num_cpus": 2 if both else 0, "resources": both, "include_dashboard": False, "object_store_memory": 80 << 20}
        self.cluster, self.pools = Cluster(initialize_head=True, head_node_args=args, shutdown_at_exit=False), {}
        self.mend()

    def mend(self) -> None:
        """Bring nodes in place of those that were killed."""
        for pool in ("rollout", "training") if self.nodes > 1 else ():
            for _ in range(self.nodes - [*self.pools.values()].count(pool)):
                resources = {f"{pool}_node": 1.0}
                self.pools[self.cluster.add_node(num_cpus=1, object_store_memory=80 << 20, resources=resources)] = pool

    def kill(self, node: Any = None) -> None:
        """Kill a node and everything on it; or all of Ray."""
        for one in [node] if node else [*self.pools, self.cluster.head_node]:
            pids = [started.process.pid for processes in one.all_processes.values() for started in processes]
            for pid in [*pids, *(pid for parent in pids for pid, _ in children(parent))]:
                kill(pid)
            one.kill_all_processes(check_alive=False, allow_graceful=False)
            self.pools.pop(one, None)
            self.cluster.worker_nodes.discard(one)

    def stop(self) -> None:
        """End all of it."""
        self.kill()

    def actors(self, title: str) -> list[int]:
        """Processes of actors of a class."""
        raylets = [node.all_processes["raylet"][0].process.pid for node in [self.cluster.head_node, *self.pools]]
        return sorted(pid for raylet in raylets for pid, name in children(raylet) if name.startswith(title))


def children(parent: int) -> list[tuple[int, str]]:
    """Process ids and titles of a process's children."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                found.append((int(entry.name), (entry / "cmdline").read_bytes().partition(b"\0")[0].decode(errors="replace")))
    return found


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


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

    def go_on(self) -> None:
        """Start the driver: with the jobs, or to resume."""
        begun = (self.folder / JOURNAL).exists() and self.facts_behind(0)
        what = ["--resume", str(self.folder)] if begun else [str(self.file), "--out", str(self.folder)]
        if not begun:
            shutil.rmtree(self.folder, ignore_errors=True)
        command = [sys.executable, "-c", "import rollmux; rollmux.main()", "run", *what, "--address", self.pools.cluster.address]
        with self.file.with_suffix(".log").open("ab") as log:
            self.driver = subprocess.Popen(command, stdout=log, stderr=log)

    def over(self) -> bool:
        """Whether the driver has ended."""
        return self.driver is not None and self.driver.poll() is not None

    def facts_behind(self, number: int) -> list[tuple[int, str, dict[str, Any]]]:
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


@dataclass
class Tally:
    """What happened.

    Attributes:
        recovered_s: seconds from each kill until all jobs that it set back had done an iteration again, by kind.
        missed: kills that set no job back. slow: recoveries that took too long, and what else went wrong.
    """

    recovered_s: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    missed: Counter[str] = field(default_factory=Counter)
    slow: list[str] = field(default_factory=list)
    audits: list[Audit] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    resumes: int = 0


def write_jobs(path: Path, rng: random.Random, jobs: int, real: bool) -> None:
    """A job file of small jobs; one of them trains a language model."""
    listed: list[dict[str, Any]] = []
    for k in range(jobs):
        kind = ("Counter", "Crew")[k % 2]
        options = {"phase_s": round(rng.uniform(0.05, 0.25), 2)}
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
    path.write_text(json.dumps({"version": 1, "defaults": {"slo": 100, "folder": str(HERE)}, "jobs": listed}))


def strike(round_: Round, kind: str, rng: random.Random) -> bool:
    """Kill something of a kind; False where there is nothing of it."""
    pools, drawn = round_.pools, rng.random()
    if kind == "ray":
        pools.kill()
    elif kind == "driver":
        assert round_.driver is not None
        kill(round_.driver.pid)
    elif kind == "node":
        counts = Counter(pools.pools.values())
        nodes = [node for node, pool in pools.pools.items() if counts[pool] > 1]
        if not nodes:
            return False
        pools.kill(nodes[int(drawn * len(nodes))])
    else:
        pids = pools.actors(TITLES[kind])
        if not pids:
            return False
        kill(pids[int(drawn * len(pids))])
    return True


def recover(round_: Round, kind: str, number: int, tally: Tally) -> None:
    """Resume the run if need be, and wait until every job that was set back has done an iteration again."""
    began_s = time.monotonic()
    resumed = False
    while True:
        passed_s = time.monotonic() - began_s
        if (kind in ENDS_RUN and not resumed) or round_.over():
            finished = round_.over() and not resumed and kind not in ENDS_RUN and round_.driver.returncode in (0, 1)  # type: ignore[union-attr]
            if finished and any(fact == "Ended" for _, fact, _ in round_.facts_behind(number)):
                return
            leave(round_)
            if kind == "ray":
                round_.pools.start()
            round_.pools.mend()
            round_.go_on()
            tally.resumes += 1
            resumed = True
        facts = round_.facts_behind(number)
        back = {body["job_id"]: at for at, name, body in facts if name == "Restarted"}
        again = {
            body["job_id"] for at, name, body in facts if name in ("Iteration", "Failed") and at > back.get(body["job_id"], at)
        }
        if back and set(back) <= again:
            tally.recovered_s[kind].append(time.monotonic() - began_s)
            return
        if any(name == "Ended" for _, name, _ in facts):
            return
        if not back and passed_s > 15.0 and (resumed or kind not in ENDS_RUN) and any(name == "Iteration" for _, name, _ in facts):
            tally.missed[kind] += 1
            return
        if passed_s > _PATIENCE_S:
            tally.slow.append(f"{round_.folder.name}: no recovery from a killed {kind} within {_PATIENCE_S:.0f} s")
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


def play(round_: Round, rng: random.Random, until_s: float, tally: Tally) -> None:
    """One round: kill and recover while there is time, then let it end."""
    round_.go_on()
    last_s = time.monotonic()
    while not round_.over():
        pause_s = rng.uniform(0.5, 4.0)
        kind = rng.choice(KINDS)
        while not round_.over() and time.monotonic() < last_s + pause_s:
            time.sleep(_LOOK_S)
        facts = round_.facts_behind(0)
        if round_.over() or time.monotonic() > until_s:
            break
        if any(name == "Ended" for _, name, _ in facts):
            break
        if not any(name in ("Iteration", "Admitted") for _, name, _ in facts):
            last_s = time.monotonic()
            continue
        if strike(round_, kind, rng):
            recover(round_, kind, facts[-1][0], tally)
        last_s = time.monotonic()
    assert round_.driver is not None
    with contextlib.suppress(subprocess.TimeoutExpired):
        round_.driver.wait(timeout=2 * _PATIENCE_S)
    if round_.driver.poll() is None:
        tally.slow.append(f"{round_.folder.name}: the run did not end")
        round_.driver.kill()
        round_.driver.wait()
    judge(round_, tally)


def judge(round_: Round, tally: Tally) -> None:
    """Read the journal."""
    facts: list[Fact] = read_facts(round_.folder / JOURNAL)
    found = audit(facts)
    wrong = [
        f"A2: job {fact.job_id} counted {fact.metrics['count']:.0f} in iteration {fact.number}"
        for fact in facts
        if isinstance(fact, Iteration) and fact.metrics.get("count", fact.number + 1) != fact.number + 1
    ]
    left = [f"A1: job {job_id} did not end" for job_id, outcome in found.jobs.items() if outcome == "present"]
    problems = [f"{round_.folder.name}: {problem}" for problem in (*found.problems, *wrong, *left)]
    tally.audits.append(Audit(found.jobs, found.iterations, found.repeated, found.restarts, found.relaunches, tuple(problems)))
    tally.failures += [f"{fact.job_id}: {fact.where}: {fact.problem}" for fact in facts if isinstance(fact, Failed)]


@contextlib.contextmanager
def place(out: Path | None) -> Iterator[Path]:
    """A folder for everything; kept where it was asked for."""
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        yield out.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="rollmux-chaos-") as spare:
        yield Path(spare)


def chaos(minutes: float, seed: int, nodes: int, jobs: int, real: bool, folder: Path) -> Tally:
    """Play rounds for so many minutes.

    Args:
        nodes: of each pool. jobs: small jobs of a round. real: let one more job of each round train a language model.
    """
    rng, tally = random.Random(seed), Tally()
    short = tempfile.mkdtemp(prefix="chaos-", dir="/tmp")  # a short path: sockets go there
    os.environ |= {
        "RAY_TMPDIR": short,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "ROLLMUX_CACHE": str(folder / "cache"),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE.parent), os.environ.get("PYTHONPATH")])),
    }
    pools = Pools(nodes)
    try:
        pools.start()
        until_s = time.monotonic() + 60.0 * minutes
        number = 0
        while time.monotonic() < until_s:
            file = folder / f"jobs-{number}.json"
            write_jobs(file, rng, jobs, real)
            pools.mend()
            play(Round(pools, folder / f"run-{number}", file), rng, until_s, tally)
            number += 1
    finally:
        pools.stop()
        shutil.rmtree(short, ignore_errors=True)
    return tally


def report(tally: Tally) -> list[str]:
    """Print everything; the problems."""
    table = Table("killed", "kills", "median s", "worst s", "set nobody back")
    for kind, seconds in tally.recovered_s.items():
        times = (f"{np.median(seconds):.1f}", f"{max(seconds):.1f}") if seconds else ("", "")
        table.add_row(kind, str(len(seconds) + tally.missed[kind]), *times, str(tally.missed[kind]))
    show(table)
    everything = [second for seconds in tally.recovered_s.values() for second in seconds]
    if everything:
        print(f"recovery: {np.median(everything):.1f} s in the median, {max(everything):.1f} s at worst")
    outcomes = Counter(outcome for found in tally.audits for outcome in found.jobs.values())
    print(f"{len(tally.audits)} rounds, {tally.resumes} resumes; jobs: " + ", ".join(f"{n} {name}" for name, n in outcomes.items()))
    counted, repeated, restarts = (
        sum(getattr(one, name) for one in tally.audits) for name in ("iterations", "repeated", "restarts")
    )
    print(f"iterations: {counted} counted once, {repeated} of them done again; jobs set back {restarts} times")
    for failure in tally.failures:
        print(f"failed: {failure}")
    problems = [problem for found in tally.audits for problem in found.problems] + tally.slow
    print("\n".join(problems) or "nothing lost or doubled")
    return problems


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--nodes", type=int, default=2, help="of each pool")
    parser.add_argument("--jobs", type=int, default=8, help="of a round")
    parser.add_argument("--out", type=Path, help="keep journals and logs here")
    given = parser.parse_args()
    with place(given.out) as folder:
        problems = report(chaos(given.minutes, given.seed, given.nodes, given.jobs, True, folder))
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
