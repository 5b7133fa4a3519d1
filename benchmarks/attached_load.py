"""A service under load: attached jobs of many users hold permits, and more jobs wait in its queue.

    python benchmarks/attached_load.py --jobs 2000 --users 50 --minutes 10
    python benchmarks/attached_load.py --queue 10000
    python benchmarks/attached_load.py --beside 0 3 --against etcd --minutes 0.5

Clients are separate processes on the same machine. Each of their jobs alternates between its phases and sends heartbeats; all jobs
together ask for `--permits` permits per second. The benchmark prints the time of permits that could be given at once (their answers
are durable), the service's memory and cores over time, and what it refused. `--queue` sends the given number of jobs through a
cluster that holds a hundred at a time. `--against` prints permits of a service and of an etcd side by side, without and with busy
loops that take the cores.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from attached_connections import ConnectionPool
from attached_etcd import EtcdJob, etcd_serving
from attached_service import start, write_cluster

from rollmux_env.report.tables import make_table, show
from runtime.service.address import SERVICE
from runtime.service.tokens import Right, Tokens

HEARTBEAT_S = 10.0
HOLD_S = 0.005
CONNECTIONS = 64  # least number of connections of a client process
ROWS = ((0, 400, 100.0), (3, 400, 100.0), (3, 2000, 100.0), (0, 400, 800.0))  # busy loops, jobs, permits per second
ATTACH_S = 15.0  # time for all jobs to attach, in seconds

_Make = Callable[[ConnectionPool, str, str], Any]


@dataclass
class ClientFigures:
    """Figures of a client process.

    Attributes:
        permits: Time at which each permit was asked for, since the beginning, and the time that it took, in seconds.
        late_s: Delay with which each phase was asked for, in seconds.
        refused: Number of answers by status, except 200.
        done: Number of finished iterations.
    """

    permits: list[tuple[float, float]] = field(default_factory=list)
    late_s: list[float] = field(default_factory=list)
    refused: dict[int, int] = field(default_factory=dict)
    done: int = 0

    def takes(self, status: int) -> bool:
        """Return whether an answer is good, and count it otherwise."""
        if status != 200:
            self.refused[status] = self.refused.get(status, 0) + 1
        return status == 200


@dataclass(frozen=True)
class ClientWork:
    """Work of a client process.

    Attributes:
        make: Function that makes a job from its connections, its id and its token.
        url: URL of the server.
        jobs: Ids and tokens of the jobs.
        every_s: Time between two phases of a job, in seconds.
        begin_s: Time at which the phases begin, on the clock of `time.monotonic`, in seconds.
        until_s: Time at which they end, on the same clock.
    """

    make: _Make
    url: str
    jobs: list[tuple[str, str]]
    every_s: float
    begin_s: float
    until_s: float


class OurJob:
    """Job that asks a service.

    Args:
        asks: Connections to the service.
        job_id: Id of the job.
        token: Token of its user.
    """

    def __init__(self, asks: ConnectionPool, job_id: str, token: str) -> None:
        self._asks, self._id, self._token = asks, job_id, token
        self._lease = ""

    async def attach(self) -> int:
        """Take a lease, and return the status of the answer."""
        while True:
            body = {"wait_s": 20, "pids": []}
            status, answer = await self._asks.ask(self._token, "POST", f"/v1/jobs/{self._id}/attach", body)
            if status != 200 or "lease" in answer:
                self._lease = (answer or {}).get("lease", "")
                return status

    async def acquire(self, phase: str, iteration: int) -> int:
        """Wait for the permit of a phase, and return the status of the answer."""
        while True:
            status, answer = await self._ask("acquire", {"phase": phase, "iteration": iteration, "wait_s": 20})
            if status != 200 or answer["granted"]:
                return status

    async def release(self, phase: str, iteration: int) -> int:
        """Release the permit of a phase, and return the status of the answer."""
        metrics = {"reward": 0.5} if phase == "training" else {}
        return (await self._ask("release", {"phase": phase, "iteration": iteration, "metrics": metrics}))[0]

    async def beat(self) -> int:
        """Renew the lease, and return the status of the answer."""
        return (await self._ask("heartbeat", {"pids": []}))[0]

    async def _ask(self, request: str, body: dict[str, Any]) -> tuple[int, Any]:
        return await self._asks.ask(self._token, "POST", f"/v1/leases/{self._lease}/{request}", body)


def job(job_id: str, iterations: int) -> dict[str, Any]:
    """Return an attached job that states what it takes and shares its nodes with no other job: it never waits for permits."""
    phase = {"worst_case_s": 20.0, "host_memory_gb": 1.0}
    return {"id": job_id, "iterations": iterations, "slo": 1.0, "attach": True, "rollout": phase, "training": phase}


async def _live(job: Any, every_s: float, begin_s: float, until_s: float, figures: ClientFigures) -> None:
    """Attach a job, and let it hold a phase at regular times.

    Args:
        job: The job.
        every_s: Time between two phases, in seconds.
        begin_s: Time at which the phases begin, on the clock of `time.monotonic`, in seconds.
        until_s: Time at which they end, on the same clock.
        figures: Figures, to which the job's are added.
    """
    iteration = 0
    if not figures.takes(await job.attach()):
        return
    beats = asyncio.ensure_future(_beat(job, until_s, figures))
    next_s = max(begin_s, time.monotonic()) + random.uniform(0, every_s)
    try:
        while next_s < until_s:
            for phase in ("rollout", "training"):
                await asyncio.sleep(max(0.0, next_s - time.monotonic()))
                figures.late_s.append(time.monotonic() - next_s)
                next_s += every_s
                began_s = time.monotonic()
                if not figures.takes(await job.acquire(phase, iteration)):
                    return
                if began_s < until_s:
                    figures.permits.append((began_s - begin_s, time.monotonic() - began_s))
                await asyncio.sleep(HOLD_S)
                if not figures.takes(await job.release(phase, iteration)):
                    return
            iteration += 1
            figures.done += 1
    finally:
        beats.cancel()


async def _beat(job: Any, until_s: float, figures: ClientFigures) -> None:
    while time.monotonic() < until_s:
        await asyncio.sleep(random.uniform(0.8, 1.0) * HEARTBEAT_S)
        figures.takes(await job.beat())


async def _clients(client: ClientWork) -> ClientFigures:
    figures, asks = ClientFigures(), ConnectionPool(client.url, CONNECTIONS + len(client.jobs) // 4)
    jobs = (client.make(asks, job_id, token) for job_id, token in client.jobs)
    await asyncio.gather(*(_live(one, client.every_s, client.begin_s, client.until_s, figures) for one in jobs))
    return figures


def _client(number: int, client: ClientWork, results: Any) -> None:
    results.put((number, asyncio.run(_clients(client))))


def drive(clients: list[ClientWork], meanwhile: Callable[[], None]) -> list[ClientFigures]:
    """Run clients, each in a new process, and return the figures of each.

    Args:
        clients: Work of each client.
        meanwhile: Function that runs at the same time. It returns when the clients are about to end.
    """
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [context.Process(target=_client, args=(number, client, results)) for number, client in enumerate(clients)]
    for process in processes:
        process.start()
    meanwhile()
    figures: dict[int, ClientFigures] = dict(results.get(timeout=120) for _ in processes)
    for process in processes:
        process.join()
    return [figures[number] for number in range(len(clients))]


@contextlib.contextmanager
def busy(loops: int) -> Iterator[None]:
    """Keep `loops` processes computing during the block. Each would take a whole core."""
    counting = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        yield
    finally:
        for process in counting:
            process.kill()
            process.wait()


@contextlib.contextmanager
def served(folder: Path, nodes: int) -> Iterator[tuple[str, int]]:
    """Run a service in a folder during the block.

    Args:
        folder: Folder for all files.
        nodes: Number of nodes of each pool.

    Yields:
        URL and process id of the service.
    """
    prices = {"rollout": 1.85, "training": 5.28}
    pools = {name: {"gpus_per_node": 8, "usd_per_gpu_hour": usd, "node_memory_gb": 64.0} for name, usd in prices.items()}
    write_cluster(folder / "cluster.json", nodes, pools, max_group_size=5, migration_s=10.0)
    process = start(folder / "service", folder / "cluster.json", folder / "output.txt")
    try:
        yield json.loads((folder / "service" / SERVICE).read_text())["url"], process.pid
    finally:
        began_s = time.monotonic()
        process.send_signal(signal.SIGINT)
        try:
            process.wait(120)
            print(f"it stopped in {time.monotonic() - began_s:.1f} s")
        except subprocess.TimeoutExpired:
            process.kill()
            print("it had not stopped 120 s after it was asked to")


def usage(pid: int) -> tuple[float, float]:
    """Return the resident memory of a process in MB, and its CPU time in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    ticks = os.sysconf("SC_CLK_TCK")
    return pages * os.sysconf("SC_PAGESIZE") / 1e6, (int(fields[11]) + int(fields[12])) / ticks


