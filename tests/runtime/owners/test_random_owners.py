"""Owners that do anything in any order, die, stop and wake again, under coordinators that are replaced at any moment.

The witness is beside the service: what an owner has been told that it holds is its own, until it has said that it is over, or is
dead. No node is ever in two hands, no iteration counts twice, and a coordinator knows of a lease what its journal says.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from random import Random
from typing import Any

import pytest
from rollmux_processes import pid_space

from rollmux_env.errors import Conflict, NotFound
from runtime.journal.facts import IterationSlice
from runtime.journal.leases import LeaseRecord, RecalledLeases
from runtime.owners.http import owner_processes
from runtime.owners.http.patrol import check_leases
from tests.runtime.pretend import ELSEWHERE, HERE, PAIRS, Served, attached_plan, job

JOBS = ("a", "b", "c", "d")
STEPS = 400


class Witness:
    """Who uses which node, as the owners see it."""

    def __init__(self) -> None:
        self.users: dict[str, Owner] = {}

    def take(self, user: Owner, nodes: set[str]) -> None:
        for name in nodes:
            other = self.users.get(name)
            assert other is None or other is user, f"{name} is in the hands of {other and other.name} and {user.name}"
            self.users[name] = user

    def give(self, user: Owner) -> None:
        self.users = {name: other for name, other in self.users.items() if other is not user}


class Owner:
    """A process of a job: it does one thing at a time, and may be asleep or dead.

    Args:
        named: the number that it gives, in its namespace.
    """

    def __init__(self, name: str, pid: int, host: str, space: str, named: int) -> None:
        self.name, self.pid, self.host, self.space, self.named = name, pid, host, space, named
        self.lease: str | None = None
        self.iteration = 0
        self.next: Any = "rollout"  # a phase, `synced`, or `none`
        self.uses = False
        self.asleep = False
        self.counted: list[int] = []


class World:
    """A service, its owners and the processes that live."""

    def __init__(self, folder: Path, draw: Random) -> None:
        self.draw = draw
        self.witness = Witness()
        self.alive: set[int] = set()
        self.pids = iter(range(1000, 100_000))
        syncs = {"b": 1.0, "c": 1.0}
        specs = [job(name, iterations=4, sync_s=syncs.get(name, 0.0)) for name in JOBS]
        dispatch = draw.choice(["round-robin", "fifo", "shortest-first"])
        self.plan = attached_plan(folder, *specs, nodes=PAIRS, dispatch=dispatch)
        self.run = Served(self.plan)
        self.owners = [self.begin(name) for name in JOBS]
        self.done: dict[str, list[int]] = {name: [] for name in JOBS}

    def begin(self, name: str) -> Owner:
        pid, host = next(self.pids), self.draw.choice([HERE, HERE, ELSEWHERE])
        self.alive.add(pid)
        inside = self.draw.random() < 0.25  # a container, where its number is that of any process of the service's machine
        named = self.draw.choice(sorted(self.alive)) if inside else pid
        return Owner(name, pid, host, "another" if inside else pid_space(), named)

    def started(self, pid: int) -> int:
        return pid if pid in self.alive else 0

    async def act(self, owner: Owner) -> None:
        """Let an owner do what is next for it."""
        leases, draw = self.run.leases, self.draw
        try:
            if owner.lease is None:
                answer = await leases.attach(owner.name, 0.0, owner.host, (owner.named,), owner.space)
                if "lease" in answer:
                    owner.lease, owner.iteration, owner.next = answer["lease"], answer["iteration"], "rollout"
                    if answer["iteration"] == 4:
                        await leases.end(owner.lease, done=True)
                return
            lease = owner.lease
            if (await leases.heartbeat(lease, (owner.named,), owner.space))["stop"]:
                await self.fence(owner)
                return
            if owner.next == "synced":
                await leases.synced(lease, owner.iteration, 0.1)
                self.next_iteration(owner)
                return
            if owner.uses:
                await leases.release(lease, owner.next, owner.iteration, {"reward": 1.0}, None)
                self.over(owner)
                return
            if draw.random() < 0.05:
                await leases.end(lease)
                owner.lease = None
                return
            answer = await leases.acquire(lease, owner.next, owner.iteration, 0.0)
            if draw.random() < 0.1:  # the answer is lost on its way, and it asks again
                answer = await leases.acquire(lease, owner.next, owner.iteration, 0.0)
            if answer["granted"]:
                nodes = answer["nodes"]
                pools = ("rollout", "training") if owner.next == "sync" else (owner.next,)
                self.witness.take(owner, {node["name"] for pool in pools for node in nodes[pool]})
                owner.uses = True
        except NotFound:
            await self.fence(owner)
        except Conflict as refusal:
            if "has ended" not in str(refusal) and "lives" not in str(refusal):
                await self.fence(owner)

    def over(self, owner: Owner) -> None:
        self.witness.give(owner)
        owner.uses = False
        if owner.next == "rollout":
            owner.next = "training"
        elif owner.name == "a" or owner.name == "d":
            self.next_iteration(owner)
        elif owner.next == "training" and owner.name == "c":
            owner.next = "sync"
        else:
            owner.next = "synced"

    def next_iteration(self, owner: Owner) -> None:
        owner.iteration, owner.next = owner.iteration + 1, "rollout"
        if owner.iteration == 4:
            owner.next = "none"

    async def fence(self, owner: Owner) -> None:
        """It is to stop: its process ends, and another one begins."""
        self.die(owner)

    def die(self, owner: Owner) -> None:
        self.alive.discard(owner.pid)
        self.witness.give(owner)
        fresh = self.begin(owner.name)
        self.owners[self.owners.index(owner)] = fresh

    async def step(self) -> None:
        draw, owner = self.draw, self.draw.choice(self.owners)
        what = draw.random()
        if owner.asleep:
            if what < 0.3:
                owner.asleep = False
        elif what < 0.02:
            self.die(owner)
        elif what < 0.06:
            owner.asleep = True  # beyond its lease, perhaps
        elif owner.next == "none":
            if owner.lease is not None and what < 0.5:
                with contextlib.suppress(NotFound):  # it was lost, and another coordinator does not know of it
                    await self.run.leases.end(owner.lease, done=True)
        else:
            await self.act(owner)
        if draw.random() < 0.05:
            awake = [one.lease for one in self.owners if not one.asleep and one.lease in self.run.driver.leases.ledger.leases]
            self.run.driver.run.log.zero_s -= 31.0
            for lease in awake:
                assert lease is not None
                self.run.leases.touch(lease)
            check_leases(self.run.leases.ledger)
        if draw.random() < 0.03:
            self.run = await self.run.replaced()
        if draw.random() < 0.02 and self.run.leases.ledger.suspect_nodes():
            name, _ = draw.choice(sorted(self.run.leases.ledger.suspect_nodes().items()))
            user = self.witness.users.get(name)
            if user is None:
                self.run.leases.ledger.clear(name)
        for _ in range(draw.choice([0, 0, 1, 5, 20])):
            await asyncio.sleep(0)


def states(record: LeaseRecord) -> dict[str, Any]:
    """What the journal says of a lease. A lost owner still has what it was granted, although the phase was ended in the journal."""
    turns = record.turns
    return {**vars(record), "turns": (turns.done, turns.rollouts, turns.trainings, record.end is None and turns.granted)}


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(4, 200))])
def test_no_node_is_ever_in_two_hands_and_no_iteration_counts_twice(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> list[Any]:
        world = World(tmp_path, Random(seed))
        monkeypatch.setattr(owner_processes, "started", world.started)
        await world.run.settle()
        for _ in range(STEPS):
            await world.step()
        await world.run.settle()
        facts = await world.run.stop(permits=False)
        known, leases = RecalledLeases(facts).by_id, world.run.leases.ledger.leases
        assert {name: states(lease.record) for name, lease in leases.items()} == {
            name: states(known[name].record) for name in leases
        }
        return facts

    facts = asyncio.run(main())
    for name in JOBS:
        numbers = [fact.number for fact in facts if isinstance(fact, IterationSlice) and fact.job_id == name]
        assert numbers == [*range(len(numbers))]
