"""Service that is killed repeatedly while attached jobs continue, with owners that are stopped for longer than their lease.

    python benchmarks/attached_chaos.py --kills 50 --stops 3 --seed 0

Owners are separate processes with the client. Each phase takes an exclusive lock on a file of every node that it was given: if a
node is held twice, the second phase notices. The lock is held by a process in another session that carries the lease, like the
ranks of torchrun. The service is killed by SIGKILL at random times and started again. Sometimes an owner is stopped (SIGSTOP) for
longer than its lease lasts, and then continues: it must end itself before it touches a node. Sometimes only an owner is killed: the
process it has started continues for 40 s, in which its node must not be given to another job. Owners are restarted as a launcher
would do. Every second job has a checkpoint of every third iteration alone, from which its owner continues: the service takes the
iterations since then back. At the end every job must have done all its iterations, each counted once, and the audit of the journal
must find nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import rollmux_client
import rollmux_processes
from attached_load import usage
from attached_service import start, write_cluster

from runtime.journal.write import read_run
from runtime.service.address import SERVICE

_OWNER = "owner"
_STOPS_S = 40.0  # duration of a stop, which exceeds the lease of 30 s
_OWNER_KILLS = 5  # number of kills of the service for each kill of an owner
_TAKEN = 9  # exit status of a rank whose node is in use
_JOBS = 6
_NODES = 2
_SAVES_EVERY = 3  # iterations between two checkpoints of a job that has some


def owner(folder: Path, seconds: float) -> None:
    """Run a job that holds the files of its nodes while it has their permit.

    Args:
        folder: Folder of the files.
        seconds: Mean duration of a phase, in seconds.
    """
    with rollmux_client.attach() as job:
        checkpoint = folder / f"{job.name}.checkpoint"
        if _saves(job.name):
            job.continue_from(int(checkpoint.read_text()) if checkpoint.exists() else 0)
        for number in job.iterations():
            for name in ("rollout", "training"):
                with job.phase(name):
                    seconds_now = f"{random.uniform(0.5, 1.5) * seconds:.3f}"
                    ranks = {node["name"]: _start_rank(folder, str(node["name"]), seconds_now, job) for node in job.nodes[name]}
                    for node, rank in ranks.items():
                        if rank.wait() == _TAKEN:
                            (folder / f"twice-{os.getpid()}").write_text(f"{job.name} {name} {node}\n")
                    if name == "training" and _saves(job.name) and (number + 1) % _SAVES_EVERY == 0:
                        written = checkpoint.with_suffix(".part")
                        written.write_text(str(number + 1))
                        written.replace(checkpoint)


def _saves(job_id: str) -> bool:
    """Return whether a job has its own checkpoints."""
    return int(job_id.rpartition("-")[2]) % 2 == 1


def _start_rank(folder: Path, node: str, seconds: str, job: rollmux_client.Job) -> subprocess.Popen[bytes]:
    """Start a process in a new session that holds a node's file. If its owner dies, it holds the file for `_STOPS_S` longer."""
    work = f'sleep {seconds}; [ "$(cut -d" " -f4 /proc/$$/stat)" = {os.getpid()} ] || sleep {_STOPS_S:g}'
    lock = ["flock", "--nonblock", "--no-fork", "--conflict-exit-code", str(_TAKEN), str(folder / f"{node}.lock")]
    command = [*lock, "sh", "-c", work]
    return subprocess.Popen(command, env=os.environ | {rollmux_processes.LEASE: str(job.lease)}, start_new_session=True)


