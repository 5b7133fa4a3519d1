"""Wire format of a stream of weights, and how both sides of a connection authenticate each other.

A stream (see `runtime.sync.plan`) goes from a training rank to a rollout worker, and from there to further workers. Each of these
hops has a connection. After the header has announced the stream, the receiver answers that it is the right one, and the bytes
follow in pieces. At the end the receiver confirms that it and all workers behind it have the stream:

    sender      header                    piece, tag   piece, tag   ...
    receiver            welcome                                           thanks

Between two processes of one machine, the bytes need not go over the connection. A sender that has its bytes in a memfd offers that
memory in the header of the stream, and the header's tag authenticates the sender. The receiver opens the memory by its path under
/proc, which the kernel allows only to processes of the same user, checks that it is the right file, and says in its welcome that it
reads the pieces from there. Then only the tags go over the connection, each one when its piece is ready. In all other cases the
bytes go over the connection. The receiver copies by `preadv` and not by a mapping: memory that the sender frees meanwhile then
causes an error and not a signal, and the receiver's resident memory does not grow.

A tag proves that its sender knows the sync's secret, for exactly this position in this stream. Nothing is encrypted. Tags are
HMAC-SHA256, since processors compute it faster than keyed BLAKE2 (`benchmarks/sync_tags.py`).
"""

from __future__ import annotations

import hmac
import os
import select
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic

from runtime.machine import memory_id
from runtime.residency.layout import WeightLayout, WeightMemory
from runtime.sync.plan import WeightStream

Address = tuple[str, int]
_OFFER = struct.Struct("!16sqqqq")
OFFER_BYTES = _OFFER.size
NO_OFFER = bytes(OFFER_BYTES)
TAG_BYTES = 16
"""Length of a tag: the first bytes of an HMAC. A tag follows every piece."""
_NUMBERS = struct.Struct("!qqq")
HEADER_BYTES = _NUMBERS.size + OFFER_BYTES + TAG_BYTES
"""Size of a header, in bytes: version, number and size of the stream, an offer of shared memory, and a tag."""
_TAGGED = struct.Struct("!8sqqqq")
_PIECE = 1 << 20


def offer(memory: WeightMemory | None) -> bytes:
    """Return the offer of shared memory in a header: `NO_OFFER` for None, or if this machine has no identity."""
    if memory is None or not memory_id():
        return NO_OFFER
    return _OFFER.pack(memory_id(), os.getpid(), memory.file, os.fstat(memory.file).st_ino, memory.first)


def open_offer(data: bytes) -> WeightMemory | None:
    """Open the offered memory for reading. The caller closes its file. Returns None if it cannot be reached from here."""
    machine, pid, number, inode, first = _OFFER.unpack(data)
    if data == NO_OFFER or machine != memory_id():
        return None
    with suppress(OSError):
        file = os.open(f"/proc/{pid}/fd/{number}", os.O_RDONLY | os.O_CLOEXEC)
        if os.fstat(file).st_ino == inode:
            return WeightMemory(file, first)
        os.close(file)
    return None


def copy(memory: WeightMemory, start: int, to: memoryview, sender: socket.socket) -> None:
    """Copy bytes from shared memory.

    Args:
        memory: The memory.
        start: Offset of the first byte to copy.
        to: Memory to fill.
        sender: Connection to the process that owns the memory.

    Raises:
        RuntimeError: The sender ended before all bytes were copied, so they may be wrong.
    """
    count = os.preadv(memory.file, [to], memory.first + start)
    poll = select.poll()
    poll.register(sender, select.POLLRDHUP)
    if count != len(to) or poll.poll(0):
        raise RuntimeError("the connection was closed before its end")


@dataclass(frozen=True)
class Transfer:
    """A sync, as all members know it.

    Attributes:
        version: Version of the weights.
        layout: Layout of the weights' bytes.
        streams: Streams of the sync, as planned by `runtime.sync.plan`.
        addresses: Host and port at which each rollout worker listens during the sync, by worker number.
        secret: Key of all tags, 32 random bytes. It is never sent over a connection of the sync.
    """

    version: int
    layout: WeightLayout
    streams: tuple[WeightStream, ...]
    addresses: tuple[Address, ...]
    secret: bytes = field(repr=False)


def pieces(stream: WeightStream) -> Iterator[tuple[int, int]]:
    """Yield (first byte, end) of each piece of a stream, in order."""
    for first, end in stream.ranges:
        for start in range(first, end, _PIECE):
            yield start, min(start + _PIECE, end)


def wire_bytes(stream: WeightStream, shared: bool = False) -> int:
    """Return the number of bytes that a stream sends over one connection.

    Args:
        stream: The stream.
        shared: Whether its pieces are read from shared memory.
    """
    return HEADER_BYTES + (0 if shared else stream.nbytes) + TAG_BYTES * sum(1 for _ in pieces(stream))


