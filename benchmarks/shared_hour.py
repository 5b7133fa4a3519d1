"""An hour of three users, each with a token, on one service: rights, live limits, notices, a drain, kills, fair shares.

    python benchmarks/shared_hour.py --minutes 60

Ann (weight 2), Bob and Cas (weight 1 each) keep five attached jobs each for two rollout and two training nodes. The jobs sleep in
their phases (`sleeping_job.py`). Users try what they may not do, an operator changes limits and drains a node, an owner and the
service are killed, and notices come, signed, and as mail. At the end the benchmark prints each user's part of the node-hours, the
usage, the notices and the audit of the journal. A shorter hour has the same steps, closer together. One of a few minutes may end
before the last of them.
"""

from __future__ import annotations

import argparse
import hmac
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from attached_service import start, write_cluster
from rollmux_client import Refused, Service

from runtime.service.address import SERVICE
from runtime.service.mail import set_address
from runtime.service.tokens import Right, Tokens
from runtime.service.webhook import set_target, signature

ROOT = Path(__file__).parents[1]
WEIGHTS = {"ann": 2, "bob": 1, "cas": 1}
PRESENT = 5  # number of jobs that each user keeps waiting or running
OPTIONS = ("--policy", "rollmux,order=fair,held_h=0.25,backfill=true,starve_h=24")
LIVES = ("waiting", "parked", "running", "moving", "lost")
AGAIN_S = 60.0  # seconds from the kill of an owner until its user starts another


@dataclass(eq=False)
class Owner:
    """Process of a job.

    Attributes:
        job_id: Id of the job.
        process: The process.
        ended_s: Time at which its end was seen, on the clock of `time.monotonic`, or None.
    """

    job_id: str
    process: subprocess.Popen[bytes]
    ended_s: float | None = None


@dataclass
class Person:
    """User of the service.

    Attributes:
        name: Name of the user.
        token: The user's token.
        jobs: Number of jobs that the user wants to have present.
        owners: Processes of the present jobs.
        submitted: Number of jobs submitted so far.
    """

    name: str
    token: str
    jobs: int = PRESENT
    owners: list[Owner] = field(default_factory=list)
    submitted: int = 0


