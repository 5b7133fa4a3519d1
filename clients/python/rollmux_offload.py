"""Offloading of named tensors to host memory and back, in place: parameters, buffers, gradients, and optimizer state.

    offloader = Offloader(lambda: state_of(model, optimizer))
    with job.phase("training"):
        offloader.restore()
        train()
        offloader.offload()

What moves is the memory below the tensors (their storage), not the tensors themselves. All references to a parameter, an
optimizer's state or a view of either find it restored, and tensors that share memory, such as tied weights, still share it.

With a GPU, the host memory is page-locked and kept, because locking is slow. On a CPU, "device" is the process's own memory: it is
really released, so the resident size of the process falls by these bytes while shared memory holds them.
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

_ALIGNMENT = 64  # bytes, a cache line
_MOST_UNUSED = 2  # largest size of host memory to keep, as a multiple of the offloaded bytes
_MMAP_THRESHOLD = -3  # M_MMAP_THRESHOLD of glibc's malloc.h
_FREES_S = 30.0  # longest time until the memory of a process that ends is free
_LOOKS_S = 0.5  # seconds between checks for free memory


class Offloader:
    """The tensors of one owner, either on the device or in host memory.

    Args:
        tensors: Function that returns tensors by name. It is called now and at each offload, because an optimizer creates its state
            in its first step. If any tensor is on a GPU, tensors that are not on a GPU stay where they are and count as host
            memory. DTensors count with their local part. For tensors over the memory of a file see `own_memory`.
        scratch: Function that returns tensors whose content is not needed again. Their memory is released and allocated together
            with the others', unless it also belongs to one of those or is not torch's own.

    Attributes:
        offloaded: Whether the tensors are in host memory.
    """

    def __init__(self, tensors: Callable[[], Mapping[str, Tensor]], scratch: Callable[[], Iterable[Tensor]] = tuple) -> None:
        self._tensors, self._scratch = tensors, scratch
        own_memory(_moving(tensors().values())[0])
        self._segment: Segment | None = None
        self._read: Segment | None = None  # segment with a reader (`shards`), perhaps in another thread
        self._spare: Segment | None = None  # page-locked segment for the next offload
        self._lock = Lock()  # protects the change of a segment's role while it has a reader
        self._parked: list[tuple[UntypedStorage, int, int]] = []  # storage, its offset in the segment, its bytes
        self._emptied: list[tuple[UntypedStorage, int]] = []  # storage of scratch, its bytes
        self.offloaded = False

    def offload(self) -> Footprint:
        """Copy the tensors to host memory, then release the device's memory. Has no effect if they are offloaded."""
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
            torch.cuda.synchronize()  # finish the copies before their sources are released
        self._release_storages()
        self.offloaded = True
        if on_gpu:
            release_device_memory()
        else:
            segment.unmap_pages()
            release_free_memory()
        return self.footprint()

    def restore(self) -> Footprint:
        """Bring the tensors back to the device in place. Has no effect if they are not offloaded.

        Raises:
            torch.OutOfMemoryError: The GPU has too little free memory, even after `await_device_memory`. Nothing has changed.
        """
        if not self.offloaded or self._segment is None:
            return self.footprint()
        segment = self._segment
        if segment.pinned:
            unused = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()  # memory that torch holds but does not use
            nbytes = sum(size for _, _, size in self._parked) + sum(size for _, size in self._emptied)
            await_device_memory(nbytes - unused, "state that comes back")
        try:
            for storage, offset, size in self._parked:
                storage.resize_(size)
                _bytes(storage).copy_(segment.bytes[offset : offset + size], non_blocking=segment.pinned)
            for storage, size in self._emptied:
                storage.resize_(size)
        except BaseException:  # free memory in pieces that are too small: others need the part that was allocated
            self._release_storages()
            if segment.pinned:
                release_device_memory()
            raise
        self.offloaded = False
        if segment.pinned:
            torch.cuda.synchronize()
        else:
            segment.unmap_pages()
            self._drop_segment()
        return self.footprint()

    @contextmanager
    def shards(self, tensors: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
        """Provide some of the tensors as they are now, in host memory, for one reader at a time. DTensors give their local part.

        Offloaded tensors are read in place, and stay there for the reader if they are restored or offloaded again meanwhile. Other
        tensors are copied. The result is valid inside the context. Another thread than the one that entered it may leave it.

        Args:
            tensors: The tensors by name.
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
        """Keep the tensors where they are, and give unused memory back to the device or the system."""
        if any(tensor.device.type == "cuda" for tensor in _local(self._tensors().values())):
            release_device_memory()
        else:
            release_free_memory()
        return self.footprint()

    def footprint(self) -> Footprint:
        """Return the bytes on the device and in host memory."""
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
        """Release the host memory. Tensors that are offloaded are lost."""
        self._drop_segment()
        if self._spare is not None:
            self._spare.close()
        self._parked, self._spare, self._emptied = [], None, []

    def _release_storages(self) -> None:
        for storage in (*(parked[0] for parked in self._parked), *(emptied[0] for emptied in self._emptied)):
            storage.resize_(0)

    def _only_scratch(self, others: Iterable[UntypedStorage]) -> list[UntypedStorage]:
        """Return the storages of scratch tensors that can be released and that no other tensor uses."""
        other_addresses = {storage.data_ptr() for storage in others}
        own = [storage for storage in _storages(_local(self._scratch())) if storage.resizable()]
        return [storage for storage in own if storage.data_ptr() not in other_addresses]

    def _room(self, nbytes: int, pinned: bool) -> Segment:
        with self._lock:
            if self._segment is not None and self._segment is self._read:
                self._segment, self._spare = self._spare, None
        nbytes = max(nbytes, 1)
        # Replace a segment that is too small, or much larger than needed.
        if self._segment is None or not nbytes <= len(self._segment.bytes) <= _MOST_UNUSED * nbytes:
            self._drop_segment()
            self._segment = Segment(nbytes, pinned)
        return self._segment

    def _drop_segment(self) -> None:
        with self._lock:
            if self._segment is not None and self._segment is not self._read:  # otherwise its reader closes it
                self._segment.close()
            self._segment = None


def state_of(model: torch.nn.Module, optimizer: Any = None) -> dict[str, Tensor]:
    """Return the tensors of a trainer by name: parameters, buffers, gradients, and the optimizer's state of each parameter."""
    tensors = {f"model.{name}": tensor for name, tensor in (*model.named_parameters(), *model.named_buffers())}
    tensors |= {f"grad.{name}": one.grad for name, one in model.named_parameters() if one.grad is not None}
    for number, values in enumerate(optimizer.state.values() if optimizer is not None else ()):
        tensors |= {f"optimizer.{number}.{name}": one for name, one in values.items() if isinstance(one, Tensor)}
    return tensors


class GradientBuckets:
    """The buffers in which DistributedDataParallel reduces gradients. They are as large as all gradients, and live as long as it.

    Calling the object returns the buffers of the last backward pass, for `scratch` of an `Offloader`.

    Args:
        model: Model without a communication hook. A hook is registered that averages, as DistributedDataParallel does by default.

    Raises:
        RuntimeError: The model has a hook already.
    """

    def __init__(self, model: DistributedDataParallel) -> None:
        self._buffers: list[Tensor] = []
        self._is_whole = False  # whether the last backward pass has reduced all of its buckets
        hook: Any = lambda group, bucket: self._reduce(group, bucket)  # noqa: E731 - torch reads annotations, which are text here
        model.register_comm_hook(model.process_group, hook)

    def __call__(self) -> list[Tensor]:
        """Return the buffers of the last backward pass."""
        return self._buffers

    def _reduce(self, group: Any, bucket: Any) -> Any:
        if self._is_whole:  # torch replaces the buckets after the first pass
            self._buffers = []
        self._buffers.append(bucket.buffer())
        self._is_whole = bucket.is_last()
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        return allreduce_hook(group, bucket)


def await_device_memory(nbytes: int, what: str) -> None:
    """Wait until the GPU has enough free memory. A process that was killed or is leaving may still release some.

    Args:
        nbytes: Free bytes that are needed on the current GPU.
        what: Name of what needs them, for the message.

    Raises:
        torch.OutOfMemoryError: There is too little free memory, even after 30 s.
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
    """Let blocks of a megabyte or more return to the system when they are freed. By default glibc may keep blocks of up to 32 MB.

    Activations have this size. If they were kept, they would add to the peak memory of the other half of an update.
    """
    option = getattr(ctypes.CDLL(None), "mallopt", None)
    if option is not None:
        option(_MMAP_THRESHOLD, OWN_PAGES)


def release_device_memory() -> None:
    """Return unused device memory to the driver. On an H100, cuBLAS alone keeps 32 MiB for each stream."""
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if clear is not None:
        clear()
    torch.cuda.empty_cache()


def release_free_memory() -> None:
    """Return freed memory to the system, which glibc otherwise keeps. Does nothing with another C library."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def own_memory(tensors: Iterable[Tensor]) -> None:
    """Copy tensors over foreign memory (a file's, NumPy's) to torch's own memory, in place.

    Foreign memory cannot be released. Its alignment is arbitrary too, and kernels round differently by alignment, so results after
    an offload could differ in the last bits from those before.
    """
    copies: dict[int, UntypedStorage] = {}
    for tensor in _local(tensors):
        storage = tensor.untyped_storage()
        if storage.nbytes() and not storage.resizable():
            copy = copies.setdefault(storage.data_ptr(), _bytes(storage).clone().untyped_storage())
            with torch.no_grad():
                tensor.set_(copy, tensor.storage_offset(), tensor.size(), tensor.stride())


def _moving(tensors: Iterable[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Split tensors into those that move, which are on a GPU if any is, and the others."""
    local = _local(tensors)
    device = "cuda" if any(tensor.device.type == "cuda" for tensor in local) else "cpu"
    return [one for one in local if one.device.type == device], [one for one in local if one.device.type != device]


def _storages(tensors: Iterable[Tensor]) -> list[UntypedStorage]:
    """Return each storage of the tensors once."""
    storages = [tensor.untyped_storage() for tensor in tensors]
    return list({storage.data_ptr(): storage for storage in storages if storage.nbytes()}.values())


def _local(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors]


def _bytes(storage: UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
