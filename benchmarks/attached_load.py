"""A service under load: attached jobs of many users hold permits, and more jobs wait in its queue.

    python benchmarks/attached_load.py --jobs 2000 --users 50 --minutes 10
    python benchmarks/attached_load.py --queue 10000

Clients are processes of their own on the same machine; each of their jobs takes turns between its phases, as many permits a second
as `--permits` says in all, and sends heartbeats. Printed are the time of permits that could be given at once (their answers are
durable), what the service takes of memory and cores over time, and at the end what it refused. `--queue` sends so many jobs through
a cluster that holds a hundred at a time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from attached_service import start, write_cluster

from rollmux_env.report.tables import make_table, show
from runtime.service.address import SERVICE
from runtime.service.tokens import Right, Tokens

HEARTBEAT_S = 10.0
HOLD_S = 0.005
CONNECTIONS = 64  # of a client process


@dataclass
class Figures:
    """What a client process has seen."""

    permits: list[tuple[float, float]] = field(default_factory=list)  # when it was asked for, and how long it took, seconds
    late_s: list[float] = field(default_factory=list)
    refused: dict[int, int] = field(default_factory=dict)
    done: int = 0


class Connections:
    """Keeps connections to the service open, and asks on whichever is free."""

    def __init__(self, url: str, count: int) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname, parts.port
        self._free: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter] | None] = asyncio.Queue()
        for _ in range(count):
            self._free.put_nowait(None)

    async def ask(self, token: str, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """The status and the answer of a request."""
        pair = await self._free.get()
        try:
            if pair is None:
                pair = await asyncio.open_connection(self._host, self._port)
            reader, writer = pair
            data = b"" if body is None else json.dumps(body).encode()
            head = f"{method} {path} HTTP/1.1\r\nHost: {self._host}\r\nAuthorization: Bearer {token}\r\n"
            head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
            writer.write(head.encode() + data)
            status = int((await reader.readline()).split()[1])
            length = 0
            while (line := await reader.readline()) not in (b"\r\n", b""):
                name, _, value = line.partition(b":")
                if name.lower() == b"content-length":
                    length = int(value)
            answer = json.loads(await reader.readexactly(length)) if length else None
            self._free.put_nowait(pair)
            return status, answer
        except BaseException:
            self._free.put_nowait(None)
            raise


def job(job_id: str, iterations: int) -> dict[str, Any]:
    """An attached job that states what it takes, and shares nodes with nobody: its permits can be given at once."""
    phase = {"worst_case_s": 20.0, "host_memory_gb": 1.0}
    return {"id": job_id, "iterations": iterations, "slo": 1.0, "attach": True, "rollout": phase, "training": phase}


async def _live(
    asks: Connections, token: str, job_id: str, every_s: float, begin_s: float, until_s: float, figures: Figures
) -> None:
    """A job: it attaches, and holds a phase every so many seconds."""
    while True:
        status, answer = await asks.ask(token, "POST", f"/v1/jobs/{job_id}/attach", {"wait_s": 20, "pids": []})
        if status != 200:
            figures.refused[status] = figures.refused.get(status, 0) + 1
            return
        if "lease" in answer:
            break
    lease, iteration = answer["lease"], answer["iteration"]
    beats = asyncio.ensure_future(_beat(asks, token, lease, until_s))
    next_s = max(begin_s, time.monotonic()) + random.uniform(0, every_s)
    try:
        while next_s < until_s:
            for phase in ("rollout", "training"):
                await asyncio.sleep(max(0.0, next_s - time.monotonic()))
                figures.late_s.append(time.monotonic() - next_s)
                next_s += every_s
                began_s = time.monotonic()
                request = {"phase": phase, "iteration": iteration, "wait_s": 20}
                status, answer = await asks.ask(token, "POST", f"/v1/leases/{lease}/acquire", request)
                while status == 200 and not answer["granted"]:
                    status, answer = await asks.ask(token, "POST", f"/v1/leases/{lease}/acquire", request)
                if status != 200:
                    figures.refused[status] = figures.refused.get(status, 0) + 1
                    return
                figures.permits.append((began_s - begin_s, time.monotonic() - began_s))
                await asyncio.sleep(HOLD_S)
                metrics = {"reward": 0.5} if phase == "training" else {}
                body = {"phase": phase, "iteration": iteration, "metrics": metrics}
                status, answer = await asks.ask(token, "POST", f"/v1/leases/{lease}/release", body)
                if status != 200:
                    figures.refused[status] = figures.refused.get(status, 0) + 1
                    return
            iteration += 1
            figures.done += 1
    finally:
        beats.cancel()


async def _beat(asks: Connections, token: str, lease: str, until_s: float) -> None:
    while time.monotonic() < until_s:
        await asyncio.sleep(random.uniform(0.8, 1.0) * HEARTBEAT_S)
        await asks.ask(token, "POST", f"/v1/leases/{lease}/heartbeat", {"pids": []})


async def _clients(url: str, jobs: list[tuple[str, str]], every_s: float, begin_s: float, until_s: float) -> Figures:
    figures, asks = Figures(), Connections(url, CONNECTIONS + len(jobs) // 4)
    await asyncio.gather(*(_live(asks, token, job_id, every_s, begin_s, until_s, figures) for job_id, token in jobs))
    return figures


def _client(url: str, jobs: list[tuple[str, str]], every_s: float, begin_s: float, until_s: float, results: Any) -> None:
    results.put(asyncio.run(_clients(url, jobs, every_s, begin_s, until_s)))


@contextlib.contextmanager
def served(folder: Path, nodes: int) -> Iterator[tuple[str, int]]:
    """The URL and the process id of a service in a folder."""
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
    """Resident memory in MB and CPU seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    ticks = os.sysconf("SC_CLK_TCK")
    return pages * os.sysconf("SC_PAGESIZE") / 1e6, (int(fields[11]) + int(fields[12])) / ticks


