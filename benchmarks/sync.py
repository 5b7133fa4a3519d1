"""Weight sync over a slow link, flat against topology-aware, and on one machine, from shared memory against TCP.

The times over the slow link are shown with those that the RollMux paper (arXiv 2512.11306) prints. The link is real and slow: every
training rank has a separate network (a Linux network namespace) and one cable to the rollout side. The kernel's token bucket
(`tc tbf`) limits the rate of the cable, and the kernel counts its bytes. Rollout workers reach each other over loopback. Sizes and
rates are the paper's divided by 1000: 20 Gbit/s for each training GPU, which fits its times, become 20 Mbit/s. Needs Linux with
`ip`, `tc` and user namespaces, and prints a message if they are missing.

    python benchmarks/sync.py
    python benchmarks/sync.py --ranks 2 --nodes 2 --workers 1 --megabytes 2 --mbit 100
    python benchmarks/sync.py --local --megabytes 1000
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import multiprocessing
import os
import secrets
import shutil
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from threading import get_native_id
from time import monotonic, process_time

import torch
from rollmux_segment import Segment

from runtime.residency.layout import WeightLayout, WeightMemory
from runtime.residency.staging import WeightStage
from runtime.sync.plan import Topology, WeightStream, make_plan, shard
from runtime.sync.streams import Inbox, send_streams
from runtime.sync.wire import Transfer

_SCALE = 1000
_MBIT = 20e9 / 1e6 / _SCALE
_NEW_NETWORK = 0x40000000  # CLONE_NEWNET
_INSIDE = "ROLLMUX_SYNC_INSIDE"
_HERE = "10.9.0.1"
TOPOLOGIES: tuple[Topology, ...] = ("flat", "aware")
_PAPER = {  # model: (parameters in billions, {(ranks, rollout nodes, workers of a node): (flat, aware) in seconds})
    "7B": (7.6, {(8, 1, 8): (7.5, 0.9), (16, 2, 8): (8.2, 3.1)}),
    "14B": (14.8, {(8, 1, 8): (13.8, 1.7)}),
    "32B": (32.8, {(8, 1, 8): (30.7, 3.9)}),
}


@dataclass(frozen=True)
class SyncMeasurement:
    """Measurement of a sync.

    Attributes:
        seconds: Time of the sync, in seconds.
        link_bytes: Bytes that the kernel counted on the cables, including the headers of packets.
    """

    seconds: float
    link_bytes: int


class ThrottledLink:
    """Training side of the link: for every rank a thread in a separate network, with a cable to the rollout side.

    Args:
        ranks: Number of ranks.
        mbit: Rate of each cable, in Mbit/s.
    """

    def __init__(self, ranks: int, mbit: float) -> None:
        _ip("link", "add", "rollout", "type", "bridge")
        _ip("addr", "add", f"{_HERE}/16", "dev", "rollout")
        _ip("link", "set", "rollout", "up")
        self._threads = [ThreadPoolExecutor(1) for _ in range(ranks)]
        for k, thread in enumerate(self._threads):
            number = thread.submit(_enter_a_network).result()
            _ip("link", "add", f"cable{k}", "type", "veth", "peer", "name", "out", "netns", str(number))
            _ip("link", "set", f"cable{k}", "master", "rollout", "up")
            thread.submit(_throttle, k, mbit).result()

    def submit(self, rank: int, transfer: Transfer, data: torch.Tensor) -> Future[int]:
        """Let a rank send its part. Threads that it starts are in its network too."""
        return self._threads[rank].submit(send_streams, rank, transfer, transfer.version, data)

    def count(self) -> int:
        """Return the bytes that have come over the cables so far."""
        lines = Path("/proc/thread-self/net/dev").read_text().splitlines()
        return sum(int(line.split(":")[1].split()[0]) for line in lines if line.strip().startswith("cable"))

    def close(self) -> None:
        """Remove the cables."""
        for k, thread in enumerate(self._threads):
            _ip("link", "del", f"cable{k}")
            thread.shutdown()
        _ip("link", "del", "rollout")


def measure(link: ThrottledLink, ranks: int, nodes: int, workers: int, nbytes: int, topology: Topology) -> SyncMeasurement:
    """Measure one sync of random weights, and check what arrives.

    Args:
        link: Training side.
        ranks: Number of training ranks.
        nodes: Number of rollout nodes.
        workers: Number of rollout workers on each node.
        nbytes: Size of the weights, in bytes.
        topology: Topology of the sync.
    """
    data = torch.randint(256, (nbytes // 1024 * 1024,), dtype=torch.uint8)
    layout = WeightLayout.of({"weights": data.view(-1, 1024)})
    shards = [((0, layout.nbytes),)] if topology == "flat" else [shard(layout, rank, ranks) for rank in range(ranks)]
    machines = [f"node {k}" for k in range(nodes) for _ in range(workers)]
    inboxes, stages = [Inbox(_HERE) for _ in machines], [WeightStage() for _ in machines]
    addresses = tuple(inbox.address for inbox in inboxes)
    transfer = Transfer(1, layout, make_plan(shards, machines, topology), addresses, secrets.token_bytes(32))
    with ThreadPoolExecutor(len(machines)) as threads:
        before, began_s = link.count(), monotonic()
        receiving = [threads.submit(inbox.receive, k, transfer, stages[k]) for k, inbox in enumerate(inboxes)]
        sending = [link.submit(rank, transfer, torch.cat([data[a:b] for a, b in part])) for rank, part in enumerate(shards)]
        for future in [*sending, *receiving]:
            future.result()
        measured = SyncMeasurement(monotonic() - began_s, link.count() - before)
    for inbox, stage in zip(inboxes, stages, strict=True):
        assert torch.equal(stage.weights()["weights"].flatten(), data)
        inbox.close()
        stage.close()
    return measured


def compare(
    name: str, case: tuple[int, int, int], nbytes: int, arguments: argparse.Namespace, paper: tuple[float, float] | None
) -> None:
    """Print a row of the table, with the fastest syncs.

    Args:
        name: Name of the model.
        case: Number of training ranks, of rollout nodes, and of workers on each node.
        nbytes: Size of the weights, in bytes.
        arguments: Arguments of the command.
        paper: Times of the paper, flat and aware, in seconds. None means there are none.
    """
    ranks, nodes, workers = case
    link = ThrottledLink(ranks, arguments.mbit)
    try:
        runs = {name: [measure(link, ranks, nodes, workers, nbytes, name) for _ in range(arguments.times)] for name in TOPOLOGIES}
    finally:
        link.close()
    flat, aware = (min(syncs, key=lambda one: one.seconds) for syncs in runs.values())
    printed = f"{paper[0]:7.1f} {paper[1]:6.1f} {paper[0] / paper[1]:6.1f}x" if paper else ""
    seconds = f"{flat.seconds:7.2f} {aware.seconds:6.2f} {flat.seconds / aware.seconds:6.1f}x"
    copies = f"{flat.link_bytes / nbytes:8.3f} {aware.link_bytes / nbytes:6.3f}"
    print(f"{name:6} {ranks:3} to {nodes} x {workers:<3} {seconds} {copies}   {printed}", flush=True)


def compare_local(nbytes: int, rounds: int) -> None:
    """Compare the two ways of a sync from one rank to one worker, in separate processes on this machine, in turns."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    worker = context.Process(target=_work, args=(theirs,), daemon=True)
    worker.start()
    segment = Segment(nbytes)
    segment.bytes.copy_(torch.randint(256, (nbytes,), dtype=torch.uint8))
    digest = hashlib.sha256(segment.bytes.numpy().data).hexdigest()
    runs: dict[str, list[tuple[float, float]]] = {"TCP": [], "shared memory": []}  # wall-clock and CPU time, in seconds
    for number in range(rounds + 1):
        for way, measured in runs.items():
            transfer = Transfer(number, _layout(nbytes), _local_plan(nbytes), (ours.recv(),), secrets.token_bytes(32))
            ours.send(transfer)
            began_s, worked_s = monotonic(), process_time()
            send_streams(0, transfer, number, segment.bytes, WeightMemory(segment.file) if way != "TCP" else None)
            clock_s, worked_s = monotonic() - began_s, process_time() - worked_s
            ours.send(True)
            came, worker_s = ours.recv()
            assert came == digest
            if number:  # in the first one, the stage's memory is new
                measured.append((clock_s, worked_s + worker_s))
    worker.terminate()
    segment.close()
    print(f"one rank to one worker of this machine, {nbytes / 1e6:g} MB, {rounds} rounds: median (least to most)")
    for place, name in enumerate(("seconds", "CPU seconds of both processes")):
        tcp, memory = ([one[place] for one in measured] for measured in runs.values())
        ratios = [slow / quick for slow, quick in zip(tcp, memory, strict=True)]
        print(f"{name}: TCP {_spread(tcp, 3)}, shared memory {_spread(memory, 3)}, ratio {_spread(ratios, 1)}")


