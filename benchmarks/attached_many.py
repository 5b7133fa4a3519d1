"""Many attached jobs: what each further job costs a service, the time of requests that concern all of them, and a restart.

    python benchmarks/attached_many.py --jobs 10000 --step 2000

Jobs are submitted and attach step by step. The processor time is that of the service for each job of the step: for its submission,
its attachment, and a heartbeat of each present job. After each step the service is asked for answers that contain all jobs, and for
a single job. At the end it is stopped and started again, and a heartbeat of every lease shows whether it survived.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from attached_connections import ConnectionPool
from attached_load import job, served, usage
from attached_service import start

from rollmux_env.report.tables import make_table, show
from runtime.service.address import SERVICE
from runtime.service.tokens import Right, Tokens

ASKS = {"status": "/v1/status", "a job": "/v1/jobs/job-0", "metrics": "/metrics", "events": "/v1/events?after=0"}
COLUMNS = ("jobs", "submit ms", "attach ms", "heartbeat ms", *(f"{name} s" for name in ASKS), "MB", "files")


class Many:
    """Jobs of some users, and their leases.

    Args:
        url: URL of the service.
        tokens: Tokens of the users.

    Attributes:
        url: URL of the service.
        asks: Connections to the service.
        leases: Lease of each attached job, by its number.
        lost: Number of heartbeats that found their lease lost.
    """

    def __init__(self, url: str, tokens: Sequence[str]) -> None:
        self.url, self.asks, self._tokens = url, ConnectionPool(url, 32), tokens
        self.leases: dict[int, str] = {}
        self.lost = 0

    def _token(self, number: int) -> str:
        return self._tokens[number % len(self._tokens)]

    async def submit(self, number: int) -> None:
        """Submit a job."""
        status, answer = await self.asks.ask(self._token(number), "POST", "/v1/jobs", job(f"job-{number}", 1_000_000))
        if status != 201:
            raise SystemExit(f"job-{number}: {status} {answer}")

    async def attach(self, number: int) -> None:
        """Take a lease for a job."""
        body = {"wait_s": 20, "pids": []}
        status, answer = await self.asks.ask(self._token(number), "POST", f"/v1/jobs/job-{number}/attach", body)
        if "lease" not in answer:
            raise SystemExit(f"job-{number}: {status} {answer}")
        self.leases[number] = answer["lease"]

    async def beat(self, number: int) -> None:
        """Renew the lease of a job, or count it as lost."""
        token = self._token(number)
        status, answer = await self.asks.ask(token, "POST", f"/v1/leases/{self.leases[number]}/heartbeat", {})
        self.lost += status != 200 or answer["stop"]


async def _each(one: Callable[[int], Awaitable[None]], numbers: range, pid: int) -> float:
    """Send a request for each number, and return the service's processor time for each, in milliseconds."""
    before_s = usage(pid)[1]
    await asyncio.gather(*(one(number) for number in numbers))
    return 1e3 * (usage(pid)[1] - before_s) / len(numbers)


def _asked(url: str, token: str, path: str) -> float:
    """Return the time until a request is answered, in seconds."""
    began_s = time.monotonic()
    request = urllib.request.Request(url + path, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.read()
    return time.monotonic() - began_s


async def _grow(many: Many, first: int, count: int, pid: int, operator: str) -> list[str]:
    """Submit and attach `count` further jobs, and return the cells of a row."""
    fresh, every = range(first, first + count), range(first + count)
    submit_ms = await _each(many.submit, fresh, pid)
    if first:
        await _each(many.beat, range(first), pid)
    attach_ms = await _each(many.attach, fresh, pid)
    beat_ms = await _each(many.beat, every, pid)
    asked_s = [await asyncio.to_thread(_asked, many.url, operator, path) for path in ASKS.values()]
    files = len(os.listdir(f"/proc/{pid}/fd"))
    times = [f"{each_ms:.2f}" for each_ms in (submit_ms, attach_ms, beat_ms)]
    return [str(len(every)), *times, *(f"{each_s:.2f}" for each_s in asked_s), f"{usage(pid)[0]:.0f}", str(files)]


def main() -> None:
    """Run the steps, restart the service, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--step", type=int, default=2000)
    parser.add_argument("--users", type=int, default=50)
    arguments = parser.parse_args()
    table = make_table(*COLUMNS)
    with tempfile.TemporaryDirectory(prefix="rollmux-many-") as place:
        folder = Path(place)
        with served(folder, arguments.jobs) as (url, pid):
            tokens = Tokens(folder / "service")
            operator = tokens.make("operator", Right.OPERATE)
            many = Many(url, [tokens.make(f"user-{number}", Right.ATTACH) for number in range(arguments.users)])

            async def grow() -> None:
                for first in range(0, arguments.jobs, arguments.step):
                    table.add_row(*await _grow(many, first, min(arguments.step, arguments.jobs - first), pid, operator))

            asyncio.run(grow())
        show(table)
        print(f"leases lost: {many.lost}")
        began_s = time.monotonic()
        process = start(folder / "service", folder / "cluster.json", folder / "output.txt")
        print(f"it was there again in {time.monotonic() - began_s:.1f} s; resident {usage(process.pid)[0]:.0f} MB")
        url, many.lost = json.loads((folder / "service" / SERVICE).read_text())["url"], 0

        async def ask_all() -> Any:
            many.asks = ConnectionPool(url, 32)
            return await _each(many.beat, range(len(many.leases)), process.pid)

        asyncio.run(ask_all())
        print(f"leases lost by that: {many.lost} of {len(many.leases)}")
        process.kill()


if __name__ == "__main__":
    main()