class Chaos:
    """The service and the owners, which are restarted when they end.

    Args:
        folder: Folder for all files.
        iterations: Number of iterations of each job.
    """

    def __init__(self, folder: Path, iterations: int) -> None:
        self.folder = folder
        self.cluster = folder / "cluster.yaml"
        pool = {"gpus_per_node": 1, "usd_per_gpu_hour": 1.0, "node_memory_gb": 16.0}
        write_cluster(self.cluster, _NODES, {"rollout": pool, "training": pool}, max_group_size=3, migration_s=5.0)
        self.jobs = {f"job-{number}": iterations for number in range(_JOBS)}
        self.owners: dict[str, subprocess.Popen[bytes]] = {}
        self.ends = Counter[str]()  # how owners ended that were not done
        self.owner_kills = 0
        self.service = self._serve()
        self._submit()

    def _serve(self) -> subprocess.Popen[bytes]:
        return start(self.folder / "service", self.cluster, self.folder / "service.log")

    @property
    def _environment(self) -> dict[str, str]:
        place = json.loads((self.folder / "service" / SERVICE).read_text())
        return {"ROLLMUX_URL": place["url"], "ROLLMUX_TOKEN": place["token"]}

    def _submit(self) -> None:
        phase = {"worst_case_s": 1.0, "host_memory_gb": 1.0}
        entries = [
            {"id": job_id, "iterations": count, "slo": 20.0, "attach": True, "rollout": phase, "training": phase}
            for job_id, count in self.jobs.items()
        ]
        file = self.folder / "jobs.json"
        file.write_text(json.dumps({"version": 1, "jobs": entries}))
        subprocess.run(
            [sys.executable, "-m", "rollmux", "submit", str(file), "--at", str(self.folder / "service")],
            check=True,
            env=os.environ | self._environment,
            stdout=subprocess.DEVNULL,
        )

    def kill_service(self) -> None:
        """Kill the service, and start it again."""
        self.service.kill()
        self.service.wait()
        time.sleep(random.uniform(0.0, 2.0))
        self.service = self._serve()

    def kill_owner(self, but: set[str]) -> None:
        """Kill an owner's process but not its ranks.

        Args:
            but: Jobs whose owners are left alone.
        """
        alive = [job_id for job_id, process in self.owners.items() if process.poll() is None and job_id not in but]
        if alive:
            self.owners[random.choice(alive)].kill()
            self.owner_kills += 1

    def look_after(self) -> int:
        """Restart owners that have ended and are not done. Returns how many are not done."""
        left = 0
        for job_id in self.jobs:
            process = self.owners.get(job_id)
            if process is not None and process.poll() == 0:
                continue
            left += 1
            if process is None or process.poll() is not None:
                if process is not None:
                    said = (self.folder / f"{job_id}.log").read_text().splitlines()
                    self.ends[f"status {process.returncode}: {said[-1] if said else ''}"] += 1
                environment = os.environ | self._environment | {"ROLLMUX_JOB": job_id}
                command = [sys.executable, __file__, _OWNER, str(self.folder)]
                with open(self.folder / f"{job_id}.log", "a") as output:
                    self.owners[job_id] = subprocess.Popen(
                        command, env=environment, stdout=output, stderr=output, start_new_session=True
                    )
        return left

    def close(self) -> None:
        """Kill all processes."""
        for process in (*self.owners.values(), self.service):
            process.kill()
            process.wait()


def main() -> None:
    """Run the jobs under kills, and report; or be the owner of a job."""
    if sys.argv[1:2] == [_OWNER]:
        owner(Path(sys.argv[2]), 0.2)
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--stops", type=int, default=3, help="owners that stand still beyond their lease")
    parser.add_argument("--iterations", type=int, default=150, help="of each job")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    random.seed(arguments.seed)
    with tempfile.TemporaryDirectory(prefix="rollmux-chaos-") as name:
        folder = Path(name)
        chaos = Chaos(folder, arguments.iterations)
        try:
            _run(chaos, arguments.kills, arguments.stops)
        finally:
            chaos.close()
        _report(chaos, folder)


def _run(chaos: Chaos, kills: int, stops: int) -> None:
    stopped: dict[str, float] = {}
    begin_s, done_kills = time.monotonic(), 0
    next_s = begin_s + 10
    while chaos.look_after():
        now_s = time.monotonic()
        for job_id, since_s in [*stopped.items()]:
            if now_s - since_s > _STOPS_S:
                os.killpg(chaos.owners[job_id].pid, signal.SIGCONT)
                del stopped[job_id]
        if done_kills < kills and now_s > next_s:
            chaos.kill_service()
            done_kills += 1
            if stops and done_kills % max(1, kills // stops) == 1:
                alive = [job_id for job_id, process in chaos.owners.items() if process.poll() is None and job_id not in stopped]
                if alive:
                    job_id = random.choice(alive)
                    os.killpg(chaos.owners[job_id].pid, signal.SIGSTOP)
                    stopped[job_id] = time.monotonic()
            if done_kills % _OWNER_KILLS == 0:
                chaos.kill_owner({*stopped})
            next_s = time.monotonic() + random.uniform(0.2, 5.0)
        time.sleep(0.2)
        if now_s - begin_s > 1500:
            raise SystemExit(f"jobs do not come to their end: {(chaos.folder / 'service.log').read_text()[-3000:]}")
    seconds, resident_mb = time.monotonic() - begin_s, usage(chaos.service.pid)[0]
    print(f"{done_kills} kills of the service, {chaos.owner_kills} of owners, {seconds:.0f} s; resident {resident_mb:.0f} MB")


def _report(chaos: Chaos, folder: Path) -> None:
    record = read_run(folder / "service")
    counts = Counter((done.job_id, done.number) for done in record.iterations)
    twice = sorted(path.read_text().strip() for path in folder.glob("twice-*"))
    wrong = [f"{key} {count} times" for key, count in counts.items() if count != 1]
    wrong += [f"{job_id} {n} not at all" for job_id, count in chaos.jobs.items() for n in range(count) if (job_id, n) not in counts]
    print(f"owners were started again {sum(chaos.ends.values())} times")
    for end, count in chaos.ends.most_common(5):
        print(f"    {count} times after {end[:150]}")
    again = f"{len(record.repeated)} were taken back and done again"
    print(f"{len(counts)} iterations counted, {again}; wrong: {', '.join(wrong) or 'none'}")
    print(f"nodes held twice: {', '.join(twice) or 'none'}")
    audit = subprocess.run(
        [sys.executable, "-m", "rollmux", "journal", "audit", str(folder / "service")], capture_output=True, text=True, check=False
    )
    print(f"audit: {(audit.stdout + audit.stderr).strip()}")
    if wrong or twice or audit.returncode:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
