"""How the streams of a plan get there: training ranks send them, rollout workers receive them into their stage and pass them on.

A connection for every hop of every stream, and a thread for every stream, so that each waits for nobody but those on its own way.
All of it lives for one sync. Between two processes of one machine the bytes are read from shared memory (`runtime.sync.wire`).
Else they go over the connection: plain TCP, from the rank's host memory into the stage, and on from there. Not torch's gloo, since
its connections cannot be ended: who fails here ends its own, and so the streams of those before and behind it.

Anybody may reach an inbox: headers are read side by side, so that nobody holds up others. A connection has so long for its whole
header, and so many may be without one at a time: then the oldest has to go, since the header of one that belongs here comes right
behind it.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any

from rollmux_env.validation_errors import one_line
from runtime.residency.layout import Memory
from runtime.sync import wire
from runtime.sync.plan import Stream
from runtime.sync.wire import HEADER_BYTES, Address, Transfer, wire_bytes

if TYPE_CHECKING:
    from torch import Tensor

    from runtime.residency.staging import WeightStage


_HEADER_S = 10.0  # for the whole header of a connection
_MOST = 128  # connections without a header

TIMEOUT_S = 600.0
"""For one that hangs; one that has died is noticed at once."""


class Connections(contextlib.ExitStack):
    """All that a member has open during a sync. When one stream fails all are ended, and leaving the block raises its problem."""

    def __init__(self) -> None:
        super().__init__()
        self._open: list[socket.socket] = []
        self._lock = Lock()
        self._problem: RuntimeError | None = None

    def __exit__(self, *details: Any) -> None:
        super().__exit__(*details)
        if self._problem is not None:
            raise self._problem

    def add(self, one: socket.socket) -> socket.socket:
        one.settimeout(TIMEOUT_S)
        with self._lock:
            self.callback(one.close)
            self._open.append(one)
            if self._problem is not None:
                _end(one)
        return one

    def open_offer(self, offer: bytes) -> Memory | None:
        """The shared memory that a header offers, if it can be reached."""
        memory = wire.open_offer(offer)
        if memory is not None:
            self.callback(os.close, memory.file)
        return memory

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


def _end(one: socket.socket) -> None:
    """End a connection for both sides and for the threads that wait on it; whoever opened it closes it."""
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)


class Arrivals:
    """What comes to a listening socket, until this is closed.

    Args:
        server: listens. size: bytes of a header.
    """

    def __init__(self, server: socket.socket, size: int) -> None:
        self._server, self._size = server, size
        self._waiting: dict[socket.socket, tuple[float, bytearray]] = {}  # until when, and its header so far; the oldest first
        self._selector = selectors.DefaultSelector()
        server.setblocking(False)
        self._selector.register(server, selectors.EVENT_READ)

    def close(self) -> None:
        """Let go of those that have not said who they are."""
        self._selector.close()
        for one in self._waiting:
            one.close()

    def next(self, until_s: float) -> tuple[socket.socket, bytes]:
        """The next connection whose header is complete, and the header; whoever sent it.

        Args:
            until_s: on `time.monotonic`'s clock.

        Raises:
            TimeoutError: there was none until then. OSError: the server has ended.
        """
        while (now_s := monotonic()) < until_s:
            while self._waiting and (oldest := next(iter(self._waiting))) and self._waiting[oldest][0] <= now_s:
                self._drop(oldest)
            soonest_s = next(iter(self._waiting.values()))[0] if self._waiting else until_s
            for key, _ in self._selector.select(max(min(soonest_s, until_s) - now_s, 0.0)):
                one = key.fileobj
                assert isinstance(one, socket.socket)
                if one is self._server:
                    self._accept()
                elif one in self._waiting and (header := self._read(one)) is not None:
                    return one, header
        raise TimeoutError("timed out")

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionError):  # it has gone again
            one = self._server.accept()[0]
            one.setblocking(False)
            self._waiting[one] = monotonic() + _HEADER_S, bytearray()
            self._selector.register(one, selectors.EVENT_READ)
            if len(self._waiting) > _MOST:
                self._drop(next(iter(self._waiting)))

    def _read(self, one: socket.socket) -> bytes | None:
        """Read on in a connection's header; the header when it is complete, and the connection is the caller's then."""
        header = self._waiting[one][1]
        try:
            data = one.recv(self._size - len(header))
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        header += data
        if not data:
            self._drop(one)
        elif len(header) == self._size:
            self._selector.unregister(one)
            del self._waiting[one]
            return bytes(header)
        return None

    def _drop(self, one: socket.socket) -> None:
        self._selector.unregister(one)
        del self._waiting[one]
        one.close()


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
            contextlib.closing(Arrivals(connections.add(self._server), HEADER_BYTES)) as arrivals,
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
