"""How the streams of a plan get there: training ranks send them, rollout workers receive them into their stage and pass them on.

A connection for every hop of every stream, and a thread for every stream, so that each waits for nobody but those on its own way.
All of it lives for one sync. Between two processes of one machine the bytes are read from shared memory (`runtime.sync.wire`).
Else they go over the connection: plain TCP, from the rank's host memory into the stage, and on from there. Not torch's gloo, since
its connections cannot be ended: who fails here ends its own, and so the streams of those before and behind it.
"""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from runtime.residency.layout import Memory
from runtime.sync import wire
from runtime.sync.connections import TIMEOUT_S, Arrivals, Connections
from runtime.sync.plan import Stream
from runtime.sync.wire import HEADER_BYTES, Address, Transfer, wire_bytes

if TYPE_CHECKING:
    from torch import Tensor

    from runtime.residency.staging import WeightStage


class Inbox:
    """Where a rollout worker is reached during a sync.

    Args:
        host: address of this process as the others see it.

    Attributes:
        address: host and port.
    """

    def __init__(self, host: str) -> None:
        self._server = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=1024)
        self.address: Address = self._server.getsockname()[:2]

    def receive(self, worker: int, transfer: Transfer, stage: WeightStage) -> int:
        """Fill the worker's stage with a version, and pass on to other workers what they are to have from here.

        Returns:
            Bytes that came to this worker from ranks, over connections, headers included.

        Raises:
            RuntimeError: a stream broke, or brought something else; one line. The stage is incomplete then.
        """
        stage.begin(transfer.layout, transfer.version)
        expected = {stream.number: stream for stream in transfer.streams if worker in stream.way}
        behind = {number: stream.way[stream.way.index(worker) + 1 :] for number, stream in expected.items()}
        with (
            Connections() as connections,
            ThreadPoolExecutor(max(len(expected), 1)) as threads,
            Arrivals(connections.add(self._server), HEADER_BYTES) as arrivals,
            connections.failing(f"weights of version {transfer.version} broke at rollout worker {worker}"),
        ):
            to = _announce(connections, transfer, {number: way[0] for number, way in behind.items() if way}, stage.memory())
            until_s = monotonic() + TIMEOUT_S
            came = []
            while expected:
                source, header = arrivals.next(until_s)
                announced = wire.read_header(header, transfer, worker)
                if announced is None:
                    source.close()
                    continue
                connections.add(source)  # so that it ends with the others, whatever it brings
                numbers, offer = announced
                hop = _Hop(transfer, _taken(numbers, transfer, expected), source, connections.open_offer(offer))
                came.append(hop)
                threads.submit(_receive, connections, hop, to.get(hop.stream.number), worker, stage)
        return sum(wire_bytes(hop.stream, hop.memory is not None) for hop in came if hop.stream.way[0] == worker)

    def close(self) -> None:
        """Take no connections any more. Again: no effect."""
        self._server.close()


def send_streams(rank: int, transfer: Transfer, version: int, data: Tensor, memory: Memory | None = None) -> int:
    """Send a training rank's streams; every worker on their ways receives at the same time.

    Args:
        version: of what the rank holds. data: its bytes, in order: uint8 on the CPU. memory: where other processes of this machine
            can read them.

    Returns:
        Bytes sent over connections, headers included.

    Raises:
        RuntimeError: the rank holds something else, or a stream broke; one line.
    """
    mine = [stream for stream in transfer.streams if stream.rank == rank]
    with (
        Connections() as connections,
        ThreadPoolExecutor(max(len(mine), 1)) as threads,
        connections.failing(f"weights of version {transfer.version} broke at training rank {rank}"),
    ):
        to = _announce(connections, transfer, {stream.number: stream.way[0] for stream in mine}, memory)
        needed = max((stream.first + stream.nbytes for stream in mine), default=0)
        if version != transfer.version or len(data) != needed:
            raise RuntimeError(f"it holds {len(data)} bytes of version {version}, {needed} are to be sent")
        sent = [threads.submit(_send, connections, to[stream.number], transfer, stream, data.numpy().data) for stream in mine]
    return sum(future.result() for future in sent)


@dataclass(frozen=True)
class _Hop:
    """A stream as it comes to a worker: the connection, and the sender's shared memory where the pieces are read from that."""

    transfer: Transfer
    stream: Stream
    source: socket.socket
    memory: Memory | None


