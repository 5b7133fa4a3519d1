"""What a stream looks like on a connection, and how both sides know each other.

    sender      header                    piece, tag   piece, tag   ...
    receiver            welcome                                           thanks

Between two processes of one machine bytes need no connection. A sender that has its bytes in a memfd offers it in the header of a
stream, whose tag says who it is. The receiver opens it by /proc, which the kernel allows to processes of the same user alone, looks
whether it is the one that is meant, and says in its welcome that it takes the pieces from there: then only their tags come, each
when its piece is there. If anything is otherwise the bytes come over the connection. A copy by `preadv` and not by a mapping: what
the sender loses meanwhile is an error and no signal, and the receiver's resident size stays what it is.

A tag says that what it belongs to comes from one who knows the sync's secret, for this place of this stream and no other; nothing
is encrypted. HMAC-SHA256, since processors compute it faster than keyed BLAKE2 (`benchmarks/sync_tags.py`).
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
from runtime.residency.layout import Layout, Memory
from runtime.sync.plan import Stream

Address = tuple[str, int]
_OFFER = struct.Struct("!16sqqqq")
OFFER_BYTES = _OFFER.size
NO_OFFER = bytes(OFFER_BYTES)
TAG_BYTES = 16
"""The first of those that HMAC gives; they follow every piece."""
_NUMBERS = struct.Struct("!qqq")
HEADER_BYTES = _NUMBERS.size + OFFER_BYTES + TAG_BYTES
"""Of each stream, on every hop: which it is, of what version and size, and where in shared memory it is."""
_TAGGED = struct.Struct("!8sqqqq")
_PIECE = 1 << 20


def offer(memory: Memory | None) -> bytes:
    """What a header says of shared memory; of none, or where machines cannot be told apart, `NO_OFFER`."""
    if memory is None or not memory_id():
        return NO_OFFER
    return _OFFER.pack(memory_id(), os.getpid(), memory.file, os.fstat(memory.file).st_ino, memory.first)


def open_offer(data: bytes) -> Memory | None:
    """The memory that is offered, for reading; whoever opens it closes its file. None: it cannot be reached from here."""
    machine, pid, number, inode, first = _OFFER.unpack(data)
    if data == NO_OFFER or machine != memory_id():
        return None
    with suppress(OSError):
        file = os.open(f"/proc/{pid}/fd/{number}", os.O_RDONLY | os.O_CLOEXEC)
        if os.fstat(file).st_ino == inode:
            return Memory(file, first)
        os.close(file)
    return None


def copy(memory: Memory, start: int, to: memoryview, sender: socket.socket) -> None:
    """Read bytes from the `start`-th on.

    Args:
        to: is filled. sender: the connection to whom the memory belongs.

    Raises:
        RuntimeError: it has ended before they were all here; they may be others then.
    """
    count = os.preadv(memory.file, [to], memory.first + start)
    poll = select.poll()
    poll.register(sender, select.POLLRDHUP)
    if count != len(to) or poll.poll(0):
        raise RuntimeError("the connection was closed before its end")


@dataclass(frozen=True)
class Transfer:
    """A sync, as all who take part know it.

    Attributes:
        version: of the weights. layout: of their bytes. streams: the plan.
        addresses: of the inbox of each rollout worker.
        secret: 32 random bytes, the key of all tags. It is never sent on a connection of the sync.
    """

    version: int
    layout: Layout
    streams: tuple[Stream, ...]
    addresses: tuple[Address, ...]
    secret: bytes = field(repr=False)


def pieces(stream: Stream) -> Iterator[tuple[int, int]]:
    """(first byte, behind the last) of a stream's pieces, in order."""
    for first, behind in stream.ranges:
        for start in range(first, behind, _PIECE):
            yield start, min(start + _PIECE, behind)


def wire_bytes(stream: Stream, shared: bool = False) -> int:
    """Bytes that a stream sends over a hop's connection; `shared`: its pieces are read from shared memory."""
    return HEADER_BYTES + (0 if shared else stream.nbytes) + TAG_BYTES * sum(1 for _ in pieces(stream))


def header(transfer: Transfer, stream: Stream, worker: int, offer: bytes) -> bytes:
    """What a connection to a rollout worker begins with."""
    numbers = transfer.version, stream.number, stream.nbytes
    return _NUMBERS.pack(*numbers) + offer + _tag(transfer, b"header", *numbers, worker, data=offer)


def read_header(data: bytes, transfer: Transfer, worker: int) -> tuple[tuple[int, int, int], bytes] | None:
    """Version, number and bytes of the stream that a connection announces to this worker, and its offer; None of a stranger's."""
    numbers: tuple[int, int, int] = _NUMBERS.unpack_from(data)
    offer, tag = data[_NUMBERS.size : -TAG_BYTES], data[-TAG_BYTES:]
    known = hmac.compare_digest(tag, _tag(transfer, b"header", *numbers, worker, data=offer))
    return (numbers, offer) if known else None


def welcome(transfer: Transfer, stream: Stream, worker: int, shared: bool) -> bytes:
    """What a worker answers to a header: it is the one that is meant, and it takes the pieces from shared memory or not."""
    purpose = b"shared" if shared else b"welcome"
    return _tag(transfer, purpose, transfer.version, stream.number, stream.nbytes, worker)


def expect_welcome(source: socket.socket, transfer: Transfer, stream: Stream, worker: int, within_s: float) -> bool:
    """Read a welcome; whether the pieces are taken from shared memory. Raises as `expect`."""
    answers = [welcome(transfer, stream, worker, shared) for shared in (False, True)]
    return bool(_answer(source, answers, "a welcome came", within_s))


def thanks(transfer: Transfer, stream: Stream, worker: int) -> bytes:
    """What a worker answers to a stream, when everybody behind it has it too."""
    return _tag(transfer, b"thanks", transfer.version, stream.number, stream.nbytes, worker)


def piece_tag(transfer: Transfer, stream: Stream, piece: tuple[int, int], data: memoryview) -> bytes:
    """The tag of a piece's bytes; the same on every hop over which they go."""
    return _tag(transfer, b"piece", transfer.version, stream.number, *piece, data=data)


def there_tag(transfer: Transfer, stream: Stream, piece: tuple[int, int]) -> bytes:
    """What says that a piece is in shared memory."""
    return _tag(transfer, b"there", transfer.version, stream.number, *piece)


def expect(source: socket.socket, tag: bytes, what: str, within_s: float | None = None) -> None:
    """Read a tag.

    Args:
        what: it is part of, for the message. within_s: as `read`.

    Raises:
        RuntimeError: it is another one; or as `read`.
    """
    _answer(source, [tag], what, within_s)


def read(source: socket.socket, memory: memoryview, within_s: float | None = None) -> None:
    """Fill some memory.

    Args:
        within_s: seconds that it may take altogether; None: the connection's timeout from one byte to the next.

    Raises:
        RuntimeError: the connection ends before it is full. TimeoutError: it takes too long.
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


def _answer(source: socket.socket, tags: Sequence[bytes], what: str, within_s: float | None) -> int:
    """Read one of some tags; which it is."""
    answer = bytearray(TAG_BYTES)
    read(source, memoryview(answer), within_s)
    for number, tag in enumerate(tags):
        if hmac.compare_digest(answer, tag):
            return number
    raise RuntimeError(f"{what} from somebody else")


def _tag(transfer: Transfer, purpose: bytes, *numbers: int, data: memoryview | bytes = b"") -> bytes:
    mac = hmac.new(transfer.secret, _TAGGED.pack(purpose, *numbers), "sha256")
    mac.update(data)
    return mac.digest()[:TAG_BYTES]
