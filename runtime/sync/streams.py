"""Transfer of the streams of a plan: training ranks send them, rollout workers receive them into their stage and pass them on.

Every hop of every stream has its own connection, and every stream its own thread, so that a stream waits only for the members on
its own way. All of this lives for one sync. Between two processes of one machine, the bytes are read from shared memory (see
`runtime.sync.wire`). Otherwise they go over the connection: plain TCP, from the rank's host memory into the stage, and on from
there. Gloo of PyTorch is not used, since its connections cannot be ended from outside: here a member that fails ends its own
connections, and thereby the streams of the members before and after it.

Any process can connect to an inbox. Headers are read concurrently, so that no connection delays another. A connection has a limited
time for its whole header. The number of connections without a header is limited too: the oldest one is closed when there are more,
since a member sends its header right after it connects.
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
from runtime.residency.layout import WeightMemory
from runtime.sync import wire
from runtime.sync.plan import WeightStream
from runtime.sync.wire import HEADER_BYTES, Address, Transfer, wire_bytes

if TYPE_CHECKING:
    from torch import Tensor

    from runtime.residency.staging import WeightStage


_HEADER_S = 10.0  # time limit for the whole header of a connection, in seconds
_MOST_WAITING = 128  # largest number of connections without a header

TIMEOUT_S = 600.0
"""Time limit for a member that hangs, in seconds. A member that has died is noticed at once."""


class TransferConnections(contextlib.ExitStack):
    """All connections that a member has open during a sync. If one stream fails, all are ended, and leaving the block raises."""

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
        """Set the time limit of a connection, and end it together with the others."""
        one.settimeout(TIMEOUT_S)
        with self._lock:
            self.callback(one.close)
            self._open.append(one)
            if self._problem is not None:
                _end(one)
        return one

    def open_offer(self, offer: bytes) -> WeightMemory | None:
        """Open the shared memory that a header offers, until the block ends. Returns None if it cannot be reached from here."""
        memory = wire.open_offer(offer)
        if memory is not None:
            self.callback(os.close, memory.file)
        return memory

    @contextlib.contextmanager
    def failing(self, what: str) -> Iterator[None]:
        """End all connections if the block fails, and keep the first error for the end of the outer block.

        Args:
            what: Description of the block, for the message.
        """
        try:
            yield
        except Exception as error:
            with self._lock:
                reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
                self._problem = self._problem or RuntimeError(f"{what}: {one_line(reason, 200)}")
                for one in self._open:
                    _end(one)


def _end(one: socket.socket) -> None:
    """End a connection for both sides and for the threads that wait on it. Its opener still has to close it."""
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)


class IncomingConnections:
    """Headers of the connections to a listening socket, read concurrently.

    Args:
        server: Listening socket.
        size: Size of a header, in bytes.
    """

    def __init__(self, server: socket.socket, size: int) -> None:
        self._server, self._size = server, size
        self._waiting: dict[socket.socket, tuple[float, bytearray]] = {}  # deadline, and the header so far; the oldest first
        self._selector = selectors.DefaultSelector()
        server.setblocking(False)
        self._selector.register(server, selectors.EVENT_READ)

    def close(self) -> None:
        """Close the connections whose header is incomplete."""
        self._selector.close()
        for one in self._waiting:
            one.close()

    def next(self, until_s: float) -> tuple[socket.socket, bytes]:
        """Return the next connection with a complete header, and the header. The sender is not checked.

        Args:
            until_s: Time to give up, on the clock of `time.monotonic`, in seconds.

        Raises:
            TimeoutError: There was none until then.
            OSError: The listening socket is closed.
        """
        while (now_s := monotonic()) < until_s:
            while self._waiting and (oldest := next(iter(self._waiting))) and self._waiting[oldest][0] <= now_s:
                self._drop_incomplete(oldest)
            soonest_s = next(iter(self._waiting.values()))[0] if self._waiting else until_s
            for key, _ in self._selector.select(max(min(soonest_s, until_s) - now_s, 0.0)):
                one = key.fileobj
                assert isinstance(one, socket.socket)
                if one is self._server:
                    self._accept()
                elif one in self._waiting and (header := self._read_header(one)) is not None:
                    return one, header
        raise TimeoutError("timed out")

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionError):  # the connection may be gone again
            one = self._server.accept()[0]
            one.setblocking(False)
            self._waiting[one] = monotonic() + _HEADER_S, bytearray()
            self._selector.register(one, selectors.EVENT_READ)
            if len(self._waiting) > _MOST_WAITING:
                self._drop_incomplete(next(iter(self._waiting)))

    def _read_header(self, one: socket.socket) -> bytes | None:
        """Read more of a connection's header. Returns the header once it is complete; the caller then owns the connection."""
        header = self._waiting[one][1]
        try:
            data = one.recv(self._size - len(header))
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        header += data
        if not data:
            self._drop_incomplete(one)
        elif len(header) == self._size:
            self._selector.unregister(one)
            del self._waiting[one]
            return bytes(header)
        return None

    def _drop_incomplete(self, one: socket.socket) -> None:
        """Close a connection whose header is incomplete."""
        self._selector.unregister(one)
        del self._waiting[one]
        one.close()


