"""Whoever else comes to a sync: gets no weights, brings none, and holds up nobody."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from runtime.residency.layout import WeightLayout
from runtime.sync import streams, wire
from runtime.sync.wire import HEADER_BYTES, NO_OFFER, OFFER_BYTES, TAG_BYTES, Address, Transfer, wire_bytes
from tests.runtime.sync.members import Members
from tests.runtime.sync.proxy import Change, Proxy, flipped, unchanged

LAYOUT = WeightLayout.of({"weights": torch.empty(700, 1000)})  # 2.8 MB: three pieces
DATA = torch.randint(256, (LAYOUT.nbytes,), dtype=torch.uint8)
NEVER_S = 1e6
PIECES = 3


@pytest.fixture
def members() -> Iterator[Members]:
    made = Members(1, ["x"])
    yield made
    made.close()


def arrives(members: Members, transfer: Transfer) -> None:
    """Let the weights come, and see that they do."""
    sending = members.send(0, transfer, DATA, "aware")
    (stream,) = transfer.streams
    assert members.receive(0, transfer).result(60) == sending.result(60) == wire_bytes(stream)
    assert torch.equal(members.stages[0].weights()["weights"].flatten().view(torch.uint8), DATA)


def proxied(members: Members, forth: Change = unchanged, back: Change = unchanged) -> tuple[Transfer, Transfer, Proxy]:
    """A sync whose one rank sends through somebody: as the worker knows it, as the rank does, and who that is."""
    transfer = members.transfer(LAYOUT, 1, "aware")
    proxy = Proxy(transfer.addresses[0], forth, back)
    return transfer, replace(transfer, addresses=(proxy.address,)), proxy


def test_those_who_say_nothing_hold_up_nobody(members: Members, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_HEADER_S", NEVER_S)
    transfer = members.transfer(LAYOUT, 1, "aware")
    idle = [socket.create_connection(transfer.addresses[0]) for _ in range(3)]
    idle[0].sendall(b"half a header")
    arrives(members, transfer)
    for one in idle:
        assert one.recv(1) == b""
        one.close()


def test_a_header_has_so_long_altogether(members: Members, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_HEADER_S", 0.0)
    transfer = members.transfer(LAYOUT, 1, "aware")
    with socket.create_connection(transfer.addresses[0]) as slow:
        slow.sendall(b"b")
        receiving = members.receive(0, transfer)
        assert not read_all(slow)
        monkeypatch.setattr(streams, "_HEADER_S", NEVER_S)
        members.send(0, transfer, DATA, "aware").result(60)
        receiving.result(60)


def test_so_many_wait_and_then_the_oldest_goes(members: Members, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_HEADER_S", NEVER_S)
    monkeypatch.setattr(streams, "_MOST_WAITING", 4)
    transfer = members.transfer(LAYOUT, 1, "aware")
    idle = [socket.create_connection(transfer.addresses[0]) for _ in range(9)]
    receiving = members.receive(0, transfer)
    for one in idle[:5]:
        assert one.recv(1) == b""  # while the sync waits for its own
    members.send(0, transfer, DATA, "aware").result(60)
    receiving.result(60)
    for one in idle:
        one.close()


def test_a_header_of_another_sync_or_for_another_worker_is_a_strangers(members: Members) -> None:
    transfer = members.transfer(LAYOUT, 1, "aware")
    (stream,) = transfer.streams
    right = wire.header(transfer, stream, 0, NO_OFFER)
    strange = [
        wire.header(replace(transfer, secret=bytes(32)), stream, 0, NO_OFFER),
        wire.header(transfer, stream, 1, NO_OFFER),
        bytes(HEADER_BYTES),
        *(flipped(at)(right, 0) for at in (HEADER_BYTES - TAG_BYTES - 1, HEADER_BYTES - TAG_BYTES - OFFER_BYTES)),
    ]
    receiving = members.receive(0, transfer)
    for begins in strange:
        with socket.create_connection(transfer.addresses[0]) as stranger:
            stranger.sendall(begins)
            assert not read_all(stranger)
    members.send(0, transfer, DATA, "aware").result(60)
    receiving.result(60)


def test_the_secret_is_on_no_connection(members: Members) -> None:
    at_worker, at_rank, proxy = proxied(members)
    receiving = members.receive(0, at_worker)
    members.send(0, at_rank, DATA, "aware").result(60)
    receiving.result(60)
    proxy.close()
    assert len(proxy.seen) == wire_bytes(at_rank.streams[0]) + 2 * TAG_BYTES
    assert at_rank.secret not in proxy.seen and repr(at_rank.secret) not in repr(at_rank)


@pytest.mark.parametrize("at", [0, LAYOUT.nbytes - 1, LAYOUT.nbytes + TAG_BYTES * PIECES - 1])
def test_what_was_changed_on_the_way_is_not_staged(members: Members, at: int) -> None:
    at_worker, at_rank, proxy = proxied(members, forth=flipped(HEADER_BYTES + at))
    receiving = members.receive(0, at_worker)
    sending = members.send(0, at_rank, DATA, "aware")
    assert str(receiving.exception(60)).endswith(" came from somebody else")
    assert sending.exception(60) is not None
    proxy.close()
    with pytest.raises(RuntimeError, match="not complete"):
        members.stages[0].weights()


@pytest.mark.parametrize(("at", "what"), [(0, "a welcome"), (TAG_BYTES, "thanks")])
def test_answers_that_were_changed_are_not_believed(members: Members, at: int, what: str) -> None:
    at_worker, at_rank, proxy = proxied(members, back=flipped(at))
    receiving = members.receive(0, at_worker)
    assert str(members.send(0, at_rank, DATA, "aware").exception(60)).endswith(f"{what} came from somebody else")
    receiving.exception(60)
    proxy.close()


def test_who_has_taken_the_place_of_a_worker_gets_no_weights(members: Members) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken: Address = server.getsockname()
        transfer = replace(members.transfer(LAYOUT, 1, "aware"), addresses=(taken,))
        sending = members.send(0, transfer, DATA, "aware")
        with server.accept()[0] as connection:
            connection.sendall(bytes(TAG_BYTES))
            came = read_all(connection)
    assert len(came) == HEADER_BYTES
    assert str(sending.exception(60)).endswith("a welcome came from somebody else")


def test_an_answer_has_so_long_altogether() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"a")
        with pytest.raises(TimeoutError):
            wire.expect(ours, bytes(TAG_BYTES), "a welcome came", 0.0)


def read_all(source: socket.socket) -> bytes:
    """What comes until the other side ends the connection."""
    found = b""
    try:
        while data := source.recv(1 << 16):
            found += data
    except ConnectionResetError:
        pass
    return found
