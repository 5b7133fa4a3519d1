"""Moves named tensors to host memory and back, in place: parameters, buffers, gradients, optimizer state, all the same.

    offloader = Offloader(lambda: state_of(model, optimizer))
    with job.phase("training"):
        offloader.restore()
        train()
        offloader.offload()

What moves is the memory below the tensors (their storage), not the tensors: whoever refers to a parameter, an optimizer's state
or a view of either finds it restored, and tensors that share memory, such as tied weights, still do.

On a GPU the host side is page-locked and kept, since locking is slow. On a CPU the device is the process's own memory: it is really
released, and its resident size falls by those bytes, while shared memory holds them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from threading import Lock
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import torch
from rollmux_segment import OWN_PAGES, Footprint, Segment
from torch import Tensor, UntypedStorage

if TYPE_CHECKING:
    from torch.nn.parallel import DistributedDataParallel

_ALIGNMENT = 64  # bytes; whole cache lines
_MOST_UNUSED = 2  # times what waits, that host memory which is kept may be large
_MMAP_THRESHOLD = -3  # M_MMAP_THRESHOLD of glibc's malloc.h
_FREES_S = 30.0  # that the memory of a process which ends may take to come free
_LOOKS_S = 0.5  # between looks at what is free


class Offloader:
    """The tensors of one owner, on the device or in host memory.

    Args:
        tensors: gives {name: tensor}, asked now and at each offload, since an optimizer makes its state with its first step. If
            any is on a GPU, those that are not stay where they are and count as host memory. DTensors count by their local
            part. See `own_memory` for tensors over a file.
        scratch: Function that returns tensors whose content is not needed again. Their memory is released and allocated with the
            others', unless it is also below one of those.
    """

    def __init__(self, tensors: Callable[[], Mapping[str, Tensor]], scratch: Callable[[], Iterable[Tensor]] = tuple) -> None:
        self._tensors, self._scratch = tensors, scratch
        own_memory(_moving(tensors().values())[0])
        self._segment: Segment | None = None
        self._read: Segment | None = None  # whose content somebody reads (`shards`), in another thread perhaps
        self._spare: Segment | None = None  # page-locked; the next one that is needed
        self._lock = Lock()  # of what becomes of a segment that is read
        self._parked: list[tuple[UntypedStorage, int, int]] = []  # storage, its offset in the segment, its bytes
        self._emptied: list[tuple[UntypedStorage, int]] = []  # storage of scratch, its bytes
        self.offloaded = False

    def offload(self) -> Footprint:
        """Copy to host memory, then release the device's; again: no effect."""
        if self.offloaded:
            return self.footprint()
        tensors, _ = _moving(self._tensors().values())
        own_memory(tensors)
        storages = _storages(tensors)
        self._emptied = [(storage, storage.nbytes()) for storage in self._only_scratch(storages)]
        self._parked, total = [], 0
        for storage in storages:
            self._parked.append((storage, total, storage.nbytes()))
            total += -(-storage.nbytes() // _ALIGNMENT) * _ALIGNMENT
        on_gpu = any(tensor.device.type == "cuda" for tensor in tensors)
        segment = self._room(total, on_gpu)
        for storage, offset, size in self._parked:
            segment.bytes[offset : offset + size].copy_(_bytes(storage), non_blocking=on_gpu)
        if on_gpu:
            torch.cuda.synchronize()  # before the memory that is being read goes
        for storage in (*(parked[0] for parked in self._parked), *(emptied[0] for emptied in self._emptied)):
            storage.resize_(0)
        self.offloaded = True
        if on_gpu:
            release_device_memory()
        else:
            segment.unmap_pages()
            release_free_memory()
        return self.footprint()

    def restore(self) -> Footprint:
        """Bring everything back in place; again: no effect.

        Raises:
            torch.OutOfMemoryError: The GPU has too little free memory, also after `await_device_memory`; all is as it was.
        """
        if not self.offloaded or self._segment is None:
            return self.footprint()
        segment = self._segment
        if segment.pinned:
            unused = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()  # by torch in this process
            nbytes = sum(size for _, _, size in self._parked) + sum(size for _, size in self._emptied)
            await_device_memory(nbytes - unused, "state that comes back")
        for storage, offset, size in self._parked:
            storage.resize_(size)
            _bytes(storage).copy_(segment.bytes[offset : offset + size], non_blocking=segment.pinned)
        for storage, size in self._emptied:
            storage.resize_(size)
        self.offloaded = False
        if segment.pinned:
            torch.cuda.synchronize()
        else:
            segment.unmap_pages()
            self._drop_segment()
        return self.footprint()

    @contextmanager
    def shards(self, tensors: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
        """Some of its tensors as they are now, in host memory; of DTensors the local part. For one reader at a time.

        Those that are offloaded are read where they wait, and stay there for the reader when they are restored or offloaded anew
        meanwhile; of others there are copies. Valid inside the context, which another thread may leave than the one that entered.
        """
        places = {storage._cdata: (offset, size) for storage, offset, size in self._parked} if self.offloaded else {}
        with self._lock:
            segment = self._read = self._segment if self.offloaded else None
        parts = {}
        for (name, _), tensor in zip(tensors.items(), _local(tensors.values())):
            local = tensor.detach()
            place = places.get(local.untyped_storage()._cdata)
            if place is not None and segment is not None:
                offset, size = place
                flat = segment.bytes[offset : offset + size].view(local.dtype)
                local = flat.as_strided(local.size(), local.stride(), flat.storage_offset() + local.storage_offset())
            else:
                local = local.to("cpu", copy=True)
            parts[name] = local
        try:
            yield parts
        finally:
            parts.clear()
            self._end_reading()

    def _end_reading(self) -> None:
        with self._lock:
            segment, self._read = self._read, None
            if segment is None:
                return
            if segment is self._segment:
                segment.unmap_pages()
            elif segment.pinned and self._spare is None:
                self._spare = segment
            else:
                segment.close()

    def stay(self) -> Footprint:
        """Stay where it is; memory that nothing uses is given back to the device."""
        if any(tensor.device.type == "cuda" for tensor in _local(self._tensors().values())):
            release_device_memory()
        else:
            release_free_memory()
        return self.footprint()

    def footprint(self) -> Footprint:
        """Bytes on the device, and of the host memory held for it."""
        moves, stays = _moving(self._tensors().values())
        moving, staying = (sum(storage.nbytes() for storage in _storages(part)) for part in (moves, stays))
        moving += sum(storage.nbytes() for storage in self._only_scratch(_storages(moves)))
        on_gpu = any(tensor.device.type == "cuda" for tensor in moves)
        free, capacity = torch.cuda.mem_get_info() if on_gpu else (0, 0)
        peak = torch.cuda.max_memory_reserved() if on_gpu else 0
        with self._lock:
            segments = {id(one): one for one in (self._segment, self._read, self._spare) if one is not None}
            host = sum((segment.footprint() for segment in segments.values()), Footprint())
        return host + Footprint(0 if self.offloaded else moving, staying, staying, peak, capacity, capacity - free)

    def close(self) -> None:
        """Give the host memory back. Tensors that are offloaded are lost."""
        self._drop_segment()
        if self._spare is not None:
            self._spare.close()
        self._parked, self._spare, self._emptied = [], None, []

    def _only_scratch(self, others: Iterable[UntypedStorage]) -> list[UntypedStorage]:
        """Return the storages of scratch that are below none of the tensors that are kept."""
        other_addresses = {storage.data_ptr() for storage in others}
        return [storage for storage in _storages(_local(self._scratch())) if storage.data_ptr() not in other_addresses]

    def _room(self, nbytes: int, pinned: bool) -> Segment:
        with self._lock:
            if self._segment is not None and self._segment is self._read:
                self._segment, self._spare = self._spare, None
        nbytes = max(nbytes, 1)
        # Too small, or mostly for what does not wait any more.
        if self._segment is None or not nbytes <= len(self._segment.bytes) <= _MOST_UNUSED * nbytes:
            self._drop_segment()
            self._segment = Segment(nbytes, pinned)
        return self._segment

    def _drop_segment(self) -> None:
        with self._lock:
            if self._segment is not None and self._segment is not self._read:  # else its reader closes it
                self._segment.close()
            self._segment = None


def state_of(model: torch.nn.Module, optimizer: Any = None) -> dict[str, Tensor]:
    """What a trainer has on its device: parameters, buffers, gradients, and what an optimizer keeps of each parameter."""
    tensors = {f"model.{name}": tensor for name, tensor in (*model.named_parameters(), *model.named_buffers())}
    tensors |= {f"grad.{name}": one.grad for name, one in model.named_parameters() if one.grad is not None}
    for number, values in enumerate(optimizer.state.values() if optimizer is not None else ()):
        tensors |= {f"optimizer.{number}.{name}": one for name, one in values.items() if isinstance(one, Tensor)}
    return tensors


class GradientBuckets:
    """The buffers in which DistributedDataParallel reduces gradients: as large as all gradients, and kept until it is deleted.

    Call it for the buffers of the last backward pass, as `scratch` of an `Offloader`.

    Args:
        model: Model without a communication hook; one that averages, as without a hook, is registered.

    Raises:
        RuntimeError: The model has a hook already.
    """

    def __init__(self, model: DistributedDataParallel) -> None:
        self._buffers: list[Tensor] = []
        self._is_whole = False  # the last backward pass has reduced all of its buckets
        hook: Any = lambda group, bucket: self._reduce(group, bucket)  # noqa: E731 - torch reads annotations, which are text here
        model.register_comm_hook(model.process_group, hook)

    def __call__(self) -> list[Tensor]:
        return self._buffers

    def _reduce(self, group: Any, bucket: Any) -> Any:
        if self._is_whole:  # torch makes others after the first pass
            self._buffers = []
        self._buffers.append(bucket.buffer())
        self._is_whole = bucket.is_last()
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        return allreduce_hook(group, bucket)


def await_device_memory(nbytes: int, what: str) -> None:
    """Wait until the GPU has room: a process that was killed, or a neighbour that leaves, may still free some.

    Args:
        nbytes: Free bytes of the current GPU that are needed.
        what: Name of what needs them, for the message.

    Raises:
        torch.OutOfMemoryError: There is too little, also after 30 s; one line.
    """
    until_s = monotonic() + _FREES_S
    while (free := torch.cuda.mem_get_info()[0]) < nbytes:
        if monotonic() >= until_s:
            raise torch.OutOfMemoryError(
                f"out of memory: {what} needs {nbytes / 1e9:.1f} GB of the GPU, {free / 1e9:.1f} GB are free; other processes "
                "have the rest"
            )
        sleep(_LOOKS_S)


def map_large_blocks() -> None:
    """Let blocks from a megabyte on go back to the system when they are freed; glibc may keep those of up to 32 MB.

    Activations are of that size: kept, they come on top of whatever is largest in the other half of an update.
    """
    option = getattr(ctypes.CDLL(None), "mallopt", None)
    if option is not None:
        option(_MMAP_THRESHOLD, OWN_PAGES)


def release_device_memory() -> None:
    """Hand device memory that nothing uses back to the driver; on an H100 cuBLAS alone keeps 32 MiB for each stream."""
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if clear is not None:
        clear()
    torch.cuda.empty_cache()


def release_free_memory() -> None:
    """Hand memory that was freed back to the system, which glibc otherwise keeps for later; nothing with another C library."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def own_memory(tensors: Iterable[Tensor]) -> None:
    """Give tensors over memory that is not torch's own (a file's, NumPy's) memory of their own, in place.

    Such memory cannot be released. It is also aligned anyhow, so that kernels round differently in it: state that comes back from
    host memory would compute other last bits than it did before it went.
    """
    copies: dict[int, UntypedStorage] = {}
    for tensor in _local(tensors):
        storage = tensor.untyped_storage()
        if storage.nbytes() and not storage.resizable():
            copy = copies.setdefault(storage.data_ptr(), _bytes(storage).clone().untyped_storage())
            with torch.no_grad():
                tensor.set_(copy, tensor.storage_offset(), tensor.size(), tensor.stride())


def _moving(tensors: Iterable[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Those that are on a GPU if any is, and the others."""
    local = _local(tensors)
    device = "cuda" if any(tensor.device.type == "cuda" for tensor in local) else "cpu"
    return [one for one in local if one.device.type == device], [one for one in local if one.device.type != device]


def _storages(tensors: Iterable[Tensor]) -> list[UntypedStorage]:
    """Each storage below the tensors once."""
    storages = [tensor.untyped_storage() for tensor in tensors]
    return list({storage.data_ptr(): storage for storage in storages if storage.nbytes()}.values())


def _local(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors]


def _bytes(storage: UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
