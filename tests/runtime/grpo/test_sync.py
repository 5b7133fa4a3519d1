"""The sync of the built-in job, its workers as threads: what it reports, and what it says when something breaks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from runtime.grpo.job import Grpo
from runtime.grpo.messages import StagedShard
from runtime.phases import WorkerError, runtime_hook, set_session
from runtime.residency.layout import WeightLayout
from runtime.residency.staging import StagedVersion, StageReader, WeightStage
from runtime.sync.streams import Inbox, send_streams
from runtime.sync.wire import HEADER_BYTES, TAG_BYTES, Address, Transfer
from tests.runtime.grpo.here import Here, Worker
from tests.runtime.jobs.task_job import task_job

DATA = torch.arange(4096, dtype=torch.float32)
LAYOUT = WeightLayout.of({"weights": DATA})


class Engine:
    """What a rollout worker does in a sync; or its process dies in it."""

    def __init__(self, place: int, dies: bool) -> None:
        self.place, self.dies, self.dead = place, dies, False
        self.staged = WeightStage()
        self.known: StagedVersion | None = None
        self.residency = self

    def open_inbox(self) -> Address:
        self.inbox = Inbox("127.0.0.1")
        return self.inbox.address

    def stage(self, place: int, transfer: Transfer) -> int:
        try:
            if self.dies:
                self.dead = True
                raise WorkerError(f"its process on rollout-{self.place} has died")
            return self.inbox.receive(place, transfer, self.staged)
        finally:
            self.inbox.close()

    def staged_version(self) -> StagedVersion | None:
        return self.staged.staged_version()

    def set_staged(self, staged: StagedVersion | None) -> None:
        self.dead = self.dies
        self.ready()
        self.known = staged

    def ready(self) -> bool:
        if self.dead:
            raise WorkerError(f"its process on rollout-{self.place} has died")
        return True


class Rank:
    """What a training rank does in a sync."""

    def __init__(self, number: int, data: torch.Tensor) -> None:
        self.number, self.data = number, data

    def send(self, transfer: Transfer) -> int:
        return send_streams(self.number, transfer, 5, self.data.view(torch.uint8))

    def ready(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def in_a_run() -> Iterator[None]:
    set_session(Here())
    runtime_hook.renew()
    yield
    set_session(None)
    runtime_hook.renew()


def job(topology: str, dies: int | None = None) -> tuple[Grpo, list[Engine], list[Rank]]:
    """After a training on two ranks, with three rollout workers on two machines: the first of each stages weights for all."""
    given = {"id": "a", "slo": 2, "iterations": 1, "task": "echo", "sync": {"topology": topology}}
    made: Any = Grpo(task_job(given))
    cut = LAYOUT.nbytes if topology == "flat" else LAYOUT.nbytes // 2
    engines = [Engine(k, k == dies) for k in range(3)]
    ranks = [Rank(0, DATA[: cut // 4]), Rank(1, DATA[cut // 4 :])]
    held = ((0, cut),), ((cut, LAYOUT.nbytes),) if cut < LAYOUT.nbytes else ()
    kept = [StagedShard(5, LAYOUT, ranges) for ranges in held]
    handles = [Worker(engine) for engine in engines]  # would be processes
    vars(made._engines).update(_workers=handles, _machines=["x", "x", "y"], _stagers=[0, 0, 2])  # noqa: SLF001
    vars(made._ranks).update(_workers=[Worker(rank) for rank in ranks])  # noqa: SLF001
    made._weights = kept  # noqa: SLF001
    return made, engines, ranks


@pytest.mark.parametrize(("topology", "copies", "streams"), [("aware", 1, 3), ("flat", 2, 2)])
def test_what_crossed_the_link_is_reported(topology: str, copies: int, streams: int) -> None:
    made, engines, _ = job(topology)
    made.sync()
    assert runtime_hook.metrics == {
        "sync_link_bytes": copies * LAYOUT.nbytes + streams * (HEADER_BYTES + TAG_BYTES),
        "sync_weight_bytes": LAYOUT.nbytes,
    }
    for engine, stager in zip(engines, (0, 0, 2), strict=True):
        landed = engine.known
        assert landed is not None and landed.path == engines[stager].staged.path
        reader = StageReader(False)
        reader.staged = landed
        with reader.reading() as (weights, version):
            assert version == 5 and torch.equal(weights["weights"], DATA)
        reader.close()
    assert engines[1].staged.footprint().host == 0
    made.close()


@pytest.mark.parametrize("dies", [0, 1, 2])
def test_a_worker_that_dies_in_it_is_named(dies: int) -> None:
    made, engines, _ = job("aware", dies)
    with pytest.raises(WorkerError, match=f"its process on rollout-{dies} has died"):
        made.sync()
    assert dies == 1 or not any(engine.staged.complete for engine in engines)  # it has nothing staged for others
    made.close()


def test_a_stream_that_breaks_fails_the_job_in_one_line() -> None:
    made, engines, ranks = job("aware")
    ranks[1].data = DATA[:10]  # less than it is to send
    with pytest.raises(RuntimeError, match=r"^weights of version 5.* broke at training rank ") as broken:
        made.sync()
    assert "\n" not in str(broken.value) and not isinstance(broken.value, WorkerError)
    assert not any(engine.staged.complete for engine in engines)
    made.close()
