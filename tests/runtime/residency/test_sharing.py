"""What one process stages is read by others of the machine: one copy for all, and never a mixture of two versions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from pathlib import Path

import pytest
import torch
from rollmux_segment import Footprint
from torch import Tensor

from runtime.memory import resident_gb
from runtime.residency.layout import WeightLayout
from runtime.residency.staging import OpenedStage, StagedVersion, StageReader, WeightStage

_MEGABYTE = 1 << 20
_FORK = get_context("fork")


def layout_of(megabytes: int) -> WeightLayout:
    return WeightLayout.of({"weights": torch.empty(megabytes * _MEGABYTE, dtype=torch.uint8)})


def stage_version(stage: WeightStage, layout: WeightLayout, version: int, share: float = 1.0) -> None:
    """Stage weights whose bytes are all equal to their version, or the first of them."""
    stage.begin(layout, version)
    for offset in range(0, int(layout.nbytes * share), _MEGABYTE // 4):
        stage.receive(version, offset, torch.full((_MEGABYTE // 4,), version, dtype=torch.uint8))


@contextmanager
def process(work: Callable[[Connection], None]) -> Iterator[tuple[ForkProcess, Connection]]:
    """Another process that does something, and a pipe to it."""
    here, there = _FORK.Pipe()

    def do() -> None:
        torch.set_num_threads(1)  # those of the other process are not here
        work(there)

    one = _FORK.Process(target=do, daemon=True)
    one.start()
    there.close()
    try:
        yield one, here
    finally:
        one.kill()
        one.join()


def told(landed: StagedVersion) -> StageReader:
    reader = StageReader(pinned=False)
    reader.staged = landed
    return reader


def values(weights: dict[str, Tensor]) -> set[int]:
    return {*map(int, weights["weights"].aminmax())}


def test_a_reader_sees_whole_versions_alone_while_another_process_writes_one_after_the_other() -> None:
    layout, last = layout_of(2), 60

    def write(pipe: Connection) -> None:
        stage = WeightStage()
        stage_version(stage, layout, 1)
        pipe.send(stage.staged_version())
        for version in range(2, last + 1):
            pipe.send(version)
            pipe.recv()
            stage_version(stage, layout, version)
        pipe.recv()

    with process(write) as (_, pipe):
        reader = told(pipe.recv())
        for number in range(2, last + 1):
            assert pipe.recv() == number
            pipe.send("write")  # while this one reads
            with reader.reading() as (weights, version):
                assert values(weights) == {version} and version in (number - 1, number)
        reader.close()


def test_a_writer_that_is_killed_in_the_middle_leaves_an_error_and_no_mixture() -> None:
    layout = layout_of(1)

    def write(pipe: Connection) -> None:
        stage = WeightStage()
        stage_version(stage, layout, 1)
        pipe.send(stage.staged_version())
        pipe.recv()
        stage_version(stage, layout, 2, share=0.5)
        pipe.send("half")
        pipe.recv()

    def whole(opened: OpenedStage) -> int | None:
        with opened.read() as version:
            return version

    with process(write) as (writer, pipe), ThreadPoolExecutor() as threads:
        landed = pipe.recv()
        reader = told(landed)
        with reader.reading() as (weights, version):
            assert (values(weights), version) == ({1}, 1)
        pipe.send("go")
        assert pipe.recv() == "half"
        waits = threads.submit(whole, reader.open(landed.path))  # for the writer, who has a lock
        writer.kill()
        assert waits.result(60) is None
        writer.join()
        with pytest.raises(RuntimeError, match=r"^weights of version 1 are gone: the process that had staged them has ended$"):
            reader.reading().__enter__()
        reader.close()


def test_a_sync_that_has_failed_leaves_an_error_and_the_next_one_weights() -> None:
    stage, layout = WeightStage(), layout_of(1)
    stage_version(stage, layout, 1)
    landed = stage.staged_version()
    assert landed is not None
    reader = told(landed)
    stage_version(stage, layout, 2, share=0.5)
    stage.end()
    assert stage.staged_version() is None
    with pytest.raises(RuntimeError, match="not complete"), reader.reading():
        pass
    stage_version(stage, layout, 3)
    with reader.reading() as (weights, version):
        assert (values(weights), version) == ({3}, 3)
    reader.close()
    stage.close()


def segments() -> dict[int, int]:
    """Bytes of memory of the segments that this process can reach, by inode."""
    found = {}
    for file in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if os.readlink(file).startswith("/memfd:rollmux"):
                found[file.stat().st_ino] = 512 * file.stat().st_blocks
    return found


@pytest.mark.parametrize("readers", [2, 4])
def test_engines_of_a_machine_hold_one_copy_together(readers: int) -> None:
    layout, others = layout_of(8), segments()
    stage = WeightStage()
    stage_version(stage, layout, 1)

    def read(pipe: Connection) -> None:
        reader, before_gb = told(pipe.recv()), resident_gb()
        for _ in range(2):
            with reader.reading() as (weights, version):
                assert values(weights) == {version}
            pipe.send((version, segments(), resident_gb() - before_gb))
            pipe.recv()

    with ExitStack() as stack:
        pipes = [stack.enter_context(process(read))[1] for _ in range(readers)]
        for number in (1, 2):
            for pipe in pipes:
                pipe.send(stage.staged_version())
            told_back = [pipe.recv() for pipe in pipes]
            assert [version for version, *_ in told_back] == [number] * readers
            ((_, nbytes),) = {one for _, own, _ in told_back for one in own.items() if one[0] not in others}
            assert layout.nbytes <= nbytes < layout.nbytes + 2 * 4096
            assert all(1e9 * grown_gb < layout.nbytes / 2 for *_, grown_gb in told_back)
            if number == 1:
                stage_version(stage, layout, 2)
    stage.close()


class Cuda:
    """Stands for CUDA's runtime in a process: what it is told to page-lock, and what of that is locked still."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int, int]] = []  # address, bytes, flags
        self.locked: dict[int, int] = {}

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:
        self.calls.append((address, nbytes, flags))
        if address in self.locked:
            return 712  # cudaErrorHostMemoryAlreadyRegistered
        self.locked[address] = nbytes
        return 0

    def cudaHostUnregister(self, address: int) -> int:
        del self.locked[address]
        return 0


