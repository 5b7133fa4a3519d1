"""Short slices of a core for a thread: it does not run for longer, and is run sooner when it wakes beside others that never sleep.

Linux 6.12 and later take a slice from whoever asks for one (sched_setattr(2), `sched_runtime` of a thread of SCHED_OTHER); it is no
priority, and gives nobody a larger share. Elsewhere nothing changes.
"""

from __future__ import annotations

import ctypes
import platform
import sys

_SYSCALLS = {"x86_64": (314, 315), "aarch64": (274, 275)}  # sched_setattr, sched_getattr
_SLICE_NS = 100_000  # the shortest that there is


class _Attributes(ctypes.Structure):
    """`struct sched_attr` of its first version."""

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
    """Ask for them for the calling thread, if it is an ordinary one. Returns whether they were granted."""
    calls = _SYSCALLS.get(platform.machine())
    if sys.platform != "linux" or calls is None:
        return False
    libc, attributes = ctypes.CDLL(None, use_errno=True), _Attributes()
    size = ctypes.sizeof(attributes)
    if libc.syscall(calls[1], 0, ctypes.byref(attributes), size, 0) != 0 or attributes.policy != 0:
        return False
    attributes.size, attributes.runtime = size, _SLICE_NS
    return bool(libc.syscall(calls[0], 0, ctypes.byref(attributes), 0) == 0)