class Inbox:
    """Listening socket of a rollout worker during a sync.

    Args:
        host: Address of this process as the other members see it.

    Attributes:
        address: Host and port.
    """

    def __init__(self, host: str) -> None:
        self._server = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=1024)
        self.address: Address = self._server.getsockname()[:2]

    def receive(self, worker: int, transfer: Transfer, stage: WeightStage) -> int:
        """Fill the worker's stage with a version of the weights, and pass on the streams that go further.

        Args:
            worker: Number of this rollout worker.
            transfer: The sync.
            stage: Stage of this worker.

        Returns:
            Number of bytes that came to this worker directly from ranks over connections, including headers.

        Raises:
            RuntimeError: A stream broke or brought something else. The stage is incomplete then. The message is one line.
        """
        stage.begin(transfer.layout, transfer.version)
        expected = {stream.number: stream for stream in transfer.streams if worker in stream.way}
        later = {number: stream.way[stream.way.index(worker) + 1 :] for number, stream in expected.items()}
        with (
            TransferConnections() as connections,
            ThreadPoolExecutor(max(len(expected), 1)) as threads,
            contextlib.closing(IncomingConnections(connections.add(self._server), HEADER_BYTES)) as arrivals,
            connections.failing(f"weights of version {transfer.version} broke at rollout worker {worker}"),
        ):
            to = _announce(connections, transfer, {number: way[0] for number, way in later.items() if way}, stage.memory())
            until_s = monotonic() + TIMEOUT_S
            came = []
            while expected:
                source, header = arrivals.next(until_s)
                announced = wire.read_header(header, transfer, worker)
                if announced is None:
                    source.close()
                    continue
                connections.add(source)  # so that it is ended with the others, whatever it brings
                numbers, offer = announced
                hop = _IncomingStream(transfer, _take_expected(numbers, transfer, expected), source, connections.open_offer(offer))
                came.append(hop)
                threads.submit(_receive, connections, hop, to.get(hop.stream.number), worker, stage)
        return sum(wire_bytes(hop.stream, hop.memory is not None) for hop in came if hop.stream.way[0] == worker)

    def close(self) -> None:
        """Accept no more connections. Has no effect when repeated."""
        self._server.close()


