"""The service itself, over HTTP in a thread of this process and without Ray, as clients meet it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import rollmux_client

from runtime.execution.run_plan import LeaseRules
from runtime.journal.audit import audit
from runtime.journal.facts import Fact
from runtime.journal.write import JOURNAL, read_facts
from runtime.machine import Node
from runtime.service.address import Listen
from runtime.service.service import Service
from runtime.service.tokens import Right, Tokens
from tests.runtime.owners.served import PAIR, job, plan_of


class RealService:
    """A service with one node of each pool, or with those given.

    Attributes:
        url, token: of it. client: asks it.
    """

    def __init__(self, folder: Path, ttl_s: float, nodes: tuple[Node, ...]) -> None:
        self.folder, self._begun = folder, Future[str]()
        self._plan = replace(plan_of(folder, job("none"), nodes=nodes), specs=(), leases=LeaseRules(ttl_s))
        self.token = Tokens(folder).make("", Right.OPERATE)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))
        self._thread.start()
        self.url = self._begun.result(120)
        self.client = rollmux_client.Service(self.url, self.token)

    async def _serve(self) -> None:
        self._stops, service = asyncio.Event(), Service(self._plan)
        try:
            await service.serve(None)
            url, _ = await service.listen(Listen())
        except BaseException as error:
            self._begun.set_exception(error)
            raise
        self._begun.set_result(url)
        await self._stops.wait()
        await service.stop()
        await service.ended()

    def submit(self, *jobs: str, **more: Any) -> None:
        """Submit jobs of three iterations, to attach."""
        for name in jobs:
            self.client.ask("POST", "/v1/jobs", job(name, **more))

    def state(self, name: str) -> dict[str, Any]:
        """A job as the service describes it."""
        return self.client.ask("GET", f"/v1/jobs/{name}")

    def close(self) -> list[Fact]:
        """End it; its journal proves that nothing was lost or doubled."""
        self.client.close()
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stops.set)
            self._thread.join(60)
            self._loop.close()
        facts = read_facts(self.folder / JOURNAL)
        assert audit(facts).problems == ()
        return facts


@contextmanager
def real_service(folder: Path, ttl_s: float = 30.0, nodes: tuple[Node, ...] = PAIR) -> Iterator[RealService]:
    """A service in a folder; audited at its end."""
    service = RealService(folder, ttl_s, nodes)
    try:
        yield service
    finally:
        service.close()