async def _submit(url: str, jobs: list[tuple[str, str]], iterations: int) -> None:
    asks = Connections(url, 4)

    async def one(job_id: str, token: str) -> None:
        status, answer = await asks.ask(token, "POST", "/v1/jobs", job(job_id, iterations))
        if status != 201:
            raise SystemExit(f"{job_id}: {status} {answer}")

    await asyncio.gather(*(one(*each) for each in jobs))


def load(folder: Path, arguments: argparse.Namespace) -> None:
    """Hold permits at a rate, and print what it was like."""
    with served(folder, arguments.jobs) as (url, pid):
        tokens = [Tokens(folder / "service").make(f"user-{number}", Right.ATTACH) for number in range(arguments.users)]
        jobs = [(f"job-{number}", tokens[number % len(tokens)]) for number in range(arguments.jobs)]
        began_s = time.monotonic()
        asyncio.run(_submit(url, jobs, 1_000_000))
        print(f"{arguments.jobs} jobs submitted in {time.monotonic() - began_s:.1f} s")
        every_s = arguments.jobs / arguments.permits
        begin_s = time.monotonic() + 15
        until_s = begin_s + 60 * arguments.minutes
        context = multiprocessing.get_context("spawn")
        results = context.Queue()
        clients = [
            context.Process(target=_client, args=(url, jobs[k :: arguments.processes], every_s, begin_s, until_s, results))
            for k in range(arguments.processes)
        ]
        for client in clients:
            client.start()
        samples = []
        while time.monotonic() < until_s:
            time.sleep(min(15.0, max(0.1, until_s - time.monotonic())))
            samples.append((time.monotonic() - begin_s, *usage(pid)))
        figures: list[Figures] = [results.get(timeout=120) for _ in clients]
        for client in clients:
            client.join()
        _report(figures, samples)


def _report(figures: list[Figures], samples: list[tuple[float, float, float]]) -> None:
    """Print what clients have seen, and what the service took at some times: seconds, MB and CPU seconds."""
    permits = sorted(permit for each in figures for permit in each.permits)
    permits_s = sorted(took_s for _, took_s in permits)
    late_s = sorted(second for each in figures for second in each.late_s)
    seconds, (first, last) = samples[-1][0] - samples[0][0], (samples[0], samples[-1])
    print(f"{len(permits_s)} permits in {last[0]:.0f} s, {sum(each.done for each in figures)} iterations")
    print(f"a permit: {_quantiles(permits_s)}")
    table = make_table("minute", "permits", "99th percentile ms", "slowest ms")
    for minute, group in groupby(permits, lambda permit: int(permit[0] // 60)):
        took_s = sorted(took_s for _, took_s in group)
        table.add_row(str(minute), str(len(took_s)), f"{1e3 * _quantile(took_s, 0.99):.1f}", f"{1e3 * took_s[-1]:.0f}")
    show(table)
    print(f"clients asked late by {_quantiles(late_s)}")
    print(f"the service: {(last[2] - first[2]) / seconds:.2f} cores; resident {first[1]:.0f} MB at first, {last[1]:.0f} MB at last")
    refused = {status: sum(each.refused.get(status, 0) for each in figures) for each in figures for status in each.refused}
    print(f"refused: {refused or 'nothing'}")


def queue(folder: Path, arguments: argparse.Namespace) -> None:
    """Send jobs of one iteration through the queue of a cluster that holds a hundred of them alone."""
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
    """Let every job do its iteration as soon as it is placed; some 500 wait for their places at a time, in the queue's order."""
    asks, waiting, done = Connections(url, 600), asyncio.Semaphore(500), 0

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


def _quantile(sorted_s: list[float], q: float) -> float:
    return sorted_s[min(len(sorted_s) - 1, int(q * len(sorted_s)))]


def _quantiles(sorted_s: list[float]) -> str:
    p50, p99, p999 = (1e3 * _quantile(sorted_s, q) for q in (0.5, 0.99, 0.999))
    return f"{p50:.1f} ms at the median, {p99:.1f} ms at the 99th percentile, {p999:.1f} ms at the 99.9th"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--users", type=int, default=50)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--permits", type=float, default=100.0, help="a second, in all")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--queue", type=int, metavar="JOBS", help="send so many jobs through the queue instead")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rollmux-load-") as folder:
        (queue if arguments.queue else load)(Path(folder), arguments)


if __name__ == "__main__":
    main()