class SharedHour:
    """The service, its users, and what they do.

    Args:
        folder: Empty folder.
        minutes: Length of the hour.
    """

    def __init__(self, folder: Path, minutes: float) -> None:
        self.folder, self.minutes = folder, minutes
        self.service_folder = folder / "service"
        self.notices: Counter[str] = Counter()
        self.draw = random.Random(1)
        pools = {"rollout": {"gpus_per_node": 1, "usd_per_gpu_hour": 2}, "training": {"gpus_per_node": 1, "usd_per_gpu_hour": 4}}
        quotas = {"*": {"weight": 1}, "ann": {"weight": WEIGHTS["ann"]}}
        write_cluster(folder / "cluster.json", 2, pools, quotas=quotas)
        _write_sendmail(folder)
        self.process: subprocess.Popen[bytes] | None = None
        self.people: list[Person] = []

    def _begin(self) -> None:
        """Start the service, and make tokens and receivers of notices."""
        self.process = self._start()
        tokens = Tokens(self.service_folder)
        self.people = [Person(name, tokens.make(name, Right.ATTACH)) for name in WEIGHTS]
        self.operator, self.viewer = tokens.make("ops", Right.OPERATE), tokens.make("accounting", Right.LOOK)
        self._receive()

    def _start(self) -> subprocess.Popen[bytes]:
        process = start(self.service_folder, self.folder / "cluster.json", self.folder / "output.txt", OPTIONS)
        self.url = json.loads((self.service_folder / SERVICE).read_text())["url"]
        return process

    def _receive(self) -> None:
        """Receive notices, and count the signed ones by kind."""
        hour = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                return

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                signed = signature(secret, self.headers["X-RollMux-Timestamp"], body)
                notice = json.loads(body)
                if hmac.compare_digest(signed, self.headers["X-RollMux-Signature"]):
                    hour.notices[notice["kind"]] += 1
                    hour.say(f"notice: {notice['kind']} {notice['job'] or ''} {notice['user']}: {notice['text']}")
                self.send_response(204)
                self.end_headers()

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        secret = set_target(self.service_folder, f"http://127.0.0.1:{server.server_address[1]}/")
        Thread(target=server.serve_forever, daemon=True).start()
        set_address(self.service_folder, "ops@example.org")

    def say(self, line: str) -> None:
        """Print a line with the minute of the hour."""
        print(f"{(time.monotonic() - self.began_s) / 60:5.1f}  {line}", flush=True)

    def ask(self, token: str, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send a request with a token, and return the answer, or status and reason of a refusal."""
        service = Service(self.url, token)
        try:
            return service.ask(method, path, body)
        except Refused as refused:
            return {"refused": str(refused)}
        finally:
            service.close()

    def command(self, token: str, *words: str) -> str:
        """Run a command with a token, print its last line, and return its output."""
        environment = self._environment(token)
        ran = subprocess.run(
            [sys.executable, "-m", "rollmux", *words], env=environment, capture_output=True, text=True, check=False
        )
        said = (ran.stdout + ran.stderr).strip()
        self.say(f"rollmux {' '.join(words)}: status {ran.returncode}" + (f", {said.splitlines()[-1]}" if said else ""))
        return ran.stdout

    def _environment(self, token: str) -> dict[str, str]:
        paths = os.pathsep.join((str(ROOT), str(ROOT / "clients" / "python"), os.environ.get("PYTHONPATH", "")))
        return os.environ | {"PYTHONPATH": paths, "ROLLMUX_URL": self.url, "ROLLMUX_TOKEN": token}

    # The jobs

    def submit(self, person: Person, **keys: Any) -> str:
        """Submit a job of a person, and return the reason of a refusal, or an empty text."""
        phases = {"rollout": {"worst_case_s": 5.0, "host_memory_gb": 0.1}, "training": {"worst_case_s": 3.0, "host_memory_gb": 0.1}}
        iterations = max(3, round(self.draw.randint(20, 40) * min(1.0, self.minutes / 60)))
        job = {
            "id": f"{person.name}-{person.submitted}",
            "iterations": iterations,
            "slo": 2.5,
            "attach": True,
            "movable": True,
            **phases,
            **keys,
        }
        answer = self.ask(person.token, "POST", "/v1/jobs", job)
        if "refused" in answer:
            return str(answer["refused"])
        person.submitted += 1
        person.owners.append(Owner(job["id"], self._owner(person, job["id"])))
        return ""

    def _owner(self, person: Person, job_id: str) -> subprocess.Popen[bytes]:
        words = [sys.executable, str(ROOT / "benchmarks" / "sleeping_job.py"), str(self.folder / f"{job_id}.done"), "4.0", "2.0"]
        with open(self.folder / "owners.txt", "a") as output:
            environment = self._environment(person.token) | {"ROLLMUX_JOB": job_id}
            return subprocess.Popen(words, env=environment, stdout=output, stderr=output, start_new_session=True)

    def tend(self, person: Person) -> None:
        """Start owners again that have ended before their jobs, and keep the wanted number of jobs."""
        for owner in [*person.owners]:
            status = owner.process.poll()
            if status is None:
                continue
            owner.ended_s = owner.ended_s or time.monotonic()
            if self.ask(person.token, "GET", f"/v1/jobs/{owner.job_id}").get("state") not in LIVES:
                person.owners.remove(owner)
            elif status >= 0 or time.monotonic() - owner.ended_s > AGAIN_S:
                owner.process, owner.ended_s = self._owner(person, owner.job_id), None
        if len(person.owners) < person.jobs and (reason := self.submit(person)):
            self.say(f"{person.name}: {reason}")
            person.jobs -= 1

    def usage(self, token: str) -> dict[str, float]:
        """Return the node-hours of each user so far."""
        rows = self.ask(token, "GET", "/v1/usage?by=user")["rows"]
        return {row["user"]: row["node_hours"] for row in rows}

    # The hour

    def steps(self) -> list[tuple[float, Callable[[], object]]]:
        """Return what happens besides jobs, each with its minute of an hour."""
        ann, bob, cas = self.people
        operate = self.operator
        drained = datetime.now().astimezone() + timedelta(minutes=self.minutes * 26 / 60)
        return [
            (2, lambda: self.say(f"bob submits a job of priority 5: {self.submit(bob, priority=5)}")),
            (2, lambda: self.command(bob.token, "cancel", ann.owners[0].job_id)),
            (3, lambda: self.command(bob.token, "quota", "set", "bob", "weight=9")),
            (3, lambda: self.command(bob.token, "drain", "rollout-0")),
            (3, lambda: self.command(self.viewer, "usage", "--by", "user,month")),
            (5, lambda: self.command(operate, "quota", "set", "bob", "jobs=3")),
            (9, lambda: self._wants(bob, PRESENT)),
            (10, lambda: self.command(operate, "quota", "set", "bob", "jobs=none")),
            (10, lambda: self._wants(bob, PRESENT)),
            (12, lambda: self.command(operate, "quota", "set", "cas", "run_hours=0.02", "weight=1")),
            (13, lambda: self.say(f"cas submits a job without a budget: {self.submit(cas)}")),
            (13, lambda: self.submit(cas, budget={"hours": 0.02})),
            (14, lambda: self.command(operate, "quota", "set", "cas", "run_hours=none")),
            (14, lambda: self._wants(cas, PRESENT)),
            (16, self._submit_failing),
            (18, self._kill_owner),
            (20, lambda: self.command(operate, "drain", "rollout-1", "--deadline", drained.isoformat(timespec="seconds"))),
            (28, lambda: self.command(operate, "status")),
            (29, lambda: self.command(operate, "undrain", "rollout-1")),
            (32, lambda: self.command(ann.token, "cancel", ann.owners[0].job_id)),
            (35, lambda: self._limit_month("cas")),
            (38, lambda: self.command(operate, "quota", "set", "cas", "node_hours=none")),
            (40, self._kill_service),
        ]

    def _wants(self, person: Person, jobs: int) -> None:
        person.jobs = jobs

    def _submit_failing(self) -> None:
        phase = {"worst_case_s": 5.0, "host_memory_gb": 0.1}
        job = {"id": "broken", "iterations": 3, "slo": 2.5, "rollout": phase, "training": phase}
        answer = self.ask(self.operator, "POST", "/v1/jobs", job | {"command": ["false"], "priority": 1})
        self.say(f"ops submits a command that fails: {answer.get('refused', 'taken')}")

    def _kill_owner(self) -> None:
        for person in self.people:
            for owner in person.owners:
                if self.ask(person.token, "GET", f"/v1/jobs/{owner.job_id}").get("state") == "running":
                    os.kill(owner.process.pid, signal.SIGKILL)
                    self.say(f"{owner.job_id}: its owner is killed")
                    return

    def _limit_month(self, user: str) -> None:
        self.command(self.operator, "quota", "set", user, f"node_hours={0.9 * self.usage(self.viewer).get(user, 0.0):.3f}")

    def _kill_service(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self.process = self._start()
        self.say("the service was killed, and continues")

    def run(self) -> dict[str, float]:
        """Let the hour pass, and return the node-hours of each user at its end."""
        self._begin()
        self.began_s = time.monotonic()
        steps = sorted(self.steps(), key=lambda step: step[0])
        marks = [self.minutes * k / 6 for k in range(1, 7)]
        while (minute := (time.monotonic() - self.began_s) / 60) < self.minutes:
            while steps and steps[0][0] * self.minutes / 60 <= minute:
                steps.pop(0)[1]()
            if marks[0] <= minute:
                self.say(f"parts so far: {parts(self.usage(self.viewer))}")
                marks.pop(0)
            for person in self.people:
                self.tend(person)
            time.sleep(1.0)
        return self.usage(self.viewer)

    def close(self) -> None:
        """End all processes."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait()
        for owner in (owner for person in self.people for owner in person.owners):
            owner.process.kill()
            owner.process.wait()


def _write_sendmail(folder: Path) -> None:
    """Write a program `sendmail` that keeps the subjects of mails, and make it the first one in the PATH."""
    program = folder / "bin" / "sendmail"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ngrep ^Subject: >> {folder}/mails.txt\n")
    program.chmod(0o755)
    (folder / "mails.txt").touch()
    os.environ["PATH"] = os.pathsep.join((str(program.parent), os.environ["PATH"]))


def shares(usage: dict[str, float]) -> dict[str, float]:
    """Return each user's share of the users' node-hours; 0 while there are none."""
    total = sum(usage.get(name, 0.0) for name in WEIGHTS)
    return {name: usage.get(name, 0.0) / total if total else 0.0 for name in WEIGHTS}


def parts(usage: dict[str, float]) -> str:
    """Return the shares as text."""
    return ", ".join(f"{name} {share:.1%}" for name, share in shares(usage).items())


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the hour, and print its results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="rollmux-hour-") as place:
        hour = SharedHour(Path(place), options.minutes)
        try:
            used = hour.run()
        finally:
            hour.close()
        worst = max(abs(share * sum(WEIGHTS.values()) / WEIGHTS[name] - 1) for name, share in shares(used).items())
        print(f"\nparts of the hour: {parts(used)}; at most {worst:.1%} from the weights 2:1:1")
        mails = (Path(place) / "mails.txt").read_text().splitlines()
        print(f"notices with a good signature: {dict(hour.notices)}; mails: {len(mails)}\n")
        for words in (["usage", "--by", "user,month", "--at"], ["journal", "audit"], ["journal", "check"]):
            command = [sys.executable, "-m", "rollmux", *words, str(hour.service_folder)]
            ran = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": str(ROOT)})
            print(f"rollmux {' '.join(words)}\n{ran.stdout}{ran.stderr}".rstrip(), flush=True)


if __name__ == "__main__":
    main()