def _announce(
    connections: Connections, transfer: Transfer, workers: dict[int, int], memory: Memory | None
) -> dict[int, socket.socket]:
    """Connect to the workers that some streams, by number, go to next, and offer them the memory that holds the bytes.

    This is done before a byte is sent, and to all of them even where one cannot be reached: a worker that has been told of a stream
    notices when it ends early.

    Raises:
        OSError: one cannot be reached.
    """
    opened, problem, offer = dict[int, socket.socket](), None, wire.offer(memory)
    for stream in transfer.streams:
        if stream.number in workers:
            try:
                worker = workers[stream.number]
                to = connections.add(socket.create_connection(transfer.addresses[worker], TIMEOUT_S))
                to.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # tags are short, and nothing waits for them
                to.sendall(wire.header(transfer, stream, worker, offer))
                opened[stream.number] = to
            except OSError as error:
                problem = problem or error
    if problem is not None:
        raise problem
    return opened


def _send(connections: Connections, to: socket.socket, transfer: Transfer, stream: Stream, data: memoryview) -> int:
    """Send a stream; the bytes that went over its connection."""
    is_shared = False
    with connections.failing(_broke(transfer, stream, f"training rank {stream.rank}")):
        is_shared = wire.expect_welcome(to, transfer, stream, stream.way[0], TIMEOUT_S)
        at = stream.first
        for piece in wire.pieces(stream):
            part = data[at : at + piece[1] - piece[0]]
            at += len(part)
            if is_shared:
                to.sendall(wire.there_tag(transfer, stream, piece))
            else:
                to.sendall(part)
                to.sendall(wire.piece_tag(transfer, stream, piece, part))  # computed while the piece is on its way
        wire.expect(to, wire.thanks(transfer, stream, stream.way[0]), "thanks came")
    return wire_bytes(stream, is_shared)


def _receive(connections: Connections, hop: _Hop, to: socket.socket | None, worker: int, stage: WeightStage) -> None:
    """Take a stream into the stage, and pass it on to `to` if it goes further."""
    transfer, stream, source = hop.transfer, hop.stream, hop.source

    def take(piece: tuple[int, int], start: int, room: Tensor) -> None:
        memory, what = room.numpy().data, f"bytes {piece[0]} to {piece[1]} came"
        if hop.memory is None:
            wire.read(source, memory)
        else:
            wire.expect(source, wire.there_tag(transfer, stream, piece), what)
            wire.copy(hop.memory, start, memory, source)
        if to is not None and not is_shared:
            to.sendall(memory)
        tag = wire.piece_tag(transfer, stream, piece, memory) if hop.memory is None or (to is not None and not is_shared) else b""
        if hop.memory is None:
            wire.expect(source, tag, what)
        if to is not None:
            to.sendall(wire.there_tag(transfer, stream, piece) if is_shared else tag)

    with connections.failing(_broke(transfer, stream, f"rollout worker {worker}")):
        source.sendall(wire.welcome(transfer, stream, worker, hop.memory is not None))
        place = stream.way.index(worker)
        behind = stream.way[place + 1 :]
        is_shared = to is not None and wire.expect_welcome(to, transfer, stream, behind[0], TIMEOUT_S)
        at = stream.first  # of a rank's bytes
        for piece in wire.pieces(stream):
            stage.take(transfer.version, *piece, partial(take, piece, at if place == 0 else piece[0]))
            at += piece[1] - piece[0]
        if to is not None:
            wire.expect(to, wire.thanks(transfer, stream, behind[0]), "thanks came")
        source.sendall(wire.thanks(transfer, stream, worker))


def _taken(announced: tuple[int, int, int], transfer: Transfer, expected: dict[int, Stream]) -> Stream:
    """The stream that a connection announces, taken out of those that are missing.

    Raises:
        RuntimeError: it brings another version, or what is not to come here.
    """
    version, number, nbytes = announced
    stream = expected.pop(number, None)
    if stream is None or (version, nbytes) != (transfer.version, stream.nbytes):
        raise RuntimeError(f"stream {number} brings {nbytes} bytes of version {version}")
    return stream


def _broke(transfer: Transfer, stream: Stream, where: str) -> str:
    return f"weights of version {transfer.version}, stream {stream.number} of {len(transfer.streams)}, broke at {where}"
