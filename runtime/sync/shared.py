"""Bytes that need no connection: a receiver on the sender's machine reads them from the sender's shared memory.

A sender that has its bytes in a memfd offers it in the header of a stream, whose tag says who it is. The receiver opens it by
/proc, which the kernel allows to processes of the same user alone, and looks whether it is the one that is meant. If anything is
otherwise the bytes come over the connection. A copy by `preadv` and not by a mapping: what the sender loses meanwhile is an error
and no signal, and the receiver's resident size stays what it is.
"""

from __future__ import annotations

import os
import select
import socket
import struct
from contextlib import suppress

from runtime.machine import memory_id
from runtime.residency.layout import Memory

_OFFER = struct.Struct("!16sqqqq")
OFFER_BYTES = _OFFER.size
NO_OFFER = bytes(OFFER_BYTES)


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