async def _submit(url: str, jobs: list[tuple[str, str]], iterations: int) -> None:
    asks = ConnectionPool(url, 4)

    async def one(job_id: str, token: str) -> None:
        status, answer = await asks.ask(token, "POST", "/v1/jobs", job(job_id, iterations))
        if status != 201:
            raise SystemExit(f"{job_id}: {status} {answer}")

    await asyncio.gather(*(one(*each) for each in jobs))


def submit(folder: Path, url: str, count: int, users: int, name: str = "user") -> list[tuple[str, str]]:
    """Submit jobs of some users to the service in a folder, and return their ids and tokens."""
    tokens = [Tokens(folder / "service").make(f"{name}-{number}", Right.ATTACH) for number in range(users)]
    jobs = [(f"{name}-job-{number}", tokens[number % users]) for number in range(count)]
    asyncio.run(_submit(url, jobs, 1_000_000))
    return jobs


def load(folder: Path, arguments: argparse.Namespace) -> None:
    """Hold permits at a rate, and print the figures."""
    with served(folder, arguments.jobs) as (url, pid):
        began_s = time.monotonic()
        jobs = submit(folder, url, arguments.jobs, arguments.users)
        print(f"{arguments.jobs} jobs submitted in {time.monotonic() - began_s:.1f} s")
        samples = []
        clients = _clients_of(OurJob, url, jobs, arguments.permits, arguments)

        def sample() -> None:
            while time.monotonic() < clients[0].until_s:
                time.sleep(min(15.0, max(0.1, clients[0].until_s - time.monotonic())))
                samples.append((time.monotonic() - clients[0].begin_s, *usage(pid)))

        with busy(arguments.beside[0]):
            figures = drive(clients, sample)
        _report(figures, samples)