def mapped_at(address: int) -> tuple[int, int]:
    """Bytes of this process's mapping that begins there, and the inode of what is mapped."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(part, 16) for part in line.split()[0].split("-"))
        if first == address:
            return last - first, int(line.split()[4])
    raise AssertionError(hex(address))


def test_each_process_page_locks_its_own_mapping_of_the_one_copy_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registration is of one process's addresses: readers that left it to the writer would copy from pageable memory."""
    layout, cuda = layout_of(2), Cuda()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: cuda)
    stage = WeightStage(pinned=True)

    def read(pipe: Connection) -> None:
        cuda.calls, cuda.locked = [], {}  # of this process
        reader = StageReader(pinned=True)
        for _ in range(2):
            reader.staged = pipe.recv()
            with reader.reading() as (weights, version):
                ((first, nbytes),), tensor = cuda.locked.items(), weights["weights"]
                assert values(weights) == {version}
                assert first <= tensor.data_ptr() and tensor.data_ptr() + tensor.nbytes <= first + nbytes
            pipe.send((cuda.calls, mapped_at(first), reader.footprint()))
        reader.close()
        pipe.send((len(cuda.calls), cuda.locked))
        pipe.recv()

    with ExitStack() as stack:
        pipes = [stack.enter_context(process(read))[1] for _ in range(2)]
        for number in (1, 2):
            stage_version(stage, layout, number)
            for pipe in pipes:
                pipe.send(stage.staged_version())
            ((address, *how),), mapped = cuda.calls, mapped_at(cuda.calls[0][0])  # the writer has locked it once, as it was made
            for pipe in pipes:
                ((_, *its),), theirs, footprint = pipe.recv()
                assert (its, theirs) == (how, mapped) and address in cuda.locked
                assert footprint.host == 0 and layout.nbytes <= footprint.mapped  # the memory counts where it was made
            own = StageReader(pinned=True, own=stage)
            own.staged = stage.staged_version()
            with own.reading() as (_, version):
                assert version == number and len(cuda.calls) == 1
            assert own.footprint() == Footprint()
            own.close()
        assert [pipe.recv() for pipe in pipes] == [(1, {})] * 2
    stage.close()
    assert not cuda.locked
