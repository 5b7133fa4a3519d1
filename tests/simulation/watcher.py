"""Somebody who follows the journal over `/v1/events`, as `rollmux events` does, and looks at the rest now and then."""

from __future__ import annotations

import contextlib
import json
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import rollmux_client
from rollmux_client import Refused

from tests.runtime.pretend import job
from tests.simulation.loop import Process, Strand
from tests.simulation.network import ClientService

if TYPE_CHECKING:
    from tests.simulation.world import Scene

_WAITS_S = 10.0
_ANSWERS = 8  # between two looks at the rest, which would be most of the work of a world
_LOOKS: tuple[tuple[Any, ...], ...] = (("GET", "/v1/status"), ("POST", "/v1/jobs?dry_run=true", job("tried")))


class Watcher:
    """Asks for entries behind those that it has; each is to be the next one, and on the disk.

    Attributes:
        seen: number of the last one.
    """

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self.seen = 0
        process = Process(scene.world, "watcher", scene.world.outside.draw.choice([0.0, 700.0]))
        scene.world.in_process(process, Strand(process, self._watch).wake)

    def _watch(self) -> None:
        service = ClientService(self._scene.network, "operator")

        def ask() -> dict[str, Any]:
            return service.ask("GET", f"/v1/events?after={self.seen}&wait_s={_WAITS_S:g}")

        for answers in count():
            for event in rollmux_client._until_answered(ask)["events"]:
                self._see(event["number"], event["kind"], event["body"])
            for look in _LOOKS if answers % _ANSWERS == 0 else ():
                with contextlib.suppress(Refused):  # a service that stops tries no job
                    rollmux_client._until_answered(partial(service.ask, *look))

    def _see(self, number: int, kind: str, body: object) -> None:
        rows = self._scene.disk.rows
        if number != self.seen + 1:
            self._scene.problems.append(f"entry {number} of the journal is told of behind entry {self.seen}")
        elif number > len(rows) or (kind, body) != (rows[number - 1][0], json.loads(rows[number - 1][1])):
            self._scene.problems.append(f"entry {number} of the journal, {kind}, is told of otherwise than it is on the disk")
        self.seen = number
        self._scene.counts["events"] += 1