def send_streams(rank: int, transfer: Transfer, version: int, data: Tensor, memory: WeightMemory | None = None) -> int:
    """Send a training rank's streams. Every worker on their ways must receive at the same time.

    Args:
        rank: Number of the rank.
        transfer: The sync.
        version: Version of the weights that the rank holds.
        data: Bytes that the rank holds, in order, uint8 on the CPU.
        memory: Shared memory from which other processes of this machine can read these bytes, or None.

    Returns:
        Number of bytes sent over connections, including headers.

    Raises:
        RuntimeError: The rank holds something else, or a stream broke. The message is one line.
    """
    mine = [stream for stream in transfer.streams if stream.rank == rank]
    with (
        TransferConnections() as connections,
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
class _IncomingStream:
    """A stream that arrives at a worker.

    Attributes:
        transfer: The sync.
        stream: The stream.
        source: Connection over which the stream arrives.
        memory: The sender's shared memory from which the pieces are read, or None if they come over the connection.
    """

    transfer: Transfer
    stream: WeightStream
    source: socket.socket
    memory: WeightMemory | None


def _announce(
    connections: TransferConnections, transfer: Transfer, workers: dict[int, int], memory: WeightMemory | None
) -> dict[int, socket.socket]:
    """Connect to the next worker of each stream, and offer it the memory that contains the bytes.

    This happens before any byte is sent, and with all workers even if one of them cannot be reached: a worker that knows of a
    stream notices when it ends early.

    Args:
        connections: All connections of this member, to which the new ones are added.
        transfer: The sync.
        workers: Next worker of each stream, by the stream's number.
        memory: Shared memory to offer, or None.

    Returns:
        The connection of each stream, by the stream's number.

    Raises:
        OSError: A worker cannot be reached.
    """
    opened, problem, offer = dict[int, socket.socket](), None, wire.offer(memory)
    for stream in transfer.streams:
        if stream.number in workers:
            try:
                worker = workers[stream.number]
                to = connections.add(socket.create_connection(transfer.addresses[worker], TIMEOUT_S))
                to.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # tags are short and must not be delayed
                to.sendall(wire.header(transfer, stream, worker, offer))
                opened[stream.number] = to
            except OSError as error:
                problem = problem or error
    if problem is not None:
        raise problem
    return opened


def _send(connections: TransferConnections, to: socket.socket, transfer: Transfer, stream: WeightStream, data: memoryview) -> int:
    """Send a stream, and return the number of bytes that went over its connection."""
    is_shared = False
    with connections.failing(_broken_stream(transfer, stream, f"training rank {stream.rank}")):
        is_shared = wire.expect_welcome(to, transfer, stream, stream.way[0], TIMEOUT_S)
        at = stream.first
        for piece in wire.pieces(stream):
            part = data[at : at + piece[1] - piece[0]]
            at += len(part)
            if is_shared:
                to.sendall(wire.shared_piece_tag(transfer, stream, piece))
            else:
                to.sendall(part)
                to.sendall(wire.piece_tag(transfer, stream, piece, part))  # computed while the piece is on its way
        wire.expect(to, wire.acknowledgement(transfer, stream, stream.way[0]), "thanks came")
    return wire_bytes(stream, is_shared)


def _receive(
    connections: TransferConnections, hop: _IncomingStream, to: socket.socket | None, worker: int, stage: WeightStage
) -> None:
    """Receive a stream into the stage, and pass it on to the next worker over the connection `to`, or None for the last worker."""
    transfer, stream, source = hop.transfer, hop.stream, hop.source

    def take(piece: tuple[int, int], start: int, room: Tensor) -> None:
        """Write a piece to its place `room`; `start` is its offset in the sender's memory."""
        memory, what = room.numpy().data, f"bytes {piece[0]} to {piece[1]} came"
        if hop.memory is None:
            wire.read(source, memory)
        else:
            wire.expect(source, wire.shared_piece_tag(transfer, stream, piece), what)
            wire.copy(hop.memory, start, memory, source)
        if to is not None and not is_shared:
            to.sendall(memory)
        tag = wire.piece_tag(transfer, stream, piece, memory) if hop.memory is None or (to is not None and not is_shared) else b""
        if hop.memory is None:
            wire.expect(source, tag, what)
        if to is not None:
            to.sendall(wire.shared_piece_tag(transfer, stream, piece) if is_shared else tag)

    with connections.failing(_broken_stream(transfer, stream, f"rollout worker {worker}")):
        source.sendall(wire.welcome(transfer, stream, worker, hop.memory is not None))
        position = stream.way.index(worker)
        later = stream.way[position + 1 :]
        is_shared = to is not None and wire.expect_welcome(to, transfer, stream, later[0], TIMEOUT_S)
        at = stream.first  # offset among the sending rank's own bytes
        for piece in wire.pieces(stream):
            stage.receive_with(transfer.version, *piece, partial(take, piece, at if position == 0 else piece[0]))
            at += piece[1] - piece[0]
        if to is not None:
            wire.expect(to, wire.acknowledgement(transfer, stream, later[0]), "thanks came")
        source.sendall(wire.acknowledgement(transfer, stream, worker))


def _take_expected(announced: tuple[int, int, int], transfer: Transfer, expected: dict[int, WeightStream]) -> WeightStream:
    """Return the stream that a connection announces, and remove it from the expected ones.

    Args:
        announced: Version, number of the stream, and number of bytes, from the header.
        transfer: The sync.
        expected: Streams that have not arrived yet, by number.

    Raises:
        RuntimeError: The connection brings another version, or a stream that is not expected here.
    """
    version, number, nbytes = announced
    stream = expected.pop(number, None)
    if stream is None or (version, nbytes) != (transfer.version, stream.nbytes):
        raise RuntimeError(f"stream {number} brings {nbytes} bytes of version {version}")
    return stream


def _broken_stream(transfer: Transfer, stream: WeightStream, where: str) -> str:
    """Return the beginning of the message about a stream that broke."""
    return f"weights of version {transfer.version}, stream {stream.number} of {len(transfer.streams)}, broke at {where}"