def _spread(values: list[float], digits: int) -> str:
    return f"{median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def _work(pipe: Connection) -> None:
    """Be a rollout worker: send the address, receive weights, and send their hash and the CPU time."""
    torch.set_num_threads(1)
    stage = WeightStage()
    while True:
        inbox = Inbox("127.0.0.1")
        pipe.send(inbox.address)
        transfer, worked_s = pipe.recv(), process_time()
        inbox.receive(0, transfer, stage)
        worked_s = process_time() - worked_s
        inbox.close()
        pipe.recv()
        pipe.send((hashlib.sha256(stage.weights()["weights"].numpy().data).hexdigest(), worked_s))


def _layout(nbytes: int) -> WeightLayout:
    return WeightLayout((("weights", "U8", (nbytes,), 0, nbytes),), nbytes)


def _local_plan(nbytes: int) -> tuple[WeightStream, ...]:
    return make_plan([((0, nbytes),)], ["here"], "aware")


def _enter_a_network() -> int:
    """Put this thread and the threads that it starts into a new network, and return the thread id that names it."""
    if ctypes.CDLL(None, use_errno=True).unshare(_NEW_NETWORK):
        raise OSError(ctypes.get_errno(), "no network namespace")
    return get_native_id()


def _throttle(rank: int, mbit: float) -> None:
    """Set up this thread's end of its cable."""
    _ip("addr", "add", f"10.9.1.{rank + 1}/16", "dev", "out")
    _ip("link", "set", "out", "up", "gso_max_size", "16384")  # packets smaller than the bucket
    subprocess.run(
        ["tc", "qdisc", "add", "dev", "out", "root", "tbf", "rate", f"{mbit}mbit", "burst", "32kb", "latency", "100ms"], check=True
    )


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def main() -> None:
    """Print the table, or with `--local` the comparison on one machine."""
    options = argparse.ArgumentParser(description="Weight sync over a slow link: flat against topology-aware.")
    options.add_argument("--ranks", type=int, help="training ranks; without it the paper's cases")
    options.add_argument("--nodes", type=int, default=1, help="rollout nodes")
    options.add_argument("--workers", type=int, default=1, help="rollout workers on each")
    options.add_argument("--megabytes", type=float, default=15.2, help="of weights")
    options.add_argument("--mbit", type=float, default=_MBIT, help="Mbit/s of a rank's cable")
    options.add_argument("--times", type=int, default=2, help="syncs of each kind; the quickest is printed")
    options.add_argument("--local", action="store_true", help="one machine: shared memory against TCP, without a slow link")
    options.add_argument("--rounds", type=int, default=5, help="of --local")
    arguments = options.parse_args()
    if arguments.local:
        torch.set_num_threads(1)
        compare_local(int(arguments.megabytes * 1e6), arguments.rounds)
        return
    missing = [name for name in ("ip", "tc", "unshare") if shutil.which(name) is None]
    if missing or subprocess.run(["unshare", "-rn", "true"], capture_output=True).returncode:
        print(f"skipped: {', '.join(missing) or 'user namespaces'} missing, so there is no network of one's own to throttle")
        return
    if _INSIDE not in os.environ:
        inside = os.environ | {_INSIDE: "1"}
        raise SystemExit(subprocess.run(["unshare", "-rn", sys.executable, *sys.argv], env=inside).returncode)
    torch.set_num_threads(1)
    _ip("link", "set", "lo", "up")
    print("                      seconds              copies on the link   paper, seconds")
    print("model  ranks to nodes    flat  aware   ratio     flat  aware      flat  aware   ratio")
    if arguments.ranks:
        compare("", (arguments.ranks, arguments.nodes, arguments.workers), int(arguments.megabytes * 1e6), arguments, None)
        return
    for model, (billions, cases) in _PAPER.items():
        for case, seconds in cases.items():
            compare(model, case, int(billions * 2e9 / _SCALE), arguments, seconds)


if __name__ == "__main__":
    main()
