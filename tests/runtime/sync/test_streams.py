"""Streams over real connections: everybody has the weights, the link carries one copy, and what breaks is said."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from runtime.residency.layout import WeightLayout, WeightMemory
from runtime.sync import wire
from runtime.sync.plan import Topology
from runtime.sync.wire import NO_OFFER, header, wire_bytes
from tests.runtime.sync.members import Members

WEIGHTS = {"a": torch.randn(301, 7), "b": torch.randn(5), "big": torch.randn(1300, 1000)}  # 5 MB: more than one chunk
LAYOUT = WeightLayout.of(WEIGHTS)
DATA = torch.cat([WEIGHTS[name].flatten().view(torch.uint8) for name, *_ in LAYOUT.tensors])
Start = Callable[..., Members]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[Members] = []

    def starting(ranks: int, nodes: list[str], machines: list[str] | None = None) -> Members:
        started.append(Members(ranks, nodes, machines))
        return started[-1]

    yield starting
    for members in started:
        members.close()


@pytest.mark.parametrize(
    ("ranks", "nodes", "topology", "copies"),
    [
        (["r"], ["x"], "aware", 1),
        (["r"], ["x", "y", "z"], "aware", 1),
        (["r", "r", "r", "r"], ["x"], "aware", 1),
        (["r", "s"], ["x", "x", "y", "y"], "aware", 1),
        (["r", "r", "r"], ["x", "y"], "aware", 1),
        (["r", "s"], ["x", "x", "y", "z"], "flat", 3),
        (["x"], ["x"], "aware", 0),  # shared memory alone
        (["x", "x"], ["x", "x", "x"], "aware", 0),
        (["x", "x"], ["x", "x"], "flat", 0),
        (["x", "y"], ["x", "x", "y"], "aware", None),  # some of both
        (["x"], ["x", "y"], "aware", None),
        (["y", "x"], ["x", "x", "y"], "flat", 1),
    ],
)
def test_every_worker_has_the_weights_and_the_link_carries_one_copy(
    start: Start, monkeypatch: pytest.MonkeyPatch, ranks: list[str], nodes: list[str], topology: Topology, copies: int | None
) -> None:
    members, read = start(len(ranks), nodes, ranks), list[int]()
    true = wire.copy

    def counted(memory: WeightMemory, start: int, to: memoryview, sender: socket.socket) -> None:
        true(memory, start, to, sender)
        read.append(len(to))

    monkeypatch.setattr(wire, "copy", counted)
    for version in (1, 2):  # and again, into the same memory
        read.clear()
        data, transfer = DATA.roll(version), members.transfer(LAYOUT, version, topology)
        receiving = [members.receive(k, transfer) for k in range(len(nodes))]
        sent = sum(future.result(60) for future in [members.send(k, transfer, data, topology) for k in range(len(ranks))])
        received = sum(future.result(60) for future in receiving)
        local = {one.number: members.is_local(one.rank, one.way[0]) for one in transfer.streams}
        assert sent == received == sum(wire_bytes(stream, local[stream.number]) for stream in transfer.streams)
        if copies is not None:
            assert LAYOUT.nbytes * copies < sent < LAYOUT.nbytes * (copies + 0.005)
        near = [one for one in transfer.streams if local[one.number]]
        near += [one for one in transfer.streams for before, here in pairwise(one.way) if nodes[before] == nodes[here]]
        assert sum(read) == sum(stream.nbytes for stream in near)
        for stage in members.stages:
            assert stage.version == version
            whole = stage.weights()
            assert torch.equal(torch.cat([whole[name].flatten().view(torch.uint8) for name, *_ in LAYOUT.tensors]), data)


@pytest.mark.parametrize("told", [True, False])
def test_another_version_is_refused_and_nobody_waits_for_it(start: Start, told: bool) -> None:
    members = start(2, ["x", "y"])
    transfer = members.transfer(LAYOUT, 7, "aware")
    futures = [members.receive(k, transfer) for k in range(2)]
    other = transfer if told else replace(transfer, version=6)
    futures += [members.send(0, other, DATA, "aware", version=6), members.send(1, transfer, DATA, "aware")]
    problems = [str(future.exception(60)) for future in futures]
    assert all(problem.startswith("weights of version") for problem in problems)
    if told:
        assert problems[2].startswith("weights of version 7 broke at training rank 0: it holds ")
        assert problems[2].endswith(" are to be sent")
    else:
        assert any("broke at rollout worker 0: stream 0 brings" in problem for problem in problems)
    for stage in members.stages:
        with pytest.raises(RuntimeError, match="version 7 are not complete"):
            stage.weights()


@pytest.mark.parametrize("sent", [0, 1000])
def test_a_rank_that_dies_breaks_its_streams_and_those_behind_them(start: Start, sent: int) -> None:
    members = start(1, ["x", "y", "z"])
    transfer = members.transfer(LAYOUT, 3, "aware")
    receiving = [members.receive(k, transfer) for k in range(3)]
    dying = [socket.create_connection(transfer.addresses[stream.way[0]]) for stream in transfer.streams]
    for stream, connection in zip(transfer.streams, dying, strict=True):
        connection.sendall(header(transfer, stream, stream.way[0], NO_OFFER) + bytes(sent))
    for connection in dying:
        connection.close()
    problems = [str(future.exception(60)) for future in receiving]
    assert all(problem.startswith("weights of version 3") and "\n" not in problem for problem in problems)
    assert any(problem.endswith("the connection was closed before its end") for problem in problems)
    assert not any(stage.complete for stage in members.stages)


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_a_worker_that_is_gone_breaks_the_sync_of_all(start: Start, gone: int) -> None:
    members = start(2, ["x", "y", "z"])
    transfer = members.transfer(LAYOUT, 3, "aware")
    members.inboxes[gone].close()
    futures = [members.receive(k, transfer) for k in range(3) if k != gone]
    futures += [members.send(k, transfer, DATA, "aware") for k in range(2)]
    problems = [str(future.exception(60)) for future in futures]
    assert all(problem.startswith("weights of version 3") for problem in problems)
    assert any(problem.endswith(": Connection refused") for problem in problems)