def _clients_of(
    make: _Make, url: str, jobs: list[tuple[str, str]], permits: float, arguments: argparse.Namespace
) -> list[ClientWork]:
    every_s, begin_s = len(jobs) / permits, time.monotonic() + ATTACH_S
    until_s, count = begin_s + 60 * arguments.minutes, arguments.processes
    return [ClientWork(make, url, jobs[k::count], every_s, begin_s, until_s) for k in range(count)]


def compare(arguments: argparse.Namespace) -> None:
    """Print the figures of permits from a service and from an etcd, in a row for each load."""
    program = arguments.etcd or shutil.which("etcd")
    if program is None:
        print("etcd: is left out, there is none; `apt-get install etcd-server`, or --etcd PATH")
    table = make_table("busy loops", "jobs", "permits a second", "", "p50 ms", "p99 ms", "p99.9 ms", "a second", "cores")
    for loops, jobs, permits in (row for row in ROWS if row[0] in arguments.beside):
        for name in ("service", "etcd") if program is not None else ("service",):
            with tempfile.TemporaryDirectory(prefix="rollmux-load-") as place:
                folder = Path(place)
                serving = served(folder, jobs) if name == "service" else etcd_serving(folder, str(program))
                with serving as (url, pid):
                    ours = name == "service"
                    ids = submit(folder, url, jobs, arguments.users) if ours else [(f"job-{number}", "") for number in range(jobs)]
                    clients = _clients_of(OurJob if ours else EtcdJob, url, ids, permits, arguments)
                    cells = _measure(clients, loops, pid)
            table.add_row(str(loops), str(jobs), f"{permits:g}", name, *cells)
    show(table)


def _measure(clients: list[ClientWork], loops: int, pid: int) -> list[str]:
    """Run clients beside busy loops, and return the cells of a row."""
    used: list[float] = []

    def watch() -> None:
        time.sleep(max(0.0, clients[0].begin_s - 1.0 - time.monotonic()))
        with busy(loops):
            time.sleep(max(0.0, clients[0].begin_s - time.monotonic()))
            used.append(usage(pid)[1])
            time.sleep(max(0.0, clients[0].until_s - time.monotonic()))
            used.append(usage(pid)[1])

    figures, seconds = drive(clients, watch), clients[0].until_s - clients[0].begin_s
    if refused := [status for each in figures for status in each.refused]:
        raise SystemExit(f"refused: {refused}")
    took_s = sorted(took_s for each in figures for _, took_s in each.permits)
    quantiles = [f"{1e3 * quantile(took_s, q):.1f}" for q in (0.5, 0.99, 0.999)]
    return [*quantiles, f"{len(took_s) / seconds:.0f}", f"{(used[1] - used[0]) / seconds:.2f}"]


