"""How the streams of a plan get there: training ranks send them, rollout workers receive them into their stage and pass them on.

A connection for every hop of every stream, and a thread for every stream, so that each waits for nobody but those on its own way.
All of it lives for one sync. Plain TCP, between host memories: from the rank's copy into the stage, and on from there. Not torch's
gloo, since its connections cannot be ended: who fails here ends its own, and so the streams of those before and behind it.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING

from rollmux_env.validation_errors import one_line
from runtime.sync import wire
from runtime.sync.arrivals import Arrivals
from runtime.sync.plan import Stream
from runtime.sync.wire import HEADER_BYTES, Address, Transfer, wire_bytes

if TYPE_CHECKING:
    from torch import Tensor

    from runtime.residency.staging import WeightStage

_TIMEOUT_S = 600.0  # one that has died is noticed at once; this is for one that hangs


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
            Bytes that came to this worker over the link, headers included.

        Raises:
            RuntimeError: a stream broke, or brought something else; one line. The stage is incomplete then.
        """
        stage.begin(transfer.layout, transfer.version)
        expected = {stream.number: stream for stream in transfer.streams if worker in stream.way}
        behind = {number: stream.way[stream.way.index(worker) + 1 :] for number, stream in expected.items()}
        with (
            _Connections() as connections,
            ThreadPoolExecutor(max(len(expected), 1)) as threads,
            Arrivals(connections.add(self._server), HEADER_BYTES) as arrivals,
            connections.failing(f"weights of version {transfer.version} broke at rollout worker {worker}"),
        ):
            to = _announce(connections, transfer, {number: way[0] for number, way in behind.items() if way})
            until_s = monotonic() + _TIMEOUT_S
            while expected:
                source, header = arrivals.next(until_s)
                announced = wire.read_header(header, transfer, worker)
                if announced is None:
                    source.close()
                    continue
                connections.add(source)  # so that it ends with the others, whatever it brings
                stream = _taken(announced, transfer, expected)
                on = to.get(stream.number)
                threads.submit(_receive, connections, source, on, worker, transfer, stream, stage)
        return sum(wire_bytes(stream) for stream in transfer.streams if stream.way[0] == worker)

    def close(self) -> None:
        """Take no connections any more. Again: no effect."""
        self._server.close()


def send_streams(rank: int, transfer: Transfer, version: int, data: Tensor) -> int:
    """Send a training rank's streams; every worker on their ways receives at the same time.

    Args:
        version: of what the rank holds. data: its bytes, in order: uint8 on the CPU.

    Returns:
        Bytes sent, headers included: all of them go over the link.

    Raises:
        RuntimeError: the rank holds something else, or a stream broke; one line.
    """
    mine = [stream for stream in transfer.streams if stream.rank == rank]
    with (
        _Connections() as connections,
        ThreadPoolExecutor(max(len(mine), 1)) as threads,
        connections.failing(f"weights of version {transfer.version} broke at training rank {rank}"),
    ):
        to = _announce(connections, transfer, {stream.number: stream.way[0] for stream in mine})
        needed = max((stream.first + stream.nbytes for stream in mine), default=0)
        if version != transfer.version or len(data) != needed:
            raise RuntimeError(f"it holds {len(data)} bytes of version {version}, {needed} are to be sent")
        for stream in mine:
            threads.submit(_send, connections, to[stream.number], transfer, stream, data.numpy().data)
    return sum(wire_bytes(stream) for stream in mine)


class _Connections:
    """All that a member has open during a sync. When one stream fails all are ended, and leaving the block raises its problem."""

    def __init__(self) -> None:
        self._open: list[socket.socket] = []
        self._lock = Lock()
        self._problem: RuntimeError | None = None

    def __enter__(self) -> _Connections:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._open:
            one.close()
        if self._problem is not None:
            raise self._problem

    def add(self, one: socket.socket) -> socket.socket:
        one.settimeout(_TIMEOUT_S)
        with self._lock:
            self._open.append(one)
            if self._problem is not None:
                _end(one)
        return one

    @contextlib.contextmanager
    def failing(self, what: str) -> Iterator[None]:
        """Name what fails in this block, and end all connections then."""
        try:
            yield
        except Exception as error:
            with self._lock:
                reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
                self._problem = self._problem or RuntimeError(f"{what}: {one_line(reason, 200)}")
                for one in self._open:
                    _end(one)


def _announce(connections: _Connections, transfer: Transfer, workers: dict[int, int]) -> dict[int, socket.socket]:
    """Connect to the workers that some streams, by number, go to next.

    This is done before a byte is sent, and to all of them even where one cannot be reached: a worker that has been told of a stream
    notices when it ends early.

    Raises:
        OSError: one cannot be reached.
    """
    opened, problem = dict[int, socket.socket](), None
    for stream in transfer.streams:
        if stream.number in workers:
            try:
                worker = workers[stream.number]
                to = connections.add(socket.create_connection(transfer.addresses[worker], _TIMEOUT_S))
                to.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # tags are short, and nothing waits for them
                to.sendall(wire.header(transfer, stream, worker))
                opened[stream.number] = to
            except OSError as error:
                problem = problem or error
    if problem is not None:
        raise problem
    return opened


def _send(connections: _Connections, to: socket.socket, transfer: Transfer, stream: Stream, data: memoryview) -> None:
    with connections.failing(_broke(transfer, stream, f"training rank {stream.rank}")):
        wire.expect(to, wire.welcome(transfer, stream, stream.way[0]), "a welcome came", _TIMEOUT_S)
        at = stream.first
        for piece in wire.pieces(stream):
            part = data[at : at + piece[1] - piece[0]]
            to.sendall(part)
            to.sendall(wire.piece_tag(transfer, stream, piece, part))  # computed while the piece is on its way
            at += len(part)
        wire.expect(to, wire.thanks(transfer, stream, stream.way[0]), "thanks came")


def _receive(
    connections: _Connections,
    source: socket.socket,
    to: socket.socket | None,
    worker: int,
    transfer: Transfer,
    stream: Stream,
    stage: WeightStage,
) -> None:
    def take(piece: tuple[int, int], room: Tensor) -> None:
        memory = room.numpy().data
        wire.read(source, memory)
        if to is not None:
            to.sendall(memory)
        tag = wire.piece_tag(transfer, stream, piece, memory)
        wire.expect(source, tag, f"bytes {piece[0]} to {piece[1]} came")
        if to is not None:
            to.sendall(tag)

    with connections.failing(_broke(transfer, stream, f"rollout worker {worker}")):
        source.sendall(wire.welcome(transfer, stream, worker))
        behind = stream.way[stream.way.index(worker) + 1 :]
        if to is not None:
            wire.expect(to, wire.welcome(transfer, stream, behind[0]), "a welcome came", _TIMEOUT_S)
        for piece in wire.pieces(stream):
            stage.take(transfer.version, *piece, partial(take, piece))
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


def _end(one: socket.socket) -> None:
    """End a connection for both sides and for the threads that wait on it; whoever opened it closes it."""
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)


def _broke(transfer: Transfer, stream: Stream, where: str) -> str:
    return f"weights of version {transfer.version}, stream {stream.number} of {len(transfer.streams)}, broke at {where}"
