"""A training rank as a process of its own, without torch: offers its memory to one worker, and says how it went.

python -m tests.runtime.sync.rank PORT SECRET NBYTES PIECES: of its pieces so many; then it waits for a line, or for its end.
"""

from __future__ import annotations

import hashlib
import os
import socket
import sys
from itertools import islice

from runtime.residency.layout import WeightLayout, WeightMemory
from runtime.sync import wire
from runtime.sync.plan import make_plan

VERSION = 4


def layout_of(nbytes: int) -> WeightLayout:
    return WeightLayout((("weights", "U8", (nbytes,), 0, nbytes),), nbytes)


def transfer_to(port: int, secret: bytes, nbytes: int) -> wire.Transfer:
    plan = make_plan([((0, nbytes),)], ["node"], "aware")
    return wire.Transfer(VERSION, layout_of(nbytes), plan, (("127.0.0.1", port),), secret)


def main() -> None:
    port, secret, nbytes, count = int(sys.argv[1]), bytes.fromhex(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    transfer = transfer_to(port, secret, nbytes)
    (stream,) = transfer.streams
    data = hashlib.shake_256(secret).digest(nbytes)
    file = os.memfd_create("weights")
    os.pwrite(file, data, 0)
    with socket.create_connection(transfer.addresses[0]) as to:
        to.sendall(wire.header(transfer, stream, 0, wire.offer(WeightMemory(file))))
        is_shared = wire.expect_welcome(to, transfer, stream, 0, 60)
        for piece in islice(wire.pieces(stream), count):
            if is_shared:
                to.sendall(wire.shared_piece_tag(transfer, stream, piece))
            else:
                part = memoryview(data)[slice(*piece)]
                to.sendall(bytes(part) + wire.piece_tag(transfer, stream, piece, part))
        print(is_shared, hashlib.sha256(data).hexdigest(), flush=True)
        sys.stdin.readline()


if __name__ == "__main__":
    main()
