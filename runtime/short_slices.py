"""Short scheduling slices for a thread: it runs for less time at once, and is scheduled sooner when it wakes beside busy threads.

Linux 6.12 and later let a thread choose its slice (sched_setattr(2), `sched_runtime` of a SCHED_OTHER thread). The slice is no
priority and does not change the thread's share. On other systems nothing changes.
"""

from __future__ import annotations

import ctypes
import platform
import sys

_SYSCALLS = {"x86_64": (314, 315), "aarch64": (274, 275)}  # sched_setattr, sched_getattr
_SLICE_NS = 100_000  # the shortest slice that Linux grants


class _Attributes(ctypes.Structure):
    """The first version of `struct sched_attr`."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime", ctypes.c_uint64),
        ("deadline", ctypes.c_uint64),
        ("period", ctypes.c_uint64),
    )


def ask_for_short_slices() -> bool:
    """Request short slices for the calling thread, if it is an ordinary one, and return whether they were granted."""
    calls = _SYSCALLS.get(platform.machine())
    if sys.platform != "linux" or calls is None:
        return False
    libc, attributes = ctypes.CDLL(None, use_errno=True), _Attributes()
    size = ctypes.sizeof(attributes)
    if libc.syscall(calls[1], 0, ctypes.byref(attributes), size, 0) != 0 or attributes.policy != 0:
        return False
    attributes.size, attributes.runtime = size, _SLICE_NS
    return bool(libc.syscall(calls[0], 0, ctypes.byref(attributes), 0) == 0)