def _report(figures: list[ClientFigures], samples: list[tuple[float, float, float]]) -> None:
    """Print the figures of clients and of the service.

    Args:
        figures: Figures of the clients.
        samples: Time since the beginning in seconds, resident memory in MB, and CPU time in seconds, at some times.
    """
    permits = sorted(permit for each in figures for permit in each.permits)
    permits_s = sorted(took_s for _, took_s in permits)
    late_s = sorted(second for each in figures for second in each.late_s)
    seconds, (first, last) = samples[-1][0] - samples[0][0], (samples[0], samples[-1])
    print(f"{len(permits_s)} permits in {last[0]:.0f} s, {sum(each.done for each in figures)} iterations")
    print(f"a permit: {_quantiles(permits_s)}")
    table = make_table("minute", "permits", "99th percentile ms", "slowest ms")
    for minute, group in groupby(permits, lambda permit: int(permit[0] // 60)):
        took_s = sorted(took_s for _, took_s in group)
        table.add_row(str(minute), str(len(took_s)), f"{1e3 * quantile(took_s, 0.99):.1f}", f"{1e3 * took_s[-1]:.0f}")
    show(table)
    print(f"clients asked late by {_quantiles(late_s)}")
    print(f"the service: {(last[2] - first[2]) / seconds:.2f} cores; resident {first[1]:.0f} MB at first, {last[1]:.0f} MB at last")
    refused = {status: sum(each.refused.get(status, 0) for each in figures) for each in figures for status in each.refused}
    print(f"refused: {refused or 'nothing'}")


def queue(folder: Path, arguments: argparse.Namespace) -> None:
    """Send jobs of one iteration through the queue of a cluster that holds a hundred of them at a time."""
    with served(folder, 100) as (url, pid):
        token = Tokens(folder / "service").make("user", Right.ATTACH)
        jobs = [(f"job-{number}", token) for number in range(arguments.queue)]
        began_s = time.monotonic()
        asyncio.run(_submit(url, jobs, 1))
        print(f"{arguments.queue} jobs submitted in {time.monotonic() - began_s:.1f} s; resident {usage(pid)[0]:.0f} MB")
        began_s = time.monotonic()
        done = asyncio.run(_through(url, jobs))
        print(f"{done} of them came through in {time.monotonic() - began_s:.1f} s; resident {usage(pid)[0]:.0f} MB")


async def _through(url: str, jobs: list[tuple[str, str]]) -> int:
    """Let every job do its iteration when it is placed. About 500 jobs at a time wait for their places, in the queue's order."""
    asks, waiting, done = ConnectionPool(url, 600), asyncio.Semaphore(500), 0

    async def one(job_id: str, token: str) -> None:
        nonlocal done
        async with waiting:
            lease = None
            while lease is None:
                status, answer = await asks.ask(token, "POST", f"/v1/jobs/{job_id}/attach", {"wait_s": 20, "pids": []})
                if status != 200:
                    raise SystemExit(f"{job_id}: {status} {answer}")
                lease = answer.get("lease")
            for phase in ("rollout", "training"):
                request = {"phase": phase, "iteration": 0, "wait_s": 20}
                granted = False
                while not granted:
                    status, answer = await asks.ask(token, "POST", f"/v1/leases/{lease}/acquire", request)
                    granted = answer["granted"]
                await asks.ask(token, "POST", f"/v1/leases/{lease}/release", {"phase": phase, "iteration": 0, "metrics": {}})
            await asks.ask(token, "DELETE", f"/v1/leases/{lease}?done=true")
            done += 1

    await asyncio.gather(*(one(*each) for each in jobs))
    return done


def quantile(sorted_s: list[float], q: float) -> float:
    """Return a quantile of sorted values."""
    return sorted_s[min(len(sorted_s) - 1, int(q * len(sorted_s)))]


def _quantiles(sorted_s: list[float]) -> str:
    p50, p99, p999 = (1e3 * quantile(sorted_s, q) for q in (0.5, 0.99, 0.999))
    return f"{p50:.1f} ms at the median, {p99:.1f} ms at the 99th percentile, {p999:.1f} ms at the 99.9th"


def main() -> None:
    """Run the chosen benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--users", type=int, default=50)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--permits", type=float, default=100.0, help="a second, in all")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--queue", type=int, metavar="JOBS", help="send so many jobs through the queue instead")
    parser.add_argument("--beside", type=int, nargs="+", default=[0], metavar="LOOPS", help="so many busy loops")
    parser.add_argument("--against", choices=["etcd"], help="print rows of other loads, of the service and of this")
    parser.add_argument("--etcd", metavar="PATH", help="the program; where it is not given it is looked for")
    arguments = parser.parse_args()
    if arguments.against:
        compare(arguments)
        return
    with tempfile.TemporaryDirectory(prefix="rollmux-load-") as folder:
        (queue if arguments.queue else load)(Path(folder), arguments)


if __name__ == "__main__":
    main()
