"""Costs of authenticated weights: tags by HMAC-SHA256 and by keyed BLAKE2, and a sync over loopback with and without tags.

Loopback is the hardest case, since only memory limits its speed. One rank sends to two workers on the same machine, which pass the
weights on to each other, and all of them share the machine's cores. Over a slow link, tags have no visible cost.

    python benchmarks/sync_tags.py
    python benchmarks/sync_tags.py --megabytes 64 --times 3
"""

from __future__ import annotations

import argparse
import hashlib
import hmac
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import monotonic, process_time
from unittest.mock import patch

import torch

from runtime.residency.layout import WeightLayout
from runtime.residency.staging import WeightStage
from runtime.sync import wire
from runtime.sync.plan import make_plan
from runtime.sync.streams import Inbox, send_streams

_KEY = secrets.token_bytes(32)
_HERE = "127.0.0.1"
_PIECE = 1 << 20
_WORKERS = ["node", "node"]


def sha256(data: bytes) -> bytes:
    """HMAC-SHA256"""
    mac = hmac.new(_KEY, b"", "sha256")
    mac.update(data)
    return mac.digest()


def blake2b(data: bytes) -> bytes:
    """BLAKE2b with a key"""
    return hashlib.blake2b(data, key=_KEY, digest_size=16).digest()


def gb_per_s(tag: Callable[[bytes], bytes], times: int) -> float:
    """Return the best rate at which one core computes tags, in GB/s."""
    data, seconds = secrets.token_bytes(_PIECE), []
    for _ in range(times):
        began_s = process_time()
        for _ in range(50):
            tag(data)
        seconds.append(process_time() - began_s)
    return 50 * _PIECE / min(seconds) / 1e9


def sync(data: torch.Tensor) -> float:
    """Return the time of a sync of some bytes, in seconds."""
    layout = WeightLayout.of({"weights": data})
    inboxes, stages = [Inbox(_HERE) for _ in _WORKERS], [WeightStage() for _ in _WORKERS]
    plan = make_plan([((0, layout.nbytes),)], _WORKERS, "aware")
    transfer = wire.Transfer(1, layout, plan, tuple(inbox.address for inbox in inboxes), _KEY)
    with ThreadPoolExecutor(3) as threads, patch.object(wire, "open_offer", lambda _: None):  # all over TCP
        began_s = monotonic()
        waits = [threads.submit(inbox.receive, k, transfer, stages[k]) for k, inbox in enumerate(inboxes)]
        waits.append(threads.submit(send_streams, 0, transfer, 1, data))
        for wait in waits:
            wait.result()
        seconds = monotonic() - began_s
    for inbox, stage in zip(inboxes, stages, strict=True):
        assert torch.equal(stage.weights()["weights"], data)
        inbox.close()
        stage.close()
    return seconds


def main() -> None:
    """Measure tags and syncs, and print the results."""
    options = argparse.ArgumentParser(description="What authenticated weights cost.")
    options.add_argument("--megabytes", type=int, default=512, help="of weights")
    options.add_argument("--times", type=int, default=5, help="measurements of each kind; the quickest is printed")
    arguments = options.parse_args()
    for tag in (sha256, blake2b):
        print(f"{tag.__doc__}: {gb_per_s(tag, arguments.times):.2f} GB/s on one core")
    data = torch.randint(256, (arguments.megabytes << 20,), dtype=torch.uint8)
    plain_s, tagged_s = [], []
    for _ in range(arguments.times):
        tagged_s.append(sync(data))
        with patch.object(wire, "piece_tag", lambda *_: bytes(wire.TAG_BYTES)):
            plain_s.append(sync(data))
    rate = len(_WORKERS) * len(data) / 1e9
    print(f"sync over loopback, GB/s to all workers: {rate / min(tagged_s):.2f} with tags, {rate / min(plain_s):.2f} without")
    print(f"ratio of the times: {min(tagged_s) / min(plain_s):.2f}")


if __name__ == "__main__":
    main()