def header(transfer: Transfer, stream: WeightStream, worker: int, offer: bytes) -> bytes:
    """Return the header that begins a connection to the rollout worker of a number, with an offer as `offer` makes it."""
    numbers = transfer.version, stream.number, stream.nbytes
    return _NUMBERS.pack(*numbers) + offer + _tag(transfer, b"header", *numbers, worker, data=offer)


def read_header(data: bytes, transfer: Transfer, worker: int) -> tuple[tuple[int, int, int], bytes] | None:
    """Parse and check the header of a connection.

    Returns:
        Version, number and size of the announced stream, and the offer of shared memory. None if the sender does not know the
        secret, or means another worker.
    """
    numbers: tuple[int, int, int] = _NUMBERS.unpack_from(data)
    offer, tag = data[_NUMBERS.size : -TAG_BYTES], data[-TAG_BYTES:]
    known = hmac.compare_digest(tag, _tag(transfer, b"header", *numbers, worker, data=offer))
    return (numbers, offer) if known else None


def welcome(transfer: Transfer, stream: WeightStream, worker: int, shared: bool) -> bytes:
    """Return a worker's answer to a header, which says whether it reads the pieces from shared memory."""
    purpose = b"shared" if shared else b"welcome"
    return _tag(transfer, purpose, transfer.version, stream.number, stream.nbytes, worker)


def expect_welcome(source: socket.socket, transfer: Transfer, stream: WeightStream, worker: int, within_s: float) -> bool:
    """Read a welcome, and return whether the pieces are read from shared memory. Raises as `expect`."""
    answers = [welcome(transfer, stream, worker, shared) for shared in (False, True)]
    return bool(_expect_one_of(source, answers, "a welcome came", within_s))


def acknowledgement(transfer: Transfer, stream: WeightStream, worker: int) -> bytes:
    """Return a worker's answer to a complete stream. It is sent after all workers further down the stream have answered too."""
    return _tag(transfer, b"thanks", transfer.version, stream.number, stream.nbytes, worker)


def piece_tag(transfer: Transfer, stream: WeightStream, piece: tuple[int, int], data: memoryview) -> bytes:
    """Return the tag that follows a piece's bytes. It is the same on every connection that carries the piece."""
    return _tag(transfer, b"piece", transfer.version, stream.number, *piece, data=data)


def shared_piece_tag(transfer: Transfer, stream: WeightStream, piece: tuple[int, int]) -> bytes:
    """Return the tag that is sent in place of a piece and its tag, once its bytes are ready in the shared memory."""
    return _tag(transfer, b"there", transfer.version, stream.number, *piece)


def expect(source: socket.socket, tag: bytes, what: str, within_s: float | None = None) -> None:
    """Read a tag and check it.

    Args:
        source: Connection to read from.
        tag: Expected tag.
        what: Description of the tag, for the message.
        within_s: Time limit, as in `read`.

    Raises:
        RuntimeError: The tag is another one, or the connection ended.
        TimeoutError: It took too long.
    """
    _expect_one_of(source, [tag], what, within_s)


def read(source: socket.socket, memory: memoryview, within_s: float | None = None) -> None:
    """Fill some memory from a connection.

    Args:
        source: Connection to read from.
        memory: Memory to fill.
        within_s: Time limit for all of it, in seconds. None means the connection's own time limit, from one byte to the next.

    Raises:
        RuntimeError: The connection ended before the memory was full.
        TimeoutError: It took too long.
    """
    idle_s, until_s, at = source.gettimeout(), monotonic() + (within_s or 0.0), 0
    while at < len(memory):
        if within_s is not None:
            source.settimeout(max(until_s - monotonic(), 1e-3))
        count = source.recv_into(memory[at:])
        if not count:
            raise RuntimeError("the connection was closed before its end")
        at += count
        if within_s is not None and at < len(memory) and monotonic() > until_s:
            raise TimeoutError("timed out")
    source.settimeout(idle_s)


def _expect_one_of(source: socket.socket, tags: Sequence[bytes], what: str, within_s: float | None) -> int:
    """Read a tag, and return its index among the possible ones. Raises as `expect`."""
    answer = bytearray(TAG_BYTES)
    read(source, memoryview(answer), within_s)
    for number, tag in enumerate(tags):
        if hmac.compare_digest(answer, tag):
            return number
    raise RuntimeError(f"{what} from somebody else")


def _tag(transfer: Transfer, purpose: bytes, *numbers: int, data: memoryview | bytes = b"") -> bytes:
    """Return the tag for a purpose, some numbers and some bytes."""
    mac = hmac.new(transfer.secret, _TAGGED.pack(purpose, *numbers), "sha256")
    mac.update(data)
    return mac.digest()[:TAG_BYTES]
